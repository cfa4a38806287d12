"""The accuracy table of an evaluation with class labels: a row per contestant, best first, and a column per test."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pandas as pd

from iclbench.cli.result_rows import (
    print_failures,
    print_packed_sources,
    styled_name,
    value_with_half_width,
    with_terminal_columns,
)
from iclbench.cli.terminal import out, print_table
from iclbench.tables.evaluators import MAIN_ACCURACY
from iclbench.tables.runs import are_tuned


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
    """Return the column names and the rows: accuracies with the half-widths of their intervals, sorted by the first
    test. The chance level is in the last row."""
    accuracies = values[(values["status"] == "ok") & values["axis"].isna() & values["metric"].eq(MAIN_ACCURACY)]
    accuracies = accuracies.assign(
        test=accuracies["evaluator"].where(accuracies["evaluator"].ne("targets"), _shift_titles(accuracies["shift"]))
    )
    shift_titles = set(_shift_titles(accuracies["shift"]))
    tests = sorted(accuracies["test"].unique(), key=lambda name: name in shift_titles)  # tests of the family first
    by_run = accuracies.set_index(["run", "test"])
    is_chance = by_run.index.isin(["chance"], "run")
    means = accuracies[~is_chance].pivot_table("value", "run", "test").reindex(columns=tests)
    means = means.sort_values(tests, ascending=False) if tests else means
    kinds = dict(zip(accuracies["run"], accuracies["kind"], strict=True))
    cells = {key: value_with_half_width(row) for key, row in by_run.iterrows()}
    lines = [
        [styled_name(run, kinds[run]), *(cells.get((run, test), "") for test in tests)] for run in map(str, means.index)
    ]
    if is_chance.any():
        chance = by_run[is_chance]["value"].droplevel("run")
        lines.append(["chance", *[f"{chance[test]:.3f}" if test in chance else "" for test in tests]])
    runs = [*map(str, means.index), "chance"][: len(lines)]
    is_tuned = are_tuned(values, "run").astype("boolean").reindex(runs)
    return with_terminal_columns(["contestant", *tests], lines, pd.DataFrame({"tuned": is_tuned}))


def _shift_titles(shift: pd.Series) -> pd.Series:
    """Return the column titles of evaluations on new episodes: "as trained", or the name of the shift."""
    return shift.where(shift.ne("none"), "as trained")
