"""A file cache for arrays that take a long time to compute, in the user's cache folder or, if that fails, next to the
data.

The name of a file includes a hash of the source of the array, so cached arrays are never out of date. An array is
recomputed if its file cannot be read, and it is not cached if no file can be written.
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


def cached_array(name: str, data_folder: Path, compute: Callable[[], np.ndarray]) -> np.ndarray:
    """Return the array that is cached as `name`. If it is not cached yet, it is computed and, if possible, cached.

    Args:
        name: file name, without a folder.
        data_folder: the folder of the data.
        compute: the function that computes the array.
    """
    paths = [folder / f"{name}.npz" for folder in _folders(data_folder)]
    for path in paths:
        try:
            return _read_cached(path)
        except (OSError, ValueError, TypeError, KeyError, EOFError, zipfile.BadZipFile, zlib.error, RuntimeError):
            continue
    array = compute()
    for path in paths:
        try:
            with atomic(path) as temporary, temporary.open("wb") as file:
                np.savez_compressed(file, array=array)
        except OSError:
            continue
        break
    return array


def _read_cached(path: Path) -> np.ndarray:
    """Read the array in a file. Its size is checked, since another program may have written the file.

    Raises:
        ValueError: the size differs from the header or exceeds the limit. Damaged files also raise the errors of
            `zipfile` and NumPy.
    """
    with zipfile.ZipFile(path) as archive, archive.open("array.npy") as file:
        version = np.lib.format.read_magic(file)
        header = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}[version]
        shape, fortran, dtype = header(file)
        size = math.prod(shape) * dtype.itemsize
        if dtype.hasobject or fortran or min(shape, default=0) < 0 or size > limits.max_bytes():
            raise ValueError("not a cached array")
        data = file.read(size + 1)
    if len(data) != size:
        raise ValueError("the size differs from the header")
    return np.frombuffer(bytearray(data), dtype).reshape(shape)  # an array of bytes would be read-only


def _folders(data_folder: Path) -> Iterator[Path]:
    with contextlib.suppress(RuntimeError):  # the user has no home folder
        yield Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "iclbench"
    yield data_folder
