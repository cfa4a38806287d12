"""Arrays that take long to make, kept as files: in the user's cache folder, or beside the data where that cannot be.

A name carries a hash of what the array was made from, so that nothing is ever out of date; a file that cannot be read
is made again; where nothing can be written, everything still works.
"""

from __future__ import annotations

import contextlib
import os
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from iclbench.files import atomic


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
            with np.load(path, allow_pickle=False) as kept:
                return np.asarray(kept["array"])
        except (OSError, ValueError, TypeError, KeyError, EOFError, zipfile.BadZipFile, zlib.error):
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


def _folders(beside: Path) -> Iterator[Path]:
    with contextlib.suppress(RuntimeError):  # a user without a home
        yield Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "iclbench"
    yield beside
