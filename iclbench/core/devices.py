"""Devices: which one is meant, and the names by which the cost table knows them."""

from __future__ import annotations

from typing import Any

import torch

from iclbench.core.errors import UsageError, shortened

_KNOWN = "auto, cpu, cuda or cuda:N"


def chosen_device(device: Any) -> str:
    """The device as torch names it, `auto` being a GPU where there is one.

    Args:
        device: what a user gave: a name or a `torch.device`.

    Raises:
        UsageError: it is none, or there is no such device here.

    >>> chosen_device(torch.device("cpu"))
    'cpu'
    """
    named = str(device) if isinstance(device, torch.device) else device
    if named == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        found = torch.device(named if isinstance(named, str) else "")
    except RuntimeError:
        raise UsageError(f"{shortened(repr(named))} is not a device; write {_KNOWN}") from None
    if found.type not in ("cpu", "cuda", "mps"):
        raise UsageError(f"device '{named}' is not supported; write {_KNOWN}")
    if found.type == "cuda" and not torch.cuda.is_available():
        raise UsageError(f"device '{named}': this installation of torch sees no CUDA device; write cpu")
    if found.type == "cuda" and (found.index or 0) >= torch.cuda.device_count():
        raise UsageError(f"device '{named}': there are {torch.cuda.device_count()} CUDA devices, counted from 0")
    if found.type == "mps" and not torch.backends.mps.is_available():
        raise UsageError(f"device '{named}' is not available here; write cpu")
    return str(named)


def label(device: str) -> str:
    """`cpu`, or the accelerator's own name."""
    return torch.cuda.get_device_name(device) if device.startswith("cuda") else device
