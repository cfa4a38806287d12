"""Lines of a text file, numbered, each within the limit of a line."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from iclbench.core import limits
from iclbench.core.errors import DataError

_MARK = b"\xef\xbb\xbf"
# Bytes that an event takes while it is read, about.
EVENT = 128


def numbered(path: Path) -> Iterator[tuple[int, bytes]]:
    """Number, from 1, and bytes of every line that is not blank, without its end and a byte order mark.

    Raises:
        DataError: the file cannot be read, a line is too long, or there is none.
    """
    most, number, has_text = limits.max_line(), 0, False
    try:
        with limits.opened(path) as file:
            while line := file.readline(most + 1):
                number += 1
                if len(line) > most:
                    raise limits.beyond(f"{path}, line {number}", most)
                line = line.removeprefix(_MARK).strip() if number == 1 else line.strip()
                if line:
                    has_text = True
                    yield number, line
    except OSError as error:
        raise unreadable(path, error) from None
    if not has_text:
        raise DataError(f"{path} is empty; expected a sequence of events on every line")


def unreadable(path: Path, error: OSError) -> DataError:
    """The error for a file that cannot be opened or read."""
    return DataError(f"cannot read {path}: {error.strerror or error}")


def decoded(path: Path, number: int, line: bytes) -> str:
    """The text of a line; raises `DataError` where it is not UTF-8."""
    try:
        return line.decode("utf-8")
    except UnicodeDecodeError:
        raise DataError(f"{path}, line {number}: not UTF-8 text; save the file in UTF-8") from None


def check_size(path: Path, events: int) -> None:
    """Raise `TooLargeError` where so many events would take more than the limit."""
    if events * EVENT > limits.max_bytes():
        raise limits.beyond(f"{path}: the events take", limits.max_bytes())
