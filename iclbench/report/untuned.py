"""Backbones that were not trained at a learning rate chosen for them, among others that were: they are called untuned
wherever they are compared, and never ranked above a tie."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from iclbench.core.formats import plural
from iclbench.report import normalised
from iclbench.report.blocks import Block, Column, Table
from iclbench.report.data import Results, Slice
from iclbench.report.normalised import Contest

MARK = "(untuned)"


def untuned(slices: Iterable[Slice]) -> dict[str, list[str]]:
    """By backbone the tasks on which it is untuned."""
    found: dict[str, set[str]] = {}
    for task in slices:
        for contestant in task.untuned:
            found.setdefault(contestant, set()).add(task.task)
    return {contestant: sorted(tasks) for contestant, tasks in sorted(found.items())}


def marks(tasks: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """What stands behind the name of who is untuned, in tables of several tasks.

    >>> marks({"s4": ["linear"], "cnp": ["linear", "quadratic"]})
    {'s4': '(untuned on linear)', 'cnp': '(untuned on 2 tasks)'}
    """
    return {who: f"(untuned on {own[0] if len(own) == 1 else plural(len(own), 'task')})" for who, own in tasks.items()}


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


def marked(blocks: Iterable[Block], marks: Mapping[str, str]) -> tuple[Block, ...]:
    """These blocks with a mark behind the names of these contestants in every table, in rows and in headers; in the
    table's frame, and so in its files, a column `untuned` says it of rows."""
    return tuple(_marked(block, marks) if isinstance(block, Table) else block for block in blocks)


def marked_by_preset(
    results: Results, of_preset: Callable[[Results, str, Sequence[Contest]], Iterable[Block]]
) -> list[Block]:
    """What a section says of the contests of every preset, with who is untuned there marked."""
    blocks: list[Block] = []
    for preset in normalised.presets(results):
        contests = normalised.contests(results, preset)
        blocks += marked(of_preset(results, preset, contests), marks(untuned(c.task for c in contests)))
    return blocks


def _marked(table: Table, marks: Mapping[str, str]) -> Table:
    columns = tuple(_column(column, marks) for column in table.columns)
    if columns == table.columns:
        return table
    frame = table.frame
    if "contestant" in frame:
        frame = frame.assign(untuned=frame["contestant"].isin(list(marks)))
    return replace(table, columns=columns, frame=frame)


def _column(column: Column, marks: Mapping[str, str]) -> Column:
    if column.key in ("contestant", "neighbour") and marks:
        return replace(column, mark=lambda name: marks.get(name, ""))
    if column.key in marks and column.header == column.key:
        return replace(column, header=f"{column.header} {marks[column.key]}")
    return column
