"""What a report is made of: sections of text, tables and figures, independent of how they are written out.

Sections build these blocks from the frames; `page` writes them as HTML, `exports` as CSV, Markdown, LaTeX, PNG and SVG.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import pandas as pd

from iclbench.core.formats import text
from iclbench.report.style import Look

# How the page calls backbones that read their context in order, and those that take it as a set.
GROUPS: dict[str | None, str] = {"causal": "causal models", "set": "set models"}
# Columns of a figure's data that say how a row is drawn, and nothing about what was measured.
_DRAWN = frozenset({"label", "series", "width", "sparse", "band", "note", "order"})


@dataclass(frozen=True)
class Column:
    """One column of a table as it is shown.

    `key` names the column of the frame, `show` writes one of its values; `low` and `high` name the ends of an interval
    that is written behind the value, `spread` a standard deviation that is written instead where it is known;
    `episodes` names the number of episodes behind the value, which is written where it is not the column's largest;
    `shade` maps a value to a background between 0 (white) and 1.
    """

    key: str
    header: str
    show: Callable[[Any], str] = text
    numeric: bool = False
    low: str | None = None
    high: str | None = None
    shade: Callable[[Any], float | None] | None = None
    spread: str | None = None
    episodes: str | None = None


@dataclass(frozen=True)
class TableCell:
    """The content of a cell: a value, the interval behind it, a background."""

    value: str
    interval: str = ""
    shade: float | None = None

    @property
    def text(self) -> str:
        return f"{self.value} {self.interval}" if self.interval else self.value


@dataclass(frozen=True)
class Table:
    """A frame with every digit (what the CSV file holds) and the columns in which it is shown.

    The first column names the row. `group` is a column of the frame: a rule is drawn wherever its value changes. With
    `linked`, the report links to the files of the table and does not show its rows.

    Raises:
        KeyError: the frame lacks a column that is shown.
    """

    name: str
    title: str
    caption: str
    frame: pd.DataFrame
    columns: tuple[Column, ...]
    group: str | None = None
    folded: bool = False
    linked: bool = False

    def __post_init__(self) -> None:
        keys = [key for c in self.columns for key in (c.key, c.spread, c.low, c.high, c.episodes)]
        if unknown := {*keys, self.group} - {None, *self.frame.columns}:
            raise KeyError(f"table '{self.name}' has no column {', '.join(map(repr, sorted(map(str, unknown))))}")

    def rows(self) -> list[tuple[TableCell, ...]]:
        """Every row as it is shown."""
        return self._shown

    @cached_property
    def _shown(self) -> list[tuple[TableCell, ...]]:
        """Written once, for the page and for every format of file."""
        return list(zip(*(_cells(column, self.frame) for column in self.columns), strict=True))

    def starts_group(self) -> list[bool]:
        """For every row: whether a group begins there (never in the first row)."""
        if self.group is None:
            return [False] * len(self.frame)
        values = self.frame[self.group].astype(object).ffill()
        above = values.shift()
        return (above.notna() & (values != above).fillna(True)).astype(bool).tolist()


@dataclass(frozen=True)
class Panel:
    """One drawing of a figure: the rows of the figure's data in which every column of `where` has that value."""

    title: str
    where: Mapping[str, str] = field(default_factory=dict)


# Builds a Vega-Lite specification.
Specification = Callable[[], dict[str, Any]]


