"""Size limits for files, tables and models. Without limits, a small file or card could fill the memory.

The same limit applies to an unpacked file, a table in memory and the weights of a model: 1 GiB by default, or the value
of `--max-bytes` or `ICLBENCH_MAX_BYTES`. A text file is limited to 1/8 of this value, because parsed text is many times
larger. A line or a card is limited to 1/1024. The option sets the environment variable, so that worker processes
inherit the limit.
"""

from __future__ import annotations

import errno
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedReader, TextIOBase
from pathlib import Path

from iclbench.core.errors import DataError, UsageError
from iclbench.core.formats import nbytes

VARIABLE = "ICLBENCH_MAX_BYTES"
DEFAULT = 1 << 30
# The limits for a text file, and for a line or a card, are the limit for a file divided by these numbers.
_TEXT_DIVISOR, _LINE_DIVISOR = 8, 1024
ADVICE = f"if the size is intended, raise the limit with --max-bytes SIZE or {VARIABLE}=SIZE"


class TooLargeError(DataError):
    """A file, a table or a model is larger than the limit. The message explains how to raise the limit."""

    code = "too-large"


def parse(text: str) -> int:
    """Convert a size such as "500M" to bytes.

    Raises:
        UsageError: the text is not a number with or without a unit.

    >>> parse("4096"), parse("1.5G"), parse("64 MiB")
    (4096, 1610612736, 67108864)
    """
    match = re.fullmatch(r"\s*(\d{1,18}(?:\.\d{1,6})?)\s*(?:([KMGT])(?:i?B)?|B)?\s*", text, re.ASCII | re.IGNORECASE)
    size = 0 if match is None else int(float(match[1]) * 1024 ** (" KMGT".index((match[2] or " ").upper())))
    if size < 1:
        raise UsageError(
            f"'{text[:40]}' is not a number of bytes; write --max-bytes 500M, or {VARIABLE}=8G", code="bad-value"
        )
    return size


def max_bytes() -> int:
    """Return the limit for a file, a table or a model, in bytes."""
    text = os.environ.get(VARIABLE, "")
    return parse(text) if text else DEFAULT


def max_text() -> int:
    """Return the limit for a text file that is read at once, in bytes."""
    return max(max_bytes() // _TEXT_DIVISOR, 1)


def max_line() -> int:
    """Return the limit for a line or a card, in bytes."""
    return max(max_bytes() // _LINE_DIVISOR, 1)


def check(size: int, beginning: str) -> None:
    """Raise `TooLargeError` if a file, a table or a model of this size is larger than the limit.

    Args:
        size: the size in bytes.
        beginning: text of the message before the size, such as "images.npy declares".
    """
    if size > max_bytes():
        raise TooLargeError(f"{beginning} {nbytes(size)}, more than the {nbytes(max_bytes())} allowed; {ADVICE}")


@contextmanager
def process_memory(factor: int) -> Iterator[None]:
    """Within the block, limit the memory of this process and of processes that it starts to a multiple of the limit for
    a file. Windows has no such limit, and that of macOS does not include mapped memory."""
    if sys.platform == "win32":
        yield
        return
    import resource

    previous = resource.getrlimit(resource.RLIMIT_DATA)
    size = factor * max_bytes()
    for limit in previous:
        size = size if limit == resource.RLIM_INFINITY else min(size, limit)
    resource.setrlimit(resource.RLIMIT_DATA, (size, previous[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, previous)


def too_large(subject: str, limit: int) -> TooLargeError:
    """Create the error for a file, a table or a line (`subject`) that is larger than its limit."""
    return TooLargeError(f"{subject} is larger than the limit of {nbytes(limit)}; {ADVICE}")


def open_file(path: Path) -> BufferedReader:
    """Open a data file for reading.

    Raises:
        OSError: the file cannot be read, or is a pipe, whose opening would wait for a writer.
    """
    if path.is_fifo():
        raise OSError(errno.ESPIPE, "it is a pipe, not a file", str(path))
    return path.open("rb")


def read_bytes(path: Path, limit: int | None = None) -> bytes:
    """Return the content of a file. Raise `TooLargeError` if it is longer than `limit` (default: `max_text`)."""
    max_size = max_text() if limit is None else limit
    with open_file(path) as file:
        content = file.read(max_size + 1)
    if len(content) > max_size:
        raise too_large(str(path), max_size)
    return content


def lines(file: TextIOBase, where: str) -> Iterator[str]:
    """Yield the lines of a stream, each within the size limit.

    Raises:
        TooLargeError: a line is longer than `max_line`. The rest of the line is not read.
    """
    limit, number = max_line(), 1
    while line := file.readline(limit + 1):
        if len(line) > limit and not line.endswith("\n"):
            raise too_large(f"{where}, line {number}", limit)
        yield line
        number += 1
