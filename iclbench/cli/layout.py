"""Lay out a printed table without truncating cells.

If a table is too wide, text is folded between words; numbers are never folded. If it is still too wide, it is split
into blocks of columns, printed one below the other. Each block begins with the columns that name the rows. A block that
still does not fit is printed wider than the terminal.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

# Spaces between two columns.
GAP = 2
# Minimum widths of folded text in characters. The second is used if the table does not fit with the first.
_FOLD_WIDTHS = (20, 12)


@dataclass(frozen=True)
class ColumnWidth:
    """The width needed by a column.

    Attributes:
        line_width: number of characters in the longest line.
        word_width: number of characters in the longest word; `line_width` if the column cannot be folded.
    """

    line_width: int
    word_width: int

    def minimum_width(self, fold_width: int) -> int:
        """Return the minimum width if lines are folded to `fold_width` characters."""
        return max(self.word_width, min(self.line_width, fold_width))


@dataclass(frozen=True)
class Block:
    """A block of columns: their indices, and their widths in characters."""

    columns: tuple[int, ...]
    widths: tuple[int, ...]

    @property
    def width(self) -> int:
        return sum(self.widths) + GAP * (len(self.widths) - 1)


def blocks(columns: Sequence[ColumnWidth], width: int, keys: Sequence[int] = (0,)) -> list[Block]:
    """Split columns into the smallest number of blocks that fit into `width`.

    Args:
        columns: the width needed by each column.
        width: characters per line.
        keys: the columns that name a row; every block begins with them.

    >>> name, number = ColumnWidth(20, 20), ColumnWidth(6, 6)
    >>> [block.columns for block in blocks([name, *[number] * 4], 44)]
    [(0, 1, 2, 3), (0, 4)]
    >>> [block.widths for block in blocks([name, ColumnWidth(90, 12)], 60)]
    [(20, 38)]
    """
    all_indices = tuple(range(len(columns)))
    if not columns:
        return []
    unfolded_keys = [ColumnWidth(c.line_width, c.line_width) if i in keys else c for i, c in enumerate(columns)]
    for column_widths in (unfolded_keys, columns):
        if (widths := _fit(column_widths, width)) is not None:
            return [Block(all_indices, widths)]
    table_blocks: list[Block] = []
    remaining_indices = [index for index in all_indices if index not in keys]
    while remaining_indices:
        candidates = ((*keys, *remaining_indices[:count]) for count in range(len(remaining_indices), 0, -1))
        block_columns = next(
            (candidate for candidate in candidates if _fit([unfolded_keys[i] for i in candidate], width)),
            (*keys, remaining_indices[0]),
        )
        widths = _fit([unfolded_keys[i] for i in block_columns], width) or _fit(
            [columns[i] for i in block_columns], width
        )
        table_blocks.append(Block(block_columns, widths or _minimum_widths([columns[i] for i in block_columns])))
        remaining_indices = remaining_indices[len(block_columns) - len(keys) :]
    return table_blocks or [Block(all_indices, _minimum_widths(columns))]


def _fit(columns: Sequence[ColumnWidth], width: int) -> tuple[int, ...] | None:
    """Return widths that fit: each column's minimum width plus a share of the spare width. Return None if the columns
    do not fit."""
    for fold_width in _FOLD_WIDTHS:
        widths = [column.minimum_width(fold_width) for column in columns]
        spare_width = width - GAP * (len(columns) - 1) - sum(widths)
        if spare_width < 0:
            continue
        # The spare width is given first to the columns that need the least of it, since they can be unfolded
        # completely.
        order = sorted(range(len(columns)), key=lambda index: columns[index].line_width - widths[index])
        for remaining_columns, index in zip(range(len(columns), 0, -1), order, strict=True):
            extra_width = min(columns[index].line_width - widths[index], spare_width // remaining_columns)
            widths[index] += extra_width
            spare_width -= extra_width
        return tuple(widths)
    return None


def _minimum_widths(columns: Sequence[ColumnWidth]) -> tuple[int, ...]:
    """Return the minimum widths of columns, for a block that does not fit."""
    return tuple(column.minimum_width(_FOLD_WIDTHS[0]) for column in columns)
