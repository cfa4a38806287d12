"""The table that ends an evaluation of targets."""

import json
from pathlib import Path

import pandas as pd
import pytest

from iclbench import tables
from iclbench.analysis.scores import COLUMNS
from iclbench.cli.result_rows import interval, short
from iclbench.cli.summary import about_targets, leaderboard
from iclbench.cli.terminal import print_rows

SHARED = {
    "task": "gp-mixture",
    "family": "gp_mixture",
    "preset": "small",
    "shift": "none",
    "status": "ok",
    "evaluator": "targets",
    "n_episodes": 256,
    "prompt_set": "p",
    "card": "c",
    "version": "0",
}


def rows(run: str, kind: str, metric: str, values: list[float]) -> list[dict[str, object]]:
    one = SHARED | {"run": run, "contestant": run, "kind": kind, "metric": metric}
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


def board(values: list[dict[str, object]] | pd.DataFrame) -> tuple[list[str], list[list[str]]]:
    """The table without the columns that every leaderboard has, `tuned` apart."""
    columns, lines = leaderboard(tables.frame("values", values))
    shared = {column.title for name, column in COLUMNS.items() if column.on_terminal and name != "tuned"}
    own = [place for place, title in enumerate(columns) if title not in shared]
    return [columns[place] for place in own], [[line[place] for place in own] for line in lines]


def test_contestants_stand_by_their_best_likelihood_and_points_follow_by_error() -> None:
    columns, lines = board([*POINTS, *BETTER, *MODEL])
    assert columns == ["contestant", "LL, 0 related", "LL, 1 related", "squared error"]
    assert lines == [
        ["[bold]model[/bold]", "-0.800", "-0.700", "0.400"],
        ["[bold]better[/bold]", "-0.750", "", "0.450"],
        ["knn-3", "", "", "0.600"],
    ]


def test_which_models_are_tuned_is_said_only_where_some_are_and_others_are_not() -> None:
    def lines_of(**tuned: bool | None) -> list[list[str]]:
        columns, lines = board([row | {"tuned": tuned.get(str(row["run"]))} for row in [*POINTS, *BETTER, *MODEL]])
        return [columns, *lines]

    plain = lines_of()
    assert lines_of(model=True, better=True) == lines_of(model=False) == plain
    assert lines_of(model=True, better=False) == [
        [*row, end] for row, end in zip(plain, ["tuned", "yes", "no", ""], strict=True)
    ]


def test_a_negative_likelihood_is_written_out_and_no_small_error() -> None:
    assert [short(value) for value in (0.0, 4e-4, 5e-4, -5.1994, -2e-4, float("nan"))] == [
        "<.0005",
        "<.0005",
        "0.001",
        "-5.199",
        "0.000",
        "failed",
    ]


def test_the_gap_has_a_column_where_there_is_an_oracle() -> None:
    gaps = rows("model", "backbone", "gap", [0.3, 0.2])
    columns, lines = board([*MODEL, *POINTS, *gaps])
    assert columns[-2:] == ["gap to the oracle", "squared error"]
    assert [line[-2] for line in lines] == ["0.200 ±0.100", ""]


def test_who_was_asked_fewer_episodes_has_their_number_in_the_cell() -> None:
    few = [row | {"n_episodes": 128} for row in rows("oracle", "oracle", "log_likelihood", [-0.4, -0.3])]
    few += [row | {"n_episodes": 128} for row in rows("oracle", "oracle", "squared_error", [0.2, 0.1])]
    gaps = [row | {"n_episodes": 128} for row in rows("model", "backbone", "gap", [0.3, 0.2])]
    lines = board([*MODEL, *few, *gaps])[1]
    assert lines == [
        ["oracle (oracle)", "-0.400 (128)", "-0.300 (128)", "", "0.100 (128)"],
        ["[bold]model[/bold]", "-0.800", "-0.700", "0.200 ±0.100 (128)", "0.400"],
    ]


