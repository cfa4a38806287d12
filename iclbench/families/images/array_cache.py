"""Arrays that take long to make, kept as files: in the user's cache folder, or beside the data where that cannot be.

A name carries a hash of what the array was made from, so that nothing is ever out of date; a file that cannot be read
is made again; where nothing can be written, everything still works.
"""

from __future__ import annotations

import contextlib
import math
import os
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from iclbench.core import limits
from iclbench.core.files import atomic


def cached(name: str, beside: Path, make: Callable[[], np.ndarray]) -> np.ndarray:
    """The array that was kept as `name`; made, and kept if possible, where there is none.

    Args:
        name: file name, without a folder.
        beside: the folder of the data.
        make: makes the array.
    """
    places = [folder / f"{name}.npz" for folder in _folders(beside)]
    for path in places:
        try:
            return _kept(path)
        except (OSError, ValueError, TypeError, KeyError, EOFError, zipfile.BadZipFile, zlib.error, RuntimeError):
            continue
    array = make()
    for path in places:
        try:
            with atomic(path) as temporary, temporary.open("wb") as file:
                np.savez_compressed(file, array=array)
        except OSError:
            continue
        break
    return array


def _kept(path: Path) -> np.ndarray:
    """The array in a file, which may lie beside data from elsewhere: it has to be as large as it says.

    Raises:
        ValueError: it is not, or beyond the limit; or what `zipfile` and NumPy raise for files that are damaged.
    """
    with zipfile.ZipFile(path) as archive, archive.open("array.npy") as file:
        version = np.lib.format.read_magic(file)
        header = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}[version]
        shape, fortran, dtype = header(file)
        size = math.prod(shape) * dtype.itemsize
        if dtype.hasobject or fortran or min(shape, default=0) < 0 or size > limits.max_bytes():
            raise ValueError("not an array that was kept here")
        data = file.read(size + 1)
    if len(data) != size:
        raise ValueError("not as long as its header says")
    return np.frombuffer(bytearray(data), dtype).reshape(shape)  # of bytes, it could not be written to


def _folders(beside: Path) -> Iterator[Path]:
    with contextlib.suppress(RuntimeError):  # a user without a home
        yield Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "iclbench"
    yield beside
