"""Random inputs shared by families and shifts, drawn on the generator's device."""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor


def normal(shape: tuple[int, ...] | torch.Size, generator: torch.Generator) -> Tensor:
    """Standard normal numbers."""
    return torch.randn(shape, generator=generator, device=generator.device)


def skewed_inputs(
    z: Float[Tensor, "B N D"],
    generator: torch.Generator,
    exponent: float = 2.0,
    rotation: str = "episode",
) -> Float[Tensor, "B N D"]:
    """Standard normal z mapped by U diag(s) U' with s_i² proportional to 1/i^exponent and sum of s_i² = d."""
    batch, _, dim = z.shape
    source = generator
    if rotation == "fixed":
        source = torch.Generator(device=generator.device).manual_seed(0)
    bases = batch if rotation == "episode" else 1
    # The sign of R's diagonal makes the orthogonal factor uniform (Mezzadri 2007).
    q, r = torch.linalg.qr(normal((bases, dim, dim), source))
    basis = q * torch.sign(r.diagonal(dim1=1, dim2=2)).unsqueeze(1)
    scale = torch.arange(1, dim + 1, device=z.device, dtype=z.dtype).pow(-exponent / 2)
    scale = scale * math.sqrt(dim) / scale.norm()
    return ((z @ basis) * scale) @ basis.transpose(1, 2)