def test_what_stands_below_a_table_of_targets(tmp_path: Path) -> None:
    few = [row | {"n_episodes": 128} for row in rows("oracle-bayes", "oracle", "log_likelihood", [-0.4])]
    best = rows("oracle-kernel", "oracle", "log_likelihood", [-0.252])
    best += [row for run in ("oracle-kernel", "oracle-bayes") for row in rows(run, "oracle", "squared_error", [0.1])]
    gaps = rows("model", "backbone", "gap", [0.3, 0.2])
    adjusted = rows("model", "backbone", "log_likelihood_adjusted", [-0.59, -0.49])
    known = {"low": -0.291, "high": -0.289, "n_episodes": pd.NA}
    adjusted += [row | known for row in rows("oracle-kernel", "oracle", "x", [-0.29])]
    values = tables.frame("values", [*MODEL, *few, *best, *gaps, *adjusted]).replace("x", "log_likelihood_adjusted")
    score = {"run": "model", "prompt_set": "p", "metric": "log_likelihood", "n_context": 4}
    errors = [score | {"episode": i, "n_related": 0, "value": -1.0} for i in range(10)]
    errors += [score | {"episode": i, "n_related": 1, "value": -0.99 + 0.4 * (i == 7)} for i in range(10)]
    tables.write("errors", errors, tmp_path / "tables" / "p" / "all.errors.parquet", {})
    brackets, ceiling, gain = about_targets(tmp_path, values)
    assert "256" in brackets
    assert all(text in ceiling for text in ("oracle-kernel", " -0.252 ", " -0.290 ±0.001 "))
    # Gains are 0.01 nine times and once 0.41: half of it is that episode's.
    assert gain.startswith("gain of model with 1 related: +0.050 [")
    assert gain.endswith("median +0.010; one episode makes 82% of it")
    unseen = values["run"].eq("oracle-kernel") & values["metric"].eq("log_likelihood")
    assert len(about_targets(tmp_path, values[~unseen])) == 2, "of an oracle that is packed"
    columns, lines = board(values)
    assert columns[-2:] == ["LL, ceiling-adjusted", "squared error"]
    assert next(line for line in lines if "model" in line[0])[-2] == "-0.490 ±0.100"


def test_joint_scores_that_are_given_true_targets_are_said_to_be(tmp_path: Path) -> None:
    """Beside an honest joint likelihood in the same column."""
    joint = [row for run in ("model", "better") for row in rows(run, "backbone", "log_likelihood_joint", [-0.4])]
    forced = rows("better", "backbone", "log_likelihood_teacher_forced", [-0.4])
    honest = tables.frame("values", [*MODEL, *BETTER, *joint])
    assert not any("joint" in line for line in about_targets(tmp_path, honest.query("n_related == 0")))
    (note,) = about_targets(tmp_path, tables.frame("values", [*BETTER, *joint, *forced]))
    assert note.startswith("joint LL of better: ")


def test_rows_as_json_keep_all_digits(capsys: pytest.CaptureFixture[str]) -> None:
    small = {"run": "ridge", "seed": 0, "value": 1.7e-15, "low": None, "reason": "a/b, ±"}
    rows = pd.DataFrame([small, small | {"seed": None}]).astype({"seed": "Int64", "low": "Float64", "run": "string"})
    print_rows(rows)
    assert json.loads(capsys.readouterr().out) == [small, small | {"seed": None}]


def test_settings_are_shown_with_their_types_in_a_readers_words() -> None:
    from typing import Annotated, Literal

    from iclbench.cli.show_backbone import type_name

    assert type_name(Annotated[int, "positive"] | None) == "int or none"
    assert type_name(Literal["a", "b"]) == "'a' or 'b'"
    assert type_name(tuple[float, float]) == "tuple[float, float]"


def test_where_there_is_no_interval_none_is_printed() -> None:
    assert interval(pd.Series({"value": 0.5, "low": 0.25, "high": 0.75})) == "0.500 ±0.250"
    assert interval(pd.Series({"value": 0.5, "low": pd.NA, "high": pd.NA}, dtype="Float64")) == "0.500"
