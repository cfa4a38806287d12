"""Means over demonstration seeds and paired gains, compared with SciPy."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from iclbench import tables
from iclbench.evaluation import cells
from iclbench.evaluation.contestant import Contestant
from iclbench.language.answering.answers import Answers
from iclbench.language.answering.session import LanguageOutcome, Pass
from iclbench.language.cell import shared_columns, value_rows
from iclbench.language.prompting.prompts import LanguagePrompts
from iclbench.language.summary import summary_path, write_summary
from iclbench.language.tasks.selection import language_tasks

EPISODES = 12
PLAIN, OTHER = (Contestant(name, name, "backbone", name, variant="v") for name in ("model", "model+deep-thinking"))


@pytest.fixture(scope="module")
def task():
    return language_tasks(["to-upper"])[0]


def seed_prompts(task, seeds: int) -> list[LanguagePrompts]:
    return [LanguagePrompts(task, 5, EPISODES, demo_seed=seed) for seed in range(seeds)]


def write_cell(
    results: Path, contestant: Contestant, prompts: LanguagePrompts, correct: np.ndarray, traced: bool = False
) -> None:
    """Write a finished cell with these answers."""
    answers = Answers({"accuracy": correct}, ["x"] * EPISODES, [None] * EPISODES)
    trace = {
        t: Pass(answers, np.full(EPISODES, t - 1.0), np.full(EPISODES, np.nan if t == 1 else 0.1 * t)) for t in (1, 2)
    }
    outcome = LanguageOutcome(
        answers, f"found in {prompts.demo_seed % 2}", trace if traced else {}, trace if traced else {}
    )

    def work() -> cells.Tables:
        errors = cells.error_rows(contestant, prompts, {"accuracy": correct[:, None]}, n_context=np.asarray([5]))
        return {"errors": errors, "values": value_rows(contestant, prompts, outcome)}

    assert cells.compute_cell(results, contestant, prompts, shared_columns(contestant, prompts), work) is None


def summary(results: Path, run: str) -> pd.DataFrame:
    (path,) = (results / "tables").glob(f"*/summary/{run}.values.parquet")
    return tables.read("values", path)


def draw_scores(seeds: int, p: float, seed: int) -> np.ndarray:
    return (np.random.default_rng(seed).random((seeds, EPISODES)) < p).astype(float)


def test_the_mean_over_seeds_has_a_students_t_interval(task, tmp_path: Path) -> None:
    correct = draw_scores(4, 0.6, 0)
    for prompts, seed_scores in zip(seed_prompts(task, 4), correct, strict=True):
        write_cell(tmp_path, PLAIN, prompts, seed_scores)
    write_summary(tmp_path, PLAIN, seed_prompts(task, 4))
    rows = summary(tmp_path, "model").set_index("metric")
    means = correct.mean(1)
    interval = stats.ttest_1samp(means, 0).confidence_interval(0.95)
    row = rows.loc["accuracy"]
    np.testing.assert_allclose([row["value"], row["low"], row["high"]], [means.mean(), *interval], rtol=1e-12)
    assert rows.loc["accuracy_sd", "value"] == pytest.approx(means.std(ddof=1))
    assert row["n_episodes"] == 4 * EPISODES and row["reason"] == "found in 0; found in 1"
    assert rows["prompt_set"].isna().all() and rows["axis"].isna().all() and "balanced_accuracy" in rows.index


def test_the_gain_has_the_interval_of_the_paired_differences(task, tmp_path: Path) -> None:
    plain, other = draw_scores(5, 0.4, 1), draw_scores(5, 0.7, 2)
    for prompts, a, b in zip(seed_prompts(task, 5), plain, other, strict=True):
        write_cell(tmp_path, PLAIN, prompts, a)
        write_cell(tmp_path, OTHER, prompts, b)
    write_summary(tmp_path, OTHER, seed_prompts(task, 5), PLAIN)
    gain = summary(tmp_path, OTHER.run).set_index("metric").loc["accuracy_gain"]
    expected = stats.ttest_rel(other.mean(1), plain.mean(1)).confidence_interval(0.95)
    np.testing.assert_allclose([gain["low"], gain["high"]], expected, rtol=1e-12)
    assert gain["value"] == pytest.approx((other - plain).mean()) and gain["contestant"] == OTHER.name


def test_for_a_single_seed_intervals_are_over_queries(task, tmp_path: Path) -> None:
    plain, other = draw_scores(1, 0.4, 1)[0], draw_scores(1, 0.7, 2)[0]
    (prompts,) = seed_prompts(task, 1)
    write_cell(tmp_path, PLAIN, prompts, plain)
    write_cell(tmp_path, OTHER, prompts, other)
    write_summary(tmp_path, OTHER, [prompts], PLAIN)
    rows = summary(tmp_path, OTHER.run).set_index("metric")
    wilson = stats.binomtest(int(other.sum()), EPISODES).proportion_ci(0.95, method="wilson")
    assert (rows.loc["accuracy", "low"], rows.loc["accuracy", "high"]) == pytest.approx((wilson.low, wilson.high))
    assert "accuracy_sd" not in rows.index
    gain = rows.loc["accuracy_gain"]
    bootstrap = stats.bootstrap(((other - plain),), np.mean, method="percentile", rng=0).confidence_interval
    assert gain["value"] == pytest.approx((other - plain).mean())
    assert (gain["low"], gain["high"]) == pytest.approx((bootstrap.low, bootstrap.high), abs=0.09)


def test_episodes_that_one_contestant_skipped_are_not_paired(task, tmp_path: Path) -> None:
    plain, other = draw_scores(1, 0.4, 1)[0], draw_scores(1, 0.7, 2)[0]
    other[:4] = np.nan
    (prompts,) = seed_prompts(task, 1)
    write_cell(tmp_path, PLAIN, prompts, plain)
    write_cell(tmp_path, OTHER, prompts, other)
    write_summary(tmp_path, OTHER, [prompts], PLAIN)
    gain = summary(tmp_path, OTHER.run).set_index("metric").loc["accuracy_gain"]
    assert gain["n_episodes"] == 8 and gain["value"] == pytest.approx((other - plain)[4:].mean())


def test_every_pass_has_a_mean_on_the_test_and_development_splits(task, tmp_path: Path) -> None:
    for prompts, seed_scores in zip(seed_prompts(task, 3), draw_scores(3, 0.5, 3), strict=True):
        write_cell(tmp_path, OTHER, prompts, seed_scores, traced=True)
    write_summary(tmp_path, OTHER, seed_prompts(task, 3))
    rows = summary(tmp_path, OTHER.run).query("axis == 'passes'")
    assert rows.groupby(["evaluator", "metric"])["axis_value"].agg(list).to_dict() == {
        (evaluator, metric): passes
        for evaluator in ("development", "greedy")
        for metric, passes in {"accuracy": [1, 2], "kl_to_icl": [1, 2], "memory_change": [2]}.items()
    }
    assert rows.query("metric == 'kl_to_icl' and axis_value == 2")["value"].tolist() == [1.0, 1.0]


def test_a_summary_replaces_older_ones_that_another_process_may_already_have_removed(
    task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Several workers write the same summary. Older ones are removed, but at least one must exist at any time."""
    (prompts,) = seed_prompts(task, 1)
    write_cell(tmp_path, PLAIN, prompts, draw_scores(1, 0.5, 4)[0])
    path = summary_path(tmp_path, "model", prompts)
    older = path.parents[1].with_name(path.parents[1].name[:-8] + "00000000") / "summary" / path.name
    older.parent.mkdir(parents=True)
    older.touch()
    unlink = Path.unlink

    def unlink_twice(file: Path, missing_ok: bool = False) -> None:
        assert file != older or path.is_file()
        unlink(file, missing_ok=True)
        unlink(file, missing_ok=missing_ok or file != older)

    monkeypatch.setattr(Path, "unlink", unlink_twice)
    write_summary(tmp_path, PLAIN, [prompts])
    assert path.is_file() and not older.exists()
    assert set(tables.read("values", path)["mean_of"]) == {prompts.id}


