"""Reader of pairs of words, from a file of iclbench or of the user.

A file contains an object `{"hot": "cold", ...}` or a list `[{"input": "hot", "output": "cold"}, ...]`.
"""

from __future__ import annotations

import reprlib
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from iclbench.config.cards import cards_folder
from iclbench.core.errors import DataError
from iclbench.core.json_text import parse_json
from iclbench.core.settings import BaseSettings
from iclbench.language.tasks.pools import Example, Pool, Reader
from iclbench.language.tasks.readers import files


class MappingParameters(BaseSettings):
    """Parameters of the reader `mapping`.

    Attributes:
        file: path of the file. It may be absolute, or relative to the folder of the card, to the folder of iclbench's
            cards or to the data folder.
        reversed: whether to map outputs to inputs.
    """

    file: Annotated[str, Field(min_length=1)]
    reversed: bool = False


class Mapping(Reader):
    """Reads the pairs. Each pair can be a query or a demonstration."""

    Parameters = MappingParameters

    def read(self, subset: str | None = None) -> Pool:
        path = self._path()
        pairs = read_pairs(path)
        if self.parameters.reversed:
            pairs = [(y, x) for x, y in pairs]
        inputs: set[str] = set()
        for x, _ in pairs:
            if x in inputs:
                reversed_note = " in the reversed pairs" if self.parameters.reversed else ""
                raise DataError(
                    f"{path}: the input '{x}' is listed twice{reversed_note}; give one output for each input"
                )
            inputs.add(x)
        if len(pairs) < 2:
            raise DataError(f"{path}: {len(pairs)} pairs, expected at least 2, for a query and a demonstration")
        examples = tuple(Example(x, y) for x, y in pairs)
        return Pool(examples, examples)

    def _path(self) -> Path:
        card_folder = [self.folder] if self.folder else []
        folders = [*card_folder, cards_folder("tasks/language"), *files.folders(self.data_dir)]
        for folder in folders:
            if (folder / self.parameters.file).is_file():
                return folder / self.parameters.file
        raise DataError(
            f"no file '{self.parameters.file}' with pairs in {', '.join(str(folder) for folder in folders)}",
            code="missing-file",
        )


def read_pairs(path: Path) -> list[tuple[str, str]]:
    """Read inputs and outputs in the order of the file, without surrounding white space."""
    value = parse_json(files.read_text(path), str(path), _Object)
    if isinstance(value, _Object):
        entries: list[tuple[Any, Any]] = list(value)
    elif isinstance(value, list):
        entries = [_entry(path, i, item) for i, item in enumerate(value, 1)]
    else:
        raise DataError(f'{path}: expected {{"input": "output", ...}} or [{{"input": ..., "output": ...}}, ...]')
    for i, pair in enumerate(entries, 1):
        for text in pair:
            if not isinstance(text, str) or not text.strip():
                raise DataError(f"{path}: pair {i}: expected a text that is not empty, got {reprlib.repr(text)}")
    return [(x.strip(), y.strip()) for x, y in entries]


class _Object(list[tuple[str, Any]]):
    """The pairs of a JSON object; unlike a dictionary, it preserves duplicate keys."""


def _entry(path: Path, number: int, item: object) -> tuple[Any, Any]:
    fields = dict(item) if isinstance(item, _Object) else {}
    has_duplicates = isinstance(item, _Object) and len(fields) < len(item)
    if has_duplicates or not {"input", "output"} <= fields.keys():
        raise DataError(f'{path}: pair {number}: expected {{"input": ..., "output": ...}}, got {_plain(item)}')
    return fields["input"], fields["output"]


def _plain(item: object) -> str:
    if not isinstance(item, _Object):
        return reprlib.repr(item)
    return "a duplicate key" if len(dict(item)) < len(item) else reprlib.repr(dict(item))
