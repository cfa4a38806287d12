"""Digests that detect files which were damaged after they were written, even by one flipped bit.

A parquet table carries the SHA-256 of all its own bytes, those of the digest itself taken as zeros. Weights have
theirs in a file next to them (`sha256sum -c` reads it), so that their own bytes are those of the tensors alone.
"""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

# The entry of a parquet footer that holds the digest.
KEY = "iclbench.sha256"
BLANK = "0" * 64
# As Thrift's compact protocol writes it, which the format prescribes: key, field header, length, value.
_ENTRY = re.compile(re.escape(KEY.encode()) + rb"\x18\x40([0-9a-f]{64})")


class DamagedError(ValueError):
    """A file is not as it was written."""


def sealed(parquet: bytes) -> bytes:
    """A parquet file with its digest in the place of `BLANK`, which its footer holds under `KEY`."""
    entry = _ENTRY.match(parquet, parquet.rfind(KEY.encode()))
    assert entry is not None
    digest = hashlib.sha256(parquet).hexdigest().encode()
    return parquet[: entry.start(1)] + digest + parquet[entry.end(1) :]


def check(parquet: bytes) -> None:
    """Raise `DamagedError` where a parquet file has no digest, or another one than that of its bytes."""
    start = parquet.rfind(KEY.encode())  # the footer is at the end
    if start < 0:
        raise DamagedError("it has no digest")
    entry = _ENTRY.match(parquet, start)
    if entry is not None:
        digest = hashlib.sha256(parquet[: entry.start(1)])
        digest.update(BLANK.encode())
        digest.update(parquet[entry.end(1) :])
    if entry is None or digest.hexdigest().encode() != entry[1]:
        raise DamagedError("it is not as it was written: its digest is another")


def of_file(path: Path) -> str:
    """SHA-256 of a file, in hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
