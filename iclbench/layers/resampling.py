"""Bootstrap samples of points (Efron 1979) for bootstrapping neural processes: samples of pairs and of residuals.

In evaluation, samples are drawn with fixed uniform numbers. The i-th number of a sample belongs to the i-th point in
the canonical order, which depends only on the values of the points, and not on their original order or on padding.
"""

from __future__ import annotations

from functools import cache

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from iclbench.core.episodes import Points, take
from iclbench.core.seeds import generator

_BLOCK = 256


def sort_canonically(points: Points) -> Points:
    """Sort the points canonically: valid points come first, ordered by a fixed random projection of (x, y)."""
    y = points.y if points.y.dim() == points.x.dim() else points.y.unsqueeze(-1)
    values = torch.cat([points.x, y.to(points.x.dtype)], -1)
    projection = (values * _projection_direction(values.shape[-1]).to(values)).sum(-1)
    order = projection.masked_fill(~points.mask, torch.inf).argsort(1)
    return points.map(lambda t: take(t, order))


@cache
def _projection_direction(dim: int) -> Float[Tensor, " dim"]:
    return torch.randn(dim, generator=generator(0, "canonical order"), device="cpu")


def fixed_uniforms(samples: int, count: int, like: Tensor) -> Float[Tensor, "2 S N"]:
    """Return two uniform numbers for each of `count` points in each sample. The numbers of the first points do not
    depend on `count`."""
    blocks = [_uniform_block(samples, number) for number in range(count // _BLOCK + 1)]
    return torch.cat(blocks, 2)[..., :count].to(like)


@cache
def _uniform_block(samples: int, number: int) -> Float[Tensor, "2 S block"]:
    return torch.rand(2, samples, _BLOCK, generator=generator(0, "bootstrap", number), device="cpu")


def draw_indices(uniforms: Float[Tensor, "#B S N"], counts: Int[Tensor, " B"]) -> Int[Tensor, "B S N"]:
    """Draw indices among the first `counts` points of each episode, one for each uniform number."""
    limits = counts[:, None, None]
    return (uniforms * limits).long().clamp(max=limits - 1).clamp(min=0)


def select_points(points: Points, indices: Int[Tensor, "B S N"]) -> Points:
    """Select S sets of points by index, each with the mask of the episode's points."""
    samples = points.map(lambda t: take(t, indices.flatten(1)).unflatten(1, indices.shape[1:]))
    return Points(samples.x, samples.y, points.mask.unsqueeze(1).expand(indices.shape))


def resample_residuals(
    residuals: Float[Tensor, "B S N dy"], indices: Int[Tensor, "B S N"], mask: Bool[Tensor, "B N"]
) -> Float[Tensor, "B S N dy"]:
    """Return the residuals at these indices, minus their mean over the valid points."""
    sample = residuals.gather(2, indices.unsqueeze(-1).expand(residuals.shape))
    valid = mask[:, None, :, None]
    mean = (sample * valid).sum(2, keepdim=True) / valid.sum(2, keepdim=True).clamp(min=1)
    return sample - mean
