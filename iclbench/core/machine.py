"""The machine that computes a cell: device, processor, memory, and versions of libraries."""

from __future__ import annotations

import json
import os
import platform
import sys
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

# The libraries that values of a cell may depend on.
_LIBRARIES = ("torch", "numpy", "scipy", "scikit-learn", "xgboost")


def device_label(device: str) -> str:
    """The name of a device in tables, as `devices.device_label`; torch is imported only for GPUs."""
    if device == "cpu":
        return device
    from iclbench.core import devices

    return devices.device_label(device)


@cache
def hardware() -> str:
    """Processor, number of cores and memory of this machine, if the system reports them.

    Processors of several generations may have the same name, so the name is followed by the family and model numbers.
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
    """The versions of Python and of the libraries that values may depend on, as JSON."""
    versions = {"python": ".".join(str(part) for part in sys.version_info[:3])}
    for name in _LIBRARIES:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            continue
    return json.dumps(versions)
