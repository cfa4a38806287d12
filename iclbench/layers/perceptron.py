"""Multilayer perceptrons as neural processes use them: for points, for decoding, inside attention layers."""

from __future__ import annotations

from itertools import pairwise

from torch import nn


def perceptron(*widths: int) -> nn.Sequential:
    """Linear layers from width to width with a ReLU between each two; PyTorch's default initialisation."""
    layers: list[nn.Module] = []
    for a, b in pairwise(widths):
        layers += [nn.Linear(a, b), nn.ReLU()]
    return nn.Sequential(*layers[:-1])
