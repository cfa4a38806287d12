"""The content of a report, independent of its format: sections with text, tables and figures.

Sections build these blocks from frames; `page` renders them as HTML, and `exports` writes them as CSV, Markdown, LaTeX,
PNG, SVG and PDF.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import pandas as pd

from iclbench.core.formats import text
from iclbench.report.style import Look

# Titles of groups in legends, by context order.
ORDER_TITLES: dict[str | None, str] = {"causal": "causal models", "set": "set models"}
# Columns of a figure's data that only control the drawing. They are not in the figure's CSV file.
_DRAWING_COLUMNS = frozenset({"label", "series", "width", "sparse", "band", "note", "order"})


@dataclass(frozen=True)
class Column:
    """A column of a table.

    Attributes:
        key: column of the frame.
        header: title of the column.
        show: formats a value.
        numeric: whether the column is aligned to the right.
        low: column with the lower end of an interval, which follows the value.
        high: column with the upper end.
        shade: maps a value to a background between 0 (white) and 1 (blue).
        spread: column with a standard deviation, which is printed instead of the interval if it is known.
        episodes: column with the number of episodes, which is printed after a mean if the mean of another row is over
            more episodes.
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
    """A formatted cell: value, interval, and background between 0 and 1."""

    value: str
    interval: str = ""
    shade: float | None = None

    @property
    def text(self) -> str:
        return f"{self.value} {self.interval}" if self.interval else self.value


@dataclass(frozen=True)
class Table:
    """A table. The CSV file contains the complete frame. The page and the Markdown and LaTeX files contain the
    formatted columns.

    Attributes:
        name: file name without ending, unique in the report.
        title: title.
        caption: caption.
        frame: the values.
        columns: the columns to show; the first one is the header of the row.
        group: column of the frame; a rule is drawn where its value changes.
        folded: whether the table is collapsed on the page.
        linked: whether the page links to the files of the table instead of showing its rows.
        notes: numbered footnotes.

    Raises:
        KeyError: the frame lacks a column.
    """

    name: str
    title: str
    caption: str
    frame: pd.DataFrame
    columns: tuple[Column, ...]
    group: str | None = None
    folded: bool = False
    linked: bool = False
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        keys = [key for c in self.columns for key in (c.key, c.spread, c.low, c.high, c.episodes)]
        if unknown := {*keys, self.group} - {None, *self.frame.columns}:
            raise KeyError(f"table '{self.name}' has no column {', '.join(map(repr, sorted(map(str, unknown))))}")

    def rows(self) -> list[tuple[TableCell, ...]]:
        """The formatted rows."""
        return self._rows

    @cached_property
    def _rows(self) -> list[tuple[TableCell, ...]]:
        """The formatted rows, computed once for the page and all files."""
        return list(zip(*(_cells(column, self.frame) for column in self.columns), strict=True))

    def starts_group(self) -> list[bool]:
        """Whether each row starts a new group; False for the first row."""
        if self.group is None:
            return [False] * len(self.frame)
        values = self.frame[self.group].astype(object).ffill()
        previous = values.shift()
        return (previous.notna() & (values != previous).fillna(True)).astype(bool).tolist()


@dataclass(frozen=True)
class Panel:
    """A panel of a figure: the rows of the figure's data that match `where`, which maps columns to values."""

    title: str
    where: Mapping[str, str] = field(default_factory=dict)


# A function that builds a Vega-Lite specification.
SpecificationBuilder = Callable[[], dict[str, Any]]


@dataclass(frozen=True)
class Figure:
    """A figure with two Vega-Lite specifications: one for files and one for the page.

    The specifications are built on first use, because most reports have no picture files.

    Attributes:
        name: file name without ending, unique in the report.
        title: title.
        caption: caption.
        alt: alternative text.
        data: the rows of all panels.
        make_static: builds the specification for PNG, SVG and PDF, with data and legend.
        make_live: builds the specification that the page draws for each panel, without data.
        panels: the panels.
        legend: the looks in the page's legend, by name.
        columns: number of panels per row on a wide page; 0 for as many as fit. With a number, a single panel takes at
            most half of the width.
        shows_shapes: whether the page's legend shows the shapes of points.
    """

    name: str
    title: str
    caption: str
    alt: str
    data: pd.DataFrame
    make_static: SpecificationBuilder
    make_live: SpecificationBuilder
    panels: tuple[Panel, ...] = (Panel(""),)
    legend: Mapping[str, Look] = field(default_factory=dict)
    columns: int = 0
    shows_shapes: bool = False

    @cached_property
    def static(self) -> dict[str, Any]:
        """The specification for files."""
        return self.make_static()

    @cached_property
    def live(self) -> dict[str, Any]:
        """The specification for the page."""
        return self.make_live()

    @property
    def row_columns(self) -> dict[str, str]:
        """The columns of the figure's CSV file, mapped to the columns of `data` that they contain.

        The first column is the run of the row. For a mean over seeds, it contains all runs, separated by `; `.
        """
        names = [str(name) for name in self.data.columns]
        run = next((name for name in ("run", "series") if name in names and self.data[name].notna().any()), None)
        run_column = {} if run is None else {"run": run}
        return run_column | {name: name for name in names if name not in {*_DRAWING_COLUMNS, "run"}}

    def rows(self) -> pd.DataFrame:
        """The rows of the figure's CSV file."""
        return self.data[list(self.row_columns.values())].set_axis(list(self.row_columns), axis=1)

    @property
    def legend_groups(self) -> dict[str, dict[str, Look]]:
        """The legend by group: causal models, set models, others. If all models have the same order, there is a single
        group without a title."""
        groups: dict[str, dict[str, Look]] = {}
        for name, look in self.legend.items():
            groups.setdefault(ORDER_TITLES.get(look.order, "others"), {})[name] = look
        titles = [title for title in (*ORDER_TITLES.values(), "others") if title in groups]
        has_one_order = len(set(titles) - {"others"}) < 2
        return {"": dict(self.legend)} if has_one_order else {title: groups[title] for title in titles}


