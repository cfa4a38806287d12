"""Standardisation of the columns of a table, with the mean and standard deviation of the context rows."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from iclbench.core.episodes import Points

# Bound on the absolute value of standardised values.
_CLIP = 100.0


@dataclass(frozen=True)
class ColumnScale:
    """Mean and standard deviation (with n - 1) of each column over the valid rows of a context.

    Values are first mapped linearly from their range in the context to [0, 1]. Otherwise, squares of large values could
    overflow, and rounding errors could hide the spread of a column whose values are far from 0.

    Attributes:
        low: smallest value of a column; 0 if all its values are equal.
        span: largest minus smallest value of a column; 1 if all its values are equal.
        mean, std: mean and standard deviation of the column after this map.
        varies: whether the column has more than one distinct value in the context.
    """

    low: Float[Tensor, "B 1 Dx"]
    span: Float[Tensor, "B 1 Dx"]
    mean: Float[Tensor, "B 1 Dx"]
    std: Float[Tensor, "B 1 Dx"]
    varies: Bool[Tensor, "B Dx"]

    @classmethod
    def of(cls, context: Points) -> ColumnScale:
        """Return the scale of the columns of a context, which may be empty."""
        mask, x = context.mask.unsqueeze(-1), context.x
        padded = F.pad(torch.where(mask, x, torch.inf), (0, 0, 0, 1), value=torch.inf)
        low = padded.amin(1, keepdim=True)
        high = F.pad(torch.where(mask, x, -torch.inf), (0, 0, 0, 1), value=-torch.inf).amax(1, keepdim=True)
        varies = high > low
        low, span = torch.where(varies, low, 0.0), torch.where(varies, high - low, 1.0)
        count = context.counts[:, None, None]
        unit = torch.where(mask, (x - low) / span, 0.0)
        mean = unit.sum(1, keepdim=True) / count.clamp(min=1)
        variance = torch.where(mask, unit - mean, 0.0).square().sum(1, keepdim=True) / (count - 1).clamp(min=1)
        return cls(low, span, mean, torch.where(varies, variance, 1.0).sqrt(), varies.squeeze(1))

    def apply(self, x: Float[Tensor, "B R Dx"]) -> Float[Tensor, "B R Dx"]:
        """Return the standardised and clipped values; they are 0 in columns that are constant in the context."""
        standardised = (((x - self.low) / self.span - self.mean) / self.std).clamp(-_CLIP, _CLIP)
        return torch.where(self.varies.unsqueeze(1), standardised, 0.0)

    def with_outputs(self) -> Bool[Tensor, "B C"]:
        """Return which columns carry information: the columns that vary, and the column of outputs, which is
        appended."""
        return F.pad(self.varies, (0, 1), value=True)
