"""Functions that draw random numbers for families and shifts, on the generator's device."""

from __future__ import annotations

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor


def normal(shape: tuple[int, ...] | torch.Size, generator: torch.Generator) -> Tensor:
    """Draw standard normal numbers."""
    return torch.randn(shape, generator=generator, device=generator.device)


def fixed_normal(shape: tuple[int, ...], seed: int, device: torch.device) -> Tensor:
    """Draw standard normal numbers for constants of a task. They are drawn on the CPU, so that they are the same on
    every device."""
    return normal(shape, torch.Generator().manual_seed(seed)).to(device)


def random_signs(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """Draw +1 or -1 with equal probability."""
    return 2.0 * torch.randint(2, shape, generator=generator, device=generator.device) - 1


def orthogonal(gaussian: Float[Tensor, "*batch D K"]) -> Float[Tensor, "*batch D K"]:
    """Return uniformly random orthonormal columns from Gaussian matrices, K <= D.

    The signs of the columns of Q depend on the algorithm of the QR decomposition. Multiplying them by the signs of R's
    diagonal makes the distribution uniform (Mezzadri 2007).
    """
    q, r = torch.linalg.qr(gaussian)
    return q * torch.sign(r.diagonal(dim1=-2, dim2=-1)).unsqueeze(-2)


def skewed_inputs(
    z: Float[Tensor, "B N D"],
    generator: torch.Generator,
    exponent: float = 2.0,
    rotation: str = "episode",
) -> Float[Tensor, "B N D"]:
    """Map standard normal z by U diag(s) U', where s_i² is proportional to 1/i^exponent and the sum of s_i² is d.

    `rotation` selects one U per episode ("episode"), per call ("batch") or for all calls ("fixed").
    """
    batch, _, dim = z.shape
    if rotation == "fixed":
        basis = orthogonal(fixed_normal((1, dim, dim), 0, z.device))
    else:
        basis = orthogonal(normal((batch if rotation == "episode" else 1, dim, dim), generator))
    scale = torch.arange(1, dim + 1, device=z.device, dtype=z.dtype).pow(-exponent / 2)
    scale = scale * math.sqrt(dim) / scale.norm()
    return ((z @ basis) * scale) @ basis.transpose(1, 2)


def stratified_uniform(group: Int[Tensor, " B"], generator: torch.Generator) -> Float[Tensor, " B"]:
    """Draw stratified uniform numbers in [0, 1), in float64: a group of size n has one number in each of n equal
    intervals. The order is random."""
    offset = torch.rand(len(group), generator=generator, device=group.device, dtype=torch.float64)
    numbers = torch.empty_like(offset)
    for group_index in group.unique():
        rows = (group == group_index).nonzero().squeeze(1)
        order = torch.randperm(len(rows), generator=generator, device=group.device)
        numbers[rows] = (order + offset[rows]) / len(rows)
    return numbers
