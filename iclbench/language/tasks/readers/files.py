"""Functions that find and read the user's data files, with one-line errors that name the file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from iclbench.core import limits
from iclbench.core.errors import DataError
from iclbench.core.file_errors import cannot_read

ADVICE = "point --data-dir or ICLBENCH_DATA at the folder that holds them"


def folders(data_dir: Path | None, *subfolders: str) -> list[Path]:
    """Return the folders to search: the `subfolders` of the data folder and of its subfolder `language`, then these two
    folders themselves."""
    if data_dir is None:
        return []
    roots = (data_dir, data_dir / "language")
    return [*(root / name for name in subfolders for root in roots), *roots]


def missing(file_names: str, folders: Sequence[Path]) -> DataError:
    """Return the error for files that none of the folders contains."""
    searched = f"searched {', '.join(str(folder) for folder in folders)}; " if folders else ""
    return DataError(f"missing {file_names}; {searched}{ADVICE}", code="missing-data")


def read_text(path: Path, corpus: bool = False) -> str:
    """Read a text file in UTF-8. A public `corpus` may also be in Windows-1252, which old corpora call Latin-1."""
    try:
        content = limits.read_bytes(path)
    except OSError as error:
        raise cannot_read(path, error, missing="unreadable-file") from None
    for encoding in ("utf-8-sig", "cp1252") if corpus else ("utf-8-sig",):
        try:
            return content.decode(encoding)
        except UnicodeDecodeError:
            continue
    expected = "neither UTF-8 nor Latin-1" if corpus else "not UTF-8"
    raise DataError(f"cannot read {path}: the text is {expected}; save it as UTF-8", code="unreadable-file")


def numbered_lines(path: Path, corpus: bool = False) -> Iterator[tuple[int, str]]:
    """Yield the number and the text of each line that is not blank. Only a line feed ends a line, because texts may
    contain other control characters."""
    for number, line in enumerate(read_text(path, corpus).split("\n"), 1):
        if len(line) > limits.max_line():
            raise limits.too_large(f"{path}, line {number}", limits.max_line())
        if line.strip():
            yield number, line.strip()
