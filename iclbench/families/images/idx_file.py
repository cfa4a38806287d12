"""The idx format of MNIST and EMNIST: two zero bytes, the type, the number of dimensions, their sizes, the values."""

from __future__ import annotations

import gzip
import math
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import UInt8

from iclbench.core import limits
from iclbench.core.errors import DataError

_UNSIGNED_BYTE = 0x08


def read_idx(folder: Path, name: str, dimensions: int, home: str) -> UInt8[np.ndarray, "..."]:
    """Read `folder/name.gz` or `folder/name`.

    Args:
        folder: the data set's folder.
        name: the file's official name, without `.gz`.
        dimensions: how many the array must have.
        home: where the public data set is documented; errors say so.

    Raises:
        DataError: the file is missing, not of this format, not as long as its header says, or beyond the limit
            (`iclbench.core.limits`); no more is unpacked than the header announces.
    """
    advice = f"put the files of {home} into {folder}, or point --data-dir or ICLBENCH_DATA at the folder above it"
    paths = [path for path in (folder / f"{name}.gz", folder / name) if path.exists()]
    if not paths:
        raise DataError(f"{folder / name}.gz is not there; {advice}")
    path = paths[0]
    try:
        with limits.opened(path) as raw:
            file: Any = gzip.GzipFile(fileobj=raw) if path.suffix == ".gz" else raw
            shape = _shape(path, file.read(4), file.read(4 * dimensions), dimensions)
            limits.check(math.prod(shape), f"{path} announces")
            values = file.read(math.prod(shape) + 1)  # one more shows that it goes on
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise DataError(f"{path} is damaged ({error}); {advice}") from None
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}; {advice}") from None
    if len(values) != math.prod(shape):
        length = "goes on after" if len(values) > math.prod(shape) else "ends before"
        raise DataError(f"{path} {length} the {' x '.join(map(str, shape))} bytes its header announces; {advice}")
    return np.frombuffer(bytearray(values), np.uint8).reshape(shape)  # of bytes, it could not be written to


def _shape(path: Path, magic: bytes, sizes: bytes, dimensions: int) -> tuple[int, ...]:
    expected = bytes([0, 0, _UNSIGNED_BYTE, dimensions])
    if magic != expected:
        raise DataError(
            f"{path} is not an idx file of bytes in {dimensions} dimension(s): it starts with {magic.hex()!r}, "
            "expected "
            f"{expected.hex()!r}; unpack or download it again"
        )
    if len(sizes) != 4 * dimensions:
        raise DataError(f"{path} ends within its header; download it again")
    return struct.unpack(f">{dimensions}I", sizes)
