"""Elements of a stream in a causal sequence: one token of the sequence per element, after a learned start token.

Elements have no input. Element n + 1 is predicted at the token of element n, so a query has no token. A state holds the
trunk's state after all tokens except the last one, and the last token. This token is pending: its output is the
prediction, and it is added to the trunk's state when the next element arrives.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from jaxtyping import Float
from torch import Tensor

from iclbench.backbones.causal_trunk import CausalTrunk
from iclbench.backbones.elements import Elements
from iclbench.core.episodes import Points, take
from iclbench.core.events import events_of
from iclbench.core.predictor import State
from iclbench.core.task import TaskShape
from iclbench.layers.causal_transformer import ALL_TOKENS
from iclbench.layers.event_read_in import EventReadIn
from iclbench.layers.stream_read_in import StreamReadIn, TokenReadIn, VectorReadIn

# Number of elements per pass, like `pair_sequence.SEGMENT_SIZE` for pairs.
SEGMENT_SIZE = 1024


@dataclass(frozen=True)
class StreamState(State):
    """The trunk's state after the start token and all elements except the last, and the token of the last element."""

    trunk: State
    pending: Float[Tensor, "B 1 D"]


_StreamReadIn = TypeVar("_StreamReadIn", bound=StreamReadIn)


class StreamElements(Elements[_StreamReadIn]):
    """Elements without x: all queries after a state have the same prediction."""

    has_inputs = False

    @abstractmethod
    def make_read_in(self, shape: TaskShape, width: int) -> _StreamReadIn: ...

    def readable(self, points: Points) -> Points:
        """Return the elements that a model may read."""
        return points

    def pairs_of_positions(self, elements: int) -> int:
        return -(-elements // 2)  # one position per element

    def outputs(
        self,
        model: CausalTrunk[Any],
        points: Points,
        x_query: Float[Tensor, "B N 0"] | None,
        related: Points | None,
    ) -> Float[Tensor, "B N *window raw"]:
        """Return the raw outputs at every position. The last element is not read."""
        before = self.read_in(model)(points.y[:, :-1])
        tokens = torch.cat([self._start(model, len(points)), before], 1)[:, : points.count]
        if points.count <= SEGMENT_SIZE:
            return model.read_out(model.trunk(tokens, ALL_TOKENS))
        state, raw_outputs = model.start(len(points)), []
        for segment in tokens.split(SEGMENT_SIZE, 1):
            hidden, state = model.advance(state, segment, ALL_TOKENS)
            raw_outputs.append(model.read_out(hidden))
        return torch.cat(raw_outputs, 1)

    def condition(self, model: CausalTrunk[Any], context: Points, related: Points | None = None) -> StreamState:
        batch = len(context)
        return self.update(model, StreamState(model.start(batch), self._start(model, batch)), context)

    def update(self, model: CausalTrunk[Any], state: StreamState, points: Points) -> StreamState:
        for start in range(0, points.count, SEGMENT_SIZE):
            segment, _ = self.readable(points.span(start, start + SEGMENT_SIZE)).compact()
            tokens = torch.cat([state.pending, self.read_in(model)(segment.y)], 1)
            last_position = segment.counts.unsqueeze(1)
            # The last token is pending. In an episode without new elements, the pending token does not change.
            is_read = torch.arange(segment.count, device=tokens.device) < last_position
            state = StreamState(model.resume(state.trunk, tokens[:, :-1], is_read), take(tokens, last_position))
        return state

    def peek_layers(
        self, model: CausalTrunk[Any], state: StreamState, x: Float[Tensor, "B Q 0"]
    ) -> Iterator[Float[Tensor, "B 1 D"]]:
        return model.peek_layers(state.trunk, state.pending)

    def _start(self, model: CausalTrunk[Any], batch: int) -> Float[Tensor, "B 1 D"]:
        return self.read_in(model).start.expand(batch, 1, -1)


class Events(StreamElements[EventReadIn]):
    """Events, each with a gap and a mark. Open intervals are not read."""

    noun = "events"
    read_in_name = "event_read_in"

    def make_read_in(self, shape: TaskShape, width: int) -> EventReadIn:
        assert shape.marks is not None
        return EventReadIn(shape.marks, width)

    def pairs_of_positions(self, elements: int) -> int:
        return elements

    def readable(self, points: Points) -> Points:
        return events_of(points)


class Tokens(StreamElements[TokenReadIn]):
    """Tokens of a vocabulary."""

    noun = "tokens"

    def make_read_in(self, shape: TaskShape, width: int) -> TokenReadIn:
        assert shape.classes is not None
        return TokenReadIn(shape.classes, width)


class Vectors(StreamElements[VectorReadIn]):
    """Vectors of numbers."""

    noun = "vectors"

    def make_read_in(self, shape: TaskShape, width: int) -> VectorReadIn:
        return VectorReadIn(shape.y_dim, width)
