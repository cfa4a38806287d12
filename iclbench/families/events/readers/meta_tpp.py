"""Reader of the `.npz` files of Meta TPP (Bae et al. 2023): `times`, `marks` and `masks`, all `(sequences, longest)`.

`times` are gaps, `marks` are 1-based with 0 for padding, and `masks` are 1 for events. As in the released code, a file
without `marks` has one mark, and in a file without `masks` the positions with mark 0 are padding. Object arrays are
refused: the released code loads them as pickles, which can run arbitrary code.

Some published files of this format contain absolute times instead of gaps: Mooc, Reddit and Wikipedia were first
released with other code, and its users reported times that only increase (`mbilos/neural-flows-experiments`, issue 5).
Times that do not decrease in any sequence are refused unless `-o task.times` is given.
"""

from __future__ import annotations

import math
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

import numpy as np

from iclbench.core import limits
from iclbench.core.errors import DataError, one_line
from iclbench.core.file_errors import cannot_read
from iclbench.core.formats import as_one_line
from iclbench.families.events.event_data import MAX_MARKS, EventData

ARRAYS = ("times", "marks", "masks")
# `times` that increase at least this often and never decrease are probably not gaps.
_MIN_INCREASES = 100
_ARCHIVE_ERRORS = (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError, NotImplementedError, ValueError)


def read(path: Path, marks: int | None, times: str | None) -> EventData:
    """Read the sequences of a file; `marks` is the number of marks K (default: the largest mark). `times` is as in
    `read_events`.

    Raises:
        DataError: the file has another format; the message names the array and the zero-based indices of the value.
    """
    arrays = _arrays(path)
    values = arrays["times"].astype(np.float64)
    mask = _mask(path, arrays)
    empty = np.flatnonzero(~mask[:, 0])
    if len(empty):
        raise DataError(f"{path}, times[{empty[0]}]: the sequence has no events; remove the row")
    rows, columns = np.nonzero(mask)

    def location_of(event: int) -> str:
        return f"{path}, times[{rows[event]}, {columns[event]}]"

    event_marks = _marks(path, arrays, mask, marks)[mask] - 1
    gaps = values[mask]
    if times == "absolute":
        gaps = np.diff(values, axis=1, prepend=0.0)[mask]
    elif times is None and _is_increasing(values, mask):
        raise DataError(
            f"{path}: 'times' never decrease, so they seem to be absolute; pass -o task.times=absolute to convert them "
            "to gaps, or -o task.times=gaps if they are gaps",
            code="missing-value",
        )
    return EventData.of(gaps, event_marks, mask.sum(1), marks or int(event_marks.max()) + 1, location_of)


def _arrays(path: Path) -> dict[str, np.ndarray]:
    """Read the arrays of a file, which all have the shape of `times`."""
    try:
        with limits.open_file(path) as file:
            arrays = _unpack(path, file)
    except OSError as error:
        raise cannot_read(path, error) from None
    shape = arrays["times"].shape
    if len(shape) != 2 or not all(shape):
        raise DataError(f"{path}: 'times' has the shape {shape}, expected (sequences, longest), both positive")
    for name, array in arrays.items():
        if array.shape != shape:
            raise DataError(f"{path}: '{name}' has the shape {array.shape}, expected that of 'times', {shape}")
    return arrays


def _unpack(path: Path, file: IO[bytes]) -> dict[str, np.ndarray]:
    try:
        with zipfile.ZipFile(file) as archive:
            names = [name.removesuffix(".npy") for name in archive.namelist() if name.endswith(".npy")]
            if duplicates := [name for name in ARRAYS if names.count(name) > 1]:
                raise DataError(f"{path}: two arrays are named '{duplicates[0]}'; remove one", code="duplicate")
            if "times" not in names:
                arrays = f"arrays {', '.join(as_one_line(name) for name in names)}" if names else "no arrays"
                raise DataError(f"{path}: expected an array 'times', got {arrays}")
            return {name: _array(path, archive, name) for name in ARRAYS if name in names}
    except _ARCHIVE_ERRORS as error:
        raise DataError(
            f"{path} is not a complete .npz file ({one_line(error)}); write it again", code="unreadable-file"
        ) from None


