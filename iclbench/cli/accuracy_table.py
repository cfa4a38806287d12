"""The accuracy table of an evaluation with class labels: a row per contestant, best first, and a column per test."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pandas as pd

from iclbench.analysis.accuracies import leaderboards
from iclbench.analysis.evaluators import sorted_evaluators
from iclbench.analysis.scores import slice_of_runs
from iclbench.cli.result_rows import (
    print_failures,
    print_packed_sources,
    styled_name,
    value_with_half_width,
    with_terminal_columns,
)
from iclbench.cli.terminal import out, print_table
from iclbench.tables.evaluators import MAIN_ACCURACY


def has_labels(values: pd.DataFrame) -> bool:
    """Return whether the targets of a prompt set are class labels."""
    return bool((values["metric"].isin([MAIN_ACCURACY, "accuracy"]) & values["evaluator"].ne("next")).any())


def print_accuracies(results: Path, prompt_sets: Sequence[pd.DataFrame]) -> None:
    """Print an accuracy table for each task and preset, and the failures.

    A table covers all prompt sets of its task and preset. Runs with different task parameters have different prompts
    and are listed in separate tables.
    """
    if not prompt_sets:
        return
    for (task, preset), rows in pd.concat(prompt_sets).groupby(["task", "preset"], sort=False):
        for values in split_by_prompts(rows):
            columns, lines = accuracy_board(values)
            title = f"{task}, {preset}: accuracy among the allowed labels"
            print_table(title, columns, lines, range(1, len(columns)))
            print_packed_sources(results, values)
            print_failures(values)
            out.print()


def split_by_prompts(values: pd.DataFrame) -> Iterator[pd.DataFrame]:
    """Split the rows of one task into groups that have only one prompt set for each test and shift."""
    groups: list[dict[tuple[str, str], str]] = []
    for _, rows in values[values["kind"].eq("backbone")].groupby("run", sort=False):
        prompt_sets = dict(zip(zip(rows["evaluator"], rows["shift"], strict=True), rows["prompt_set"], strict=True))
        compatible = (
            group for group in groups if all(group.get(test, name) == name for test, name in prompt_sets.items())
        )
        if (compatible_group := next(compatible, None)) is None:
            groups.append(prompt_sets)
        else:
            compatible_group |= prompt_sets
    for group in groups:
        yield values[values["prompt_set"].isin(group.values())]


def accuracy_board(values: pd.DataFrame) -> tuple[list[str], list[list[str]]]:
    """Return the column names and the rows: accuracies with the half-widths of their intervals, in the order of the
    leaderboard of the first test. Contestants without an accuracy are omitted."""
    rows = values[values["status"].eq("ok") & values["axis"].isna() & values["metric"].eq(MAIN_ACCURACY)]
    titles = {
        (test, str(shift)): test if test != "targets" else str(shift).replace("none", "as trained")
        for test in sorted_evaluators(rows["evaluator"])
        for shift in rows.loc[rows["evaluator"].eq(test), "shift"].unique()
    }
    if not titles:
        return ["contestant"], []
    board = leaderboards(slice_of_runs(values), titles)
    by_question = board.set_index(["contestant", "evaluator", "shift"])
    cells = {key: value_with_half_width(row) for key, row in by_question.iterrows()}
    board = board.drop_duplicates("contestant")
    lines = [
        [styled_name(run, kind), *(cells.get((run, *question), "") for question in titles)]
        for run, kind in zip(board["contestant"], board["kind"], strict=True)
    ]
    return with_terminal_columns(["contestant", *titles.values()], lines, board)
