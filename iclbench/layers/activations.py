"""The tanh approximation of GELU, with an own implementation for CPUs."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

# tanh-GELU is x · sigmoid(u(x)) with u(x) = 2 sqrt(2/pi) (x + 0.044715 x³).
_LINEAR = 2 * math.sqrt(2 / math.pi)
_CUBIC = 0.044715 * _LINEAR


# Elements per chunk: 256 kB in single precision, so that intermediate results stay in the cache of a core.
_CHUNK = 65_536


class _SigmoidGelu(torch.autograd.Function):
    """The tanh approximation of GELU, written with a sigmoid and computed in chunks."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        x = x.contiguous()
        gate, result = torch.empty_like(x), torch.empty_like(x)
        for x_part, gate_part, result_part in _chunks(x, gate, result):
            torch.square(x_part, out=gate_part).mul_(_CUBIC).add_(_LINEAR).mul_(x_part).sigmoid_()
            torch.mul(x_part, gate_part, out=result_part)
        ctx.save_for_backward(x, gate)
        return result

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        x, gate = ctx.saved_tensors
        result = torch.empty_like(x)
        for x_part, gate_part, gradient, slope in _chunks(x, gate, gradients[0].contiguous(), result):
            torch.square(x_part, out=slope).mul_(3 * _CUBIC).add_(_LINEAR).mul_(x_part)
            slope.mul_(1 - gate_part).add_(1).mul_(gate_part).mul_(gradient)
        return result


def _chunks(*tensors: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Yield corresponding parts of tensors of equal size. The compiler of torch divides loops itself."""
    size = tensors[0].numel() if torch.compiler.is_compiling() else _CHUNK
    return zip(*(tensor.view(-1).split(max(size, 1)) for tensor in tensors), strict=True)


def gelu_tanh(x: Tensor) -> Tensor:
    """Apply GELU with the tanh approximation, as in GPT-2."""
    if x.device.type == "cpu" and x.dtype == torch.float32:
        return _SigmoidGelu.apply(x)
    return F.gelu(x, approximate="tanh")
