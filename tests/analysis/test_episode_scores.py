"""Scores of single episodes: selection of tables, means over runs, and sums over events."""

import numpy as np
import pandas as pd
import pytest

from iclbench import tables
from iclbench.analysis.episode_scores import EpisodeScores
from iclbench.tables.curves import MEAN_HEIGHT

Scores = dict[tuple[int, int], float]


def errors(run: str, scores: Scores, **columns: object) -> pd.DataFrame:
    """A table of scores by episode and context size."""
    row = {"run": run, "prompt_set": "p", "metric": "squared_error"} | columns
    return tables.frame(
        "errors", [row | {"episode": e, "n_context": n, "value": value} for (e, n), value in scores.items()]
    )


def heights(run: str, values: list[float], **columns: object) -> pd.DataFrame:
    """A table with the mean height of each episode's curve."""
    row = {"run": run, "prompt_set": "p", "metric": "squared_error"} | columns
    return tables.frame("errors", [row | {"episode": e, "value": value} for e, value in enumerate(values)])


def curves(frames: list[pd.DataFrame], runs: list[str], metric: str = "squared_error") -> pd.DataFrame:
    result = EpisodeScores(frames, {"p"}).curves(runs, "p", metric)
    assert result is not None
    return result


def test_if_several_tables_contain_a_run_the_first_one_is_used() -> None:
    frames = [errors("a", {(0, 0): 1.0}), errors("a", {(0, 0): 5.0, (1, 0): 6.0}), errors("b", {(0, 0): 7.0})]
    assert curves(frames, ["a"]).to_numpy().tolist() == [[1.0]]
    assert curves(frames, ["b"]).to_numpy().tolist() == [[7.0]]
    targets = EpisodeScores([frame.assign(n_related=0) for frame in frames], {"p"})
    scores = targets.targets(["a"], "p", "squared_error", 0)
    assert scores is not None and scores.tolist() == [1.0]


def test_curves_contain_only_scores_of_the_selected_prompt_set_and_metric() -> None:
    frames = [
        errors("a", {(0, 0): 1.0}),
        errors("a", {(0, 0): 2.0}, metric="nll"),
        errors("a", {(0, 0): 3.0}, prompt_set="q"),
        errors("a", {(0, 0): 4.0}, prompt_set="r"),
    ]
    scores = EpisodeScores(frames, {"p", "q"})
    all_curves = [scores.curves(["a"], *key) for key in (("p", "squared_error"), ("p", "nll"), ("q", "squared_error"))]
    assert [curve is not None and curve.to_numpy().item() for curve in all_curves] == [1.0, 2.0, 3.0]
    assert scores.curves(["a"], "r", "squared_error") is None


def test_curves_are_averaged_over_runs_for_each_episode() -> None:
    frames = [
        errors("a", {(1, 2): 8.0, (0, 1): 1.0, (0, 2): 2.0, (1, 1): 4.0}),
        errors("b", {(0, 1): 3.0, (0, 2): 6.0, (1, 1): 0.0, (1, 2): 0.0}),
    ]
    mean = curves(frames, ["a", "b"])
    assert mean.index.tolist() == [0, 1] and mean.columns.tolist() == [1, 2]
    assert (mean.index.name, mean.columns.name) == ("episode", "n_context")
    assert mean.to_numpy().tolist() == [[2.0, 4.0], [2.0, 4.0]]
    assert curves(frames, ["b"]).to_numpy().tolist() == [[3.0, 6.0], [0.0, 0.0]]
    scores = EpisodeScores(frames, {"p"})
    assert scores.curves(["a", "c"], "p", "squared_error") is None, "a run without scores"
    assert scores.curves([], "p", "squared_error") is None


def test_context_sizes_may_be_missing_only_for_event_sequences() -> None:
    """For other metrics, context sizes that any episode lacks are omitted."""
    scores = {(0, 0): 1.0, (0, 1): 2.0, (1, 0): 3.0}
    assert curves([errors("a", scores)], ["a"]).to_dict("list") == {0: [1.0, 3.0]}
    events = curves([errors("a", scores, metric="nll")], ["a"], "nll")
    assert events[0].tolist() == [1.0, 3.0] and events[1].isna().tolist() == [False, True]


def test_curves_are_converted_to_mean_heights_if_one_run_has_only_mean_heights() -> None:
    curve = errors("a", {(0, 0): 1.0, (0, 2): 3.0, (1, 0): 2.0, (1, 2): 2.0})
    mean = curves([curve, heights("b", [4.0, 6.0])], ["b", "a"])
    assert mean.to_dict("list") == {MEAN_HEIGHT: [3.0, 4.0]}


def test_sums_over_events_are_converted_to_heights_whose_mean_is_the_mean_over_all_events() -> None:
    """R = (4 + 2) / (1 + 3) = 1.5; the mean number of events is 2, and a height is R + (sum - R events) / 2."""
    sums = heights("a", [4.0, 2.0], metric="nll").assign(n_events=[1.0, 3.0])
    plain = heights("b", [7.0, 9.0], metric="nll")
    scores = curves([tables.frame("errors", pd.concat([plain, sums], ignore_index=True))], ["a"], "nll")
    assert scores[MEAN_HEIGHT].tolist() == pytest.approx([1.5 + 2.5 / 2, 1.5 - 2.5 / 2])
    assert curves([pd.concat([plain, sums], ignore_index=True)], ["b"], "nll")[MEAN_HEIGHT].tolist() == [7.0, 9.0]


def test_scores_of_targets_are_averaged_over_runs_by_number_of_related_datasets() -> None:
    frames = [
        errors("a", {(1, 8): 5.0, (0, 4): 1.0}, n_related=0),
        errors("a", {(0, 4): 10.0}, n_related=2),
        errors("b", {(0, 4): 3.0, (1, 8): 7.0}, n_related=0),
    ]
    scores = EpisodeScores(frames, {"p"})
    mean = scores.targets(["a", "b"], "p", "squared_error", 0)
    assert mean is not None and mean.to_dict() == {0: 2.0, 1: 6.0} and mean.index.name == "episode"
    two = scores.targets(["a"], "p", "squared_error", 2)
    assert two is not None and two.to_dict() == {0: 10.0}
    assert scores.targets(["a", "b"], "p", "squared_error", 2) is None, "a run without scores"
    assert scores.targets([], "p", "squared_error", 0) is None
    assert scores.curves(["a"], "p", "squared_error") is None


def test_scores_of_targets_without_a_context_size_are_ignored() -> None:
    assert EpisodeScores([heights("a", [1.0], n_related=0)], {"p"}).targets(["a"], "p", "squared_error", 0) is None


def test_context_sizes_are_read_from_the_table_with_the_most_episodes() -> None:
    frames = [
        errors("a", {(0, 4): 1.0}, n_related=0),
        errors("b", {(1, 8): 1.0, (0, 5): 1.0}, n_related=0),
        errors("c", {(0, 9): 1.0, (1, 9): 1.0, (2, 9): 1.0}, n_related=0, prompt_set="q"),
    ]
    scores = EpisodeScores(frames, {"p", "q"})
    sizes = scores.context_sizes("p")
    assert sizes is not None and sizes.to_dict() == {0: 5, 1: 8} and sizes.index.name == "episode"
    assert sizes.index.tolist() == [0, 1]
    assert scores.context_sizes("r") is None


def test_missing_values_are_nan() -> None:
    frame = errors("a", {(0, 0): 1.0, (0, 1): 2.0}, metric="nll")
    frame["value"] = frame["value"].mask(frame["n_context"].eq(1))
    assert np.isnan(curves([frame], ["a"], "nll").loc[0, 1])
