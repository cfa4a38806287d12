"""The table that `iclbench eval` prints for the question `targets`."""

import json
from pathlib import Path

import pandas as pd
import pytest

from iclbench import tables
from iclbench.analysis.scores import COLUMNS
from iclbench.cli.result_rows import short_score, value_with_half_width
from iclbench.cli.summary import leaderboard, target_notes
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
    columns = SHARED | {"run": run, "contestant": run, "kind": kind, "metric": metric}
    return [columns | {"n_related": n, "value": v, "low": v - 0.1, "high": v + 0.1} for n, v in enumerate(values)]


MODEL = [
    *rows("model", "backbone", "log_likelihood", [-0.8, -0.7]),
    *rows("model", "backbone", "squared_error", [0.5, 0.4]),
]
POINT_PREDICTOR = rows("knn-3", "baseline", "squared_error", [0.6])
BETTER_MODEL = [
    *rows("better", "backbone", "log_likelihood", [-0.75]),
    *rows("better", "backbone", "squared_error", [0.45]),
]


def board(values: list[dict[str, object]] | pd.DataFrame) -> tuple[list[str], list[list[str]]]:
    """Return the table without the columns that all leaderboards share. The column `tuned` is not removed."""
    columns, lines = leaderboard(tables.frame("values", values))
    shared = {column.title for name, column in COLUMNS.items() if column.on_terminal and name != "tuned"}
    indices = [index for index, title in enumerate(columns) if title not in shared]
    return [columns[index] for index in indices], [[line[index] for index in indices] for line in lines]


def test_contestants_are_ordered_by_likelihood_followed_by_point_predictors_ordered_by_error() -> None:
    columns, lines = board([*POINT_PREDICTOR, *BETTER_MODEL, *MODEL])
    assert columns == ["contestant", "LL, 0 related", "LL, 1 related", "squared error"]
    assert lines == [
        ["[bold]model[/bold]", "-0.800", "-0.700", "0.400"],
        ["[bold]better[/bold]", "-0.750", "", "0.450"],
        ["knn-3", "", "", "0.600"],
    ]


def test_the_column_tuned_appears_only_if_some_models_are_tuned_and_others_are_not() -> None:
    def lines_of(**tuned: bool | None) -> list[list[str]]:
        columns, lines = board(
            [row | {"tuned": tuned.get(str(row["run"]))} for row in [*POINT_PREDICTOR, *BETTER_MODEL, *MODEL]]
        )
        return [columns, *lines]

    plain = lines_of()
    assert lines_of(model=True, better=True) == lines_of(model=False) == plain
    assert lines_of(model=True, better=False) == [
        [*row, cell] for row, cell in zip(plain, ["tuned", "yes", "no", ""], strict=True)
    ]


def test_scores_have_three_decimals_and_small_positive_scores_are_abbreviated() -> None:
    assert [short_score(value) for value in (0.0, 4e-4, 5e-4, -5.1994, -2e-4, float("nan"))] == [
        "0",
        "<.0005",
        "0.001",
        "-5.199",
        "0.000",
        "failed",
    ]


def test_the_gap_to_the_oracle_has_a_column_if_it_was_measured() -> None:
    gaps = rows("model", "backbone", "gap", [0.3, 0.2])
    columns, lines = board([*MODEL, *POINT_PREDICTOR, *gaps])
    assert columns[-2:] == ["gap to the oracle", "squared error"]
    assert [line[-2] for line in lines] == ["0.200 ±0.100", ""]


def test_cells_show_their_number_of_episodes_if_it_is_smaller_than_that_of_others() -> None:
    oracle_rows = [row | {"n_episodes": 128} for row in rows("oracle", "oracle", "log_likelihood", [-0.4, -0.3])]
    oracle_rows += [row | {"n_episodes": 128} for row in rows("oracle", "oracle", "squared_error", [0.2, 0.1])]
    gaps = [row | {"n_episodes": 128} for row in rows("model", "backbone", "gap", [0.3, 0.2])]
    lines = board([*MODEL, *oracle_rows, *gaps])[1]
    assert lines == [
        ["oracle (oracle)", "-0.400 (128)", "-0.300 (128)", "", "0.100 (128)"],
        ["[bold]model[/bold]", "-0.800", "-0.700", "0.200 ±0.100 (128)", "0.400"],
    ]


