"""Devices by the names that the cost table knows."""

import torch


def label(device: str) -> str:
    """`cpu`, or the accelerator's own name."""
    return torch.cuda.get_device_name(device) if device.startswith("cuda") else device