@dataclass(frozen=True)
class Picture:
    """A small image as PNG, with an alternative text."""

    png: bytes
    alt: str

    @property
    def uri(self) -> str:
        return "data:image/png;base64," + b64encode(self.png).decode("ascii")


@dataclass(frozen=True)
class Gallery:
    """Small pictures in titled rows and columns; None is an empty cell."""

    name: str
    title: str
    caption: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, tuple[Picture | None, ...]], ...]


@dataclass(frozen=True)
class Text:
    """A paragraph with an optional list of items. If `folded` is True, the items are collapsed on the page."""

    text: str
    items: tuple[str, ...] = ()
    folded: bool = False


@dataclass(frozen=True)
class Tile:
    """A cell of a small heat map: text, background colour, text colour, and tooltip."""

    text: str
    colour: str
    ink: str
    tooltip: str


@dataclass(frozen=True)
class FirstScreen:
    """The summary at the top of the page.

    Attributes:
        name: name of the block.
        scope: sentences that describe the compared tasks and models.
        preset: preset of the small heat map.
        columns: contestants of the heat map.
        rows: title and tiles of each row.
        hidden_row_count: number of rows of the complete heat map that are not shown.
        findings: a line for each of the largest differences.
        missing: a line for each kind of missing results.
        local_runs: id and title of each section with runs that are not packed, and the names of these runs.
    """

    name: str
    scope: tuple[str, ...]
    preset: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, list[Tile]], ...]
    hidden_row_count: int
    findings: tuple[str, ...]
    missing: tuple[str, ...]
    local_runs: tuple[tuple[str, str, tuple[str, ...]], ...] = ()


Block = Text | Table | Figure | Gallery | FirstScreen

# Paragraphs of "How numbers are computed" in docs/reports.md.
Rule = Literal[
    "Normalisation",
    "Score",
    "Intervals",
    "Behind",
    "Rank in a leaderboard",
    "Heat map",
    "Ranking over tasks",
    "Named pairs",
    "Learning curves",
    "Gap",
    "Ceiling-adjusted",
    "Calibration",
    "Windows of learning rates",
    "Scores over training",
    "Costs",
    "Rank of predictions",
    "In context and in weights",
    "Published results",
]


@dataclass(frozen=True)
class Section:
    """A section of the page.

    Attributes:
        id: unique on the page, and safe in file names.
        title: heading.
        blocks: content.
        parts: subsections.
        group: group in the table of contents.
        task: the task of the section, for filters; empty if there are several.
        preset: the preset of the section, for filters.
        contestants: the contestants of the section, for filters.
        rules: the paragraphs of the documentation that define the numbers of the section.
    """

    id: str
    title: str
    blocks: tuple[Block, ...] = ()
    parts: tuple[Section, ...] = ()
    group: str = ""
    task: str = ""
    preset: str = ""
    contestants: tuple[str, ...] = ()
    rules: tuple[Rule, ...] = ()

    @property
    def short_title(self) -> str:
        """The title without the name of its group."""
        return self.title.removesuffix(f" · {self.group}")

    def walk(self) -> list[Block]:
        """All blocks of the section and of its parts, in reading order."""
        return [*self.blocks, *(block for part in self.parts for block in part.walk())]


def _cells(column: Column, frame: pd.DataFrame) -> list[TableCell]:
    """The formatted cells of a column."""
    keys = (column.key, column.spread, column.low, column.high, column.episodes)
    values = [_values(frame, key) for key in keys]
    max_episodes = max((n for n in values[-1] if n is not None), default=None)
    cells = []
    for value, spread, low, high, episodes in zip(*values, strict=True):
        if value is None:
            cells.append(TableCell("–"))
            continue
        interval = ""
        if spread is not None:
            interval = f"± {column.show(spread)}"
        elif low is not None and high is not None:
            interval = f"[{column.show(low)}, {column.show(high)}]"
        if episodes is not None and episodes != max_episodes:
            interval = f"{interval} ({int(episodes):,} episodes)".strip()
        cells.append(TableCell(column.show(value), interval, column.shade(value) if column.shade else None))
    return cells


def _values(frame: pd.DataFrame, key: str | None) -> list[Any]:
    """The values of a column as Python values, or None for missing values or a missing column."""
    if key is None:
        return [None] * len(frame)
    missing = frame[key].isna().tolist()
    return [None if is_missing else value for value, is_missing in zip(frame[key].tolist(), missing, strict=True)]
