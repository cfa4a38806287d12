"""An image encoder for CPUs, where a residual network would take most of the time of a training step: orientation
energies from a fixed filter bank, followed by a small trained network.

The first stage is the classical model of complex cells (Adelson and Bergen 1985): pairs of Gabor filters in quadrature,
and the root of the sum of their squares, pooled on a grid. It has no parameters and no gradient. The encoder has no
BatchNorm, so features do not depend on other images.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from iclbench.layers.perceptron import perceptron

ORIENTATIONS = 8
FILTER_SIZE = 7
GRID_SIZE = 7
# Wavelength of the carrier and standard deviation of the envelope, in pixels, for strokes of two to three pixels.
WAVELENGTH, SPREAD = 6.0, 2.0


def gabor_bank() -> Float[Tensor, "2 orientations size size"]:
    """Return even and odd filters with orientations k pi / 8, k = 0, 1, ...; each has mean 0 and norm 1."""
    steps = torch.arange(FILTER_SIZE, dtype=torch.float64) - FILTER_SIZE // 2
    y, x = torch.meshgrid(steps, steps, indexing="ij")
    angles = (torch.arange(ORIENTATIONS, dtype=torch.float64) * math.pi / ORIENTATIONS)[:, None, None]
    phase = 2 * math.pi / WAVELENGTH * (x * angles.cos() + y * angles.sin())
    waves = torch.stack([phase.cos(), phase.sin()]) * torch.exp(-(x**2 + y**2) / (2 * SPREAD**2))
    waves = waves - waves.mean((2, 3), keepdim=True)
    return (waves / waves.square().sum((2, 3), keepdim=True).sqrt()).float()


class Contours(nn.Module):
    """Maps greyscale images to features: energies on a 7 x 7 grid, standardised per image, then two linear layers.

    Args:
        features: width E of the output and of the hidden layer.
    """

    bank: Tensor

    def __init__(self, features: int) -> None:
        super().__init__()
        self.register_buffer("bank", gabor_bank().flatten(0, 1).unsqueeze(1), persistent=False)
        self.network = perceptron(ORIENTATIONS * GRID_SIZE * GRID_SIZE, features, features)

    def forward(self, images: Float[Tensor, "images H W"]) -> Float[Tensor, "images E"]:
        pooled = self.energies(images).flatten(1)
        return self.network(F.layer_norm(pooled, pooled.shape[1:]))

    @torch.no_grad()
    def energies(self, images: Float[Tensor, "images H W"]) -> Float[Tensor, "images orientations grid grid"]:
        """Return the pooled orientation energies. Padding repeats the border, so that the border of the image is not a
        contour."""
        padded = F.pad(images.unsqueeze(1), [FILTER_SIZE // 2] * 4, mode="replicate")
        even, odd = F.conv2d(padded, self.bank).chunk(2, 1)
        return F.adaptive_avg_pool2d(torch.hypot(even, odd), GRID_SIZE)