def fail() -> cells.Tables:
    raise ValueError("no")


def test_a_mean_fails_if_one_prompt_set_failed_and_is_not_written_if_all_failed(task, tmp_path: Path) -> None:
    first, second = seed_prompts(task, 2)
    for prompts, seed_scores in zip((first, second), draw_scores(2, 0.5, 4), strict=True):
        write_cell(tmp_path, PLAIN, prompts, seed_scores)
        write_cell(tmp_path, OTHER, prompts, seed_scores)
    write_summary(tmp_path, PLAIN, [first, second])
    cells.compute_cell(tmp_path, PLAIN, second, shared_columns(PLAIN, second), fail)
    write_summary(tmp_path, PLAIN, [first, second])
    rows = summary(tmp_path, "model").set_index("metric")
    assert set(rows["status"]) == {"failed"} and rows["value"].isna().all() and "accuracy_sd" not in rows.index
    assert rows["reason"].str.contains("1 of 2 .*ValueError: no").all()
    write_summary(tmp_path, OTHER, [first, second], PLAIN)
    rows = summary(tmp_path, OTHER.run).set_index("metric")
    assert rows.loc["accuracy", "status"] == "ok" and rows.loc["accuracy_gain", "status"] == "failed"
    cells.compute_cell(tmp_path, PLAIN, first, shared_columns(PLAIN, first), fail)
    write_summary(tmp_path, PLAIN, [first, second])
    assert not list((tmp_path / "tables").glob("*/summary/model.values.parquet"))


def test_a_pass_that_failed_on_one_prompt_set_has_no_mean_and_other_passes_have_one(task, tmp_path: Path) -> None:
    prompt_sets = seed_prompts(task, 3)
    for prompts, seed_scores in zip(prompt_sets, draw_scores(3, 0.5, 3), strict=True):
        write_cell(tmp_path, OTHER, prompts, seed_scores, traced=True)
    path = cells.cell_path(tmp_path, OTHER, prompt_sets[1])
    rows = tables.read("values", path)
    is_failed = rows["axis"].eq("passes") & rows["axis_value"].eq(2) & rows["evaluator"].eq("greedy")
    rows.loc[is_failed, ["value", "low", "high"]] = np.nan
    rows.loc[is_failed, ["status", "reason"]] = "failed", "not finite"
    tables.write("values", rows[~is_failed | rows["metric"].eq("accuracy")], path, {})
    write_summary(tmp_path, OTHER, prompt_sets)
    summary_rows = summary(tmp_path, OTHER.run)
    failed = summary_rows[summary_rows["status"].eq("failed")]
    assert set(zip(failed["evaluator"], failed["axis_value"], failed["metric"], strict=True)) == {
        ("greedy", 2.0, metric) for metric in ("accuracy", "kl_to_icl", "memory_change")
    }
    assert failed["reason"].str.contains("1 of 3 .*not finite").all()
    assert summary_rows.loc[summary_rows["axis"].isna() & summary_rows["metric"].eq("accuracy"), "status"].tolist() == [
        "ok"
    ]
