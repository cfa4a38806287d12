"""What a plug-in's code is, by a hash of its sources: edited code must not answer in the name of what was trained.

Files are read, never imported. Comments, docstrings and layout do not count.
"""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterator
from functools import lru_cache
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import find_spec
from pathlib import Path

from iclbench.core.errors import UsageError

_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def source_hash(target: str) -> str:
    """A hash of the code that `package.module:Class` may depend on, as 12 hexadecimal digits.

    Of a package all `.py` files, of a single module its file and what it imports, directly or not, from the same
    folder.

    Raises:
        UsageError: there is no such module, or one of its files cannot be read as Python.
    """
    return _hash(tuple(sorted((name, path, path.stat().st_mtime_ns) for name, path in _files(target))))


@lru_cache(maxsize=64)
def _hash(files: tuple[tuple[str, Path, int], ...]) -> str:
    """The hash of one version of the files, read once per process."""
    digest = hashlib.sha256()
    for name, path, _ in files:
        digest.update(f"{name}\0{_code(path)}\0".encode())
    return digest.hexdigest()[:12]


def _files(target: str) -> list[tuple[str, Path]]:
    """The files by the names that they have wherever the package is installed."""
    top = target.partition(":")[0].partition(".")[0]
    # Last the current folder, as `trust` has it.
    spec = PathFinder.find_spec(top) or _found_otherwise(top) or PathFinder.find_spec(top, [""])
    if spec is None:
        raise UsageError(
            f"cannot load '{target}': no module '{top}' here; install its package, or go to its "
            f"folder and give --trust {top}"
        )
    folders = [Path(folder) for folder in spec.submodule_search_locations or []]
    if folders:
        return [(p.relative_to(folder).as_posix(), p) for folder in folders for p in folder.rglob("*.py")]
    if not (spec.origin or "").endswith(".py"):
        raise UsageError(f"cannot load '{target}': module '{top}' has no Python source that could identify it")
    return list(_with_neighbours(Path(str(spec.origin))))


def _found_otherwise(top: str) -> ModuleSpec | None:
    """Where a finder of its own has a package, as that of one installed in editable mode."""
    try:
        return find_spec(top)
    except Exception:  # whatever a finder of somebody else raises
        return None


def _with_neighbours(start: Path) -> Iterator[tuple[str, Path]]:
    """A module's file and those of the same folder that it imports, directly or not."""
    waiting, seen = [start], {start}
    while waiting:
        path = waiting.pop()
        yield path.relative_to(start.parent).as_posix(), path
        for name in _imported(path):
            beside = start.parent / name
            found = [beside.with_suffix(".py"), *sorted(beside.rglob("*.py"))]
            new = [p for p in found if p.is_file() and p not in seen]
            seen.update(new)
            waiting += new


def _imported(path: Path) -> set[str]:
    """The top-level names of all modules that a file imports, wherever the import stands."""
    names: set[str] = set()
    for node in ast.walk(_parsed(path)):
        if isinstance(node, ast.Import):
            names.update(alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
            names.add(node.module.partition(".")[0])
    return names


def _code(path: Path) -> str:
    """What a file's code says: its syntax tree without docstrings, and so without comments and layout."""
    return _plain(_parsed(path))


def _plain(node: object) -> str:
    """A syntax tree as text that is the same for all versions of Python: `ast.dump` is not, as to what is empty."""
    if isinstance(node, list):
        return f"[{','.join(map(_plain, node))}]"
    if isinstance(node, ast.Constant):
        return f"{type(node.value).__name__} {node.value!r}"
    if not isinstance(node, ast.AST):
        return repr(node)
    fields = {name: getattr(node, name, None) for name in node._fields}
    if isinstance(node, _DOCUMENTED) and ast.get_docstring(node, clean=False) is not None:
        fields["body"] = node.body[1:]
    said = [f"{name}={_plain(value)}" for name, value in fields.items() if value is not None and value != []]
    return f"{type(node).__name__}({','.join(said)})"


def _parsed(path: Path) -> ast.Module:
    try:
        return ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError) as error:
        raise UsageError(f"{path} cannot be read as Python: {str(error).splitlines()[0]}") from error