@dataclass(frozen=True)
class Figure:
    """One figure, twice: `static` is a complete Vega-Lite specification with its data and a legend, for PNG and SVG;
    `live` is a specification without data that the page draws once per panel, with the rows of `data`. Both are built
    when they are asked for, by `printed` and `shown`: most reports write no pictures. On a wide page there are
    `columns` panels in a row (0: as many as fit); one alone is then no wider than in a row of two. `shapes`: the
    page's legend shows the shapes of points.
    """

    name: str
    title: str
    caption: str
    alt: str
    data: pd.DataFrame
    printed: Specification
    shown: Specification
    panels: tuple[Panel, ...] = (Panel(""),)
    legend: Mapping[str, Look] = field(default_factory=dict)
    columns: int = 0
    shapes: bool = False

    @cached_property
    def static(self) -> dict[str, Any]:
        """The specification for files."""
        return self.printed()

    @cached_property
    def live(self) -> dict[str, Any]:
        """The specification for the page."""
        return self.shown()

    @property
    def behind(self) -> dict[str, str]:
        """What a file of the rows behind the figure holds: names of its columns, and of those of `data`.

        Every row names its run in the first column, a mean over seeds all of its runs with `; ` between them.
        """
        named = [str(name) for name in self.data.columns]
        run = next((name for name in ("run", "series") if name in named and self.data[name].notna().any()), None)
        first = {} if run is None else {"run": run}
        return first | {name: name for name in named if name not in {*_DRAWN, "run"}}

    def rows(self) -> pd.DataFrame:
        """The rows behind the figure."""
        return self.data[list(self.behind.values())].set_axis(list(self.behind), axis=1)

    @property
    def groups(self) -> dict[str, dict[str, Look]]:
        """The legend in groups: causal models, set models, and everybody else; without names where all are alike."""
        found: dict[str, dict[str, Look]] = {}
        for name, look in self.legend.items():
            found.setdefault(GROUPS.get(look.order, "others"), {})[name] = look
        order = [title for title in (*GROUPS.values(), "others") if title in found]
        alike = len(set(order) - {"others"}) < 2
        return {"": dict(self.legend)} if alike else {title: found[title] for title in order}


@dataclass(frozen=True)
class Picture:
    """A small image as a PNG file, with the text for those who cannot see it."""

    png: bytes
    alt: str

    @property
    def uri(self) -> str:
        return "data:image/png;base64," + b64encode(self.png).decode("ascii")


@dataclass(frozen=True)
class Gallery:
    """Small pictures in rows and columns, each with its title; None leaves a place empty."""

    name: str
    title: str
    caption: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, tuple[Picture | None, ...]], ...]


@dataclass(frozen=True)
class Text:
    """A paragraph, with a list behind it when there are `items`; `folded`: opened by a click on the paragraph."""

    text: str
    items: tuple[str, ...] = ()
    folded: bool = False


@dataclass(frozen=True)
class Tile:
    """A coloured cell: its text, its colour, that of the text, and what pointing tells."""

    text: str
    colour: str
    ink: str
    tooltip: str


@dataclass(frozen=True)
class Glance:
    """The first screen: sentences on what was `compared`, the heat map of a preset in small (`more` rows do not fit),
    `findings`, and what is `missing`."""

    name: str
    compared: tuple[str, ...]
    preset: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, list[Tile]], ...]
    more: int
    findings: tuple[str, ...]
    missing: tuple[str, ...]


Block = Text | Table | Figure | Gallery | Glance


@dataclass(frozen=True)
class Section:
    """A heading with what stands below it. `id` is unique on the page and safe in file names; sections of one `group`
    stand together in the table of contents. `task`, `preset` and `contestants` say what it is about, if it is about one
    task."""

    id: str
    title: str
    blocks: tuple[Block, ...] = ()
    parts: tuple[Section, ...] = ()
    group: str = ""
    task: str = ""
    preset: str = ""
    contestants: tuple[str, ...] = ()

    @property
    def short(self) -> str:
        """The title within its group."""
        return self.title.removesuffix(f" · {self.group}")

    def walk(self) -> list[Block]:
        """All blocks of the section and of its parts, in reading order."""
        return [*self.blocks, *(block for part in self.parts for block in part.walk())]


def _cells(column: Column, frame: pd.DataFrame) -> list[TableCell]:
    """One column, cell by cell."""
    keys = (column.key, column.spread, column.low, column.high, column.episodes)
    known = [_known(frame, key) for key in keys]
    most = max((n for n in known[-1] if n is not None), default=None)
    cells = []
    for value, spread, low, high, episodes in zip(*known, strict=True):
        if value is None:
            cells.append(TableCell("–"))
            continue
        interval = ""
        if spread is not None:
            interval = f"± {column.show(spread)}"
        elif low is not None and high is not None:
            interval = f"[{column.show(low)}, {column.show(high)}]"
        if episodes is not None and episodes != most:
            interval = f"{interval} ({int(episodes):,} episodes)".strip()
        cells.append(TableCell(column.show(value), interval, column.shade(value) if column.shade else None))
    return cells


def _known(frame: pd.DataFrame, key: str | None) -> list[Any]:
    """The values of a column as plain Python values, None for what is missing; all None without a column."""
    if key is None:
        return [None] * len(frame)
    missing = frame[key].isna().tolist()
    return [None if gone else value for value, gone in zip(frame[key].tolist(), missing, strict=True)]
