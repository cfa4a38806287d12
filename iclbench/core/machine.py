"""The machine that computes a cell: device, processor, memory and versions of libraries."""

from __future__ import annotations

import json
import os
import platform
import sys
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

# Values of a cell may depend on their versions.
_LIBRARIES = ("torch", "numpy", "scipy", "scikit-learn", "xgboost")


def device(device: str) -> str:
    """`cpu`, or the accelerator's own name."""
    if device == "cpu":
        return device
    from iclbench.core.devices import label

    return label(device)


@cache
def hardware() -> str:
    """Processor, number of its cores and memory of this machine, as far as it says.

    Family and model of the processor belong to it: generations may share a name.
    """
    fields: dict[str, str] = {}
    for path in (Path("/proc/cpuinfo"), Path("/proc/meminfo")):
        for line in path.read_text().splitlines() if path.is_file() else []:
            name, _, value = line.partition(":")
            fields.setdefault(name.strip(), value.strip())
    processor = fields.get("model name") or platform.processor() or platform.machine()
    if "cpu family" in fields:
        processor += f" (family {fields['cpu family']}, model {fields.get('model', '?')})"
    memory = [f"{round(int(fields['MemTotal'].split()[0]) / 2**20)} GiB"] if "MemTotal" in fields else []
    return ", ".join([processor, f"{os.cpu_count()} cores", *memory])


@cache
def libraries() -> str:
    """Python and the libraries that values may depend on, with their versions, as JSON."""
    versions = {"python": ".".join(str(part) for part in sys.version_info[:3])}
    for name in _LIBRARIES:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            continue
    return json.dumps(versions)
