"""Episodes: batches of data that families sample for training and evaluation.

The layout is `(batch, points, dim)` with boolean masks (True = valid). Images are flattened in `x`, and
`TaskShape.x_shape` is the shape of an image. For classification, `y` holds integer labels of shape `(batch, points)`.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from iclbench.core.records import TensorRecord


@dataclass(frozen=True)
class Points(TensorRecord):
    """A set (or sequence) of input-output pairs per episode.

    Attributes:
        x: inputs, `(..., points, Dx)`.
        y: outputs, `(..., points, Dy)` as floats, or `(..., points)` as integer labels.
        mask: the valid points, `(..., points)`.
    """

    x: Float[Tensor, "*batch points dx"]
    y: Float[Tensor, "*batch points dy"] | Int[Tensor, "*batch points"]
    mask: Bool[Tensor, "*batch points"]

    @classmethod
    def full(cls, x: Tensor, y: Tensor) -> Points:
        """Create points without padding."""
        return cls(x, y, torch.ones(x.shape[:-1], dtype=torch.bool, device=x.device))

    @property
    def count(self) -> int:
        """Number of points, including padding."""
        return self.x.shape[-2]

    @property
    def counts(self) -> Int[Tensor, " *batch"]:
        """Number of valid points of each episode."""
        return self.mask.sum(-1)

    def __len__(self) -> int:
        return self.x.shape[0]

    def span(self, start: int, stop: int | None = None) -> Points:
        """Return points `start` to `stop` (exclusive) of each episode, for the layout `(batch, points, dim)`."""
        return self.map(lambda t: t[:, start:stop])

    def append(self, other: Points) -> Points:
        """Return these points followed by the points of `other`."""
        return Points(
            torch.cat([self.x, other.x], 1), torch.cat([self.y, other.y], 1), torch.cat([self.mask, other.mask], 1)
        )

    def compact(self) -> tuple[Points, Int[Tensor, "batch points"]]:
        """Move the valid points of each episode to the front without changing their order. Return the points and the
        permutation.

        Sequence models need this, because an invalid point between valid ones would be a step of the recurrence.
        """
        order = valid_first(self.mask)
        return self.map(lambda t: take(t, order)), order

    def repeat_interleave(self, times: int) -> Points:
        """Repeat each episode `times` times."""
        return self.map(lambda t: t.repeat_interleave(times, 0))


def first_related(related: Points | None, count: int) -> Points | None:
    """Return the first `count` related datasets, `(batch, sets, points, dim)`, or None without related datasets."""
    return None if related is None or count == 0 else related.map(lambda t: t[:, :count])


def valid_first(mask: Bool[Tensor, "batch points"]) -> Int[Tensor, "batch points"]:
    """Return, for each episode, the permutation that moves the valid points to the front without changing their
    order."""
    return torch.argsort((~mask).to(torch.uint8), dim=1, stable=True)


def take(t: Tensor, order: Int[Tensor, "batch points"]) -> Tensor:
    """Index axis 1 with separate indices for each episode."""
    index = order.reshape(*order.shape, *[1] * (t.dim() - 2))
    return torch.gather(t, 1, index.expand(*order.shape, *t.shape[2:]))


@dataclass(frozen=True)
class Episodes(TensorRecord):
    """A batch of episodes. An episode consists of context points and queries of one sampled function.

    Attributes:
        context: the points that a predictor is conditioned on; for the question `next`, the complete sequence.
        targets: for the question `targets`, the points to predict from the context. For the question `next`, one query
            per prefix: `targets[:, n]` is predicted from the first n context points; None if the context points are
            the queries. In a stream, the outputs of these queries are labels of the prefixes.
        scored: a mask of the queries that count in scores.
        related: related datasets from the same process, `(batch, sets, points, dim)`. Episodes with fewer datasets are
            padded at the end with sets without valid points.
        classes: number of classes; None for regression.
        choices: a mask of the labels that each episode allows, `(batch, classes)`.
        truth: the latent variables of the episodes (weights, kernel, class), which only oracles may read.
    """

    context: Points
    scored: Bool[Tensor, "batch queries"]
    targets: Points | None = None
    related: Points | None = None
    classes: int | None = None
    choices: Bool[Tensor, "batch classes"] | None = None
    truth: dict[str, Tensor] = field(default_factory=dict)

    @property
    def queries(self) -> Points:
        """The points whose outputs are predicted."""
        return self.context if self.targets is None else self.targets

    def __len__(self) -> int:
        return len(self.context)

    def with_context_targets(self) -> Episodes:
        """Return the episodes with their context points as additional targets, for the question `targets`."""
        context = self.context
        return replace(self, targets=self.queries.append(context), scored=torch.cat([self.scored, context.mask], 1))

    def first_points(self, points: int) -> Episodes:
        """Return the episodes with only the first `points` points and their queries, for the question `next`."""
        targets = None if self.targets is None else self.targets.span(0, points)
        return replace(self, context=self.context.span(0, points), targets=targets, scored=self.scored[:, :points])

    def without_truth(self) -> Episodes:
        return replace(self, truth={})
