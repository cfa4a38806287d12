"""Find the version and the commit of the running code.

In a checkout, the version is read from `pyproject.toml`, and the commit from git at run time. In an installed package,
the version is read from the package's metadata, and the commit from `_commit.txt`, which `hatch_build.py` writes. That
hook loads this file by path, so this file may import only the standard library.
"""

from __future__ import annotations

import os
import subprocess
import tomllib
from functools import cache
from pathlib import Path

_PACKAGE = Path(__file__).resolve().parents[1]
# The file in the package into which `hatch_build.py` writes the commit.
COMMIT_FILE = "_commit.txt"
# The files and folders of a checkout that can affect results. Changes in other files do not add `-dirty` to the commit.
_CODE = ("iclbench", "tasks", "baselines", "grids", "pyproject.toml")


@cache
def version() -> str:
    """Return the version of iclbench."""
    project = _project()
    if project is not None:
        return str(project["version"])
    from importlib.metadata import version as installed

    return installed("iclbench")


@cache
def commit() -> str | None:
    """Return the commit of the code, followed by `-dirty` if the code differs from that commit; None if it is unknown.

    Git is called once per process.
    """
    root = checkout()
    if root is not None and (root / ".git").exists():
        return _git_commit(root)
    try:
        return (_PACKAGE / COMMIT_FILE).read_text(encoding="utf-8").strip() or None
    except OSError:
        return None


def provenance() -> dict[str, object]:
    """Return the version and the commit as columns of the table `values`."""
    return {"version": version(), "commit": commit()}


def checkout() -> Path | None:
    """Return the root of the checkout (or of the unpacked source distribution) of this package; None if the package is
    installed."""
    return None if _project() is None else _PACKAGE.parent


@cache
def _project() -> dict[str, object] | None:
    """Return the table `project` of iclbench's `pyproject.toml`; None if this file does not exist."""
    try:
        text = (_PACKAGE.parent / "pyproject.toml").read_text(encoding="utf-8")
        project: dict[str, object] = tomllib.loads(text)["project"]
    except (OSError, ValueError, KeyError):
        return None
    return project if project.get("name") == "iclbench" else None


def _git_commit(root: Path) -> str | None:
    # With explicit folders and without GIT_ variables, git does not use a repository in a parent folder or the
    # repository of a hook that runs this code.
    command = ["git", f"--git-dir={root / '.git'}", f"--work-tree={root}", "--no-optional-locks"]
    command += ["status", "--porcelain=v2", "--branch", "--", *_CODE]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    try:
        process = subprocess.run(
            command, cwd=root, env=environment, capture_output=True, text=True, check=True, timeout=60
        )
    except (OSError, subprocess.SubprocessError):
        return None
    lines = process.stdout.splitlines()
    head = next((line.split()[-1] for line in lines if line.startswith("# branch.oid ")), "(initial)")
    is_dirty = any(not line.startswith("#") for line in lines)
    return None if head == "(initial)" else f"{head}{'-dirty' * is_dirty}"
