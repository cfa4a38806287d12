"""Instruction sets of PyTorch's CPU kernels.

The order of additions depends on the instruction set, so values differ in their last digits. The row of a cell names
the set that it was computed with, so that the cell can be recomputed with the same set.
"""

from __future__ import annotations

import os

# The sets of x86, from the oldest to the newest: the name in `ATEN_CPU_CAPABILITY`, and the name in oneDNN, the library
# that computes PyTorch's convolutions.
_X86 = {"default": "SSE41", "avx2": "AVX2", "avx512": "AVX512_CORE"}


def current() -> str:
    """The instruction set that this process uses."""
    import torch

    name = torch.backends.cpu.get_cpu_capability().lower()
    return "default" if name == "no avx" else name


def like(recorded: str | None) -> str:
    """The recorded instruction set if this processor has it, otherwise the set that this process uses."""
    order, this_process = [*_X86], current()
    if recorded in _X86 and this_process in _X86 and order.index(recorded) <= order.index(this_process):
        return recorded
    return this_process


def use(kernels: str) -> None:
    """Make torch use this instruction set of x86, before it is imported; other sets are ignored."""
    if kernels in _X86:
        os.environ["ATEN_CPU_CAPABILITY"] = kernels
        os.environ["ONEDNN_MAX_CPU_ISA"] = _X86[kernels]
