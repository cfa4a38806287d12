"""Digests that detect damaged files.

The footer of a parquet file contains the SHA-256 of the file, computed with zeros in place of the digest. A weights
file does not contain its digest, which is in a separate file that `sha256sum -c` can check.
"""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

from iclbench.core.hashing import file_hash

# Key of the digest in the footer of a parquet file.
KEY = "iclbench.sha256"
# Value of `KEY` while the digest is computed.
BLANK = "0" * 64
# The entry with this key in a parquet footer, in the encoding of Thrift's compact protocol: key, field header, length
# and value.
_ENTRY = re.compile(re.escape(KEY.encode()) + rb"\x18\x40([0-9a-f]{64})")


class DamagedError(ValueError):
    """A file has changed since it was written."""


def with_digest(parquet: bytes) -> bytes:
    """Return a parquet file with its digest. The digest replaces `BLANK`, which must be the value of `KEY` in the
    footer."""
    entry = _ENTRY.match(parquet, parquet.rfind(KEY.encode()))
    assert entry is not None
    digest = hashlib.sha256(parquet).hexdigest().encode()
    return parquet[: entry.start(1)] + digest + parquet[entry.end(1) :]


def check(parquet: bytes) -> None:
    """Raise `DamagedError` if a parquet file has no digest, or if the digest does not match its bytes."""
    start = parquet.rfind(KEY.encode())  # the footer is at the end of the file
    if start < 0:
        raise DamagedError("it has no digest")
    entry = _ENTRY.match(parquet, start)
    if entry is not None:
        digest = hashlib.sha256(parquet[: entry.start(1)])
        digest.update(BLANK.encode())
        digest.update(parquet[entry.end(1) :])
    if entry is None or digest.hexdigest().encode() != entry[1]:
        raise DamagedError("its digest does not match its content")


def file_digest(path: Path) -> str:
    """Return the SHA-256 of a file in hexadecimal digits."""
    with path.open("rb") as file:
        return file_hash(file).hex()
