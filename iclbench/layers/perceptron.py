"""Multilayer perceptrons of neural processes."""

from __future__ import annotations

from itertools import pairwise

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn


def perceptron(*widths: int) -> nn.Sequential:
    """Create linear layers between consecutive widths, with ReLUs between the layers and PyTorch's default
    initialisation."""
    layers: list[nn.Module] = []
    for a, b in pairwise(widths):
        layers += [nn.Linear(a, b), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def apply_to_parts(linear: nn.Linear, *parts: Float[Tensor, "... _"]) -> Float[Tensor, "... _"]:
    """Apply a linear layer to the concatenation of `parts` along their last axis. Other axes are broadcast after the
    layer, so that a part that many rows share is mapped only once."""
    weights = linear.weight.split([t.shape[-1] for t in parts], 1)
    head, *tail = (F.linear(t, weight) for t, weight in zip(parts, weights, strict=True))
    hidden = sum(tail, head)
    return hidden if linear.bias is None else hidden + linear.bias
