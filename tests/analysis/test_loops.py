"""Values of looped models by the number of iterations."""

import pandas as pd

from iclbench import tables
from iclbench.analysis.loops import loop_values
from tests.analysis.hand_made import FAILED, MODEL, Row


def row(run: str, metric: str, loops: int | None, value: float, **fields: object) -> Row:
    axis = {} if loops is None else {"axis": "loops", "axis_value": loops}
    return MODEL | {"run": run, "evaluator": "next", "metric": metric, "value": value} | axis | fields


def frame(*rows: Row) -> pd.DataFrame:
    return tables.frame("values", list(rows))


def test_the_area_is_preferred_and_rows_of_single_context_sizes_and_failures_are_left_out() -> None:
    values = loop_values(
        frame(
            row("a", "auc", 4, 0.3),
            row("a", "auc", 2, 0.5),
            row("a", "auc", None, 0.4),
            row("a", "squared_error", 2, 0.9, n_context=3),
            row("a", "squared_error", 2, 0.8),
            row("a", "auc", 8, 0.1) | FAILED,
            row("a", "auc", 2, 0.7, shift="orthants"),
            row("b", "accuracy", 3, 0.6),
            row("b", "accuracy", 3, 0.1, n_context=5),
            row("b", "cross_entropy", 3, 1.2),
        )
    )
    assert values[["run", "shift", "metric", "axis_value", "value"]].to_numpy().tolist() == [
        ["a", "none", "auc", 2, 0.5],
        ["a", "none", "auc", 4, 0.3],
        ["a", "orthants", "auc", 2, 0.7],
        ["b", "none", "accuracy", 3, 0.6],
    ]


def test_the_value_with_all_related_datasets_is_selected() -> None:
    rows = [row("a", "log_likelihood", 2, value, n_related=n) for n, value in ((2, 0.3), (0, 0.1), (1, 0.2))]
    assert loop_values(frame(*rows))["value"].tolist() == [0.3]
