"""The `.npz` of Meta TPP (Bae et al. 2023): `times`, `marks` and `masks`, all `(sequences, longest)`.

`times` are gaps, `marks` are 1-based with 0 as padding, `masks` are 1 where there is an event. As in the released code,
without `marks` there is one mark, and without `masks` nothing is padded except where `marks` are 0. Object arrays,
which that code loads as pickles, can run any code and are refused.

The files that this format comes from are not all gaps: users of the code that Mooc, Reddit and Wikipedia were first
released with found times there that only grow (`mbilos/neural-flows-experiments`, issue 5). Gaps that never shrink in
any sequence are refused until `-o task.times` says what they are.
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
from iclbench.core.errors import DataError, UnknownNameError, one_line
from iclbench.families.events.event_data import MOST_MARKS, EventData
from iclbench.families.events.readers.lines import unreadable

ARRAYS = ("times", "marks", "masks")
# Times with at least this many pairs of neighbours that grow, and none that shrinks, are not gaps.
_SURE = 100
_BROKEN = (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError, NotImplementedError, ValueError)


def read(path: Path, marks: int | None, times: str | None) -> EventData:
    """The sequences of a file; `marks` is K, None: the largest mark. `times`: see `read_events`.

    Raises:
        DataError: see the module; with the array and its indices, from 0.
    """
    arrays = _arrays(path)
    values = arrays["times"].astype(np.float64)
    mask = _mask(path, arrays)
    short = np.flatnonzero(~mask[:, 0])
    if len(short):
        raise DataError(f"{path}, times[{short[0]}]: a sequence without events; remove the row")
    rows, columns = np.nonzero(mask)

    def place(event: int) -> str:
        return f"{path}, times[{rows[event]}, {columns[event]}]"

    event_marks = _marks(path, arrays, mask, marks)[mask] - 1
    gaps = values[mask]
    if times == "absolute":
        gaps = np.diff(values, axis=1, prepend=0.0)[mask]
    elif times is None and _look_absolute(values, mask):
        raise DataError(
            f"{path}: 'times' only grow in every sequence, so that they are no gaps; -o task.times=absolute takes "
            "differences, -o task.times=gaps takes them as they are"
        )
    return EventData.of(gaps, event_marks, mask.sum(1), marks or int(event_marks.max()) + 1, place)


def _arrays(path: Path) -> dict[str, np.ndarray]:
    """The arrays that there are, all of the shape of `times`."""
    try:
        with limits.opened(path) as file:
            arrays = _unpacked(path, file)
    except OSError as error:
        raise unreadable(path, error) from None
    shape = arrays["times"].shape
    if len(shape) != 2 or not all(shape):
        raise DataError(f"{path}: 'times' has the shape {shape}; expected (sequences, longest), none of them 0")
    for name, array in arrays.items():
        if array.shape != shape:
            raise DataError(f"{path}: '{name}' has the shape {array.shape}, and 'times' {shape}; give both one shape")
    return arrays


def _unpacked(path: Path, file: IO[bytes]) -> dict[str, np.ndarray]:
    try:
        with zipfile.ZipFile(file) as archive:
            names = [name.removesuffix(".npy") for name in archive.namelist() if name.endswith(".npy")]
            if duplicates := [name for name in ARRAYS if names.count(name) > 1]:
                raise DataError(f"{path}: two arrays are named '{duplicates[0]}'; write the file again with one")
            if "times" not in names:
                raise DataError(f"{path}: no array 'times'; {UnknownNameError('array', 'times', names)}")
            return {name: _array(path, archive, name) for name in ARRAYS if name in names}
    except _BROKEN as error:
        raise DataError(f"{path} is not a complete .npz file ({one_line(error)}); write it again") from None


def _array(path: Path, archive: zipfile.ZipFile, name: str) -> np.ndarray:
    """One array of numbers, which is as large as it says."""
    with archive.open(f"{name}.npy") as member:
        version = np.lib.format.read_magic(member)
        readers: dict[Any, Callable[..., Any]] = {
            (1, 0): np.lib.format.read_array_header_1_0,
            (2, 0): np.lib.format.read_array_header_2_0,
        }
        if version not in readers:
            raise DataError(f"{path}: the array '{name}' holds no plain numbers; save it as floats or integers")
        shape, _, dtype = readers[version](member)
    if dtype.hasobject:
        raise DataError(
            f"{path}: the array '{name}' holds Python objects, which are not read; save padded arrays of numbers"
        )
    if dtype.kind not in "fiub":
        raise DataError(f"{path}: the array '{name}' holds {dtype}, not numbers; save it as floats or integers")
    limits.check(math.prod(shape) * max(dtype.itemsize, 8), f"{path}: the array '{name}' takes")
    with archive.open(f"{name}.npy") as member:
        array: np.ndarray = np.lib.format.read_array(member, allow_pickle=False)
        if member.read(1):
            raise ValueError(f"'{name}' is longer than it says")
    return array


def _mask(path: Path, arrays: dict[str, np.ndarray]) -> np.ndarray:
    """Where there is an event: from the beginning of every row on, without a hole."""
    by_mark = arrays["marks"] != 0 if "marks" in arrays else np.ones(arrays["times"].shape, dtype=bool)
    if "masks" not in arrays:
        mask = by_mark
    else:
        masks = arrays["masks"]
        _refuse_any(path, "masks", masks, (masks != 0) & (masks != 1), "neither 0 nor 1")
        mask = masks == 1
        if "marks" in arrays:
            _refuse_any(path, "masks", masks, mask & ~by_mark, "but the mark there is 0, which is padding")
            _refuse_any(path, "masks", masks, ~mask & by_mark, "but there is a mark; padding has the mark 0")
    name = "masks" if "masks" in arrays else "marks"
    holes = ~mask[:, :-1] & mask[:, 1:]
    if holes.any():
        row, column = np.argwhere(holes)[0]
        raise DataError(f"{path}, {name}[{row}, {column}]: padding before an event; padding comes last in a sequence")
    return mask


def _marks(path: Path, arrays: dict[str, np.ndarray], mask: np.ndarray, most: int | None) -> np.ndarray:
    """The marks as whole numbers from 1 on, 0 where there is none."""
    if "marks" not in arrays:
        return mask.astype(np.int64)
    marks = arrays["marks"].astype(np.float64)
    _refuse_any(path, "marks", arrays["marks"], ~(marks == np.floor(marks)), "no whole number")
    _refuse_any(path, "marks", arrays["marks"], marks < 0, "negative; marks are 1, 2, ..., and 0 is padding")
    raised = f"more than the {most} marks of -o task.marks; raise it" if most else f"more than {MOST_MARKS:,} marks"
    _refuse_any(path, "marks", arrays["marks"], marks > (most or MOST_MARKS), raised)
    return marks.astype(np.int64)


def _refuse_any(path: Path, name: str, array: np.ndarray, wrong: np.ndarray, problem: str) -> None:
    """Raise `DataError` about the first wrong place, if there is one."""
    if wrong.any():
        row, column = np.argwhere(wrong)[0]
        raise DataError(f"{path}, {name}[{row}, {column}] is {array[row, column]}, {problem}")


def _look_absolute(values: np.ndarray, mask: np.ndarray) -> bool:
    growth = np.diff(values, axis=1)[mask[:, 1:]]
    return int((growth > 0).sum()) >= _SURE and not (growth < 0).any()
