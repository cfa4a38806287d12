"""Encoding of a user's table as numbers. Columns contain numbers, truth values, dates or categories; cells may be
missing.

The encoder is fitted on the rows of the context. Kinds, categories and means are computed from these rows, so no value
of a new row affects the encoding. Columns are not scaled.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import numpy as np
import pandas as pd
from jaxtyping import Float

from iclbench.core.errors import DataError, UsageError
from iclbench.core.formats import as_one_line, plural
from iclbench.families.tabular import column_kinds
from iclbench.families.tabular.column_kinds import Boolean, Category, Date, Kind, Number, is_missing, kind_of
from iclbench.families.tabular.columns import list_names
from iclbench.families.tabular.csv_file import LABEL_WORDS

# A column of text is not used if the number of its different values exceeds this number or half the number of rows.
MAX_CATEGORIES = 50
# A target of integers contains classes if it has at most this many different values, and at least this many rows per
# value on average.
MAX_INTEGER_CLASSES, _ROWS_PER_CLASS = 10, 3
# Integers that count the rows are a row index only in tables of at least this many rows.
_MIN_INDEX_ROWS = 10
# A command prints at most this many lines about single columns.
MAX_LINES = 15
_INDEX_NAME = re.compile(
    r"(id|index|idx|row|row[ _]?(id|index|number)|unnamed: \d+|__index_level_\d+__|)", re.IGNORECASE
)

TargetKind = Literal["number", "class"]


@dataclass(frozen=True)
class _Column:
    """The encoding of one column.

    Attributes:
        name: name of the column.
        kind: kind of the column, which converts cells to numbers.
        source: index of the column in the table.
        mean: value of missing cells.
        is_constant: whether all values are equal. The encoding then contains only the indicator of missing cells.
        n_missing: number of missing cells in the fitted rows. If it is not 0, the encoding contains an indicator of
            missing cells.
    """

    name: str
    kind: Kind
    source: int
    mean: float
    is_constant: bool
    n_missing: int

    @property
    def outputs(self) -> list[str]:
        return [self.name] * (not self.is_constant) + [f"{self.name} is missing"] * (self.n_missing > 0)

    def values(self, cells: pd.Series) -> list[Float[np.ndarray, " rows"]]:
        values = self.kind.values(cells)
        is_gap = np.isnan(values)
        columns = [] if self.is_constant else [np.where(is_gap, self.mean, values)]
        return columns + ([is_gap.astype(np.float64)] if self.n_missing else [])

    def step(self, rows: int) -> str:
        name, step = as_one_line(self.name, 80), as_one_line(self.kind.step(), 200)
        if self.is_constant:
            return f"{name}: constant except for missing cells; a column marks which of the {rows} cells are missing"
        if not self.n_missing:
            return f"{name}: {step}"
        cells = "cell gets" if self.n_missing == 1 else "cells get"
        return f"{name}: {step}; {self.n_missing} missing {cells} the mean, and a further column marks missing cells"


class TableEncoder:
    """Encode tables as numbers, with the kinds, categories and means of the table on which the encoder is fitted.

    Args:
        drop_index: whether to ignore a column that numbers the rows.

    Attributes:
        input_names: names of all columns of the table, as text.
        names: name of every output column.
        source: for every output column, the index of its column in the table.
        steps: a description of the encoding of every used column.
        remarks: texts that list the unused columns with the reasons, and the dates whose order of day and month is
            assumed.

    >>> table = pd.DataFrame({"size": [2.5, 3.5, None], "colour": ["red", "blue", "red"], "unit": ["kg"] * 3})
    >>> encoder = TableEncoder().fit(table)
    >>> encoder.names, encoder.source
    (('size', 'size is missing', 'colour'), (0, 0, 1))
    >>> encoder.transform(pd.DataFrame({"colour": ["blue"], "size": ["1,000"]})).tolist()
    [[1000.0, 0.0, 0.0]]
    """

    def __init__(self, drop_index: bool = True) -> None:
        self._drop_index = drop_index
        self.input_names: tuple[str, ...] = ()
        self._columns: tuple[_Column, ...] = ()
        self._rows = 0
        self.remarks: list[str] = []

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the used columns of the table."""
        return tuple(column.name for column in self._columns)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(name for column in self._columns for name in column.outputs)

    @property
    def source(self) -> tuple[int, ...]:
        return tuple(column.source for column in self._columns for _ in column.outputs)

    @property
    def steps(self) -> list[str]:
        return [column.step(self._rows) for column in self._columns]

    @property
    def summary(self) -> list[str]:
        """The first steps, and a line that counts the other columns by kind. If there are many columns, those that
        already contain numbers come last."""
        steps, columns = self.steps, self._columns
        if len(steps) > MAX_LINES:
            order = sorted(range(len(steps)), key=lambda i: steps[i].endswith(": number"))
            steps, columns = [steps[i] for i in order], tuple(columns[i] for i in order)
        kinds = Counter(column.kind.word for column in columns[MAX_LINES:])
        counts = ", ".join(f"{kind} ({count})" for kind, count in kinds.most_common())
        return list_lines(steps, f"further columns: {counts}")

    def fit(self, frame: pd.DataFrame) -> TableEncoder:
        """Determine the kind, the categories and the mean of every column. Columns are not used if they are constant,
        have no values, are a row index, or contain text with many different values.

        Raises:
            DataError: the table has no rows, or two columns have the same name.
        """
        names = _names(frame)
        if not len(frame):
            raise DataError("the table has no rows; add rows")
        columns: list[_Column] = []
        index_columns: list[_Column] = []
        unused: dict[str, list[str]] = {}
        ambiguous: list[str] = []
        for index, name in enumerate(names):
            cells = frame.iloc[:, index]
            kind = kind_of(cells)
            values = kind.values(cells)
            if reason := _reason_unused(kind, values):
                unused.setdefault(reason, []).append(name)
                continue
            present = values[~np.isnan(values)]
            column = _Column(
                name, kind, index, _mean(present), _is_constant(present), n_missing=len(values) - len(present)
            )
            if isinstance(kind, Date) and (remark := kind.ambiguity(cells)):
                ambiguous.append(f"{as_one_line(name, 80)}: {remark}")
            is_index = self._drop_index and _is_index(name, kind, values)
            (index_columns if is_index else columns).append(column)
        # If no other column can be used, a column that counts the rows (such as times) is the input.
        if columns and index_columns:
            unused["a row index"] = [column.name for column in index_columns]
        columns = columns or index_columns
        self.remarks = list_lines(ambiguous, "further columns have dates whose order of day and month is assumed")
        self.remarks += [f"not used ({reason}): {list_names(names, 12)}" for reason, names in unused.items()]
        if not columns:
            self.remarks.append("no column can be used, so all rows get the same prediction")
        self._columns, self._rows, self.input_names = tuple(columns), len(frame), tuple(names)
        return self

    def refit(self, frame: pd.DataFrame) -> TableEncoder:
        """Return a new encoder for other rows of the table. It has the same columns and kinds, and the categories,
        first dates and means of these rows."""
        columns = []
        for column in self._columns:
            cells = frame[column.name]
            kind = _refitted(column.kind, cells)
            values = kind.values(cells)
            present = values[~np.isnan(values)]
            # The indicator is the only encoding of a constant column.
            n_missing = len(values) - len(present) if column.n_missing and not column.is_constant else column.n_missing
            columns.append(replace(column, kind=kind, mean=_mean(present), n_missing=n_missing))
        encoder = TableEncoder(self._drop_index)
        encoder._columns, encoder._rows, encoder.remarks = tuple(columns), len(frame), self.remarks
        encoder.input_names = self.input_names
        return encoder

    def transform(self, frame: pd.DataFrame) -> Float[np.ndarray, "rows columns"]:
        """Return the encoded table. Columns are selected by their names, and other columns are ignored.

        Raises:
            UsageError: a used column is missing.
        """
        frame = self._selected(frame)
        columns = [values for column in self._columns for values in column.values(frame[column.name])]
        return np.stack(columns, axis=1) if columns else np.zeros((len(frame), 0))

    def unread(self, frame: pd.DataFrame) -> list[str]:
        """Return remarks on cells of a new table that count as missing because they do not have the kind of their
        column, or because the fitted rows do not contain their category."""
        frame = self._selected(frame)
        remarks = []
        for column in self._columns:
            cells = frame[column.name]
            is_unread = np.isnan(column.kind.values(cells)) & ~is_missing(cells)
            if count := int(is_unread.sum()):
                example = as_one_line(str(cells[is_unread].iloc[0]), 40)
                is_category = isinstance(column.kind, Category)
                problem = "their category is not in the training table" if is_category else "they cannot be read"
                name = as_one_line(column.name, 80)
                remarks.append(
                    f"{name}: {count} of {len(cells)} cells count as missing because {problem} (such as '{example}')"
                )
        return list_lines(remarks, "further columns have such cells")

    def _selected(self, frame: pd.DataFrame) -> pd.DataFrame:
        """Return the used columns; raise `UsageError` if one is missing."""
        frame = frame.set_axis(_names(frame), axis=1)
        absent = [name for name in self.columns if name not in frame]
        if absent:
            raise UsageError(
                f"the new table lacks {list_names(absent)}; add {'it' if len(absent) == 1 else 'them'} (columns are "
                "matched by name)",
                code="bad-data",
            )
        return frame[list(self.columns)]

    def to_dict(self) -> dict[str, Any]:
        """Return the encoding as plain values."""
        columns = [{**vars(column), "kind": column_kinds.to_json(column.kind)} for column in self._columns]
        return {
            "names": list(self.input_names),
            "rows": self._rows,
            "columns": columns,
            "remarks": list(self.remarks),
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> TableEncoder:
        """Create an encoder from the result of `to_dict`."""
        encoder = cls()
        encoder._columns = tuple(
            _Column(**{**column, "kind": column_kinds.from_json(column["kind"])}) for column in values["columns"]
        )
        encoder.input_names, encoder._rows = tuple(values["names"]), values["rows"]
        encoder.remarks = list(values["remarks"])
        return encoder


class EncodedTarget(NamedTuple):
    """A target as numbers.

    Attributes:
        kind: `number` or `class`.
        values: the numbers, or the indices of the classes. Missing targets are NaN (numbers) or -1 (classes).
        classes: the classes in sorted order; empty for numbers.
    """

    kind: TargetKind
    values: np.ndarray
    classes: tuple[str, ...]

    @property
    def known(self) -> np.ndarray:
        """Whether each row has a target."""
        return ~np.isnan(self.values) if self.kind == "number" else self.values >= 0

    @property
    def known_values(self) -> np.ndarray:
        """The values that are not missing."""
        present: np.ndarray = self.values[self.known]
        return present


def encode_target(series: pd.Series, kind: TargetKind | None = None) -> EncodedTarget:
    """Encode a target as numbers or classes.

    Text, truth values and categories are classes, and so are integers with at most ten different values in at least
    three times as many rows. All other targets are numbers. The words NA, N/A, None and null are classes if other
    classes are text, and missing targets otherwise.

    Args:
        series: the column.
        kind: `number` or `class` (default: chosen by this rule).

    Raises:
        DataError: the target has no values, or `kind` is `number` and the target has text or dates.

    >>> encode_target(pd.Series(["no", "yes", "no"]))
    EncodedTarget(kind='class', values=array([0, 1, 0]), classes=('no', 'yes'))
    """
    name = as_one_line(str(series.name))
    is_word = np.fromiter(map(_is_label_word, series), bool, len(series))
    others = series.mask(is_word) if is_word.any() else series
    if is_missing(others).all():
        others = series
    column_kind = kind_of(others)
    if not isinstance(column_kind, Category):
        series = others
    if is_missing(series).all():
        raise DataError(f"the target '{name}' has only missing cells, such as empty ones and NA; choose another")
    if kind is None:
        kind = "class" if _is_class(series, column_kind) else "number"
    if kind == "number":
        if isinstance(column_kind, Category | Date):
            content = "dates" if isinstance(column_kind, Date) else "text"
            raise DataError(
                f"the target '{name}' has {content}, not numbers; choose another target or, if these are classes, a "
                "run for classes (iclbench predict: --task classification)",
                code="not-applicable",
            )
        values = column_kind.values(series)
        if not len(present := values[~np.isnan(values)]):
            raise DataError(f"the target '{name}' has no finite values; choose another")
        unread = int((np.isnan(values) & ~is_missing(series)).sum())
        if unread and len(present) < len(values) * 0.95:
            raise DataError(
                f"{unread} of {len(values)} cells of the target '{name}' are not finite numbers; replace them"
            )
        return EncodedTarget("number", values, ())
    category = Category(column_kinds.sorted_labels(series))
    codes = category.values(series)
    return EncodedTarget("class", np.where(np.isnan(codes), -1, codes).astype(np.int64), category.categories)


def target_step(name: str, target: EncodedTarget) -> str:
    """Return a description of the encoding of a target."""
    name = as_one_line(name, 80)
    if target.kind == "number":
        return f"{name} (target): number, regression"
    return f"{name} (target): {len(target.classes)} classes, classification ({list_names(target.classes, 10)})"


def target_remarks(target: EncodedTarget) -> list[str]:
    """Return remarks on rows without a target, and on words such as NA that are classes."""
    remarks = []
    if dropped := int((~target.known).sum()):
        remarks.append(f"not used (no readable target): {dropped} of {len(target.known)} rows")
    words = [
        f"{name} ({plural(int((target.known_values == index).sum()), 'row')})"
        for index, name in enumerate(target.classes)
        if _is_label_word(name)
    ]
    if words:
        counts = ", ".join(words)
        remarks.append(f"these words are classes, not missing targets: {counts}; leave cells without a target empty")
    return remarks


def check_varies(name: str, target: EncodedTarget) -> None:
    """Raise `DataError` if all rows have the same target."""
    values = target.known_values
    if len(np.unique(values)) == 1:
        raise DataError(
            f"the target '{as_one_line(name)}' has the same value in all rows that have one ({len(values)} of "
            f"{len(target.known)}); add rows with other values, or choose another target",
            code="not-applicable",
        )


def list_lines(lines: Sequence[str], rest: str) -> list[str]:
    """Return the first `MAX_LINES` lines and, if there are more, a line with the number of the remaining lines."""
    more = [f"{len(lines) - MAX_LINES} {rest}"] if len(lines) > MAX_LINES else []
    return [*lines[:MAX_LINES], *more]


def _is_label_word(cell: object) -> bool:
    return isinstance(cell, str) and cell.strip().lower() in LABEL_WORDS


def _is_class(series: pd.Series, kind: Kind) -> bool:
    if isinstance(kind, Boolean | Category):
        return True
    values = kind.values(series)
    values = values[~np.isnan(values)]
    if isinstance(kind, Date) or not (values == np.floor(values)).all():
        return False
    return len(np.unique(values)) <= min(MAX_INTEGER_CLASSES, len(values) // _ROWS_PER_CLASS)


def _names(frame: pd.DataFrame) -> list[str]:
    """Return the names of the columns as text; raise `DataError` if two names are the same."""
    names = [str(name) for name in frame.columns]
    duplicates = (
        [name for name in dict.fromkeys(names) if names.count(name) > 1] if len(set(names)) < len(names) else []
    )
    if duplicates:
        raise DataError(f"two columns have the same name: {list_names(duplicates)}; rename one", code="duplicate")
    return names


def _reason_unused(kind: Kind, values: Float[np.ndarray, " rows"]) -> str:
    """Return why a column is not used, or an empty string if it can be used. Row indices are not checked."""
    present = values[~np.isnan(values)]
    if not len(present):
        return "no values"
    if isinstance(kind, Category) and len(kind.categories) > min(MAX_CATEGORIES, max(2, len(values) // 2)):
        return "text with many different values"
    if len(present) == len(values) and _is_constant(present):
        return "constant"
    return ""


def _is_index(name: str, kind: Kind, values: Float[np.ndarray, " rows"]) -> bool:
    """Return whether a column numbers the rows. This is the case if the column has the name of an index and its
    integers are all different, or if its integers count up from 0 or 1."""
    if not isinstance(kind, Number) or np.isnan(values).any() or not (values == np.floor(values)).all():
        return False
    if _INDEX_NAME.fullmatch(name.strip()):
        return len(np.unique(values)) == len(values)
    counts = values[0] in (0.0, 1.0) and bool((np.diff(values) == 1).all())
    return counts and len(values) >= _MIN_INDEX_ROWS


def _is_constant(values: Float[np.ndarray, " rows"]) -> bool:
    return bool(values.min() == values.max())


def _mean(values: Float[np.ndarray, " rows"]) -> float:
    """Return the mean, or 0 without values. Large numbers are scaled, so that their sum does not overflow."""
    if not len(values):
        return 0.0
    size = max(float(np.abs(values).max()), np.finfo(np.float64).tiny)
    return float(np.mean(values / size) * size)


def _refitted(kind: Kind, cells: pd.Series) -> Kind:
    """Return the kind with the categories or the first date of these cells."""
    if isinstance(kind, Category):
        return Category(column_kinds.sorted_labels(cells))
    return column_kinds.dated(kind, cells) if isinstance(kind, Date) else kind
