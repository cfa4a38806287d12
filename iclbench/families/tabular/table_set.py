"""Tables with targets, either bundled with scikit-learn or read from a folder.

The target of a file is the column `target` or `class`, in upper or lower case. Without such a column, it is the last
column. The name of a file of a published collection begins with its OpenML number: `31.arff`, `31_credit-g.csv`.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
from jaxtyping import Float, Int

from iclbench.core.errors import DataError, UnknownNameError
from iclbench.core.file_errors import cannot_read
from iclbench.core.formats import as_one_line
from iclbench.core.hashing import data_fingerprint
from iclbench.families.tabular.columns import table_stem
from iclbench.families.tabular.encoder import EncodedTarget, TableEncoder, check_varies, encode_target, target_remarks
from iclbench.families.tabular.frame import FRAME_SUFFIXES, read_labelled_frame
from iclbench.families.tabular.openml_suites import SUITES

log = logging.getLogger("iclbench")

TargetKind = Literal["number", "class"]


@dataclass(frozen=True, eq=False)
class LabelledTable:
    """A table with an encoded target. Rows without a target are removed.

    Attributes:
        name: the name of the table.
        frame: the columns except the target.
        kind: kind of the target.
        y: the numbers, or the index of the class of every row.
        class_names: the classes; empty for numbers.
        encoder: the encoder, fitted on all rows. It determines the kinds and the names of the encoded columns.
        path: the file; None for a bundled table.
        target: name of the target.
    """

    name: str
    frame: pd.DataFrame
    kind: TargetKind
    y: Float[np.ndarray, " rows"] | Int[np.ndarray, " rows"]
    class_names: tuple[str, ...]
    encoder: TableEncoder
    path: Path | None = None
    target: str = "target"

    @classmethod
    def of(
        cls, name: str, frame: pd.DataFrame, series: pd.Series, kind: TargetKind | None, path: Path | None = None
    ) -> LabelledTable:
        """Create a table with the target `series`; `kind` is as in `encode_target`."""
        target = encode_target(series, kind)
        target_kind, y, class_names = target
        for remark in target_remarks(target):
            log.info("%s: %s", name, remark)
        if not target.known.all():
            frame, y = frame[target.known].reset_index(drop=True), y[target.known]
        encoder = TableEncoder().fit(frame)
        return cls(name, frame, target_kind, y, class_names, encoder, path, str(series.name))

    def check_varies(self) -> None:
        """Raise `DataError` if no column can be used, or if all rows have the same target."""
        check_varies(self.target, EncodedTarget(self.kind, self.y, self.class_names))
        if not self.encoder.names:
            remarks = "; ".join(self.encoder.remarks)
            raise DataError(f"{remarks}; add a column with values that vary", code="not-applicable")

    @property
    def rows(self) -> int:
        return len(self.frame)

    @property
    def classes(self) -> int:
        """Number of classes; 0 for numbers."""
        return len(self.class_names)

    @cached_property
    def is_fixed(self) -> bool:
        """Whether the encoding is the same for all contexts, because the table has no missing cells, categories or
        dates."""
        columns = self.encoder.to_dict()["columns"]
        return all(column["kind"]["kind"] in ("number", "boolean") and not column["n_missing"] for column in columns)

    @cached_property
    def encoded(self) -> Float[np.ndarray, "rows columns"]:
        """All rows, encoded by the encoder that is fitted on all rows."""
        return self.encoder.transform(self.frame)

    @cached_property
    def fingerprint(self) -> str:
        """Hash of the encoded columns and of the target."""
        names = "\0".join((*self.encoder.names, *self.class_names))
        x, y = (np.ascontiguousarray(array, dtype=np.float64) for array in (self.encoded, self.y))
        return data_fingerprint(f"{names} {x.shape}", x.tobytes(), y.tobytes())

    def encode(
        self, context: Int[np.ndarray, " N"], targets: Int[np.ndarray, " Q"]
    ) -> tuple[Float[np.ndarray, "N columns"], Float[np.ndarray, "Q columns"]]:
        """Return the encoded rows of a context and of its targets. Categories, first dates and means are computed from
        the context."""
        if self.is_fixed:
            return self.encoded[context], self.encoded[targets]
        context_frame = self.frame.iloc[context]
        encoder = self.encoder.refit(context_frame)
        return encoder.transform(context_frame), encoder.transform(self.frame.iloc[targets])


@cache
def bundled_tables(kind: TargetKind) -> tuple[LabelledTable, ...]:
    """Return the tables that scikit-learn bundles: iris, wine, breast cancer and digits for classes, or diabetes and
    the three targets of Linnerud's exercises for numbers."""
    from sklearn import datasets

    if kind == "class":
        loaders: Mapping[str, Callable[..., Any]] = {
            "iris": datasets.load_iris,
            "wine": datasets.load_wine,
            "breast-cancer": datasets.load_breast_cancer,
            "digits": datasets.load_digits,
        }
        bunches = {name: load(as_frame=True) for name, load in loaders.items()}
        return tuple(LabelledTable.of(name, b.data, b.target, kind) for name, b in bunches.items())
    diabetes = datasets.load_diabetes(as_frame=True, scaled=False)
    linnerud = datasets.load_linnerud(as_frame=True)
    exercises = [
        LabelledTable.of(f"linnerud-{name.lower()}", linnerud.data, linnerud.target[name], kind)
        for name in linnerud.target
    ]
    return (LabelledTable.of("diabetes", diabetes.data, diabetes.target, kind), *exercises)


