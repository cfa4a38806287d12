"""The version and the commit of the code that runs.

In a checkout `pyproject.toml` names the version, and git is asked for the commit at run time. An installed package has
the version in its metadata and the commit in `_commit.txt`, which `hatch_build.py` writes. That hook loads this file by
its path, so nothing but the standard library is imported here.
"""

from __future__ import annotations

import os
import subprocess
import tomllib
from functools import cache
from pathlib import Path

_PACKAGE = Path(__file__).resolve().parents[1]
# Where `hatch_build.py` writes the commit, inside the package.
COMMIT_FILE = "_commit.txt"
# Changes in other files of a checkout do not make it dirty: they change no value.
_CODE = ("iclbench", "tasks", "baselines", "grids", "pyproject.toml")


@cache
def version() -> str:
    """The version of iclbench."""
    project = _project()
    if project is not None:
        return str(project["version"])
    from importlib.metadata import version as installed

    return installed("iclbench")


@cache
def commit() -> str | None:
    """The commit of the code, followed by `-dirty` if files of it differ from that commit; None if it is not known.

    Git is asked once per process.
    """
    root = checkout()
    if root is not None and (root / ".git").exists():
        return _of_git(root)
    try:
        return (_PACKAGE / COMMIT_FILE).read_text(encoding="utf-8").strip() or None
    except OSError:
        return None


def provenance() -> dict[str, object]:
    """Version and commit as columns of a row of values."""
    return {"version": version(), "commit": commit()}


def checkout() -> Path | None:
    """The root of the checkout (or of the unpacked source distribution) that this package lies in; None if it is
    installed."""
    return None if _project() is None else _PACKAGE.parent


@cache
def _project() -> dict[str, object] | None:
    """The table `project` of our `pyproject.toml`; None if there is none, or that of another project."""
    try:
        text = (_PACKAGE.parent / "pyproject.toml").read_text(encoding="utf-8")
        project: dict[str, object] = tomllib.loads(text)["project"]
    except (OSError, ValueError, KeyError):
        return None
    return project if project.get("name") == "iclbench" else None


def _of_git(root: Path) -> str | None:
    # The folder is named, so that git neither looks into the folders above nor follows the variables of a git hook.
    command = ["git", f"--git-dir={root / '.git'}", f"--work-tree={root}", "--no-optional-locks"]
    command += ["status", "--porcelain=v2", "--branch", "--", *_CODE]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    try:
        found = subprocess.run(
            command, cwd=root, env=environment, capture_output=True, text=True, check=True, timeout=60
        )
    except (OSError, subprocess.SubprocessError):
        return None
    lines = found.stdout.splitlines()
    own = next((line.split()[-1] for line in lines if line.startswith("# branch.oid ")), "(initial)")
    dirty = any(not line.startswith("#") for line in lines)
    return None if own == "(initial)" else f"{own}{'-dirty' * dirty}"
