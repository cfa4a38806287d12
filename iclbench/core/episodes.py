"""Episodes: the one data type that flows from families to predictors to scores.

One layout throughout: `(batch, points, dim)` with boolean masks, True = valid. Images are flattened in `x`; the task
card's `x_shape` says how to unfold them. For classification `y` holds integer labels of shape `(batch, points)`.
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
        mask: which points are there, `(..., points)`.
    """

    x: Float[Tensor, "*batch points dx"]
    y: Float[Tensor, "*batch points dy"] | Int[Tensor, "*batch points"]
    mask: Bool[Tensor, "*batch points"]

    @classmethod
    def full(cls, x: Tensor, y: Tensor) -> Points:
        """Points without padding."""
        return cls(x, y, torch.ones(x.shape[:-1], dtype=torch.bool, device=x.device))

    @property
    def count(self) -> int:
        """Number of points, padding included."""
        return self.x.shape[-2]

    @property
    def counts(self) -> Int[Tensor, " *batch"]:
        """Number of valid points per episode."""
        return self.mask.sum(-1)

    def __len__(self) -> int:
        return self.x.shape[0]

    def span(self, start: int, stop: int | None = None) -> Points:
        """Points `start` to `stop` of every episode, `(batch, points, dim)` layout."""
        return self.map(lambda t: t[:, start:stop])

    def append(self, other: Points) -> Points:
        """These points followed by `other`'s, with their masks."""
        return Points(
            torch.cat([self.x, other.x], 1), torch.cat([self.y, other.y], 1), torch.cat([self.mask, other.mask], 1)
        )

    def compact(self) -> tuple[Points, Int[Tensor, "batch points"]]:
        """The valid points of every episode first, in their order, and the permutation that did it.

        Sequence models need this: a hole in the mask would otherwise be a step of the recurrence.
        """
        order = valid_first(self.mask)
        return self.map(lambda t: take(t, order)), order

    def repeat_interleave(self, times: int) -> Points:
        return self.map(lambda t: t.repeat_interleave(times, 0))


def first_related(related: Points | None, count: int) -> Points | None:
    """The first `count` of the related datasets, `(batch, sets, points, dim)`; None where none are left."""
    return None if related is None or count == 0 else related.map(lambda t: t[:, :count])


def valid_first(mask: Bool[Tensor, "batch points"]) -> Int[Tensor, "batch points"]:
    """Per episode the index list that puts the valid points first, all in their order."""
    return torch.argsort((~mask).to(torch.uint8), dim=1, stable=True)


def take(t: Tensor, order: Int[Tensor, "batch points"]) -> Tensor:
    """Gather along axis 1 with one index list per episode."""
    index = order.reshape(*order.shape, *[1] * (t.dim() - 2))
    return torch.gather(t, 1, index.expand(*order.shape, *t.shape[2:]))


@dataclass(frozen=True)
class Episodes(TensorRecord):
    """A batch of draws: a function each, its context points, its target points, and what else the family knows.

    Attributes:
        context: the points that condition a predictor. For the question `next` this is the whole sequence.
        targets: for the question `targets`, the points to be predicted from the whole context. For the question
        `next`, one
            query per prefix (`targets[:, n]` is asked after the first n context points); None: the context points
            themselves are the queries.
        scored: the positions of `asked` that count.
        related: further datasets of the same process, `(batch, sets, points, dim)`, those that are there first; one
            that is not there has no valid point.
        classes: number of classes, None for regression.
        choices: the labels admitted per episode, `(batch, classes)`.
        truth: what generated the episode (weights, kernel, class); only oracles may read it.
    """

    context: Points
    scored: Bool[Tensor, "batch asked"]
    targets: Points | None = None
    related: Points | None = None
    classes: int | None = None
    choices: Bool[Tensor, "batch classes"] | None = None
    truth: dict[str, Tensor] = field(default_factory=dict)

    @property
    def asked(self) -> Points:
        """The points whose outputs are to be predicted."""
        return self.context if self.targets is None else self.targets

    def __len__(self) -> int:
        return len(self.context)

    def asking_context(self) -> Episodes:
        """The same episodes of the question `targets`, whose context points are asked and scored behind the others."""
        context = self.context
        return replace(self, targets=self.asked.append(context), scored=torch.cat([self.scored, context.mask], 1))

    def begun(self, points: int) -> Episodes:
        """The first `points` points of sequences of the question `next`, with the queries of these prefixes."""
        targets = None if self.targets is None else self.targets.span(0, points)
        return replace(self, context=self.context.span(0, points), targets=targets, scored=self.scored[:, :points])

    def without_truth(self) -> Episodes:
        return replace(self, truth={})
