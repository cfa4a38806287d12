"""Log-likelihoods of event sequences: gaps to the oracle, normalised scores, and sequences of different lengths."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock, create_autospec

import numpy as np
import pandas as pd
import pytest
import torch

from iclbench import tables
from iclbench.cli.summary import leaderboard
from iclbench.config.resolution import resolve_task
from iclbench.evaluation.contestants import baselines
from iclbench.evaluation.curves import learning_curve
from iclbench.evaluation.evaluate import evaluate
from iclbench.evaluation.gaps import next_gap_rows, write_gaps
from iclbench.evaluation.prompt_set_rows import PromptSetRows
from iclbench.evaluation.prompts import PromptSet
from tests.families.events import sequence_files

NAMES = ("oracle-events", "oracle-bayes-events", "poisson", "renewal", "hawkes-mle")


@pytest.fixture(scope="module")
def prompts() -> PromptSet:
    return PromptSet(resolve_task("point-process", "smoke")[0], "smoke")


@pytest.fixture(scope="module")
def values(prompts: PromptSet) -> pd.DataFrame:
    return evaluate(baselines(prompts, NAMES), prompts)


def likelihoods(prompts: PromptSet, name: str) -> np.ndarray:
    """Compute the negative log-likelihoods of all events directly from the predictions."""
    episodes = prompts.episodes
    predictor = baselines(prompts, [name])[0].predictor.informed(episodes.truth)
    with torch.no_grad():
        answer = predictor.predict_next(episodes.context)
    return answer.loss(episodes.context.y).double().numpy()


@pytest.mark.slow
def test_gaps_are_differences_from_the_oracle_after_each_number_of_events(
    prompts: PromptSet, values: pd.DataFrame
) -> None:
    gaps = values[values["metric"].eq("gap") & values["run"].eq("renewal")].set_index("n_context")["value"]
    expected = (likelihoods(prompts, "renewal") - likelihoods(prompts, "oracle-events")).mean(0)
    np.testing.assert_allclose(gaps.drop(pd.NA).sort_index().to_numpy(float), expected, rtol=1e-5, atol=1e-7)
    n = np.arange(len(expected))
    assert gaps[pd.NA] == pytest.approx(np.trapezoid(expected, n) / n[-1], rel=1e-5)


@pytest.mark.parametrize("is_packed", [False, True])
def test_gaps_are_paired_by_episode(is_packed: bool) -> None:
    """There are two episodes with scores after 0, 1 and 2 events. A packed oracle has only the mean height of its curve
    (by the trapezoidal rule).
    """
    nll = {
        "model": np.array([[3.0, 2.0, 1.0], [5.0, 4.0, 5.0]]),
        "oracle": np.array([[1.0, 1.0, 1.0], [2.0, 3.0, 2.0]]),
    }
    gaps = nll["model"] - nll["oracle"]
    heights = {run: (curves[:, 0] + 2 * curves[:, 1] + curves[:, 2]) / 4 for run, curves in nll.items()}
    shared = {"prompt_set": "p", "metric": "nll"}
    errors = [
        shared | {"run": run, "episode": episode, "n_context": n, "value": curves[episode, n]}
        for run, curves in nll.items()
        if run == "model" or not is_packed
        for episode in range(2)
        for n in range(3)
    ]
    if is_packed:
        errors += [shared | {"run": "oracle", "episode": i, "value": heights["oracle"][i]} for i in range(2)]
    kinds = {"model": "backbone", "oracle": "oracle"}
    columns = {"task": "t", "family": "f", "preset": "smoke", "shift": "none", "evaluator": "next", "status": "ok"}
    columns |= {"metric": "nll", "card": "c", "version": "0", "value": 0.0}
    values = [columns | {"run": run, "contestant": run, "kind": kind} for run, kind in kinds.items()]
    prompts = Mock(spec=PromptSet, task=SimpleNamespace(oracles=["oracle"]), episodes=range(2), seed=0)
    rows = next_gap_rows(tables.frame("values", values), tables.frame("errors", errors), prompts)  # type: ignore[arg-type]
    height = (heights["model"] - heights["oracle"]).mean()
    expected = {None: height} if is_packed else {0: gaps[:, 0].mean(), 1: 1.0, 2: gaps[:, 2].mean(), None: height}
    assert {row.get("n_context"): row["value"] for row in rows} == pytest.approx(expected)
    assert all((row["run"], row["metric"], row["n_episodes"]) == ("model", "gap", 2) for row in rows)


@pytest.mark.slow
def test_an_added_model_has_only_the_overall_gap_to_a_packed_oracle(prompts: PromptSet, values: pd.DataFrame) -> None:
    def errors(run: str, packed: bool) -> pd.DataFrame:
        curves = likelihoods(prompts, run)
        shared = {"run": run, "prompt_set": prompts.id, "metric": "nll"}
        n = np.arange(curves.shape[1])
        if packed:
            areas = np.trapezoid(curves, axis=1) / n[-1]
            rows = [shared | {"episode": episode, "value": float(area)} for episode, area in enumerate(areas)]
        else:
            rows = [
                shared | {"episode": episode, "n_context": int(size), "value": float(curve[size])}
                for episode, curve in enumerate(curves)
                for size in n
            ]
        return tables.frame("errors", rows)

    def gaps(*frames: pd.DataFrame) -> pd.DataFrame:
        return pd.DataFrame(next_gap_rows(values, pd.concat(frames), prompts))

    model, packed_oracle = errors("renewal", False), errors("oracle-events", True)
    from_packed, complete = gaps(model, packed_oracle), gaps(model, errors("oracle-events", False))
    assert len(complete) == 18 and len(from_packed) == 1
    area = complete[complete["n_context"].isna()]
    np.testing.assert_allclose(from_packed[["value", "low", "high"]], area[["value", "low", "high"]], rtol=1e-5)
    assert gaps(model).empty, "the oracle has no errors"
    assert gaps(errors("renewal", True), packed_oracle).empty, "packed results have the gap of a packed model"


def test_gaps_of_packed_contestants_are_copied_from_the_pack(prompts: PromptSet, tmp_path: Path) -> None:
    """Packed errors have no rows per number of events, so gaps cannot be recomputed from them."""
    gap = {"run": "renewal", "task": "point-process", "family": "point-process", "contestant": "renewal"}
    gap |= {"kind": "baseline", "preset": "smoke", "shift": "none", "evaluator": "next", "metric": "gap", "value": 0.3}
    gap |= {"n_context": 4, "normaliser": 1.0, "status": "ok", "prompt_set": prompts.id, "card": "c", "version": "1"}
    empty, packed = tables.frame("values", []), tables.frame("values", [gap, gap | {"metric": "nll"}])
    rows = create_autospec(PromptSetRows, results=tmp_path, prompts=prompts, values=empty, packed_values=packed)
    rows.errors = tables.frame("errors", [])
    write_gaps(rows)
    path = tmp_path / "tables" / prompts.id / "summary" / "gaps.values.parquet"
    assert tables.read("values", path)[["metric", "n_context", "value"]].to_numpy().tolist() == [["gap", 4, 0.3]]
    rows.packed_values = empty
    write_gaps(rows)
    assert not path.exists()


@pytest.mark.slow
def test_a_poisson_process_scores_0_and_the_bayes_oracle_scores_1(prompts: PromptSet, values: pd.DataFrame) -> None:
    scores = values[values["metric"].eq("score")].set_index("run")
    assert scores.loc["poisson", "value"] == 0
    assert scores.loc["oracle-bayes-events", "value"] == 1
    curves = {name: likelihoods(prompts, name).mean(0) for name in NAMES}

    area = {name: np.trapezoid(curve) for name, curve in curves.items()}
    for name in ("renewal", "oracle-events", "hawkes-mle"):
        expected = (area[name] - area["poisson"]) / (area["oracle-bayes-events"] - area["poisson"])
        assert scores.loc[name, "value"] == pytest.approx(expected, rel=1e-3)
    assert scores.loc["oracle-events", "value"] > 1.5
    assert set(scores["score_of"]) == {"nll"}


@pytest.mark.slow
def test_without_an_oracle_the_best_baseline_scores_1() -> None:
    prompts = PromptSet(resolve_task("point-process", "smoke", {"episodes": 1024})[0], "smoke")
    values = evaluate(baselines(prompts, ["poisson", "markov-marks"]), prompts)
    scores = values[values["metric"].eq("score")].set_index("run")["value"]
    assert scores.to_dict() == {"poisson": 0, "markov-marks": 1}
    assert not values["metric"].eq("gap").any()


@pytest.mark.slow
def test_all_events_have_equal_weight_if_sequence_lengths_differ(tmp_path: Path) -> None:
    times, marks = sequence_files.sequences(count=60, longest=9)
    (tmp_path / "events").mkdir()
    sequence_files.write_jsonl(tmp_path / "events" / "own.jsonl", times, marks, [float(t[-1]) + 1 for t in times])
    task, _ = resolve_task("events", "smoke")
    prompts = PromptSet(task, "smoke", data_dir=tmp_path)
    (poisson,) = baselines(prompts, ["poisson"])
    episodes, nll = prompts.episodes, likelihoods(prompts, "poisson")
    scored = episodes.scored.numpy()
    assert len({int(n) for n in scored.sum(1)}) > 1
    # The open interval after the last event has no score, but it contributes to the sum.
    is_open = (episodes.context.mask & ~episodes.scored).numpy()
    assert is_open.any(1).all()
    expected = nll[scored | is_open].sum() / scored.sum()
    curve = learning_curve(poisson.predictor, prompts)
    assert curve.area("nll").mean() == pytest.approx(expected, rel=1e-6)
    # The curve at every second size has about the same area.
    grid = learning_curve(poisson.predictor, prompts, range(0, episodes.context.count, 2))
    assert grid.area("nll").mean() == pytest.approx(expected, abs=0.15)
    rows = evaluate([poisson], prompts)
    columns, ((_, _, _, *cells),) = leaderboard(rows)
    assert columns[3] == "n=1" and len(columns) == 6 and all(map(float, cells))
    values = rows.query("n_context.isna()").set_index("metric")["value"]
    assert values["nll"] == pytest.approx(expected, rel=1e-6)
    assert values["auc"] == values["nll"]
    assert values["nll_open"] == pytest.approx(nll[is_open].mean(), rel=1e-6)
    counts = scored.cumsum(1)
    later = scored & (counts > 1)
    assert values["nll_published"] < nll[later].sum() / scored.sum()


def test_all_baselines_are_scored_on_the_same_events_if_sequence_lengths_differ(tmp_path: Path) -> None:
    times, marks = sequence_files.sequences(count=60, longest=9, kinds=2)
    (tmp_path / "events").mkdir()
    sequence_files.write_jsonl(tmp_path / "events" / "own.jsonl", times, marks)
    prompts = PromptSet(resolve_task("events", "smoke")[0], "smoke", data_dir=tmp_path)
    values = evaluate(baselines(prompts, ["poisson", "hawkes-mle"]), prompts)
    areas = values[values["metric"].eq("auc")].set_index("run")["value"]
    for name in ("poisson", "hawkes-mle"):
        expected = likelihoods(prompts, name)[prompts.episodes.scored.numpy()].mean()
        assert areas[name] == pytest.approx(expected, rel=1e-6)


def test_open_intervals_are_counted_if_some_blocks_have_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    times, marks = sequence_files.sequences(count=20, longest=6)
    (tmp_path / "events").mkdir()
    ends = [None if index % 2 else float(t[-1]) + 1 for index, t in enumerate(times)]
    sequence_files.write_jsonl(tmp_path / "events" / "own.jsonl", times, marks, ends)
    prompts = PromptSet(resolve_task("events", "smoke", {"episodes": 8})[0], "smoke", data_dir=tmp_path)
    has_end = (prompts.episodes.context.mask & ~prompts.episodes.scored).any(1)
    assert has_end.any() and not has_end.all()
    (poisson,) = baselines(prompts, ["poisson"])
    expected = learning_curve(poisson.predictor, prompts)
    monkeypatch.setattr("iclbench.evaluation.curves._QUERIES_PER_PASS", 1)
    curve = learning_curve(poisson.predictor, prompts)
    assert curve.open_nll is not None and expected.open_nll is not None
    np.testing.assert_allclose(curve.open_nll, expected.open_nll)
    assert np.isfinite(curve.open_nll).any(1).tolist() == has_end.tolist()
