"""Accuracy in context and in weights: on all tests of a classification task, and during training."""

from __future__ import annotations

import pandas as pd

from iclbench.analysis import accuracies
from iclbench.analysis.evaluators import is_test, meaning, sorted_evaluators
from iclbench.core.formats import fixed, integer
from iclbench.report.blocks import Block, Column, Section, Table, Text
from iclbench.report.data import Slice, data_note
from iclbench.report.figures import accuracy
from iclbench.tables.evaluators import MAIN_ACCURACY

_INTRODUCTION = (
    "A query can be answered in context, from the labels in the prompt, or in weights, from the labels seen in "
    "training. Tests (each compares only the labels that it allows):"
)


def section(task: Slice) -> Section | None:
    if not accuracies.has_tests(task):
        return None
    tests = sorted_evaluators(task.accuracies_by_run["evaluator"])
    items = (f"{meaning(t).title}: {meaning(t).asks}; accuracy of guessing: {meaning(t).guessing}." for t in tests)
    blocks: list[Block] = [Text(_INTRODUCTION, tuple(items)), accuracy_table(task, tests)]
    if (figure := accuracy.training_figure(task)) is not None:
        blocks.append(figure)
    return Section(
        f"{task.id}-in-context",
        "In context and in weights",
        tuple(blocks),
        rules=("In context and in weights", "Intervals"),
    )


def accuracy_table(task: Slice, tests: list[str]) -> Table:
    """A table with a row per contestant, in the order of the leaderboard of the first test: the accuracy on each test,
    the winner on the flip test, and the highest ICL accuracy in training. Published numbers are in the last rows."""
    board = accuracies.leaderboards(task, [(test, "none") for test in tests])
    published_rows = _published_accuracies(task, tests)
    rows = pd.concat([board.assign(name=board["contestant"]), published_rows], ignore_index=True)
    frame = rows.drop_duplicates("name")[["kind", "contestant", "name", "seeds"]]
    for test in tests:
        names = {"value": test, "low": f"{test}_low", "high": f"{test}_high"}
        test_rows = rows.loc[rows["evaluator"] == test, ["name", *names]]
        frame = frame.merge(test_rows.rename(columns=names), "left", "name")
    frame = frame.merge(_peaks(task), "left", "contestant")
    if "flip" in tests:
        frame = frame.assign(winner=_winner(frame["flip_low"], frame["flip_high"]))
    columns = [
        Column("name", "contestant"),
        Column("kind", "kind"),
        Column("seeds", "seeds", integer, numeric=True),
        *(Column(t, _header(t), fixed, True, f"{t}_low", f"{t}_high") for t in tests),
        *([Column("winner", "flip decided by")] if "flip" in tests else []),
        Column("peak", "highest ICL in training", fixed, True, "peak_low", "peak_high"),
        Column("peak_step", "at step", integer, numeric=True),
    ]
    return Table(
        name=f"{task.id}-in-context",
        title=f"{task.task}: in context and in weights",
        caption="Accuracy on each test with 95 % intervals over episodes"
        + (", and the highest mean ICL accuracy during training" if frame["peak"].notna().any() else "")
        + ". With several seeds, the interval spans the intervals of all seeds. A dash: not evaluated."
        + task.diverged_note,
        frame=frame,
        columns=tuple(c for c in columns if frame[c.key].notna().any()),
    )


def _header(evaluator: str) -> str:
    test = meaning(evaluator)
    return test.title if test.chance is None else f"{test.title} (chance {test.guessing})"


def _published_accuracies(task: Slice, tests: list[str]) -> pd.DataFrame:
    """Published accuracies on the tests, from all presets, the best on the first test first."""
    rows = task.results.rows
    rows = rows[rows["kind"].eq("published") & rows["task"].eq(task.task)]
    rows = rows[rows["metric"].eq(MAIN_ACCURACY) & rows["status"].eq("ok")]
    rows = rows[is_test(rows["evaluator"]) & rows["axis"].isna()]
    rows = rows.assign(name=rows["contestant"] + " (published, " + rows["preset"] + data_note(rows) + ")")
    rows = rows.drop(columns="contestant").assign(is_other_test=rows["evaluator"].ne(tests[0]))
    rows = rows.sort_values(["is_other_test", "value", "name"], ascending=[True, False, True])
    return rows.drop_duplicates(["name", "evaluator"])[["evaluator", "kind", "name", "value", "low", "high"]]


def _peaks(task: Slice) -> pd.DataFrame:
    """The highest ICL accuracy of each contestant during training: columns contestant, peak, peak_low, peak_high and
    peak_step."""
    names = {"value": "peak", "low": "peak_low", "high": "peak_high", "axis_value": "peak_step"}
    peaks = accuracies.peaks(accuracies.trajectory(task))
    return peaks[["contestant", *names]].rename(columns=names)


def _winner(low: pd.Series, high: pd.Series) -> pd.Series:
    """Whether context or weights decide the queries for which they disagree, from the interval of the flip accuracy."""
    winner = pd.Series("neither", index=low.index, dtype="string").where(low.notna() & high.notna())
    return winner.mask((low > 0.5).fillna(False), "context").mask((high < 0.5).fillna(False), "weights")
