"""Base class of the models that read only event sequences.

Events have no x. Every query is for the next event, so all queries of a state have the same prediction.
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
from iclbench.layers.event_embedding import EncodedTime, EventEmbedding
from iclbench.layers.event_read_out import EventReadOut


class EventSettings(BackboneSettings):
    """Settings of `thp` and `cmhp`."""

    layers: PositiveInt = 2
    """Blocks between the events and the read-out."""
    width: PositiveInt = 64
    """Width D of a token."""
    decoder: PositiveInt | None = None
    """Width of the hidden layer that decodes the gap; by default the width of a token."""
    encode: EncodedTime = "gap"
    """The time in the sinusoidal encoding of an event: gap (before the event) or time (absolute)."""


_Settings = TypeVar("_Settings", bound=EventSettings)


class EventBackbone(Backbone[_Settings], abstract=True):
    """A model of event sequences with an embedding and a read-out of events, which predicts from a state.

    Args:
        settings: settings of the subclass.
        shape: a task with events.
        summary: width of a state's summary of its events, which the read-out decodes.

    Raises:
        UsageError: the task does not have events.
    """

    heads = ("event",)
    input_kinds = frozenset({"events"})

    def __init__(self, settings: _Settings, shape: TaskShape, summary: int) -> None:
        super().__init__(settings, shape)
        assert shape.marks is not None  # checked by `Backbone`
        self.embed = EventEmbedding(shape.marks, settings.width, settings.encode)
        self.read_out = EventReadOut(summary, settings.decoder or settings.width, shape)

    @abstractmethod
    def summaries(self, state: Any) -> Iterator[Float[Tensor, "B summary"]]:
        """Yield each layer's summary of the events so far, first to last."""

    def query(self, state: Any, x: Float[Tensor, "B Q 0"]) -> Prediction:
        *_, summary = self.summaries(state)
        return self._answer(summary, x.shape[1])

    def predict_by_layer(
        self, context: Points, x_target: Float[Tensor, "B Q 0"], related: Points | None = None
    ) -> list[Prediction]:
        return [self._answer(summary, x_target.shape[1]) for summary in self.summaries(self.condition(context))]

    def _answer(self, summary: Float[Tensor, "B summary"], queries: int) -> Prediction:
        return self.read(self.read_out(summary).unsqueeze(1).expand(-1, queries, -1))
