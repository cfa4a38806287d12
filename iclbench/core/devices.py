"""Resolve the user's choice of a device, and name devices in the table of costs."""

from __future__ import annotations

from typing import Any

import torch

from iclbench.core.errors import UsageError, shorten

_NAMES = "auto, cpu, cuda or cuda:N"


def resolve_device(device: Any) -> str:
    """Return torch's name for the device. `auto` means `cuda` if a GPU is available, otherwise `cpu`.

    Args:
        device: the user's choice, a name or a `torch.device`.

    Raises:
        UsageError: the device does not exist on this machine or is not supported.

    >>> resolve_device(torch.device("cpu"))
    'cpu'
    """
    name = str(device) if isinstance(device, torch.device) else device
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        parsed = torch.device(name if isinstance(name, str) else "")
    except RuntimeError:
        raise UsageError(f"{shorten(repr(name))} is not a device; use {_NAMES}", code="bad-value") from None
    if parsed.type not in ("cpu", "cuda", "mps"):
        raise UsageError(f"device '{name}' is not supported; use {_NAMES}", code="not-supported")
    if parsed.type == "cuda" and not torch.cuda.is_available():
        raise UsageError(
            f"device '{name}': this installation of torch finds no CUDA device; use cpu", code="not-supported"
        )
    if parsed.type == "cuda" and (parsed.index or 0) >= torch.cuda.device_count():
        count = torch.cuda.device_count()
        raise UsageError(f"device '{name}': there are {count} CUDA devices, numbered from 0", code="not-supported")
    if parsed.type == "mps" and not torch.backends.mps.is_available():
        raise UsageError(f"device '{name}' is not available; use cpu", code="not-supported")
    return str(name)


def device_label(device: str) -> str:
    """Return the name of a device in the table of costs: the model of a CUDA GPU, otherwise the device itself."""
    return torch.cuda.get_device_name(device) if device.startswith("cuda") else device
