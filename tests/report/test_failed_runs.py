"""Runs that failed at all or at some context sizes are listed with the reason, and no mean is over other seeds."""

import shutil
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from iclbench import tables
from iclbench.analysis import normalised
from iclbench.report.blocks import Figure, Table
from iclbench.report.data import Results, Slice, load
from iclbench.report.sections import heat_map, leaderboard, missing, summary
from iclbench.report.sections.footing import _steps
from iclbench.report.sections.heat_map import _reasons
from iclbench.report.sections.summary import lacking

DIVERGED = "diverged at step 2000: loss is nan"
REASON = "squared_error is nan in 42 of 64 episodes, at 3 of 21 context sizes; first in episode 6 after 2 examples"
FAILED_RUN, FAILED_SIZES = "linear-gpt2-small-s1", (2, 5, 20)


def with_failed_run(results: Path, path: Path, at_all_sizes: bool) -> Path:
    """A copy of the synthetic results in which one of three seeds failed on one task, at all or some context sizes."""
    shutil.copytree(results, path, dirs_exist_ok=True)
    table = path / "tables" / "linear.values.parquet"
    values = tables.read("values", table)
    is_run = values["run"].eq(FAILED_RUN) & values["shift"].eq("none") & values["evaluator"].eq("next")
    is_failed = is_run & (values["n_context"].isin(FAILED_SIZES) | values["metric"].eq("auc"))
    missing = {"value": pd.NA, "low": pd.NA, "high": pd.NA, "n_episodes": pd.NA, "status": "failed", "reason": REASON}
    if at_all_sizes:
        is_failed = is_run & values["metric"].eq("squared_error") & values["n_context"].eq(2)
        missing |= {"n_context": pd.NA}
    values.loc[is_failed, list(missing)] = list(missing.values())
    is_removed = is_run & (~is_failed if at_all_sizes else values["metric"].eq("score"))
    tables.write("values", values[~is_removed], table, {})
    (path / "tables" / "linear-none" / f"{FAILED_RUN}.errors.parquet").unlink()
    return path


@pytest.fixture(scope="module", params=[False, True], ids=["at some sizes", "at all sizes"])
def failed(request: pytest.FixtureRequest, results: Path, tmp_path_factory: pytest.TempPathFactory) -> Results:
    return load(with_failed_run(results, tmp_path_factory.mktemp("failed"), request.param))


@pytest.fixture
def task(failed: Results) -> Slice:
    return next(task for task in failed.slices if task.task == "linear")


def test_a_failed_model_is_last_without_a_rank_and_with_the_reason(task: Slice) -> None:
    section = leaderboard.section(task)
    assert section is not None
    (board,) = (block for block in section.walk() if isinstance(block, Table))
    last = board.frame.iloc[-1]
    assert last["contestant"] == "gpt2" and last["reason"] == REASON
    assert pd.isna(last["rank"]) and pd.isna(last["auc"]) and pd.isna(last["score"])
    assert board.frame["contestant"].tolist().count("gpt2") == 1
    assert "failed" in [column.header for column in board.columns]
    assert pd.notna(board.frame.set_index("contestant").loc["mamba", "rank"])


def test_means_over_seeds_are_over_all_seeds(task: Slice) -> None:
    curve = task.curves[task.curves["contestant"].eq("gpt2") & task.curves["shift"].eq("none")]
    assert not curve["n_context"].isin(FAILED_SIZES).any() and (curve["runs"] == 3).all()
    summaries = task.summaries[task.summaries["shift"].eq("none")]
    assert "gpt2" not in set(summaries["contestant"]) and "mamba" in set(summaries["contestant"])


def test_only_the_score_of_the_failed_task_is_missing(failed: Results) -> None:
    contests = normalised.contests(failed, "small")
    contestants = {contest.task.task: set(contest.scores["contestant"]) for contest in contests}
    assert "gpt2" not in contestants["linear"] and "gpt2" in contestants["sparse-linear"]
    reasons = _reasons(failed, contests)
    assert reasons[next(c.title for c in contests if c.task.task == "linear"), "gpt2"] == {
        "failed": [f"{FAILED_RUN}: {REASON}"]
    }


def test_the_failure_is_listed_once(failed: Results) -> None:
    frames = {block.name: block.frame for block in missing.section(failed).walk() if isinstance(block, Table)}
    rows = frames["failed"][frames["failed"]["run"] == FAILED_RUN]
    assert rows["reason"].tolist() == [REASON]


@pytest.fixture(scope="module")
def diverged(results: Path, tmp_path_factory: pytest.TempPathFactory) -> Results:
    """The synthetic results, in which the training of one of three seeds diverged on one task."""
    path = tmp_path_factory.mktemp("diverged")
    shutil.copytree(results, path, dirs_exist_ok=True)
    table = path / "tables" / "linear.values.parquet"
    values = tables.read("values", table)
    values = values[
        values["run"].ne(FAILED_RUN) | (values["evaluator"].eq("train") & values["axis_value"].le(2000))
    ].copy()
    is_end = values["run"].eq(FAILED_RUN) & values["axis_value"].eq(2000)
    values.loc[is_end, ["value", "status", "reason"]] = [pd.NA, "failed", DIVERGED]
    tables.write("values", values, table, {})
    (path / "tables" / "linear-none" / f"{FAILED_RUN}.errors.parquet").unlink()
    return load(path)


