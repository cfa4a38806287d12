"""Multilayer perceptrons as neural processes use them: for points, for decoding, inside attention layers."""

from __future__ import annotations

from itertools import pairwise

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn


def perceptron(*widths: int) -> nn.Sequential:
    """Linear layers from width to width with a ReLU between each two; PyTorch's default initialisation."""
    layers: list[nn.Module] = []
    for a, b in pairwise(widths):
        layers += [nn.Linear(a, b), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def by_parts(linear: nn.Linear, *parts: Float[Tensor, "... _"]) -> Float[Tensor, "... _"]:
    """A linear layer of parts side by side, whose other axes are broadcast: what many rows share is mapped once."""
    weights = linear.weight.split([part.shape[-1] for part in parts], 1)
    head, *tail = (F.linear(part, weight) for part, weight in zip(parts, weights, strict=True))
    hidden = sum(tail, head)
    return hidden if linear.bias is None else hidden + linear.bias
