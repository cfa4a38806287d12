"""An oracle that is beaten beyond its interval is named, with who beats it and by how much; a true one is not."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from iclbench import __version__, tables
from iclbench.analysis.episode_scores import EpisodeScores
from iclbench.analysis.oracles import beaten
from iclbench.cli.summary import about_oracles
from iclbench.report.blocks import Text
from iclbench.report.data import load
from iclbench.report.sections import leaderboard, targets

EPISODES, SIZES = 40, (0, 1, 2)
PROMPTS = "t-smoke-none-0"
Field = dict[str, tuple[str, np.ndarray]]


def written(folder: Path, field: Field, question: str = "next", metric: str = "squared_error") -> Path:
    """A results folder with these scores of single episodes, `(episodes,)`, at every context size."""
    values, errors = [], []
    for run, (kind, scores) in field.items():
        shared = {
            "run": run,
            "task": "t",
            "family": "f",
            "contestant": run,
            "kind": kind,
            "preset": "smoke",
            "shift": "none",
            "evaluator": question,
            "status": "ok",
            "prompt_set": PROMPTS,
            "card": "c",
            "version": __version__,
            "n_episodes": EPISODES,
        }
        at = [{"n_context": n} for n in SIZES] if question == "next" else [{"n_related": 0}]
        values += [shared | where | {"metric": metric, "value": float(scores.mean())} for where in at]
        if question == "next":
            values.append(shared | {"metric": "auc", "value": float(scores.mean())})
        errors += [
            {"run": run, "prompt_set": PROMPTS, "metric": metric, "n_context": 4, "episode": i, "value": v} | where
            for where in at
            for i, v in enumerate(scores)
        ]
    tables.write("values", values, folder / "tables" / PROMPTS / "all.values.parquet", {})
    tables.write("errors", errors, folder / "tables" / PROMPTS / "all.errors.parquet", {})
    return folder


def found(folder: Path) -> list:
    errors = EpisodeScores([tables.read_all("errors", folder)], {PROMPTS})
    return beaten(tables.read_all("values", folder), errors)


@pytest.fixture
def field() -> Field:
    """Errors of a ridge that is no oracle: a 3-NN and a model are better in every sense, another baseline by luck."""
    draw = np.random.default_rng(0)
    hard = draw.gamma(2.0, 1.0, EPISODES)
    return {
        "ridge": ("oracle", hard + 1.0),
        "knn-3": ("baseline", hard + 0.5 + 0.2 * draw.normal(size=EPISODES)),
        "model": ("backbone", hard + 0.8 + 0.2 * draw.normal(size=EPISODES)),
        "zero": ("baseline", 2 * hard + 2.0),
        "lucky": ("baseline", hard + 0.95 + 0.4 * draw.normal(size=EPISODES)),
    }


def test_who_beats_an_oracle_is_named_with_the_paired_difference(field: Field, tmp_path: Path) -> None:
    (one,) = found(written(tmp_path, field))
    assert (one.oracle, one.by) == ("ridge", ("knn-3", "model"))
    gaps = field["ridge"][1] - field["knn-3"][1]
    # Four contestants are compared: 5 % for all of them together.
    half = stats.t.ppf(1 - 0.05 / 4 / 2, EPISODES - 1) * gaps.std(ddof=1) / np.sqrt(EPISODES)
    assert one.value == pytest.approx(gaps.mean())
    assert one.low == pytest.approx(gaps.mean() - half)
    assert one.line.startswith(f"ridge is not optimal here: knn-3 is better by {gaps.mean():.3f} (")
    assert one.line.endswith("; also better: model; check the models with iclbench check")
    (one,) = found(written(tmp_path / "alone", {name: field[name] for name in ("ridge", "knn-3")}))
    assert "iclbench check" not in one.line  # a baseline has no forward pass of somebody's to look ahead in


def test_of_several_oracles_there_are_as_many_more_comparisons(field: Field, tmp_path: Path) -> None:
    (one,) = found(written(tmp_path, field | {"true": ("oracle", field["knn-3"][1] - 1.0)}))
    gaps = field["ridge"][1] - field["knn-3"][1]
    half = stats.t.ppf(1 - 0.05 / (4 * 2) / 2, EPISODES - 1) * gaps.std(ddof=1) / np.sqrt(EPISODES)
    assert one.oracle == "ridge" and one.low == pytest.approx(gaps.mean() - half)


def test_an_oracle_that_fails_wildly_in_a_few_episodes_does_not_hide_in_its_own_interval(field: Field, tmp_path: Path):
    wild = field["ridge"][1].copy()
    wild[:2] += 400.0
    (one,) = found(written(tmp_path, field | {"ridge": ("oracle", wild)}))
    assert one.by[:1] == ("knn-3",) and one.value > 20 > 1 > one.low > 0
    # An oracle that is right on average is not doubted because somebody is better in most episodes.
    better = np.where(np.arange(EPISODES) < 36, 0.1, -1.0)
    assert better.mean() < 0
    hedging = field["ridge"][1] - better
    assert not found(written(tmp_path / "b", {"ridge": field["ridge"], "model": ("backbone", hedging)}))


def test_a_true_oracle_is_beaten_by_nobody(field: Field, tmp_path: Path) -> None:
    true = field | {"ridge": ("oracle", field["lucky"][1] - 0.5)}
    assert not found(written(tmp_path, true))


def test_of_log_likelihoods_more_is_better(field: Field, tmp_path: Path) -> None:
    (one,) = found(written(tmp_path / "less", field, "targets", "log_likelihood"))
    assert (one.oracle, one.by, one.what) == ("ridge", ("zero",), "log-likelihood")
    negative = {run: (kind, -scores) for run, (kind, scores) in field.items()}
    (one,) = found(written(tmp_path / "more", negative, "targets", "log_likelihood"))
    assert one.by == ("knn-3", "model")


def test_points_are_compared_by_their_error(field: Field, tmp_path: Path) -> None:
    (one,) = found(written(tmp_path, field, "targets"))
    assert (one.by, one.what) == (("knn-3", "model"), "squared error")


def test_the_printed_table_and_the_page_say_so(field: Field, tmp_path: Path) -> None:
    folder = written(tmp_path, field)
    (line,) = about_oracles(folder, tables.read_all("values", folder))
    results = load(folder)
    section = leaderboard.section(results.slices[0])
    assert section is not None
    (text,) = (block for block in section.walk() if isinstance(block, Text))
    assert text.items == (line,) and line.startswith("ridge ")
    of_targets = load(written(tmp_path / "targets", field, "targets")).slices[0]
    section = targets.section(of_targets)
    assert section is not None and any(isinstance(block, Text) for block in section.walk())


def test_what_scores_1_is_printed_where_it_is_no_oracle(field: Field, tmp_path: Path) -> None:
    values = tables.read_all("values", written(tmp_path, {run: field[run] for run in ("ridge", "zero")}))
    said = "knn-3 (the oracle ridge failed)"
    score = values.iloc[:1].assign(metric="score", reason=f"squared_error: 1 is {said}", score_one=said)
    assert about_oracles(tmp_path, pd.concat([values, score])) == ["score: 1 is knn-3 (the oracle ridge failed)"]
    assert (
        about_oracles(
            tmp_path, pd.concat([values, score.assign(reason="squared_error: 1 is ridge", score_one="ridge")])
        )
        == []
    )
