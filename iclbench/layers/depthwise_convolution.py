"""A short causal depthwise convolution with channels last, as one autograd function.

A convolution with four taps consists of four multiplications with shifted views. Transposing the tokens to the layout
of `F.conv1d` would take longer than the convolution itself.
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor


class _DepthwiseConvolution(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, padded: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        ctx.save_for_backward(padded, weight)
        length = padded.shape[1] - weight.shape[1] + 1
        mixed = bias.expand(len(padded), length, -1).clone(memory_format=torch.contiguous_format)
        for k in range(weight.shape[1]):
            mixed.addcmul_(padded[:, k : k + length], weight[:, k])
        return mixed

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        padded, weight = ctx.saved_tensors
        (gradient,) = gradients
        length = gradient.shape[1]
        grad_padded, grad_weight = torch.zeros_like(padded), torch.empty_like(weight)
        for k in range(weight.shape[1]):
            shifted = slice(k, k + length)
            grad_padded[:, shifted].addcmul_(gradient, weight[:, k])
            grad_weight[:, k] = (gradient * padded[:, shifted]).sum((0, 1))
        return grad_padded, grad_weight, gradient.sum((0, 1))


def depthwise_convolution(
    padded: Float[Tensor, "B KT E"], weight: Float[Tensor, "E K"], bias: Float[Tensor, " E"]
) -> Float[Tensor, "B T E"]:
    """Compute out[:, t] = bias + sum over k of weight[:, k] padded[:, t + k], with T = KT - K + 1."""
    return _DepthwiseConvolution.apply(padded, weight, bias)
