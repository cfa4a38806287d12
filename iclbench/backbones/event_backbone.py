"""Base of the models for event sequences only, whose answer does not depend on a query.

An event has no x. So a query only says that the next event is asked for, and all queries of a state get one answer.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from typing import Any, TypeVar

from jaxtyping import Float
from torch import Tensor

from iclbench.backbones.base import Backbone, BackboneSettings
from iclbench.core.episodes import Points
from iclbench.core.predictions import Prediction
from iclbench.core.settings import PositiveInt
from iclbench.core.task import TaskShape
from iclbench.layers.event_embedding import Encode, EventEmbedding
from iclbench.layers.event_read_out import EventReadOut


class EventSettings(BackboneSettings):
    """Settings of both models."""

    layers: PositiveInt = 2
    """Blocks between the events and the read-out."""
    width: PositiveInt = 64
    """Width D of a token."""
    decoder: PositiveInt | None = None
    """Width of the hidden layer that decodes the gap; by default that of a token."""
    encode: Encode = "gap"
    """Which time of an event its sinusoidal encoding is of: the gap before it, or the absolute time."""


_Settings = TypeVar("_Settings", bound=EventSettings)


class EventBackbone(Backbone[_Settings], abstract=True):
    """Embedding and read-out of events, and the questions about a state.

    Args:
        settings: of the subclass.
        shape: a task of events.
        summary: numbers in what a state says of its events, which the read-out decodes.

    Raises:
        UsageError: the task is not about events.
    """

    heads = ("event",)
    events_only = True

    def __init__(self, settings: _Settings, shape: TaskShape, summary: int) -> None:
        super().__init__(settings, shape)
        assert shape.marks is not None  # or the base has refused the task
        self.embed = EventEmbedding(shape.marks, settings.width, settings.encode)
        self.read_out = EventReadOut(summary, settings.decoder or settings.width, shape)

    @abstractmethod
    def summaries(self, state: Any) -> Iterator[Float[Tensor, "B summary"]]:
        """Each layer's summary of the events so far, first to last."""

    def query(self, state: Any, x: Float[Tensor, "B Q 0"]) -> Prediction:
        *_, summary = self.summaries(state)
        return self._answer(summary, x.shape[1])

    def predict_by_layer(
        self, context: Points, x_target: Float[Tensor, "B Q 0"], related: Points | None = None
    ) -> list[Prediction]:
        return [self._answer(summary, x_target.shape[1]) for summary in self.summaries(self.condition(context))]

    def _answer(self, summary: Float[Tensor, "B summary"], queries: int) -> Prediction:
        return self.read(self.read_out(summary).unsqueeze(1).expand(-1, queries, -1))
