"""Reader of `.arff` files, the format of Weka and OpenML: names and kinds of columns, then comma-separated rows.

Dense and sparse rows are supported. Relational attributes are not supported.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from io import StringIO
from pathlib import Path

from iclbench.core import limits
from iclbench.core.errors import DataError
from iclbench.core.file_errors import cannot_read
from iclbench.core.formats import as_one_line
from iclbench.families.tabular.numerals import number as to_number

_ATTRIBUTE = re.compile(r"@attribute\s+('(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"|[^\s{]+)\s*(.+)", re.IGNORECASE)
_NUMERIC = ("numeric", "real", "integer")
_MISSING = "?"


def read_arff(path: Path) -> tuple[list[str], list[list[str]], list[bool]]:
    """Read the names of the columns, their cells as text with `?` for missing values, and whether each column is
    numeric.

    Raises:
        DataError: the file cannot be read or is not an ARFF table.
    """
    try:
        text = limits.read_bytes(path).decode("utf-8-sig")
    except OSError as error:
        raise cannot_read(path, error, "pass the path of an .arff file") from None
    except UnicodeDecodeError:
        raise DataError(f"{path} is not UTF-8 text; save it in UTF-8", code="bad-syntax") from None
    lines = _content_lines(text)
    names: list[str] = []
    kinds: list[str] = []
    for number, line in lines:
        if line.lower().startswith("@data"):
            break
        if line.lower().startswith("@attribute"):
            match = _ATTRIBUTE.fullmatch(line)
            if match is None or match[2].lower().startswith("relational"):
                raise _bad_line(path, number, line, "expected '@attribute NAME KIND'")
            names.append(_unquoted(match[1]))
            kinds.append(match[2].strip())
        elif not line.lower().startswith("@relation"):
            raise _bad_line(path, number, line, "expected @relation, @attribute or @data")
    else:
        raise DataError(f"{path} has no line '@data'; expected an ARFF table", code="bad-syntax")
    if not names:
        raise DataError(f"{path} has no line '@attribute'; expected an ARFF table", code="bad-syntax")
    is_numeric = [kind.lower().startswith(_NUMERIC) for kind in kinds]
    rows = []
    for number, line in lines:
        rows.append(row := _row(path, number, line, kinds))
        for name, cell, numeric in zip(names, row, is_numeric, strict=True):
            if numeric and cell != _MISSING and to_number(cell) is None:
                raise _bad_line(path, number, line, f"attribute '{as_one_line(name)}' is numeric, not '{cell}'")
    if not rows:
        raise DataError(f"{path} has no rows; add rows after '@data'")
    return names, [list(column) for column in zip(*rows, strict=True)], is_numeric


def _content_lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield the number and the text of every line that is neither blank nor a comment."""
    for number, line in enumerate(StringIO(text), 1):
        stripped = line.strip()
        if stripped and not stripped.startswith("%"):
            yield number, stripped


def _row(path: Path, number: int, line: str, kinds: list[str]) -> list[str]:
    if not line.startswith("{"):
        fields = _fields(line)
        if len(fields) != len(kinds):
            raise _bad_line(path, number, line, f"{len(fields)} fields, but there are {len(kinds)} attributes")
        return fields
    # Omitted cells of a sparse row are 0, or the first value of a nominal attribute.
    row = [_first_value(kind) for kind in kinds]
    for entry in filter(None, (field.strip() for field in _fields(line.strip("{}"), unquote=False))):
        index, _, value = entry.partition(" ")
        if not index.isdecimal() or int(index) >= len(row):
            raise _bad_line(path, number, line, f"expected entries 'INDEX VALUE' with an index below {len(row)}")
        row[int(index)] = _unquoted(value.strip())
    return row


def _fields(line: str, unquote: bool = True) -> list[str]:
    """Return the cells of a line, which may be in single or double quotation marks."""
    if "'" not in line and "\\" not in line:
        return [field.strip() for field in next(csv.reader([line], skipinitialspace=True), [])]
    fields = re.findall(r"((?:'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"|[^,'\"])*)(?:,|$)", line)
    cells = [field.strip() for field in (fields[:-1] if not line.endswith(",") else fields)]
    return [_unquoted(cell) for cell in cells] if unquote else cells


def _first_value(kind: str) -> str:
    return _fields(kind.strip("{} "))[0] if kind.startswith("{") else "0"


def _unquoted(text: str) -> str:
    if len(text) > 1 and text[0] == text[-1] and text[0] in "'\"":
        text = re.sub(r"\\(.)", r"\1", text[1:-1])
    return text


def _bad_line(path: Path, number: int, line: str, problem: str) -> DataError:
    return DataError(f"{path}, line {number}: '{as_one_line(line, 40)}': {problem}", code="bad-syntax")
