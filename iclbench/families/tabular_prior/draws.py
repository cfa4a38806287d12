"""Functions that draw random hyperparameters of tables, on the generator's device."""

from __future__ import annotations

import math

import torch
from jaxtyping import Bool, Int
from torch import Tensor


def uniform(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """Draw uniform numbers in [0, 1)."""
    return torch.rand(shape, generator=generator, device=generator.device)


def chance(shape: tuple[int, ...], probability: float, generator: torch.Generator) -> Bool[Tensor, "..."]:
    """Draw booleans that are True with this probability."""
    return uniform(shape, generator) < probability


def log_uniform(shape: tuple[int, ...], edges: tuple[float, float], generator: torch.Generator) -> Tensor:
    """Draw numbers whose logarithm is uniform between the logarithms of the edges."""
    low, high = (math.log(edge) for edge in edges)
    return (low + (high - low) * uniform(shape, generator)).exp()


def log_uniform_integers(
    shape: tuple[int, ...], edges: tuple[int, int], generator: torch.Generator
) -> Int[Tensor, "..."]:
    """Draw integers from the first to the second edge. They are log-uniform numbers up to the second edge + 1, rounded
    down."""
    low, high = edges
    return log_uniform(shape, (float(low), high + 1.0), generator).long().clamp(low, high)


def integers(high: Int[Tensor, "*shape"], generator: torch.Generator) -> Int[Tensor, "*shape"]:
    """Draw uniform integers from 0 to `high` - 1. Each entry of `high` is the limit of one integer."""
    # The product may be rounded up to `high`.
    return (uniform(tuple(high.shape), generator) * high).long().minimum(high - 1).clamp_min(0)


def truncated_normal_integers(count: int, largest: int, generator: torch.Generator) -> Int[Tensor, " count"]:
    """Draw rounded normal numbers between 1 and `largest`.

    The mean is log-uniform from 1 to `largest`, and the standard deviation is the mean times a log-uniform number from
    0.01 to 1.
    """
    mean = log_uniform((count,), (1.0, float(largest)), generator).double()
    std = mean * log_uniform((count,), (0.01, 1.0), generator)
    low, high = (torch.special.ndtr((edge - mean) / std) for edge in (1.0, float(largest)))
    quantile = low + (high - low) * uniform((count,), generator)
    return (mean + std * torch.special.ndtri(quantile)).round().clamp(1, largest).long()


def first(count: Int[Tensor, "*shape"], size: int) -> Bool[Tensor, "*shape size"]:
    """Return a mask of the first `count` of `size` places."""
    return torch.arange(size, device=count.device) < count.unsqueeze(-1)


def random_order(count: Int[Tensor, "*shape"], size: int, generator: torch.Generator) -> Int[Tensor, "*shape size"]:
    """Draw a random permutation of 0, ..., `count` - 1, followed by the other numbers below `size` in ascending
    order."""
    places = torch.arange(size, device=count.device)
    scores = uniform((*count.shape, size), generator)
    return torch.where(first(count, size), scores, 1.0 + places).argsort(-1)
