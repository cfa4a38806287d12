"""Instruction sets of PyTorch's CPU kernels: with a wider one sums are taken in another order, and values differ in the
last digits. A cell's row names the set that it was computed with, so that it can be computed with the same again."""

from __future__ import annotations

import os

# Those of x86 as `ATEN_CPU_CAPABILITY` names them, in the order in which processors learned them, and what oneDNN calls
# them, which computes convolutions for PyTorch.
_X86 = {"default": "SSE41", "avx2": "AVX2", "avx512": "AVX512_CORE"}


def current() -> str:
    """The set that this process uses."""
    import torch

    name = torch.backends.cpu.get_cpu_capability().lower()
    return "default" if name == "no avx" else name


def like(recorded: str | None) -> str:
    """The recorded set if this processor has it, otherwise that of this process."""
    order, this_process = [*_X86], current()
    if recorded in _X86 and this_process in _X86 and order.index(recorded) <= order.index(this_process):
        return recorded
    return this_process


def use(kernels: str) -> None:
    """Keep this process, which has not imported torch yet, to one of the sets of x86 that its processor has; nothing
    happens for those of other processors."""
    if kernels in _X86:
        os.environ["ATEN_CPU_CAPABILITY"] = kernels
        os.environ["ONEDNN_MAX_CPU_ISA"] = _X86[kernels]
