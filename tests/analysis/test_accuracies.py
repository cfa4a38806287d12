"""Accuracies after and during training, from hand-made rows."""

import pandas as pd
import pytest

from iclbench.analysis.accuracies import final, has_tests, peaks, trajectory
from iclbench.analysis.slices import Slice
from tests.analysis.hand_made import SHARED, slice_of

ICL = {"metric": "accuracy_within_choices", "evaluator": "icl", "kind": "backbone"}
FAILED = {"status": "failed", "reason": "r"}


def row(run: str, value: float | None, step: int | None = None, **columns: object) -> dict[str, object]:
    """The accuracy of a run, after training or at a training step, with the interval ±0.1."""
    run_columns: dict[str, object] = {"run": run, "contestant": run.removesuffix("-s0").removesuffix("-s1")}
    if value is not None:
        run_columns |= {"value": value, "low": value - 0.1, "high": value + 0.1}
    training_columns = {} if step is None else {"axis": "train_step", "axis_value": step}
    return SHARED | ICL | run_columns | {"prompt_set": "p" if step is None else "q"} | training_columns | columns


@pytest.fixture(scope="module")
def task() -> Slice:
    """A slice with two seeds of m, one of which has fewer steps; n, which has no rows after training; and f, which has
    a seed that failed on ICL."""
    return slice_of(
        row("m-s0", 0.8),
        row("m-s1", 0.6),
        row("m-s0", 0.1, 10),
        row("m-s0", 0.2, 20),
        row("m-s1", 0.3, 10),
        row("n-s0", 0.9, 10),
        row("n-s0", 0.5, 20),
        row("f-s0", 0.4),
        row("f-s1", None, **FAILED),
        row("f-s0", 0.45, evaluator="iwl"),
        row("knn", 0.75, kind="baseline"),
        row("m-s0", 0.0, shift="noisy-1"),
        row("m-s0", 0.0, metric="accuracy"),
        row("m-s0", 0.0, evaluator="next"),
        row("m-s0", 0.0, axis="layer", axis_value=1),
        row("m-s0", 0.0, kind="published", contestant="paper"),
    )


def test_final_accuracies_are_means_over_seeds_after_training(task: Slice) -> None:
    frame = final(task).set_index(["evaluator", "contestant"])
    assert frame["value"].to_dict() == pytest.approx(
        {("icl", "knn"): 0.75, ("icl", "m"): 0.7, ("icl", "n"): 0.5, ("iwl", "f"): 0.45}
    )
    mean = frame.loc[("icl", "m")]
    assert mean[["low", "high", "lowest", "highest"]].tolist() == pytest.approx([0.5, 0.9, 0.6, 0.8])
    assert mean[["kind", "runs", "run"]].tolist() == ["backbone", 2, "m-s0; m-s1"]
    assert "shift" not in frame.columns


def test_a_trajectory_contains_only_steps_that_all_runs_of_a_contestant_have(task: Slice) -> None:
    frame = trajectory(task)
    assert frame[["contestant", "axis_value", "runs"]].to_numpy().tolist() == [["m", 10, 2], ["n", 10, 1], ["n", 20, 1]]
    assert frame["value"].tolist() == pytest.approx([0.2, 0.9, 0.5]) and frame.index.tolist() == [0, 1, 2]
    assert set(frame.columns) == {*final(task).columns, "axis_value"}


def test_contestants_with_a_diverged_run_have_no_accuracies() -> None:
    diverged = row("m-s1", None, 20, evaluator="train", metric="loss", prompt_set=None, **FAILED)
    task = slice_of(row("m-s0", 0.8), row("m-s0", 0.8, 10), diverged, row("n-s0", 0.5), row("n-s0", 0.4, 10))
    assert final(task)["contestant"].tolist() == ["n"] and trajectory(task)["contestant"].tolist() == ["n"]


def test_without_rows_after_training_each_run_and_test_uses_its_own_last_step() -> None:
    task = slice_of(
        row("m-s0", 0.1, 10),
        row("m-s0", 0.3, 20),
        row("m-s1", 0.5, 10),
        row("m-s0", 0.7, 30, evaluator="iwl"),
    )
    assert final(task).set_index("evaluator")["value"].to_dict() == pytest.approx({"icl": 0.4, "iwl": 0.7})


def test_the_question_targets_is_not_a_test_of_the_family() -> None:
    targets_row = row("m-s0", 0.8, evaluator="targets")
    assert not has_tests(slice_of(targets_row))
    assert has_tests(slice_of(targets_row, row("m-s0", 0.8, 10)))


def test_the_peak_is_the_first_step_with_the_highest_accuracy_on_a_test() -> None:
    rows = [
        ("icl", "b", 30, 0.7),
        ("icl", "b", 20, 0.7),
        ("icl", "b", 10, 0.5),
        ("icl", "a", 10, 0.9),
        ("icl", "a", 20, 0.2),
        ("iwl", "a", 20, 1.0),
    ]
    steps = pd.DataFrame(rows, columns=["evaluator", "contestant", "axis_value", "value"])
    best = peaks(steps)
    assert best[["contestant", "axis_value", "value"]].to_numpy().tolist() == [["a", 10, 0.9], ["b", 20, 0.7]]
    assert best.index.tolist() == [0, 1]
    assert peaks(steps, "iwl")["axis_value"].tolist() == [20]
    plateau = pd.DataFrame({"evaluator": "icl", "contestant": "a", "axis_value": range(100, 0, -1), "value": 0.5})
    assert peaks(plateau)["axis_value"].tolist() == [1]
