"""The lines of `iclbench/__init__.pyi` that import the registered architectures."""

from pathlib import Path

import iclbench
from iclbench.registry import BACKBONES

PATH = Path(iclbench.__file__).with_suffix(".pyi")
_MODULE = ".api.architectures"


def with_architectures(stub: str) -> str:
    """Return the stub with one line for each architecture, in the order of ruff's import sorting."""
    class_names = [
        BACKBONES.entry(name).target.partition(":")[2]
        for name in BACKBONES.architectures()
        if name in BACKBONES.builtin_entries
    ]
    lines = [
        f"from {_MODULE} import {name} as {name}"
        for name in sorted(class_names, key=lambda name: (not name.isupper(), name))
    ]
    first_line, *other_lines = stub.splitlines()
    assert _MODULE not in first_line
    other_lines = [line for line in other_lines if not line.startswith(f"from {_MODULE} ")]
    return "\n".join([first_line, *lines, *other_lines]) + "\n"


def write_missing() -> list[str]:
    """Write the stub, and return its name if it has changed."""
    old_stub = PATH.read_text()
    new_stub = with_architectures(old_stub)
    PATH.write_text(new_stub)
    return [] if old_stub == new_stub else [PATH.name]
