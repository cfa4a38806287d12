"""Set models: neural processes, whose answers do not depend on the order of the points (Garnelo et al. 2018).

They answer `predict_targets` from one state and `predict_next` by asking it for every prefix. To train the question
`next`, each episode is cut after a random number of points and all later ones are predicted from those before the cut,
in one pass. Of events only the very next one can be asked so: one of a sequence, in a pass over all of it. Whoever
answers all prefixes in one pass (`in_one_pass`) is trained on every event there, as sequence models are.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, TypeVar

import torch
import torch.nn.functional as F
from jaxtyping import Float
from pydantic import Field
from torch import Tensor

from iclbench.backbones.base import Backbone, BackboneSettings
from iclbench.core.answers import check_answer
from iclbench.core.episodes import Episodes, Points
from iclbench.core.errors import UsageError
from iclbench.core.events import open_intervals
from iclbench.core.predictions import Prediction, Spread
from iclbench.core.settings import PositiveInt
from iclbench.core.task import TaskShape
from iclbench.layers.event_read_in import event_features_dim, timed_features
from iclbench.layers.perceptron import perceptron

# Longest period of the Fourier features: the length of the inputs' range [-4, 4] in the Gaussian-process tasks.
LONGEST_PERIOD = 8.0


class SetSettings(BackboneSettings):
    """Settings shared by all set models."""

    width: PositiveInt = 128
    """Width D of a token."""
    fourier: Annotated[int, Field(ge=0, le=16)] = 0
    """Pairs sin, cos of every input appended to it, of periods 8, 4, 2, ...; the papers have none."""
    spread: Spread = "floor"
    """What a raw output r means as a standard deviation: floor: variance softplus(r) + floor², with the floor of the
    task, as all models have it; exp: exp(r); bounded-M: M + (1 - M) softplus(r), as public code of neural processes,
    which leaves that floor unread. Of heads gaussian and mixture."""

    def x_features_dim(self, x_dim: int) -> int:
        """Width of what is made of an input."""
        return x_dim * (1 + 2 * self.fourier) if x_dim else 1


_Settings = TypeVar("_Settings", bound=SetSettings)


class SetBackbone(Backbone[_Settings], abstract=True):
    """Features of points, a decoder of two hidden layers and the training loss.

    Attributes:
        in_one_pass: whether `predict_next` answers all prefixes at the cost of one.

    Args:
        settings: a `SetSettings`.
        shape: the task.
        decoded: width of what the decoder reads; None: the width of the settings.
    """

    order = "set"
    in_one_pass: ClassVar[bool] = False

    def __init__(self, settings: _Settings, shape: TaskShape, decoded: int | None = None) -> None:
        super().__init__(settings, shape)
        width = settings.width
        self.x_features_dim = settings.x_features_dim(shape.x_dim)
        self.y_features_dim = shape.outputs if shape.marks is None else event_features_dim(shape.marks) + 1
        self.decoder = perceptron(decoded or width, width, width, shape.raw_dim)

    def x_features(self, x: Float[Tensor, "*shape Dx"]) -> Float[Tensor, "*shape F"]:
        """The inputs, and sin, cos(2 pi 2^k x / 8) for k = 0, 1, ... where the settings ask for Fourier features; a
        constant where there is no input.

        Raises:
            UsageError: they have another dimension than the task's.
        """
        _check_dimension("inputs", x, self.shape.x_dim)
        if not self.shape.x_dim:
            return x.new_ones(*x.shape[:-1], 1)
        count = self.settings.fourier
        if not count:
            return x
        frequencies = 2 * math.pi / LONGEST_PERIOD * torch.exp2(torch.arange(count, device=x.device, dtype=x.dtype))
        angles = (x.unsqueeze(-1) * frequencies).flatten(-2)
        return torch.cat([x, angles.sin(), angles.cos()], -1)

    def y_features(self, y: Tensor) -> Float[Tensor, "*shape Fy"]:
        """Outputs as they are, labels one-hot; of events gap, mark and absolute time.

        Raises:
            UsageError: they have another dimension than the task's.
        """
        if self.shape.classes is None:
            _check_dimension("outputs", y, self.shape.y_dim)
            return y if self.shape.marks is None else timed_features(y, self.shape.marks)
        return F.one_hot(y, self.shape.classes).to(next(self.parameters()).dtype)

    def read(self, raw: Float[Tensor, "*shape raw"]) -> Prediction:
        """The task's kind of prediction from raw outputs."""
        settings = replace(self.shape.head_settings, spread=self.settings.spread)
        return self.shape.prediction.from_raw(raw, self.shape.outputs, settings)

    def decode(self, hidden: Float[Tensor, "B Q decoded"]) -> Prediction:
        """The prediction from the targets' hidden vectors."""
        return self.read(self.decoder(hidden))

    def loss(
        self, episodes: Episodes, progress: float, generator: torch.Generator
    ) -> tuple[Float[Tensor, ""], dict[str, Tensor]]:
        """For the question `next` the mean loss of the points after a random cut, and the mean over episodes
        (`training_split`); of events that of all, where one pass answers all prefixes."""
        if self.shape.question == "targets" or (self.shape.marks is not None and self.in_one_pass):
            return super().loss(episodes, progress, generator)
        context, targets, weights = self.training_split(episodes, generator)
        answer = self.predict_targets(context, targets.x, episodes.related)
        check_answer(self, "predict_targets", answer, targets.mask.shape, targets.y)
        losses = answer.loss(targets.y)
        per_episode = (losses * targets.mask).sum(1) / targets.counts.clamp(min=1)
        loss = weights.mean(per_episode)
        return loss, {"loss": loss.detach()}

    def training_split(self, episodes: Episodes, generator: torch.Generator) -> tuple[Points, Points, Weights]:
        """What a step of training conditions on, what it asks, and how much every episode weighs.

        For the question `next`: n ~ U{0, ..., N - 1} per episode, the first n points and all that come later, so that
        every prefix length weighs the same, as in a learning curve. Of events only the very next point, since nothing
        says which of several gaps is asked: an event or the open interval. A sequence weighs as many as it has of
        both, which makes the expected loss that of `mean_by_event`.

        Returns:
            The context, the targets under a mask of those that count, and weights: 0 where none does.
        """
        context, points, scored = episodes.context, episodes.asked, episodes.scored
        if self.shape.question == "targets":
            targets = replace(points, mask=scored & points.mask)
            has_target = targets.mask.any(1).to(points.x.dtype)
            return context, targets, Weights(has_target, has_target.sum())
        if self.shape.marks is not None:
            scored = scored | open_intervals(points)
        draws = torch.rand(len(episodes), generator=generator, device=generator.device).to(points.x.device)
        cut = (draws * points.counts).long().unsqueeze(1)
        context_before = replace(context, mask=context.mask & (context.mask.cumsum(1) <= cut))
        place = points.mask.cumsum(1)
        after = place > cut if self.shape.marks is None else place == cut + 1
        targets_after = replace(points, mask=scored & points.mask & after)
        has_target = targets_after.mask.any(1)
        if self.shape.marks is None:
            weights = has_target.to(points.x.dtype)
            return context_before, targets_after, Weights(weights, weights.sum())
        weights = (has_target * scored.sum(1)).to(points.x.dtype)
        return context_before, targets_after, Weights(weights, episodes.scored.sum().to(weights.dtype))


@dataclass(frozen=True)
class Weights:
    """How much the episodes of a batch weigh in a loss.

    Attributes:
        each: the weight of every episode.
        total: what their sum is divided by: that of the weights, of event sequences the number of events.
    """

    each: Float[Tensor, " B"]
    total: Float[Tensor, ""]

    def mean(self, values: Float[Tensor, " B"]) -> Float[Tensor, ""]:
        """The weighted mean; 0 where all weights are."""
        return (values * self.each).sum() / self.total.clamp(min=1)


def _check_dimension(name: str, values: Tensor, expected: int) -> None:
    if values.shape[-1] != expected:
        raise UsageError(
            f"{name} of dimension {values.shape[-1]} for a model of {name} of dimension {expected}; "
            "give context, targets and related datasets of the task it was trained on"
        )
