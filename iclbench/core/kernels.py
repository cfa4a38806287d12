"""Find and select the instruction set of PyTorch's CPU kernels.

The order of additions depends on the instruction set, so values computed with different sets differ in their last
digits. Results record the instruction set, so that they can be recomputed with the same one.
"""

from __future__ import annotations

import os

# The x86 instruction sets, from the oldest to the newest: the name for `ATEN_CPU_CAPABILITY`, and the name in oneDNN,
# which computes PyTorch's convolutions.
_X86 = {"default": "SSE41", "avx2": "AVX2", "avx512": "AVX512_CORE"}


def current() -> str:
    """Return the instruction set that this process uses."""
    import torch

    name = torch.backends.cpu.get_cpu_capability().lower()
    return "default" if name == "no avx" else name


def closest(recorded: str | None) -> str:
    """Return the recorded instruction set if this processor supports it, otherwise the set that this process uses."""
    order, current_set = [*_X86], current()
    if recorded in _X86 and current_set in _X86 and order.index(recorded) <= order.index(current_set):
        return recorded
    return current_set


def use(instruction_set: str) -> None:
    """Make torch use this x86 instruction set. Torch must not have been imported yet. Sets of other processors are
    ignored."""
    if instruction_set in _X86:
        os.environ["ATEN_CPU_CAPABILITY"] = instruction_set
        os.environ["ONEDNN_MAX_CPU_ISA"] = _X86[instruction_set]
