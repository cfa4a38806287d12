"""Reader of the idx format of MNIST and EMNIST: two zero bytes, the type, the number of dimensions, their sizes, and
the values."""

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
from iclbench.core.errors import DataError, error_text
from iclbench.core.file_errors import cannot_read

_UNSIGNED_BYTE = 0x08


def read_idx(folder: Path, name: str, dimensions: int, source: str) -> UInt8[np.ndarray, "..."]:
    """Read `folder/name.gz` or `folder/name`.

    Args:
        folder: the folder of the dataset.
        name: the official name of the file, without `.gz`.
        dimensions: number of dimensions that the array must have.
        source: source of the public dataset, for error messages.

    Raises:
        DataError: the file is missing or damaged, has another format, or exceeds the limit (`iclbench.core.limits`).
            At most one byte more than the header declares is unpacked.
    """
    advice = f"put the files of {source} into {folder}, or set --data-dir or ICLBENCH_DATA to its parent folder"
    paths = [path for path in (folder / f"{name}.gz", folder / name) if path.exists()]
    if not paths:
        raise DataError(f"{folder / name}.gz does not exist; {advice}", code="missing-data")
    path = paths[0]
    try:
        with limits.open_file(path) as raw:
            file: Any = gzip.GzipFile(fileobj=raw) if path.suffix == ".gz" else raw
            shape = _shape(path, file.read(4), file.read(4 * dimensions), dimensions)
            limits.check(math.prod(shape), f"{path} declares")
            values = file.read(math.prod(shape) + 1)  # one more byte shows whether the file is longer
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise DataError(f"{path} is damaged ({error_text(error)}); {advice}", code="unreadable-file") from None
    except OSError as error:
        raise cannot_read(path, error, advice) from None
    if len(values) != math.prod(shape):
        comparison = "longer" if len(values) > math.prod(shape) else "shorter"
        raise DataError(
            f"{path} is {comparison} than the {' x '.join(map(str, shape))} bytes of its header; {advice}",
            code="unreadable-file",
        )
    return np.frombuffer(bytearray(values), np.uint8).reshape(shape)  # an array over `bytes` would be read-only


def _shape(path: Path, magic: bytes, sizes: bytes, dimensions: int) -> tuple[int, ...]:
    expected = bytes([0, 0, _UNSIGNED_BYTE, dimensions])
    if magic != expected:
        raise DataError(
            f"{path} is not an idx file of bytes in {dimensions} dimension(s): it starts with {magic.hex()!r}, "
            f"expected {expected.hex()!r}; unpack or download it again",
            code="bad-syntax",
        )
    if len(sizes) != 4 * dimensions:
        raise DataError(f"{path} ends within its header; download it again", code="unreadable-file")
    return struct.unpack(f">{dimensions}I", sizes)
