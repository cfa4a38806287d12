"""How wide the columns of a printed table are: nothing in it is ever cut.

A table that is too wide folds its prose between words; numbers never. Where that is not enough, it is printed in
blocks of columns below one another, each beginning with what names its rows; a block that still does not fit runs over
the edge.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

# Spaces between two columns.
GAP = 2
# Letters per line that prose is not folded below: the first while there are other ways, then the next.
_READABLE = (20, 12)


@dataclass(frozen=True)
class Column:
    """What a column needs.

    Attributes:
        natural: letters of its longest line.
        word: letters of its longest word; `natural` where it may not be folded.
    """

    natural: int
    word: int

    def floor(self, readable: int) -> int:
        """The least width, with so many letters per line where there are more."""
        return max(self.word, min(self.natural, readable))


@dataclass(frozen=True)
class Block:
    """Columns that stand side by side, by index, and their widths in letters."""

    columns: tuple[int, ...]
    widths: tuple[int, ...]

    @property
    def width(self) -> int:
        return sum(self.widths) + GAP * (len(self.widths) - 1)


def blocks(columns: Sequence[Column], width: int, keys: Sequence[int] = (0,)) -> list[Block]:
    """The columns in as few blocks as fit into so many letters.

    Args:
        columns: what each of them needs.
        width: letters per line.
        keys: the columns that name a row: they begin every block.

    >>> name, number = Column(20, 20), Column(6, 6)
    >>> [block.columns for block in blocks([name, *[number] * 4], 44)]
    [(0, 1, 2, 3), (0, 4)]
    >>> [block.widths for block in blocks([name, Column(90, 12)], 60)]
    [(20, 38)]
    """
    everything = tuple(range(len(columns)))
    if not columns:
        return []
    whole_keys = [Column(c.natural, c.natural) if i in keys else c for i, c in enumerate(columns)]
    for chosen in (whole_keys, columns):
        if (widths := _fit(chosen, width)) is not None:
            return [Block(everything, widths)]
    found: list[Block] = []
    rest = [index for index in everything if index not in keys]
    while rest:
        tried = ((*keys, *rest[:count]) for count in range(len(rest), 0, -1))
        part = next((each for each in tried if _fit([whole_keys[i] for i in each], width)), (*keys, rest[0]))
        widths = _fit([whole_keys[i] for i in part], width) or _fit([columns[i] for i in part], width)
        found.append(Block(part, widths or _least([columns[i] for i in part])))
        rest = rest[len(part) - len(keys) :]
    return found or [Block(everything, _least(columns))]


def _fit(columns: Sequence[Column], width: int) -> tuple[int, ...] | None:
    """Widths that fit: as long as the lines are, or what is left shared out by need; None: they do not fit."""
    for readable in _READABLE:
        widths = [column.floor(readable) for column in columns]
        spare = width - GAP * (len(columns) - 1) - sum(widths)
        if spare < 0:
            continue
        # Those that want least are served first: whole lines for them cost the others little.
        order = sorted(range(len(columns)), key=lambda index: columns[index].natural - widths[index])
        for left, index in zip(range(len(columns), 0, -1), order, strict=True):
            more = min(columns[index].natural - widths[index], spare // left)
            widths[index] += more
            spare -= more
        return tuple(widths)
    return None


def _least(columns: Sequence[Column]) -> tuple[int, ...]:
    """Widths of columns that run over the edge."""
    return tuple(column.floor(_READABLE[0]) for column in columns)
