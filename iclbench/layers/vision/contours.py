"""Orientation energies, a fixed bank of filters before a small trained network: our encoder for processors without an
accelerator, where a residual network would be most of a training step.

The first stage is the classical model of complex cells (Adelson and Bergen 1985): pairs of Gabor filters in quadrature,
the root of the sum of their squares, pooled. It has no parameters and no gradient passes through it. There is no
BatchNorm, so features never depend on other images.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from iclbench.layers.perceptron import perceptron

ORIENTATIONS = 8
SIZE = 7
GRID = 7
# In pixels: wavelength of the carrier and deviation of the envelope, for strokes two to three pixels wide.
WAVELENGTH, SPREAD = 6.0, 2.0


def gabor_bank() -> Float[Tensor, "2 orientations size size"]:
    """Even and odd filters of each orientation, k pi / 8 for k = 0, 1, ...; mean 0 and norm 1 each."""
    steps = torch.arange(SIZE, dtype=torch.float64) - SIZE // 2
    y, x = torch.meshgrid(steps, steps, indexing="ij")
    angles = (torch.arange(ORIENTATIONS, dtype=torch.float64) * math.pi / ORIENTATIONS)[:, None, None]
    phase = 2 * math.pi / WAVELENGTH * (x * angles.cos() + y * angles.sin())
    waves = torch.stack([phase.cos(), phase.sin()]) * torch.exp(-(x**2 + y**2) / (2 * SPREAD**2))
    waves = waves - waves.mean((2, 3), keepdim=True)
    return (waves / waves.square().sum((2, 3), keepdim=True).sqrt()).float()


class Contours(nn.Module):
    """Grey images to features: energies on a 7 x 7 grid, standardised per image, then two linear layers.

    Args:
        features: width E of the output and of the hidden layer.
    """

    bank: Tensor

    def __init__(self, features: int) -> None:
        super().__init__()
        self.register_buffer("bank", gabor_bank().flatten(0, 1).unsqueeze(1), persistent=False)
        self.network = perceptron(ORIENTATIONS * GRID * GRID, features, features)

    def forward(self, images: Float[Tensor, "images H W"]) -> Float[Tensor, "images E"]:
        pooled = self.energies(images).flatten(1)
        return self.network(F.layer_norm(pooled, pooled.shape[1:]))

    @torch.no_grad()
    def energies(self, images: Float[Tensor, "images H W"]) -> Float[Tensor, "images orientations grid grid"]:
        """Pooled orientation energies; the border is continued outwards, so that it is no contour."""
        padded = F.pad(images.unsqueeze(1), [SIZE // 2] * 4, mode="replicate")
        even, odd = F.conv2d(padded, self.bank).chunk(2, 1)
        return F.adaptive_avg_pool2d(torch.hypot(even, odd), GRID)
