"""Kinds of columns of a user's table, and the conversion of their cells to numbers."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import asdict, dataclass
from datetime import date
from decimal import Decimal
from numbers import Number as AnyNumber
from typing import Any, ClassVar, Protocol, runtime_checkable

import numpy as np
import pandas as pd
from jaxtyping import Float

from iclbench.families.tabular.numerals import DECIMAL_MARKS, marked_number, number

# A column of text contains numbers if at least this share of its cells or of its different values can be read as such,
# and dates if at least this share of its different values can.
MIN_SHARE = 0.95
_CLOCK = ("", " %H:%M", " %H:%M:%S")
_DAYS = (
    *("%d.%m.%Y", "%m/%d/%Y", "%d/%m/%Y", "%Y/%m/%d", "%d-%m-%Y", "%m-%d-%Y", "%m/%d/%y", "%d/%m/%y", "%d.%m.%y"),
    *("%d %b %Y", "%d-%b-%Y", "%d-%b-%y", "%b %d, %Y", "%d %B %Y", "%B %d, %Y"),
)
_DATE_FORMATS = ("ISO8601", *(day + clock for clock in _CLOCK for day in _DAYS))
# Approximate number of different values of a column that are tested against all date formats.
_DATE_SAMPLE = 200


@runtime_checkable
class Kind(Protocol):
    """A kind of column. `values` returns one number per cell, or NaN for a cell that is missing or cannot be read."""

    word: ClassVar[str]

    def values(self, cells: pd.Series) -> Float[np.ndarray, " rows"]: ...

    def step(self) -> str:
        """Return a description of the encoding."""
        ...


@dataclass(frozen=True)
class Number:
    """Numbers. In text, `decimal` is the decimal mark; separators of thousands and signs of currencies are ignored."""

    decimal: str = "."
    is_text: bool = False
    word: ClassVar[str] = "number"

    def values(self, cells: pd.Series) -> Float[np.ndarray, " rows"]:
        if pd.api.types.is_numeric_dtype(cells.dtype) or pd.api.types.is_bool_dtype(cells.dtype):
            return _finite(cells.to_numpy(np.float64, na_value=np.nan))
        if pd.api.types.is_timedelta64_dtype(cells.dtype):
            days: np.ndarray = (cells.dt.total_seconds() / 86_400).to_numpy(np.float64)
            return days
        if pd.api.types.is_datetime64_any_dtype(cells.dtype):
            return np.full(len(cells), np.nan)
        return _mapped(cells, self._number)

    def _number(self, cell: Any) -> float:
        if isinstance(cell, AnyNumber | Decimal | np.bool_) and not isinstance(cell, complex):
            return float(cell)  # type: ignore[arg-type]
        return marked_number(str(cell), self.decimal)

    def step(self) -> str:
        if not self.is_text:
            return "number"
        example = "1,234.5" if self.decimal == "." else "1.234,5"
        return f"text as numbers (such as {example})"


@dataclass(frozen=True)
class Boolean:
    """Truth values, 0 or 1."""

    word: ClassVar[str] = "boolean"

    def values(self, cells: pd.Series) -> Float[np.ndarray, " rows"]:
        if cells.dtype.kind in "biuf":
            numbers = cells.to_numpy(np.float64, na_value=np.nan)
            return np.where(np.isin(numbers, (0.0, 1.0)), numbers, np.nan)
        return _mapped(cells, lambda cell: {"true": 1.0, "false": 0.0}.get(str(cell).strip().lower(), np.nan))

    def step(self) -> str:
        return "false is 0, true is 1"


@dataclass(frozen=True)
class Date:
    """Dates, which are converted to days since the first date.

    Attributes:
        format: a format of `strptime`, or ISO8601.
        first: the first date.
    """

    format: str
    first: str
    word: ClassVar[str] = "date"

    def values(self, cells: pd.Series) -> Float[np.ndarray, " rows"]:
        days = (_dates(cells, self.format) - pd.Timestamp(self.first)) / pd.Timedelta(days=1)
        return days.to_numpy(np.float64, na_value=np.nan)

    def step(self) -> str:
        suffix = "" if self.format == "ISO8601" else f" ({self.format})"
        return f"date{suffix}, in days since {self.first[:10]}"

    def ambiguity(self, cells: pd.Series) -> str:
        """Return a remark if day and month can be exchanged in all cells, otherwise an empty string."""
        other_format = self.format.translate({ord("d"): "m", ord("m"): "d"})
        if other_format == self.format or other_format not in _DATE_FORMATS:
            return ""
        dates, other_dates = _dates(cells, self.format), _dates(cells, other_format)
        if dates.equals(other_dates) or (dates.notna() & other_dates.isna()).any():
            return ""
        example = str(cells[dates.notna() & dates.ne(other_dates)].iloc[0]).strip()
        order = "month before day" if self.format.startswith("%m") else "day before month"
        day = dates[dates.ne(other_dates)].dropna().iloc[0]
        return f"'{example}' is read as {day:%Y-%m-%d}, {order}; write dates as YYYY-MM-DD to exclude the other order"


@dataclass(frozen=True)
class Category:
    """Categories, which are converted to their positions in sorted order."""

    categories: tuple[str, ...]
    word: ClassVar[str] = "category"

    def values(self, cells: pd.Series) -> Float[np.ndarray, " rows"]:
        codes = {category: float(code) for code, category in enumerate(self.categories)}
        return _mapped(cells, lambda cell: codes.get(label(cell), np.nan))

    def step(self) -> str:
        names = [name if len(name) <= 30 else name[:27] + "..." for name in self.categories[:6]]
        more = ", ..." if len(self.categories) > 6 else ""
        return f"category, 0 to {len(self.categories) - 1} in the order {', '.join(names)}{more}"


KINDS: Mapping[str, type] = {cls.word: cls for cls in (Number, Boolean, Date, Category)}


def kind_of(cells: pd.Series) -> Kind:
    """Return the kind of a column, with the categories or the first date of these cells."""
    dtype = cells.dtype
    if pd.api.types.is_bool_dtype(dtype):
        return Boolean()
    if pd.api.types.is_numeric_dtype(dtype) or pd.api.types.is_timedelta64_dtype(dtype):
        return Number()
    if pd.api.types.is_datetime64_any_dtype(dtype):
        return Date("ISO8601", _first_date(_dates(cells, "ISO8601")))
    if isinstance(dtype, pd.CategoricalDtype):
        return _category(cells)
    present, counts = _present(cells)
    if len(present) == 0:
        return Number()
    if all(isinstance(cell, bool | np.bool_) for cell in present):
        return Boolean()
    if all(isinstance(cell, AnyNumber | Decimal) and not isinstance(cell, complex) for cell in present):
        return Number()
    if all(isinstance(cell, date) for cell in present):  # also datetimes
        return Date("ISO8601", _first_date(_dates(cells, "ISO8601")))
    return _number_kind(present, counts) or _date_kind(present) or _category(cells)


def to_json(kind: Kind) -> dict[str, Any]:
    """Return a kind as plain values."""
    values = {key: list(value) if isinstance(value, tuple) else value for key, value in asdict(kind).items()}  # type: ignore[call-overload]
    return {"kind": kind.word, **values}


def from_json(values: Mapping[str, Any]) -> Kind:
    """Create a kind from the result of `to_json`."""
    settings = {key: tuple(value) if isinstance(value, list) else value for key, value in values.items()}
    kind: Kind = KINDS[str(settings.pop("kind"))](**settings)
    return kind


def is_missing(cells: pd.Series) -> np.ndarray:
    """Return whether each cell is missing or blank."""
    missing = cells.isna().to_numpy(bool)
    if cells.dtype.kind not in "biufmM":
        blank = np.fromiter((isinstance(cell, str) and not cell.strip() for cell in cells), bool, len(cells))
        missing = missing | blank
    return missing


def label(cell: Any) -> str:
    """Return the name of a category: `1` for the numbers 1 and 1.0, and text without surrounding blanks."""
    if isinstance(cell, float | np.floating) and float(cell).is_integer():
        return str(int(cell))
    return str(cell).strip()


def sorted_labels(cells: pd.Series) -> tuple[str, ...]:
    """Return the different labels of a column, in the order of an ordered categorical or, for other columns, sorted. If
    all labels are numbers, they are sorted by value."""
    if isinstance(cells.dtype, pd.CategoricalDtype) and cells.cat.ordered:
        present = set(cells.dropna().unique())
        return tuple(label(value) for value in cells.cat.categories if value in present)
    labels = {label(cell) for cell in _present(cells)[0]}
    try:
        return tuple(sorted(sorted(labels), key=float))
    except ValueError:
        return tuple(sorted(labels))


def dated(kind: Date, cells: pd.Series) -> Date:
    """Return the kind with the first date of these cells."""
    return Date(kind.format, _first_date(_dates(cells, kind.format)))


def _category(cells: pd.Series) -> Category:
    return Category(sorted_labels(cells))


def _present(cells: pd.Series) -> tuple[np.ndarray, np.ndarray]:
    """Return the different values of a column that are not missing, and the number of cells with each."""
    objects = cells.to_numpy(object)[~is_missing(cells)]
    values: dict[tuple[type, Hashable], Any] = {}
    counts: dict[tuple[type, Hashable], int] = {}
    for cell in objects:
        key = (type(cell), cell if isinstance(cell, str | AnyNumber) else str(cell))
        values[key] = cell
        counts[key] = counts.get(key, 0) + 1
    present = np.empty(len(values), dtype=object)
    present[:] = list(values.values())
    return present, np.array(list(counts.values()))


def _number_kind(present: np.ndarray, counts: np.ndarray) -> Number | None:
    """Return the kind of numbers in text, with the decimal mark that fits more of the values, or None if too few values
    and too few cells are numbers."""
    is_number = {
        decimal: np.array([not np.isnan(Number(decimal)._number(cell)) for cell in present])
        for decimal in DECIMAL_MARKS
    }
    decimal = max(is_number, key=lambda mark: int(is_number[mark].sum()))  # the point if both fit
    share = max(is_number[decimal].mean(), counts[is_number[decimal]].sum() / counts.sum())
    is_text = any(number(str(cell)) is None for cell in present)
    return Number(decimal, is_text) if share >= MIN_SHARE else None


def _date_kind(present: np.ndarray) -> Date | None:
    texts = pd.Series([str(cell).strip() for cell in present], dtype=object)
    sample = texts.iloc[:: max(1, len(texts) // _DATE_SAMPLE)]
    if np.mean([any(map(str.isdigit, text)) and not text.isdigit() for text in sample]) < MIN_SHARE:
        return None
    for date_format in _DATE_FORMATS:
        if _dates(sample, date_format).notna().mean() >= MIN_SHARE:
            dates = _dates(texts, date_format)
            if dates.notna().mean() >= MIN_SHARE:
                return Date(date_format, _first_date(dates))
    return None


def _dates(cells: pd.Series, date_format: str) -> pd.Series:
    """Return dates in UTC without a time zone, and NaT for cells that are not dates."""
    if pd.api.types.is_bool_dtype(cells.dtype) or pd.api.types.is_numeric_dtype(cells.dtype):
        return pd.Series(pd.NaT, index=cells.index, dtype="datetime64[s]")
    if not pd.api.types.is_datetime64_any_dtype(cells.dtype):
        format_or_none = date_format if date_format != "ISO8601" or not all(map(_is_date, cells.dropna())) else None
        cells = pd.to_datetime(cells, format=format_or_none, errors="coerce", utc=True)
    return cells.dt.tz_convert(None) if cells.dt.tz is not None else cells


def _is_date(cell: Any) -> bool:
    return isinstance(cell, date)


def _first_date(dates: pd.Series) -> str:
    first = dates.min()
    return "1970-01-01" if pd.isna(first) else first.isoformat()


def _mapped(cells: pd.Series, function: Callable[[Any], float]) -> Float[np.ndarray, " rows"]:
    """Apply a function to every cell that is not missing. For equal cells, the function is called only once."""
    results: dict[tuple[type, Hashable], float] = {}
    values, objects = np.full(len(cells), np.nan), cells.to_numpy(object)
    for index in np.flatnonzero(~is_missing(cells)):
        cell = objects[index]
        key = (type(cell), cell if isinstance(cell, str | AnyNumber) else str(cell))
        if key not in results:
            results[key] = function(cell)
        values[index] = results[key]
    return _finite(values)


def _finite(values: Float[np.ndarray, " rows"]) -> Float[np.ndarray, " rows"]:
    """Replace infinite values by NaN."""
    return np.where(np.isinf(values), np.nan, values)
