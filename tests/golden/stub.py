"""The lines of `iclbench/__init__.pyi` that name the architectures of the registry."""

from pathlib import Path

import iclbench
from iclbench.registry import BACKBONES

PATH = Path(iclbench.__file__).with_suffix(".pyi")
_MODULE = ".api.architectures"


def with_architectures(stub: str) -> str:
    """The stub with one line for each architecture, in the order of ruff."""
    own = [
        BACKBONES.entry(name).target.partition(":")[2]
        for name in BACKBONES.architectures()
        if name in BACKBONES.shipped
    ]
    lines = [
        f"from {_MODULE} import {name} as {name}" for name in sorted(own, key=lambda name: (not name.isupper(), name))
    ]
    before, *others = stub.splitlines()
    assert _MODULE not in before
    rest = [line for line in others if not line.startswith(f"from {_MODULE} ")]
    return "\n".join([before, *lines, *rest]) + "\n"


def write_missing() -> list[str]:
    """Write the stub; returns its name if it has changed."""
    before = PATH.read_text()
    after = with_architectures(before)
    PATH.write_text(after)
    return [] if before == after else [PATH.name]
