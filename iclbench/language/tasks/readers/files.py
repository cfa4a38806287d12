"""Where the user's copies of language data lie, and reading them; every problem is one line with the file's name."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from iclbench.core import limits
from iclbench.core.errors import DataError

ADVICE = "point --data-dir or ICLBENCH_DATA at the folder that holds them"


def folders(data_dir: Path | None, *below: str) -> list[Path]:
    """The folders that are looked through: the data folder, its folder `language`, and these below both."""
    if data_dir is None:
        return []
    roots = (data_dir, data_dir / "language")
    return [*(root / name for name in below for root in roots), *roots]


def missing(what: str, folders: Sequence[Path]) -> DataError:
    """The error for files that are nowhere."""
    searched = f"looked in {', '.join(str(folder) for folder in folders)}; " if folders else ""
    return DataError(f"{what} are needed: {searched}{ADVICE}")


def read_text(path: Path, corpus: bool = False) -> str:
    """The text of a file in UTF-8; of a public `corpus` also in Windows-1252, the Latin-1 that older ones mean."""
    try:
        data = limits.read_bytes(path)
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}") from None
    for encoding in ("utf-8-sig", "cp1252") if corpus else ("utf-8-sig",):
        try:
            return data.decode(encoding)
        except UnicodeDecodeError:
            continue
    if corpus:
        raise DataError(f"cannot read {path}: it is text neither in UTF-8 nor in Latin-1")
    raise DataError(f"cannot read {path}: it is not text in UTF-8; save it in UTF-8")


def numbered(path: Path, corpus: bool = False) -> Iterator[tuple[int, str]]:
    """The lines that are not blank with their numbers, of a text as `read_text` reads it. Only line feeds end a line:
    reviews hold other controls."""
    for number, line in enumerate(read_text(path, corpus).split("\n"), 1):
        if len(line) > limits.max_line():
            raise limits.beyond(f"{path}, line {number}", limits.max_line())
        if line.strip():
            yield number, line.strip()
