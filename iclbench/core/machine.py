"""Describe the machine that computes a cell: device, processor, memory and versions of libraries."""

from __future__ import annotations

import json
import os
import platform
import sys
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

# The libraries on which the values of a cell may depend.
_LIBRARIES = ("torch", "numpy", "scipy", "scikit-learn", "xgboost")


def device_label(device: str) -> str:
    """Return the name of a device in tables, like `devices.device_label`, but import torch only for GPUs."""
    if device == "cpu":
        return device
    from iclbench.core import devices

    return devices.device_label(device)


@cache
def hardware() -> str:
    """Return the processor, number of cores and memory of this machine, if the system reports them.

    Processors of different generations may have the same name, so the family and model numbers follow the name.
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
    """Return the versions of Python and of the libraries on which values may depend, as JSON."""
    versions = {"python": ".".join(str(part) for part in sys.version_info[:3])}
    for name in _LIBRARIES:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            continue
    return json.dumps(versions)
