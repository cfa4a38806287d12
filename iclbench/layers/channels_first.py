"""Layer normalisation for tensors with channels first, `(D, K)`: a row is one channel.

Sequences that are convolved per channel and then mixed across channels stay in this layout, because on a CPU a
transposition takes longer than either operation.
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.autograd.function import once_differentiable


class ChannelNorm(nn.LayerNorm):
    """Layer normalisation over axis 0 of `(D, K)`."""

    def forward(self, input: Float[Tensor, "D K"]) -> Float[Tensor, "D K"]:
        return _ChannelNormFunction.apply(input, self.weight, self.bias, self.eps)


class _ChannelNormFunction(torch.autograd.Function):
    """Layer normalisation that computes each sum over channels as a product with a vector, in one pass over memory."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
        averaging = torch.full_like(weight, 1 / len(x))
        centred = x - averaging @ x
        scale = (averaging @ centred.square()).add_(eps).rsqrt_()
        normal = centred.mul_(scale)
        ctx.save_for_backward(normal, scale, weight)
        return torch.addcmul(bias[:, None], normal, weight[:, None])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        normal, scale, weight = ctx.saved_tensors
        gradient = gradients[0].contiguous()
        projected = gradient * normal
        averaging = weight / len(weight)
        grad_weight, grad_bias = projected.sum(1), gradient.sum(1)
        grad_x = (
            (gradient * weight[:, None])
            .sub_(averaging @ gradient)
            .addcmul_(normal, averaging @ projected, value=-1)
            .mul_(scale)
        )
        return grad_x, grad_weight, grad_bias, None
