"""Devices: the user's choice, and names in the table of costs."""

from __future__ import annotations

from typing import Any

import torch

from iclbench.core.errors import UsageError, shorten

_NAMES = "auto, cpu, cuda or cuda:N"


def resolve_device(device: Any) -> str:
    """The name that torch gives to the device; for `auto`, `cuda` if a GPU is available, otherwise `cpu`.

    Args:
        device: the user's choice, a name or a `torch.device`.

    Raises:
        UsageError: it is not a device, or this machine does not have it.

    >>> resolve_device(torch.device("cpu"))
    'cpu'
    """
    name = str(device) if isinstance(device, torch.device) else device
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        parsed = torch.device(name if isinstance(name, str) else "")
    except RuntimeError:
        raise UsageError(f"{shorten(repr(name))} is not a device; write {_NAMES}", code="bad-value") from None
    if parsed.type not in ("cpu", "cuda", "mps"):
        raise UsageError(f"device '{name}' is not supported; write {_NAMES}", code="not-supported")
    if parsed.type == "cuda" and not torch.cuda.is_available():
        raise UsageError(
            f"device '{name}': this installation of torch sees no CUDA device; write cpu", code="not-supported"
        )
    if parsed.type == "cuda" and (parsed.index or 0) >= torch.cuda.device_count():
        count = torch.cuda.device_count()
        raise UsageError(f"device '{name}': there are {count} CUDA devices, counted from 0", code="not-supported")
    if parsed.type == "mps" and not torch.backends.mps.is_available():
        raise UsageError(f"device '{name}' is not available; write cpu", code="not-supported")
    return str(name)


def device_label(device: str) -> str:
    """The name of a device in the table of costs: `cpu`, or the model of the GPU."""
    return torch.cuda.get_device_name(device) if device.startswith("cuda") else device
