"""Backbones that were not trained at a learning rate chosen for them, among others that were: they are called untuned
wherever they are compared, and never ranked above a tie."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace

from iclbench.report.blocks import Block, Column, Table
from iclbench.report.normalised import Contest

MARK = "(untuned)"


def untuned(contests: Sequence[Contest]) -> dict[str, list[str]]:
    """By backbone the tasks on which it is untuned."""
    found: dict[str, set[str]] = {}
    for contest in contests:
        for contestant in contest.task.untuned:
            found.setdefault(contestant, set()).add(contest.task.task)
    return {contestant: sorted(tasks) for contestant, tasks in sorted(found.items())}


def told(contestants: Iterable[str]) -> str:
    """The same in a sentence, empty where nobody is.

    >>> told(["s4", "cnp"])
    'Untuned, not trained at a learning rate chosen for them as others were: cnp, s4. '
    """
    names = ", ".join(sorted(contestants))
    return f"Untuned, not trained at a learning rate chosen for them as others were: {names}. " if names else ""


def shared_rank(contestants: Collection[str]) -> str:
    """What is said of ranks where somebody is untuned (`iclbench.report.pairs.ranks`)."""
    return "Who is untuned has the rank of the next row below that is not. " if contestants else ""


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