def _array(path: Path, archive: zipfile.ZipFile, name: str) -> np.ndarray:
    """Read an array of numbers. The size in its header is checked before the values are read."""
    with archive.open(f"{name}.npy") as member:
        version = np.lib.format.read_magic(member)
        readers: dict[Any, Callable[..., Any]] = {
            (1, 0): np.lib.format.read_array_header_1_0,
            (2, 0): np.lib.format.read_array_header_2_0,
        }
        if version not in readers:
            raise DataError(f"{path}: the array '{name}' does not contain plain numbers; save it as floats or integers")
        shape, _, dtype = readers[version](member)
    if dtype.hasobject:
        raise DataError(
            f"{path}: the array '{name}' contains Python objects, which are not read; save padded arrays of numbers"
        )
    if dtype.kind not in "fiub":
        raise DataError(f"{path}: the array '{name}' has the type {dtype}; save it as floats or integers")
    limits.check(math.prod(shape) * max(dtype.itemsize, 8), f"{path}: the array '{name}' takes")
    with archive.open(f"{name}.npy") as member:
        array: np.ndarray = np.lib.format.read_array(member, allow_pickle=False)
        if member.read(1):
            raise ValueError(f"'{name}' is longer than its header specifies")
    return array


def _mask(path: Path, arrays: dict[str, np.ndarray]) -> np.ndarray:
    """Return whether each position is an event. In every row, events must precede all padding."""
    has_mark = arrays["marks"] != 0 if "marks" in arrays else np.ones(arrays["times"].shape, dtype=bool)
    if "masks" not in arrays:
        mask = has_mark
    else:
        masks = arrays["masks"]
        _raise_if_any(path, "masks", masks, (masks != 0) & (masks != 1), "expected 0 or 1")
        mask = masks == 1
        if "marks" in arrays:
            _raise_if_any(path, "masks", masks, mask & ~has_mark, "but its mark is 0, which is padding")
            _raise_if_any(path, "masks", masks, ~mask & has_mark, "but it has a mark; padding has the mark 0")
    name = "masks" if "masks" in arrays else "marks"
    is_misplaced = ~mask[:, :-1] & mask[:, 1:]
    if is_misplaced.any():
        row, column = np.argwhere(is_misplaced)[0]
        raise DataError(f"{path}, {name}[{row}, {column}]: padding before an event; move it to the end of the row")
    return mask


def _marks(path: Path, arrays: dict[str, np.ndarray], mask: np.ndarray, mark_count: int | None) -> np.ndarray:
    """Return the marks as integers starting from 1; 0 is padding."""
    if "marks" not in arrays:
        return mask.astype(np.int64)
    marks = arrays["marks"].astype(np.float64)
    _raise_if_any(path, "marks", arrays["marks"], ~(marks == np.floor(marks)), "not an integer")
    _raise_if_any(path, "marks", arrays["marks"], marks < 0, "a negative number; marks are 1, 2, ..., and 0 is padding")
    largest = mark_count or MAX_MARKS
    advice = "; raise -o task.marks" if mark_count else ""
    _raise_if_any(path, "marks", arrays["marks"], marks > largest, f"expected at most {largest:,}{advice}")
    return marks.astype(np.int64)


def _raise_if_any(path: Path, name: str, array: np.ndarray, is_wrong: np.ndarray, problem: str) -> None:
    """Raise `DataError` for the first wrong value if any value is wrong."""
    if is_wrong.any():
        row, column = np.argwhere(is_wrong)[0]
        raise DataError(f"{path}, {name}[{row}, {column}] is {array[row, column]}, {problem}")


def _is_increasing(values: np.ndarray, mask: np.ndarray) -> bool:
    differences = np.diff(values, axis=1)[mask[:, 1:]]
    return int((differences > 0).sum()) >= _MIN_INCREASES and not (differences < 0).any()
