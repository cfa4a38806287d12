"""Accuracies during training, from hand-made rows."""

import pandas as pd

from iclbench.analysis.accuracies import peaks


def test_the_peak_is_the_first_step_with_the_highest_accuracy_of_the_test() -> None:
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
    assert peaks(steps, "iwl")["axis_value"].tolist() == [20]
