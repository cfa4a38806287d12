"""The table of `iclbench lm eval` over several tasks: a row per task and number of shots, and the means over
families."""

from __future__ import annotations

from collections.abc import Iterator
from textwrap import wrap
from typing import Any

import pandas as pd


def overview_board(values: pd.DataFrame, model: str) -> tuple[list[str], list[list[str]]]:
    """Return the column names and the rows for one model: its accuracy on each task, the means over families, and the
    mean over all tasks."""
    accuracies = values[values["axis"].isna() & values["metric"].eq("accuracy")]
    rows_of_model = accuracies[accuracies["model"].eq(model) | accuracies["kind"].eq("baseline")]
    wide = pd.DataFrame([record for _, rows in rows_of_model.groupby("task", sort=False) for record in _records(rows)])
    titles = {title for _, row in rows_of_model.iterrows() if (title := _column(row))}
    columns = [title for _, title in sorted(titles)]
    lines, families = [], list(dict.fromkeys(wide["family"]))
    for family in families:
        family_rows = wide[wide["family"].eq(family)]
        lines += [[str(row["task"]), str(row["shots"]), *_numbers(row[columns])] for _, row in family_rows.iterrows()]
        if len(set(family_rows["task"])) > 1 and len(families) > 1:
            lines += _means(family_rows, family, columns)
    return ["task", "shots", *map(_wrapped_title, columns)], lines + _means(wide, "all", columns)


def _records(rows: pd.DataFrame) -> Iterator[dict[str, Any]]:
    """Yield a record for each number of demonstrations on one task. Each record includes the zero-shot values.

    The value of the majority label is taken at the same number of demonstrations if possible, since it is then computed
    on the same queries.
    """
    by_shots: dict[int, dict[str, Any]] = {0: {}}
    for _, row in rows.iterrows():
        if column := _column(row):
            by_shots.setdefault(int(row["n_context"]), {})[column[1]] = row["value"]
    for shots in sorted(set(by_shots) - {0}) or [0]:
        yield {
            "family": rows["family"].iloc[0],
            "task": rows["task"].iloc[0],
            "shots": shots,
            **by_shots[0],
            **by_shots[shots],
        }


def _column(row: pd.Series) -> tuple[int, str] | None:
    """Return the position and the title of a value's column: zero-shot, plain ICL, methods, shuffled labels, majority
    label. Return None for methods with shuffled labels, which are shown only in the table of the task."""
    if row["kind"] == "baseline":
        return 4, str(row["contestant"])
    if row["n_context"] == 0:
        return 0, "zero-shot"
    method = "" if pd.isna(row["method"]) else str(row["method"]).removeprefix("+")
    if row["shift"] == "none":
        return (2, method) if method else (1, "plain")
    return None if method else (3, "shuffled")


def _means(wide: pd.DataFrame, group: str, columns: list[str]) -> list[list[str]]:
    """Return rows of means over tasks, one for each number of demonstrations at which all tasks were evaluated."""
    tasks = len(set(wide["task"]))
    return [
        [f"[bold]mean of {group} ({tasks})[/bold]", str(shots), *_numbers(rows[columns].mean(skipna=False))]
        for shots, rows in wide.groupby("shots")
        if len(rows) == tasks
    ]


def _numbers(row: pd.Series) -> list[str]:
    return ["" if pd.isna(value) else f"{value:.3f}" for value in row]


def _wrapped_title(title: str) -> str:
    """Wrap a title onto several lines if it is wider than the numbers below it."""
    return "\n".join(wrap(title, 14))


def models_of(values: pd.DataFrame) -> list[str]:
    """Return the names of all models, including models without an evaluation of plain ICL."""
    return [str(name) for name in values.loc[values["kind"].eq("backbone"), "model"].unique()]
