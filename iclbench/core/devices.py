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
    name = str(device) if isinstance(device, torch.device) else device
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        parsed = torch.device(name if isinstance(name, str) else "")
    except RuntimeError:
        raise UsageError(f"{shortened(repr(name))} is not a device; write {_KNOWN}") from None
    if parsed.type not in ("cpu", "cuda", "mps"):
        raise UsageError(f"device '{name}' is not supported; write {_KNOWN}")
    if parsed.type == "cuda" and not torch.cuda.is_available():
        raise UsageError(f"device '{name}': this installation of torch sees no CUDA device; write cpu")
    if parsed.type == "cuda" and (parsed.index or 0) >= torch.cuda.device_count():
        raise UsageError(f"device '{name}': there are {torch.cuda.device_count()} CUDA devices, counted from 0")
    if parsed.type == "mps" and not torch.backends.mps.is_available():
        raise UsageError(f"device '{name}' is not available here; write cpu")
    return str(name)


def label(device: str) -> str:
    """`cpu`, or the accelerator's own name."""
    return torch.cuda.get_device_name(device) if device.startswith("cuda") else device
