"""How large what is read and built may become, so that a small file or card cannot fill the memory.

One number bounds the bytes of a file once it is unpacked, of a table in memory, and of the weights of a model: 1 GiB,
unless `--max-bytes` or the environment variable `ICLBENCH_MAX_BYTES` says otherwise. Texts, which take many times
their size once they are parsed, may have an eighth of it, and a line or a card a thousandth. It stands in the
environment, so that every process that is started from here inherits it.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator
from io import BufferedReader, TextIOBase
from pathlib import Path

from iclbench.core.errors import DataError, UsageError
from iclbench.core.formats import nbytes

VARIABLE = "ICLBENCH_MAX_BYTES"
DEFAULT = 1 << 30
# What a text, and a line or a card, may have of the whole.
_TEXT, _LINE = 8, 1024
RAISE = f"raise the limit where that is right: --max-bytes 8G or {VARIABLE}=8G"


class TooLargeError(DataError):
    """Something is larger than the limit; the message says how to raise it."""

    code = "too-large"


def parse(text: str) -> int:
    """Bytes from a number with or without a unit.

    >>> parse("4096"), parse("1.5G"), parse("64 MiB")
    (4096, 1610612736, 67108864)
    """
    match = re.fullmatch(r"\s*(\d{1,18}(?:\.\d{1,6})?)\s*(?:([KMGT])(?:i?B)?|B)?\s*", text, re.ASCII | re.IGNORECASE)
    size = 0 if match is None else int(float(match[1]) * 1024 ** (" KMGT".index((match[2] or " ").upper())))
    if size < 1:
        raise UsageError(f"'{text[:40]}' is no number of bytes; write {VARIABLE} or --max-bytes like 500M, 8G")
    return size


def max_bytes() -> int:
    """The limit of a file, a table or a model."""
    text = os.environ.get(VARIABLE, "")
    return parse(text) if text else DEFAULT


def max_text() -> int:
    """The limit of a file of text that is taken in as a whole."""
    return max(max_bytes() // _TEXT, 1)


def max_line() -> int:
    """The limit of one line, and of a card."""
    return max(max_bytes() // _LINE, 1)


def check(size: int, what: str) -> None:
    """Raise `TooLargeError` where what is announced is beyond the limit of files, tables and models."""
    if size > max_bytes():
        raise TooLargeError(f"{what} {nbytes(size)}, more than the {nbytes(max_bytes())} that are allowed; {RAISE}")


def beyond(what: str, limit: int) -> TooLargeError:
    """The error for what goes on beyond a limit."""
    return TooLargeError(f"{what}: more than {nbytes(limit)}, which is too long; {RAISE}")


def opened(path: Path) -> BufferedReader:
    """A file of data, opened for reading.

    Raises:
        OSError: it cannot be read, or is a pipe, which would wait for a writer.
    """
    if path.is_fifo():
        raise OSError(errno.ESPIPE, "it is a pipe, not a file", str(path))
    return path.open("rb")


def read_bytes(path: Path, limit: int | None = None) -> bytes:
    """A whole file, of whatever size it says it is, or `TooLargeError`."""
    max_size = max_text() if limit is None else limit
    with opened(path) as file:
        content = file.read(max_size + 1)
    if len(content) > max_size:
        raise beyond(str(path), max_size)
    return content


def lines(file: TextIOBase, where: str) -> Iterator[str]:
    """The lines of a stream without end, each within the limit.

    Raises:
        TooLargeError: a line is too long; no more of it than the limit is read.
    """
    most, number = max_line(), 1
    while line := file.readline(most + 1):
        if len(line) > most and not line.endswith("\n"):
            raise beyond(f"{where}, line {number}", most)
        yield line
        number += 1
