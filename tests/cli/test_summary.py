"""The table that ends an evaluation of targets."""

import pandas as pd

from iclbench.cli.summary import interval, leaderboard

SHARED = {"status": "ok", "evaluator": "targets", "axis": None}


def rows(run: str, kind: str, metric: str, values: list[float]) -> list[dict[str, object]]:
    one = SHARED | {"run": run, "kind": kind, "metric": metric}
    return [one | {"n_related": n, "value": v, "low": v - 0.1, "high": v + 0.1} for n, v in enumerate(values)]


MODEL = [
    *rows("model", "backbone", "log_likelihood", [-0.8, -0.7]),
    *rows("model", "backbone", "squared_error", [0.5, 0.4]),
]
POINTS = rows("knn-3", "baseline", "squared_error", [0.6])
BETTER = [
    *rows("better", "backbone", "log_likelihood", [-0.75]),
    *rows("better", "backbone", "squared_error", [0.45]),
]


def test_contestants_stand_by_their_best_likelihood_and_points_follow_by_error() -> None:
    columns, lines = leaderboard(pd.DataFrame([*POINTS, *BETTER, *MODEL]))
    assert columns == ["contestant", "LL, 0 related", "LL, 1 related", "squared error"]
    assert lines == [
        ["[bold]model[/bold]", "-0.800", "-0.700", "0.400"],
        ["[bold]better[/bold]", "-0.750", "", "0.450"],
        ["knn-3", "", "", "0.600"],
    ]


def test_the_gap_has_a_column_where_there_is_an_oracle() -> None:
    gaps = rows("model", "backbone", "gap", [0.3, 0.2])
    columns, lines = leaderboard(pd.DataFrame([*MODEL, *POINTS, *gaps]))
    assert columns[-2:] == ["gap to the oracle", "squared error"]
    assert [line[-2] for line in lines] == ["0.200 ±0.100", ""]


def test_settings_are_shown_with_their_types_in_a_readers_words() -> None:
    from typing import Annotated, Literal

    from iclbench.cli.show_backbone import type_name

    assert type_name(Annotated[int, "positive"] | None) == "int or none"
    assert type_name(Literal["a", "b"]) == "'a' or 'b'"
    assert type_name(tuple[float, float]) == "tuple[float, float]"


def test_where_there_is_no_interval_none_is_printed() -> None:
    assert interval(pd.Series({"value": 0.5, "low": 0.25, "high": 0.75})) == "0.500 ±0.250"
    assert interval(pd.Series({"value": 0.5, "low": pd.NA, "high": pd.NA}, dtype="Float64")) == "0.500"