def test_no_mean_is_over_the_seeds_that_did_not_diverge(diverged: Results) -> None:
    by_task = {task.task: task for task in diverged.slices}
    for rows in (by_task["linear"].curves, by_task["linear"].summaries):
        assert "gpt2" not in set(rows["contestant"]) and "mamba" in set(rows["contestant"])
    assert "gpt2" in set(by_task["sparse-linear"].curves["contestant"])
    contests = normalised.contests(diverged, "small")
    (linear,) = (contest for contest in contests if contest.task.task == "linear")
    assert "gpt2" not in set(linear.scores["contestant"])
    assert _reasons(diverged, contests)[linear.title, "gpt2"] == {"diverged": [f"{FAILED_RUN}: {DIVERGED}"]}


def test_a_diverged_model_is_last_with_the_reason(diverged: Results) -> None:
    section = leaderboard.section(next(task for task in diverged.slices if task.task == "linear"))
    assert section is not None
    (board,) = (block for block in section.walk() if isinstance(block, Table))
    assert board.frame.iloc[-1][["contestant", "reason"]].tolist() == ["gpt2", DIVERGED]


def test_a_diverged_training_has_the_planned_number_of_steps(diverged: Results) -> None:
    (linear,) = (task for task in diverged.slices if task.task == "linear")
    assert set(_steps(linear)) == {4000}


@pytest.mark.parametrize("length", [None, 20])
def test_a_run_that_diverged_with_other_settings_does_not_count(diverged: Results, length: int | None) -> None:
    """A diverged training at a high learning rate does not affect runs at a lower one."""
    rows = diverged.rows.copy()
    rows["variant"] = rows["run"].where(rows["run"].eq(FAILED_RUN), "a").where(rows["kind"].eq("backbone"))
    with_variants = Slice(replace(diverged, rows=rows), "linear", "small", length)
    assert with_variants.diverged.empty and with_variants.diverged_note == ""
    assert len(Slice(diverged, "linear", "small", length).diverged) == 1, "the variant is unknown"


def test_a_method_has_no_mean_over_the_seeds_that_did_not_diverge(diverged: Results) -> None:
    rows = diverged.rows[diverged.rows["contestant"].eq("gpt2") & diverged.rows["status"].eq("ok")]
    with_method = rows.assign(contestant="gpt2+deep-thinking", method="+deep-thinking")
    task = Slice(replace(diverged, rows=pd.concat([diverged.rows, with_method], ignore_index=True)), "linear", "small")
    assert task.without_diverged(rows).empty and task.without_diverged(with_method).empty
    assert "gpt2, gpt2+deep-thinking" in task.diverged_note


@pytest.mark.slow
def test_skipped_sizes_are_listed(results: Path, tmp_path: Path) -> None:
    table = with_failed_run(results, tmp_path, at_all_sizes=False) / "tables" / "linear.values.parquet"
    values = tables.read("values", table)
    skipped = values["run"].eq(FAILED_RUN) & values["status"].eq("failed")
    tables.write("values", values.assign(status=values["status"].mask(skipped, "skipped")), table, {})
    loaded = load(tmp_path)
    failures = missing.failed(loaded)
    assert failures is not None
    rows = failures.frame[failures.frame["run"].eq(FAILED_RUN)]
    assert rows[["status", "reason"]].to_numpy().tolist() == [["skipped", REASON]]
    assert "1 evaluation with more examples than the model supports." in list(lacking(loaded))


@pytest.mark.slow
def test_a_model_that_failed_on_every_task_has_a_column_of_the_heat_map(results: Path, tmp_path: Path) -> None:
    shutil.copytree(results, tmp_path, dirs_exist_ok=True)
    for table in (tmp_path / "tables").glob("*.values.parquet"):
        values = tables.read("values", table)
        is_gpt2 = values["contestant"].eq("gpt2") & values["evaluator"].ne("train")
        missing = dict.fromkeys(("value", "low", "high", "n_episodes", "n_context"), pd.NA)
        first_rows = values[is_gpt2 & values["metric"].eq("squared_error")].drop_duplicates(
            ["run", "shift", "evaluator"]
        )
        failed = first_rows.assign(**missing, status="failed", reason=REASON)
        tables.write("values", pd.concat([values[~is_gpt2], failed], ignore_index=True), table, {})
    loaded = load(tmp_path)
    section = heat_map.section(loaded)
    assert section is not None
    figure = next(block for block in section.walk() if isinstance(block, Figure))
    cells = figure.data[figure.data["contestant"].eq("gpt2")]
    assert set(cells["status"]) == {"failed"} and cells["reason"].str.contains("in 42 of 64 episodes").all()
    names, rows = summary.heat_map(loaded, normalised.contests(loaded, "small"))
    assert "gpt2" in names and all(tiles[names.index("gpt2")].text == "×" for _, tiles in rows)
