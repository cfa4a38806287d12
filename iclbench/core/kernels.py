"""Instruction sets of PyTorch's CPU kernels.

The order of additions depends on the instruction set, so values differ in their last digits. Results record the
instruction set of their computation, so that they can be recomputed with the same set.
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


def closest(recorded: str | None) -> str:
    """The recorded instruction set if this processor has it, otherwise the set that this process uses."""
    order, current_set = [*_X86], current()
    if recorded in _X86 and current_set in _X86 and order.index(recorded) <= order.index(current_set):
        return recorded
    return current_set


def use(instruction_set: str) -> None:
    """Make torch, which must not be imported yet, use this x86 instruction set; other instruction sets are ignored."""
    if instruction_set in _X86:
        os.environ["ATEN_CPU_CAPABILITY"] = instruction_set
        os.environ["ONEDNN_MAX_CPU_ISA"] = _X86[instruction_set]
