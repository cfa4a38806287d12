"""Numbered lines of text files, with checks of sizes and encodings."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from iclbench.core import limits
from iclbench.core.errors import DataError
from iclbench.core.file_errors import cannot_read

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
# Approximate memory of an event in bytes while it is read.
EVENT_BYTES = 128


def numbered_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Yield the number (from 1) and the content of every line that is not blank, without line ends and byte order mark.

    Raises:
        DataError: the file cannot be read, a line is too long, or all lines are blank.
    """
    max_length, number, has_text = limits.max_line(), 0, False
    try:
        with limits.open_file(path) as file:
            while line := file.readline(max_length + 1):
                number += 1
                if len(line) > max_length:
                    raise limits.too_large(f"{path}, line {number}", max_length)
                line = line.removeprefix(_BYTE_ORDER_MARK).strip() if number == 1 else line.strip()
                if line:
                    has_text = True
                    yield number, line
    except OSError as error:
        raise cannot_read(path, error) from None
    if not has_text:
        raise DataError(f"{path} is empty; expected a sequence of events on every line")


def decode_line(path: Path, number: int, line: bytes) -> str:
    """Decode a line; raise `DataError` if it is not UTF-8."""
    try:
        return line.decode("utf-8")
    except UnicodeDecodeError:
        raise DataError(f"{path}, line {number}: not UTF-8 text; save the file in UTF-8", code="bad-syntax") from None


def check_size(path: Path, events: int) -> None:
    """Raise `TooLargeError` if the events would take more memory than the limit."""
    if events * EVENT_BYTES > limits.max_bytes():
        raise limits.too_large(f"{path}: the list of events", limits.max_bytes())
