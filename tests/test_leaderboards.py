"""The tables that `iclbench eval` prints, the tables of a report, the charts of `icl.plot` and the frame `scores` have
the same leaderboards. Each contestant has a single run, whose name is the name of the contestant."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pandas as pd
import pytest

from iclbench import tables
from iclbench.analysis.scores import scores
from iclbench.api import plot
from iclbench.cli.accuracy_table import accuracy_board
from iclbench.cli.result_rows import styled_name
from iclbench.cli.summary import leaderboard as printed_leaderboard
from iclbench.cli.table_board import table_board
from iclbench.core.metrics import metric as metric_of
from iclbench.report.blocks import Section, Table
from iclbench.report.data import Slice, results_from_values
from iclbench.report.sections import in_context
from iclbench.report.sections import leaderboard as next_section
from iclbench.report.sections import table_ranks as tables_section
from iclbench.report.sections import targets as targets_section
from tests.analysis import hand_made
from tests.tables.rows import complete_row

SHARED = hand_made.SHARED | {"n_episodes": 10, "normaliser": 1.0}
# The kind of each contestant, and its values of two metrics (lower is better). The first value of `zero` equals that of
# `knn-3`, and the second value is better.
CONTESTANTS = {
    "knn-3": ("baseline", 0.6, 0.8),
    "gpt2": ("backbone", 0.3, 0.3),
    "zero": ("baseline", 0.6, 0.7),
    "ridge": ("oracle", 0.1, 0.2),
    "mamba": ("backbone", 0.2, 0.5),
}
TABLES = ["iris", "wine"]


@dataclass(frozen=True)
class Question:
    """A question with a leaderboard.

    Attributes:
        metrics: the metric of the leaderboard, and another metric.
        print_board: the function that returns the printed table.
        section: the function that returns the section of the report.
        order: the expected order of contestants.
    """

    metrics: tuple[str, str]
    print_board: Callable[[pd.DataFrame], tuple[list[str], list[list[str]]]]
    section: Callable[[Slice], Section | None]
    order: tuple[str, ...]


QUESTIONS = {
    "next": Question(
        ("auc", "squared_error"),
        printed_leaderboard,
        next_section.section,
        ("ridge", "mamba", "gpt2", "knn-3", "zero", "broken"),
    ),
    "targets": Question(
        ("log_likelihood", "squared_error"),
        printed_leaderboard,
        targets_section.section,
        ("ridge", "mamba", "gpt2", "zero", "knn-3", "points", "broken"),
    ),
    "classes": Question(
        ("roc_auc", "accuracy"),
        table_board,
        tables_section.section,
        ("ridge", "mamba", "gpt2", "zero", "knn-3", "broken"),
    ),
}


def values_of(name: str) -> pd.DataFrame:
    first, second = QUESTIONS[name].metrics
    evaluator = "next" if name == "next" else "targets"
    rows: list[dict[str, Any]] = []
    for contestant, (kind, *values) in CONTESTANTS.items():
        shared = SHARED | {"run": contestant, "contestant": contestant, "kind": kind, "evaluator": evaluator}
        for metric, value in zip((first, second), values, strict=True):
            signed = value if metric_of(metric).lower_is_better else 1 - value
            row = shared | {"metric": metric, "value": signed, "low": signed - 0.01, "high": signed + 0.03}
            if name != "next":
                rows.append(row | {"n_related": 0})
            elif metric == "auc":
                rows.append(row)
            else:
                rows += [row | {"n_context": n} for n in range(3)]
        if name == "classes":
            strata = [{"axis": f"stratum:{table}", "n_related": 0, "metric": first} for table in TABLES]
            rows += [shared | stratum | {"value": 1 - values[i]} for i, stratum in enumerate(strata)]
    if name == "targets":
        rows.append(rows[-1] | {"run": "points", "contestant": "points", "kind": "baseline", "metric": second})
    failure = {"status": "failed", "reason": "out of luck", "evaluator": evaluator, "metric": first}
    rows.append(SHARED | {"run": "broken", "contestant": "broken", "kind": "baseline"} | failure)
    return tables.frame("values", [complete_row(row) for row in rows])


@pytest.mark.parametrize("name", QUESTIONS)
def test_all_leaderboards_have_the_same_order_and_values(name: str) -> None:
    question, values = QUESTIONS[name], values_of(name)
    main = question.metrics[0]
    board = scores(values, by=main)
    assert tuple(board["contestant"]) == question.order

    (task,) = results_from_values(values).slices
    section = question.section(task)
    assert section is not None
    frame = next(block for block in section.walk() if isinstance(block, Table)).frame
    has_metric = board["metric"].eq(main).fillna(False)
    shared = {"contestant": "contestant", "rank": "rank", "kind": "kind", "reason": "reason"}
    for column, in_scores in shared.items():
        pd.testing.assert_series_equal(frame[column], board[in_scores], check_names=False, check_dtype=False)
    for column, in_scores in {main: "value", f"{main}_low": "low", f"{main}_high": "high"}.items():
        expected = board[in_scores].where(has_metric).astype("Float64")
        pd.testing.assert_series_equal(frame[column].astype("Float64"), expected, check_names=False)

    _, lines = question.print_board(values)
    assert [line[0] for line in lines] == [
        styled_name(contestant, kind) for contestant, kind in zip(board["contestant"], board["kind"], strict=True)
    ]
    numbers = [line[1].partition(" ±")[0] for line in lines]
    expected_numbers = board["value"].where(has_metric).map("{:.3f}".format, na_action="ignore").fillna("")
    assert numbers == [*expected_numbers[:-1], "failed"]

    chart = plot.leaderboard(values, metric=main).to_dict(validate=False)
    assert chart["layer"][0]["encoding"]["y"]["sort"] == board.loc[has_metric, "contestant"].tolist()


def test_printed_tables_and_reports_have_the_same_mean_ranks_over_tables() -> None:
    values = values_of("classes")
    (task,) = results_from_values(values).slices
    section = tables_section.section(task)
    assert section is not None
    frame = next(block for block in section.blocks if isinstance(block, Table) and "ranks" in block.name).frame
    columns, lines = table_board(values)
    printed = {line[0]: line[columns.index("mean rank")] for line in lines}
    ranks = dict(zip(frame["contestant"], frame["mean_rank"], strict=True))
    expected = {styled_name(name, task.kinds[name]): f"{rank:.2f}" for name, rank in ranks.items()}
    assert printed == expected | {"broken": ""}
    assert ranks == {"ridge": 1, "mamba": 2.5, "gpt2": 2.5, "zero": 4.25, "knn-3": 4.75}


def test_tables_of_accuracies_have_the_order_and_values_of_the_leaderboard_of_the_first_test() -> None:
    """The tables omit failed contestants, and have a row for a contestant that lacks the first test."""
    metric, first, second = "accuracy_within_choices", "icl", "iwl"
    rows = values_of("classes")
    rows = rows[rows["axis"].isna()].assign(prompt_set=first, evaluator=first)
    rows["metric"] = rows["metric"].replace("roc_auc", metric)
    others = rows[rows["metric"].eq(metric) & rows["value"].notna()].assign(prompt_set=second, evaluator=second)
    others = others.assign(value=1 - others["value"])
    points = others.iloc[:1].assign(run="points", contestant="points", kind="baseline", value=0.99)
    values = pd.concat([rows, others, points], ignore_index=True)
    boards = dict(iter(scores(values, by=metric).groupby("evaluator")))
    order = QUESTIONS["classes"].order
    assert tuple(boards[first]["contestant"]) == order
    contestants = [*order[:-1], "points"]
    expected = {name: board.set_index("contestant").reindex(contestants) for name, board in boards.items()}

    (task,) = results_from_values(values).slices
    section = in_context.section(task)
    assert section is not None
    frame = next(block for block in section.walk() if isinstance(block, Table)).frame.set_index("contestant")
    assert list(frame.index) == contestants
    for name, board in expected.items():
        columns = {"value": name, "low": f"{name}_low", "high": f"{name}_high"}
        for column, in_table in columns.items():
            pd.testing.assert_series_equal(frame[in_table], board[column], check_names=False, check_index_type=False)

    columns, lines = accuracy_board(values)
    assert columns == ["contestant", first, second]
    assert [line[0] for line in lines] == [styled_name(name, task.kinds[name]) for name in contestants]
    for position, name in enumerate((first, second), 1):
        numbers = expected[name]["value"].map("{:.3f}".format, na_action="ignore").fillna("")
        assert [line[position].partition(" ±")[0] for line in lines] == numbers.tolist()

    chart = plot.leaderboard(values, metric=metric, evaluator=first).to_dict(validate=False)
    assert chart["layer"][0]["encoding"]["y"]["sort"] == contestants[:-1]
