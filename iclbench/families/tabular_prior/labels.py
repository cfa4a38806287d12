"""Targets of tables: standardised numbers, or classes.

Both depend on the outputs of `REFERENCE_ROWS` further rows of the same function, which are not part of the table. Given
the function, the targets of the table are therefore independent. With the mean and variance of the table's own rows, or
with cuts at their quantiles, a model could compute the last target from all other targets.
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from iclbench.families.tabular_prior.draws import chance, first, random_order, uniform

REFERENCE_ROWS = 64
# Standardised targets are clipped at plus and minus this value.
CLIP = 5.0
# Cuts between classes are between these quantiles of the reference rows.
_CUT_QUANTILES = (0.1, 0.9)


def standardised_targets(y: Float[Tensor, "B N"], reference: Float[Tensor, "B R"]) -> Float[Tensor, "B N"]:
    """Standardise targets by the mean and standard deviation of the reference rows, and clip them. If all reference
    rows have the same output, the targets are 0."""
    mean, std = reference.mean(1, keepdim=True), reference.std(1, keepdim=True, correction=0)
    # A smaller standard deviation is due to rounding errors.
    has_spread = std > 1e-6 * mean.abs().clamp_min(1e-12)
    return torch.where(has_spread, (y - mean) / std.where(has_spread, 1.0), 0.0).clamp(-CLIP, CLIP)


def class_counts(tables: int, classes: int, generator: torch.Generator) -> Int[Tensor, " B"]:
    """Draw the numbers of classes: 2 in half of the tables, and uniform from 2 to `classes` in the others."""
    counts = 2 + ((classes - 1) * uniform((tables,), generator)).long().clamp_max(classes - 2)
    return torch.where(chance((tables,), 0.5, generator), 2, counts)


def class_labels(
    y: Float[Tensor, "B N"],
    reference: Float[Tensor, "B R"],
    counts: Int[Tensor, " B"],
    classes: int,
    generator: torch.Generator,
) -> Int[Tensor, "B N"]:
    """Return class labels. The K intervals between K - 1 cuts have the labels 0 to K - 1 in random order.

    In half of the tables, a cut is a uniformly drawn quantile of the reference rows; in the others, it is a uniformly
    drawn value. All cuts are between the 10 % and 90 % quantiles of the reference rows.
    """
    tables, rows = reference.shape
    low, high = (int(quantile * (rows - 1)) for quantile in _CUT_QUANTILES)
    ordered, position = reference.sort(1).values, uniform((tables, classes - 1), generator)
    by_rank = ordered.gather(1, (low + ((high - low + 1) * position).long()).clamp_max(high))
    by_value = ordered[:, low, None] + (ordered[:, high, None] - ordered[:, low, None]) * position
    cuts = torch.where(chance((tables, 1), 0.5, generator), by_rank, by_value)
    cuts = cuts.masked_fill(~first(counts - 1, classes - 1), torch.inf)
    interval = (y.unsqueeze(2) > cuts.unsqueeze(1)).sum(2)
    return random_order(counts, classes, generator).gather(1, interval)
