"""The table over several tasks that ends `iclbench lm eval`: one line per task, and the means of families."""

from __future__ import annotations

from collections.abc import Iterator
from textwrap import wrap
from typing import Any

import pandas as pd


def overview_board(values: pd.DataFrame, model: str) -> tuple[list[str], list[list[str]]]:
    """Column names and rows of one model: accuracy by task, means of families, the mean of all."""
    asked = values[values["axis"].isna() & values["metric"].eq("accuracy")]
    mine = asked[asked["model"].eq(model) | asked["kind"].eq("baseline")]
    wide = pd.DataFrame([record for _, rows in mine.groupby("task", sort=False) for record in _records(rows)])
    titles = {title for _, row in mine.iterrows() if (title := _title(row))}
    columns = [title for _, title in sorted(titles)]
    lines, families = [], list(dict.fromkeys(wide["family"]))
    for family in families:
        own = wide[wide["family"].eq(family)]
        lines += [[str(row["task"]), str(row["shots"]), *_numbers(row[columns])] for _, row in own.iterrows()]
        if len(set(own["task"])) > 1 and len(families) > 1:
            lines += _means(own, family, columns)
    return ["task", "shots", *map(_narrow, columns)], lines + _means(wide, "all", columns)


def _records(rows: pd.DataFrame) -> Iterator[dict[str, Any]]:
    """One record for every number of demonstrations of one task, with what was asked without any; the majority's answer
    is to the same queries, and to those without demonstrations only where it was not asked these."""
    at: dict[int, dict[str, Any]] = {0: {}}
    for _, row in rows.iterrows():
        if column := _title(row):
            at.setdefault(int(row["n_context"]), {})[column[1]] = row["value"]
    for shots in sorted(set(at) - {0}) or [0]:
        yield {"family": rows["family"].iloc[0], "task": rows["task"].iloc[0], "shots": shots, **at[0], **at[shots]}


def _title(row: pd.Series) -> tuple[int, str] | None:
    """The column of a value and its place: without demonstrations first, then plain ICL, methods, and what all of that
    has to be seen beside; none for methods with shuffled labels, which the task's own table has."""
    if row["kind"] == "baseline":
        return 4, str(row["contestant"])
    if row["n_context"] == 0:
        return 0, "zero-shot"
    method = "" if pd.isna(row["method"]) else str(row["method"]).removeprefix("+")
    if row["shift"] == "none":
        return (2, method) if method else (1, "plain")
    return None if method else (3, "shuffled")


def _means(wide: pd.DataFrame, what: str, columns: list[str]) -> list[list[str]]:
    """Means over tasks for every number of demonstrations; none where a task is missing."""
    tasks = len(set(wide["task"]))
    return [
        [f"[bold]mean of {what} ({tasks})[/bold]", str(shots), *_numbers(rows[columns].mean(skipna=False))]
        for shots, rows in wide.groupby("shots")
        if len(rows) == tasks
    ]


def _numbers(row: pd.Series) -> list[str]:
    return ["" if pd.isna(value) else f"{value:.3f}" for value in row]


def _narrow(title: str) -> str:
    """In several lines where it is longer than numbers are wide."""
    return "\n".join(wrap(title, 14))


def models_of(values: pd.DataFrame) -> list[str]:
    """Names of models, also where nothing is there but a method on them."""
    return [str(name) for name in values.loc[values["kind"].eq("backbone"), "model"].unique()]
