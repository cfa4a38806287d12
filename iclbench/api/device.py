"""Which device `auto` stands for."""

from __future__ import annotations

import torch

from iclbench.core.errors import UsageError


def chosen_device(device: str) -> str:
    """The device, `auto` being a GPU where there is one.

    Raises:
        UsageError: there is no such device here.
    """
    if device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise UsageError(f"device={device!r} is not to be had here ({str(error).splitlines()[0]})") from None
    return device
