"""The prompt of a causal model: related datasets, each followed by a separator, and then the context.

Points and separators are pairs of tokens, so inputs are at even positions and outputs at odd ones. An absent
dataset has no points and no separator.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from iclbench.core.episodes import Points, take, valid_first
from iclbench.core.errors import UsageError
from iclbench.core.records import TensorRecord

CONTEXT, RELATED, SEPARATOR = range(3)


@dataclass(frozen=True)
class Prompt(TensorRecord):
    """Points in reading order, and the role of each point.

    Attributes:
        points: related datasets, with one extra point for the separator after each, and the context.
        roles: `CONTEXT`, `RELATED` or `SEPARATOR` for each point; None means that all points belong to the context.
    """

    points: Points
    roles: Int[Tensor, "B N"] | None = None

    @classmethod
    def of(cls, context: Points, related: Points | None = None) -> Prompt:
        """Create the prompt of a context, `(B, N, .)`, and its related datasets, `(B, J, N, .)`.

        Raises:
            UsageError: inputs or outputs have different dimensions in the related datasets and in the context.
        """
        if related is None:
            return cls(context)
        for name, related_values, context_values in (
            ("inputs", related.x, context.x),
            ("outputs", related.y, context.y),
        ):
            if related_values.shape[3:] != context_values.shape[2:]:
                raise UsageError(
                    f"related datasets have {name} of dimension {_dimension(related_values, 3)}, but those of the "
                    f"context have dimension {_dimension(context_values, 2)}; pass related datasets of the same task",
                    code="bad-value",
                )
        with_separators = related.map(_with_extra_point)
        with_separators.mask[:, :, -1] = related.mask.any(2)
        roles = torch.full_like(with_separators.mask, RELATED, dtype=torch.long)
        roles[:, :, -1] = SEPARATOR
        context_roles = torch.full_like(context.mask, CONTEXT, dtype=torch.long)
        points = with_separators.map(lambda t: t.flatten(1, 2)).append(context)
        return cls(points, torch.cat([roles.flatten(1), context_roles], 1))

    def align(self, padding: Literal["left", "right"]) -> Prompt:
        """Return the prompt without gaps, as long as the longest prompt of the batch. Masked points come first if
        `padding` is "left", and last if it is "right"."""
        mask = self.points.mask
        longest = int(mask.sum(1).max())
        if padding == "right":
            order = valid_first(mask)[:, :longest]
        else:
            order = valid_first(~mask)[:, mask.shape[1] - longest :]
        return self.map(lambda t: take(t, order))

    def segments(self, size: int) -> Iterator[Prompt]:
        """Yield consecutive segments of at most `size` points."""
        for start in range(0, self.points.count, size):
            yield self.map(lambda t, first=start: t[:, first : first + size])  # type: ignore[misc]


class DatasetMarkers(nn.Module):
    """Learned markers of related datasets: a vector that is added to their tokens, and the pair of tokens that forms a
    separator."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.related = nn.Parameter(torch.zeros(width))
        self.separator = nn.Parameter(torch.randn(2, width))

    def forward(self, tokens: Float[Tensor, "B T D"], roles: Int[Tensor, "B N"]) -> Float[Tensor, "B T D"]:
        role = roles[:, :, None, None]
        pairs = tokens.view(*roles.shape, 2, -1) + (role == RELATED) * self.related
        return torch.where(role == SEPARATOR, self.separator, pairs).flatten(1, 2)


def _dimension(t: Tensor, axis: int) -> int:
    """Return the dimension of inputs or outputs; 0 for labels, which have no such axis."""
    return t.shape[axis] if t.dim() > axis else 0


def _with_extra_point(t: Tensor) -> Tensor:
    """Append a point of zeros to every related dataset; the result has shape `(B, J, N + 1, ...)`."""
    return torch.cat([t, t.new_zeros(*t.shape[:2], 1, *t.shape[3:])], 2)