def test_the_notes_below_a_table_explain_episode_numbers_adjusted_likelihoods_and_gains(tmp_path: Path) -> None:
    fewer_episodes = [row | {"n_episodes": 128} for row in rows("oracle-bayes", "oracle", "log_likelihood", [-0.4])]
    oracle_rows = rows("oracle-kernel", "oracle", "log_likelihood", [-0.252])
    oracle_rows += [
        row for run in ("oracle-kernel", "oracle-bayes") for row in rows(run, "oracle", "squared_error", [0.1])
    ]
    gaps = rows("model", "backbone", "gap", [0.3, 0.2])
    adjusted = rows("model", "backbone", "log_likelihood_adjusted", [-0.59, -0.49])
    interval_columns = {"low": -0.291, "high": -0.289, "n_episodes": pd.NA}
    adjusted += [row | interval_columns for row in rows("oracle-kernel", "oracle", "x", [-0.29])]
    values = tables.frame("values", [*MODEL, *fewer_episodes, *oracle_rows, *gaps, *adjusted]).replace(
        "x", "log_likelihood_adjusted"
    )
    score = {"run": "model", "prompt_set": "p", "metric": "log_likelihood", "n_context": 4}
    errors = [score | {"episode": i, "n_related": 0, "value": -1.0} for i in range(10)]
    errors += [score | {"episode": i, "n_related": 1, "value": -0.99 + 0.4 * (i == 7)} for i in range(10)]
    tables.write("errors", errors, tmp_path / "tables" / "p" / "all.errors.parquet", {})
    brackets, ceiling, gain = target_notes(tmp_path, values)
    assert "256" in brackets
    assert all(text in ceiling for text in ("oracle-kernel", " -0.252 ", " -0.290 ±0.001 "))
    # Nine gains are 0.01 and one is 0.41, which is 82 % of the sum.
    assert all(text in gain for text in ("model", "+0.050 [", "+0.010", "82%"))
    is_likelihood = values["run"].eq("oracle-kernel") & values["metric"].eq("log_likelihood")
    assert len(target_notes(tmp_path, values[~is_likelihood])) == 2, (
        "the note on adjusted likelihoods needs the likelihood of the oracle"
    )
    columns, lines = board(values)
    assert columns[-2:] == ["LL, ceiling-adjusted", "squared error"]
    assert next(line for line in lines if "model" in line[0])[-2] == "-0.490 ±0.100"


def test_joint_scores_that_condition_on_true_targets_are_explained_in_a_note(tmp_path: Path) -> None:
    """The column also contains joint likelihoods that do not condition on true targets."""
    joint = [row for run in ("model", "better") for row in rows(run, "backbone", "log_likelihood_joint", [-0.4])]
    teacher_forced = rows("better", "backbone", "log_likelihood_teacher_forced", [-0.4])
    without_targets = tables.frame("values", [*MODEL, *BETTER_MODEL, *joint])
    assert not any("joint" in line for line in target_notes(tmp_path, without_targets.query("n_related == 0")))
    (note,) = target_notes(tmp_path, tables.frame("values", [*BETTER_MODEL, *joint, *teacher_forced]))
    assert "joint LL of better" in note


def test_json_rows_contain_all_digits(capsys: pytest.CaptureFixture[str]) -> None:
    row = {"run": "ridge", "seed": 0, "value": 1.7e-15, "low": None, "reason": "a/b, ±"}
    rows = pd.DataFrame([row, row | {"seed": None}]).astype({"seed": "Int64", "low": "Float64", "run": "string"})
    print_rows(rows)
    assert json.loads(capsys.readouterr().out) == [row, row | {"seed": None}]


def test_types_of_settings_are_described_in_words() -> None:
    from typing import Annotated, Literal

    from iclbench.cli.show_backbone import type_name

    assert type_name(Annotated[int, "positive"] | None) == "int or none"
    assert type_name(Literal["a", "b"]) == "'a' or 'b'"
    assert type_name(tuple[float, float]) == "tuple[float, float]"


def test_a_value_without_an_interval_is_printed_without_a_half_width() -> None:
    assert value_with_half_width(pd.Series({"value": 0.5, "low": 0.25, "high": 0.75})) == "0.500 ±0.250"
    assert value_with_half_width(pd.Series({"value": 0.5, "low": pd.NA, "high": pd.NA}, dtype="Float64")) == "0.500"
    assert value_with_half_width(pd.Series({"value": 0.5, "low": None, "high": None}, dtype=object)) == "0.500"