def folder_tables(folder: Path, kind: TargetKind, names: Sequence[str] = (), suite: str = "") -> list[LabelledTable]:
    """Read the tables of a folder.

    Args:
        folder: the folder.
        kind: kind of the targets. Tables with other targets, and files that cannot be read, are omitted unless `names`
            lists them.
        names: names of files, with or without suffix (default: all tables).
        suite: a key of `SUITES`, to select only the tables of this collection by their numbers.

    Raises:
        DataError: the folder, a named table or all tables cannot be read, or no table has targets of this kind.
        UnknownNameError: no table has this name.
    """
    paths = _paths(folder)
    if suite:
        by_number = {number: path for path in paths if (number := _number(path)) is not None}
        paths = [by_number[number] for number in SUITES[suite] if number in by_number]
        log.info("%s: %d of the %d tables of %s", folder, len(paths), len(SUITES[suite]), suite)
        if not paths:
            raise DataError(
                f"{folder} has no table of {suite}; name the files by their OpenML numbers, such as "
                f"{SUITES[suite][0]}.arff",
                code="missing-data",
            )
    if names:
        by_name = {_stem(path): path for path in paths} | {path.name: path for path in paths}
        unknown = next((name for name in names if name not in by_name), None)
        if unknown is not None:
            raise UnknownNameError("table", unknown, map(_stem, paths), hint=f"(tables in {folder})")
        return [read_labelled_table(by_name[name], kind) for name in names]
    tables, errors = [], []
    for path in paths:
        try:
            tables.append(read_labelled_table(path))
        except DataError as error:
            errors.append(error)
            log.info("left out: %s", error)
    if errors and not tables:
        raise errors[0]
    selected = [table for table in tables if table.kind == kind]
    if left_out := [table.name for table in tables if table.kind != kind]:
        others = "numbers" if kind == "class" else "classes"
        log.info("%s: left out, because their targets are %s: %s", folder, others, ", ".join(left_out))
    if not selected:
        required = "classes" if kind == "class" else "numbers"
        raise DataError(f"{folder} has no table whose target is {required}; name the tables with -o task.tables")
    return selected


def read_labelled_table(path: Path, kind: TargetKind | None = None) -> LabelledTable:
    """Read a file as a table with a target of this kind (default: the kind of its cells)."""
    frame, target = read_labelled_frame(path)
    try:
        return LabelledTable.of(_stem(path), frame, target, kind, path)
    except DataError as error:
        raise DataError(f"{path}: {error}", code=error.code) from None


def _paths(folder: Path) -> list[Path]:
    try:
        paths = sorted(path for path in folder.iterdir() if _suffix(path) is not None)
    except OSError as error:
        advice = "pass a folder of tables with -o task.path=FOLDER"
        raise cannot_read(folder, error, advice, missing="missing-data") from None
    if not paths:
        raise DataError(f"{folder} has no table ({', '.join(FRAME_SUFFIXES)})", code="missing-data")
    return paths


def _suffix(path: Path) -> str | None:
    return next((suffix for suffix in FRAME_SUFFIXES if table_stem(path, suffix)), None)


def _stem(path: Path) -> str:
    """Return the name of a table, which is the name of its file without the suffix."""
    suffix = _suffix(path)
    return as_one_line(path.stem if suffix is None else str(table_stem(path, suffix)))


def _number(path: Path) -> int | None:
    """Return the number at the beginning of a file name, or None."""
    match = re.match(r"(\d{1,9})(?!\d)", path.name)
    return int(match[1]) if match else None
