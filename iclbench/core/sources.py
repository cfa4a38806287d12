"""Hash a plug-in's source code, so that results of edited code are not mistaken for results of the trained run.

Files are read but not imported. Comments, docstrings and layout do not affect the hash.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import lru_cache
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import find_spec
from pathlib import Path

from iclbench.core.errors import UsageError, error_text
from iclbench.core.hashing import data_fingerprint

_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def source_hash(target: str) -> str:
    """Return a hash of the code on which `package.module:Class` may depend, as 12 hexadecimal digits.

    For a package, the hash covers all its `.py` files. For a single module, it covers the module's file and the modules
    in the same folder that it imports, directly or indirectly.

    Raises:
        UsageError: the module does not exist, or one of the files cannot be read as Python.
    """
    return _hash(tuple(sorted((name, path, path.stat().st_mtime_ns) for name, path in _files(target))))


@lru_cache(maxsize=64)
def _hash(files: tuple[tuple[str, Path, int], ...]) -> str:
    """Return the hash of the files. Their modification times are part of the cache key."""
    return data_fingerprint(*(f"{name}\0{_code(path)}\0" for name, path, _ in files))


def _files(target: str) -> list[tuple[str, Path]]:
    """Return the files, with names that do not depend on where the package is installed."""
    top = target.partition(":")[0].partition(".")[0]
    # The current folder is searched last, as in `trust`.
    spec = PathFinder.find_spec(top) or _spec_of_other_finders(top) or PathFinder.find_spec(top, [""])
    if spec is None:
        raise UsageError(
            f"cannot load '{target}': no module '{top}'; install its package, or change to its folder and pass --trust "
            f"{top}",
            code="unknown-name",
        )
    folders = [Path(folder) for folder in spec.submodule_search_locations or []]
    if folders:
        return [(p.relative_to(folder).as_posix(), p) for folder in folders for p in folder.rglob("*.py")]
    if not (spec.origin or "").endswith(".py"):
        raise UsageError(
            f"cannot load '{target}': module '{top}' has no Python source to identify it by", code="not-supported"
        )
    return list(_with_neighbours(Path(str(spec.origin))))


def _spec_of_other_finders(top: str) -> ModuleSpec | None:
    """Return a module's spec from finders other than `PathFinder`, such as finders of packages installed in editable
    mode."""
    try:
        return find_spec(top)
    except Exception:  # such a finder may raise any exception
        return None


def _with_neighbours(start: Path) -> Iterator[tuple[str, Path]]:
    """Yield a module's file, and the files in the same folder that it imports, directly or indirectly."""
    queue, queued = [start], {start}
    while queue:
        path = queue.pop()
        yield path.relative_to(start.parent).as_posix(), path
        for name in _imports(path):
            module = start.parent / name
            candidates = [module.with_suffix(".py"), *sorted(module.rglob("*.py"))]
            new_files = [p for p in candidates if p.is_file() and p not in queued]
            queued.update(new_files)
            queue += new_files


def _imports(path: Path) -> set[str]:
    """Return the top-level names of all modules that a file imports, including imports inside functions."""
    names: set[str] = set()
    for node in ast.walk(_parsed(path)):
        if isinstance(node, ast.Import):
            names.update(alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
            names.add(node.module.partition(".")[0])
    return names


def _code(path: Path) -> str:
    """Return the syntax tree of a file as text, without docstrings, comments or layout."""
    return _tree_text(_parsed(path))


def _tree_text(node: object) -> str:
    """Convert a syntax tree to text. `ast.dump` is not used, since its treatment of empty fields depends on the version
    of Python."""
    if isinstance(node, list):
        return f"[{','.join(map(_tree_text, node))}]"
    if isinstance(node, ast.Constant):
        return f"{type(node.value).__name__} {node.value!r}"
    if not isinstance(node, ast.AST):
        return repr(node)
    fields = {name: getattr(node, name, None) for name in node._fields}
    if isinstance(node, _DOCUMENTED) and ast.get_docstring(node, clean=False) is not None:
        fields["body"] = node.body[1:]
    texts = [f"{name}={_tree_text(value)}" for name, value in fields.items() if value is not None and value != []]
    return f"{type(node).__name__}({','.join(texts)})"


def _parsed(path: Path) -> ast.Module:
    try:
        return ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError) as error:
        code = "unreadable-file" if isinstance(error, OSError) else "bad-syntax"
        raise UsageError(f"{path} cannot be read as Python: {error_text(error)}", code=code) from error
