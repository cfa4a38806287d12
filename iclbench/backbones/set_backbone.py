"""Set models: neural processes, whose predictions do not depend on the order of the points (Garnelo et al. 2018).

`predict_targets` uses one state, and `predict_next` uses one state per prefix. For the question `next`, a training step
cuts each episode after a random number of points and predicts all later points from the points before the cut, in one
pass. For events, only the next event can be predicted, so a pass trains on one event per sequence. A model that
predicts after all prefixes in one pass (`answers_in_one_pass`) is trained on every event, like sequence models.
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

# Longest period of the Fourier features: the length of the range of inputs [-4, 4] in the Gaussian-process tasks.
LONGEST_PERIOD = 8.0


class SetSettings(BackboneSettings):
    """Settings shared by all set models."""

    width: PositiveInt = 128
    """Width D of a token."""
    fourier: Annotated[int, Field(ge=0, le=16)] = 0
    """Number of pairs (sin, cos) with periods 8, 4, 2, ... that are appended to every input; 0 in the papers."""
    spread: Spread = "floor"
    """Standard deviation from a raw output r: floor (variance softplus(r) + floor², with the floor of the task, as in
    all models), exp (exp(r)), or bounded-M (M + (1 - M) softplus(r), as in public code of neural processes; ignores the
    floor of the task). For the heads gaussian and mixture."""

    def x_features_dim(self, x_dim: int) -> int:
        """Return the width of the features of an input."""
        return x_dim * (1 + 2 * self.fourier) if x_dim else 1


_Settings = TypeVar("_Settings", bound=SetSettings)


class SetBackbone(Backbone[_Settings], abstract=True):
    """Features of points, a decoder with two hidden layers, and the training loss.

    Attributes:
        answers_in_one_pass: whether `predict_next` predicts after all prefixes in one pass.

    Args:
        settings: settings of the subclass.
        shape: the task.
        decoder_dim: width of the input of the decoder; None means the width of the settings.
    """

    order = "set"
    answers_in_one_pass: ClassVar[bool] = False

    def __init__(self, settings: _Settings, shape: TaskShape, decoder_dim: int | None = None) -> None:
        super().__init__(settings, shape)
        width = settings.width
        self.x_features_dim = settings.x_features_dim(shape.x_dim)
        self.y_features_dim = shape.outputs if shape.marks is None else event_features_dim(shape.marks) + 1
        self.decoder = perceptron(decoder_dim or width, width, width, shape.raw_dim)

    def x_features(self, x: Float[Tensor, "*shape Dx"]) -> Float[Tensor, "*shape F"]:
        """Return the inputs and, if `fourier` is positive, the Fourier features sin(a) and cos(a) with a = 2 pi 2^k x /
        8 for k = 0, 1, ...; return a constant if the task has no inputs.

        Raises:
            UsageError: the dimension of the inputs differs from that of the task.
        """
        _check_dimension("inputs", x, self.shape.x_dim)
        return self.fourier_features(x) if self.shape.x_dim else x.new_ones(*x.shape[:-1], 1)

    def fourier_features(self, x: Float[Tensor, "*shape Dx"]) -> Float[Tensor, "*shape F"]:
        """Return the inputs and, if `fourier` is positive, their Fourier features."""
        count = self.settings.fourier
        if not count:
            return x
        frequencies = 2 * math.pi / LONGEST_PERIOD * torch.exp2(torch.arange(count, device=x.device, dtype=x.dtype))
        angles = (x.unsqueeze(-1) * frequencies).flatten(-2)
        return torch.cat([x, angles.sin(), angles.cos()], -1)

    def y_features(self, y: Tensor) -> Float[Tensor, "*shape Fy"]:
        """Return the outputs. Labels become one-hot vectors, and events become features of gap, mark and absolute time.

        Raises:
            UsageError: the dimension of the outputs differs from that of the task.
        """
        if self.shape.classes is None:
            _check_dimension("outputs", y, self.shape.y_dim)
            return y if self.shape.marks is None else timed_features(y, self.shape.marks)
        return F.one_hot(y, self.shape.classes).to(next(self.parameters()).dtype)

    def read(self, raw: Float[Tensor, "*shape raw"]) -> Prediction:
        """Convert raw outputs to the prediction of the task's head."""
        settings = replace(self.shape.head_settings, spread=self.settings.spread)
        return self.shape.prediction.from_raw(raw, self.shape.outputs, settings)

    def decode(self, hidden: Float[Tensor, "B Q decoder_dim"]) -> Prediction:
        """Return the prediction from the targets' hidden vectors."""
        return self.read(self.decoder(hidden))

    def loss(
        self, episodes: Episodes, progress: float, generator: torch.Generator
    ) -> tuple[Float[Tensor, ""], dict[str, Tensor]]:
        """Return the training loss. For the question `next`, it is the loss of the points after a random cut
        (`training_split`), averaged over the points of each episode and then over episodes. For events, it is the loss
        of every event if the model predicts after all prefixes in one pass."""
        if self.shape.question == "targets" or (self.shape.marks is not None and self.answers_in_one_pass):
            return super().loss(episodes, progress, generator)
        context, targets, weights = self.training_split(episodes, generator)
        answer = self.predict_targets(context, targets.x, episodes.related)
        check_answer(self, "predict_targets", answer, targets.mask.shape, targets.y)
        losses = answer.loss(targets.y)
        per_episode = (losses * targets.mask).sum(1) / targets.counts.clamp(min=1)
        loss = weights.mean(per_episode)
        return loss, {"loss": loss.detach()}

    def training_split(self, episodes: Episodes, generator: torch.Generator) -> tuple[Points, Points, EpisodeWeights]:
        """Return the context, the targets and the weights of the episodes in a training step.

        For the question `next`, n is drawn from U{0, ..., N - 1} for each episode. The context is the first n points
        and the targets are all later points, so that every prefix length has the same weight, as in a learning curve.
        For events, the only target is the next point (an event or the open interval), because a query cannot select one
        of several points. The weight of a sequence is its number of events and open intervals, so that the expected
        loss equals `mean_by_event`.

        Returns:
            The context, the targets with a mask of the scored targets, and the weights, which are 0 for episodes
                without scored targets.
        """
        context, points, scored = episodes.context, episodes.queries, episodes.scored
        if self.shape.question == "targets":
            targets = replace(points, mask=scored & points.mask)
            has_target = targets.mask.any(1).to(points.x.dtype)
            return context, targets, EpisodeWeights(has_target, has_target.sum())
        if self.shape.marks is not None:
            scored = scored | open_intervals(points)
        draws = torch.rand(len(episodes), generator=generator, device=generator.device).to(points.x.device)
        cut = (draws * points.counts).long().unsqueeze(1)
        context_before = replace(context, mask=context.mask & (context.mask.cumsum(1) <= cut))
        positions = points.mask.cumsum(1)
        is_target = positions > cut if self.shape.marks is None else positions == cut + 1
        targets_after = replace(points, mask=scored & points.mask & is_target)
        has_target = targets_after.mask.any(1)
        if self.shape.marks is None:
            weights = has_target.to(points.x.dtype)
            return context_before, targets_after, EpisodeWeights(weights, weights.sum())
        weights = (has_target * scored.sum(1)).to(points.x.dtype)
        return context_before, targets_after, EpisodeWeights(weights, episodes.scored.sum().to(weights.dtype))


@dataclass(frozen=True)
class EpisodeWeights:
    """Weights of the episodes of a batch in a loss.

    Attributes:
        by_episode: the weight of every episode.
        total: divisor of the weighted sum. It is the sum of the weights or, for event sequences, the number of events.
    """

    by_episode: Float[Tensor, " B"]
    total: Float[Tensor, ""]

    def mean(self, values: Float[Tensor, " B"]) -> Float[Tensor, ""]:
        """Return the weighted mean; 0 if all weights are 0."""
        return (values * self.by_episode).sum() / self.total.clamp(min=1)


def _check_dimension(name: str, values: Tensor, expected: int) -> None:
    if values.shape[-1] != expected:
        raise UsageError(
            f"the {name} have dimension {values.shape[-1]}, but the model expects dimension {expected}; "
            "pass context, targets and related datasets of the task that it was trained on",
            code="bad-value",
        )
