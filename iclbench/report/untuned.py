"""Backbones that met others with a chosen learning rate, and have none of their own: they are called untuned wherever
they are compared, and never ranked above a tie."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace

from iclbench.report.blocks import Block, Column, Table
from iclbench.report.normalised import Contest

MARK = "(untuned)"


def untuned(contests: Sequence[Contest]) -> dict[str, list[str]]:
    """By backbone the tasks on which nobody chose its learning rate and somebody that of others."""
    found: dict[str, set[str]] = {}
    for contest in contests:
        for contestant in contest.task.untuned:
            found.setdefault(contestant, set()).add(contest.task.task)
    return {contestant: sorted(tasks) for contestant, tasks in sorted(found.items())}


def told(contestants: Iterable[str]) -> str:
    """The same in a sentence, empty where nobody is.

    >>> told(["s4", "cnp"])
    'Untuned, as nobody chose a learning rate for them and somebody did for others: cnp, s4. '
    """
    names = ", ".join(sorted(contestants))
    return f"Untuned, as nobody chose a learning rate for them and somebody did for others: {names}. " if names else ""


def marked(blocks: Iterable[Block], contestants: Collection[str]) -> tuple[Block, ...]:
    """These blocks with a mark behind the names of these contestants in every table, in rows and in headers; in the
    table's frame, and so in its files, a column `untuned` says it of rows."""
    return tuple(_marked(block, contestants) if isinstance(block, Table) else block for block in blocks)


def _marked(table: Table, contestants: Collection[str]) -> Table:
    columns = tuple(_column(column, contestants) for column in table.columns)
    if columns == table.columns:
        return table
    frame = table.frame
    if "contestant" in frame:
        frame = frame.assign(untuned=frame["contestant"].isin(list(contestants)))
    return replace(table, columns=columns, frame=frame)


def _column(column: Column, contestants: Collection[str]) -> Column:
    if column.key == "contestant" and contestants:
        return replace(column, mark=lambda name: MARK if name in contestants else "")
    if column.key in contestants and column.header == column.key:
        return replace(column, header=f"{column.header} {MARK}")
    return column
