"""Conditional neural processes (Garnelo et al. 2018): the representation of a set is the mean of the representations of
its points.

The encoder of a point has five hidden layers, as in cambridge-mlg's code for the "five layers" of the ICICL-TNP paper
(appendix G). The decoder has two hidden layers, as in the paper; in the code it has five.

`icicl_cnp` (ICICL-TNP paper, appendix F and figure 11) encodes related datasets in the same way and takes the mean over
them. The decoder reads the target's input and the representations of context and related datasets, with zeros if these
are absent.

The state consists of a sum and a count per set, so memory is constant, and points can be added and removed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from iclbench.backbones.set_backbone import SetBackbone, SetSettings
from iclbench.core.episodes import Points
from iclbench.core.predictions import Prediction
from iclbench.core.predictor import State
from iclbench.core.task import TaskShape
from iclbench.layers.perceptron import perceptron

HIDDEN_LAYERS = 5


@dataclass(frozen=True)
class SummedPoints(State):
    """Sum of the representations of context points, their number, and the representation of the related datasets."""

    total: Float[Tensor, "B D"]
    count: Int[Tensor, " B"]
    related: Float[Tensor, "B Dr"]

    def log_weight(self) -> Float[Tensor, " B"]:
        return self.total.norm(dim=-1).log()


class CNP(SetBackbone[SetSettings]):
    """The decoder reads x and the mean of the encoded context points."""

    Settings = SetSettings
    removes_points = True
    answers_in_one_pass = True

    def __init__(self, settings: SetSettings, shape: TaskShape, summaries: int = 1) -> None:
        width = settings.width
        super().__init__(settings, shape, summaries * width + settings.x_features_dim(shape.x_dim))
        inputs = self.x_features_dim + self.y_features_dim
        self.encoder = perceptron(inputs, *[width] * HIDDEN_LAYERS, width)

    def represent(self, points: Points) -> Float[Tensor, "*sets N D"]:
        """Return a vector for each point, which is 0 for invalid points."""
        vectors = self.encoder(torch.cat([self.x_features(points.x), self.y_features(points.y)], -1))
        return vectors * points.mask.unsqueeze(-1)

    def summarise(self, related: Points | None, like: Float[Tensor, "B D"]) -> Float[Tensor, "B Dr"]:
        """Return the representation of the related datasets. Its width is 0 for a model that ignores related
        datasets."""
        return like[:, :0]

    def condition(self, context: Points, related: Points | None = None) -> SummedPoints:
        total = self.represent(context).sum(1)
        return SummedPoints(total, context.counts, self.summarise(related, total))

    def query(self, state: SummedPoints, x: Float[Tensor, "B Q Dx"]) -> Prediction:
        mean = _mean(state.total, state.count)
        summary = torch.cat([mean, state.related], -1).unsqueeze(1).expand(-1, x.shape[1], -1)
        return self.decode(torch.cat([summary, self.x_features(x)], -1))

    def update(self, state: SummedPoints, points: Points) -> SummedPoints:
        total = state.total + self.represent(points).sum(1)
        return replace(state, total=total, count=state.count + points.counts)

    def remove(self, state: SummedPoints, points: Points) -> SummedPoints:
        """Return the state without these points, which must have been added before (not checked)."""
        total = state.total - self.represent(points).sum(1)
        return replace(state, total=total, count=state.count - points.counts)

    def predict_next(
        self,
        points: Points,
        related: Points | None = None,
        *,
        x_query: Float[Tensor, "B P Dx"] | None = None,
        prefixes: Sequence[int] | None = None,
    ) -> Prediction:
        """Predict after all prefixes in one pass, with running sums."""
        x = points.x if x_query is None else x_query
        vectors = self.represent(points)
        total, count = vectors.cumsum(1) - vectors, points.mask.cumsum(1) - points.mask.long()
        related_summary = self.summarise(related, vectors.sum(1)).unsqueeze(1).expand(-1, x.shape[1], -1)
        mean = _mean(total, count)[:, : x.shape[1]]
        answer = self.decode(torch.cat([mean, related_summary, self.x_features(x)], -1))
        return answer if prefixes is None else answer.at(torch.tensor(list(prefixes)))


class ICICLCNP(CNP):
    """A CNP that also reads the mean over the representations of related datasets, each of which is the mean over its
    points."""

    uses_related = True

    def __init__(self, settings: SetSettings, shape: TaskShape) -> None:
        super().__init__(settings, shape, summaries=2)
        self.uses_related = shape.related > 0

    def summarise(self, related: Points | None, like: Float[Tensor, "B D"]) -> Float[Tensor, "B Dr"]:
        if related is None or not self.uses_related:
            return torch.zeros_like(like)
        means = _mean(self.represent(related).sum(2), related.mask.sum(-1))
        return _mean(means.sum(1), related.mask.any(-1).sum(1))


def _mean(total: Float[Tensor, "*sets D"], count: Int[Tensor, " *sets"]) -> Float[Tensor, "*sets D"]:
    """Return the mean; 0 for an empty set."""
    return total / count.clamp(min=1).unsqueeze(-1)
