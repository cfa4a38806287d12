"""Events as the elements of a causal sequence: one token per event, after a learned start token.

Event n + 1 is predicted at the token of event n, so a query has no token. A state holds the trunk's state after
all tokens except the last, and the last token, which is pending: its output is the prediction, and the next event adds
it to the trunk's state.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

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

# Events per pass, as `pair_sequence.SEGMENT_SIZE` for pairs.
SEGMENT_SIZE = 1024


@dataclass(frozen=True)
class EventState(State):
    """The trunk's state after the start token and all events except the last, and the token of the last event."""

    trunk: State
    pending: Float[Tensor, "B 1 D"]


class Events(Elements[EventReadIn]):
    """Gaps with marks, without x: all queries after a state have the same prediction."""

    noun = "events"
    has_inputs = False
    read_in_name = "event_read_in"

    def make_read_in(self, shape: TaskShape, width: int) -> EventReadIn:
        assert shape.marks is not None
        return EventReadIn(shape.marks, width)

    def outputs(
        self,
        model: CausalTrunk[Any],
        points: Points,
        x_query: Float[Tensor, "B N 0"] | None,
        related: Points | None,
    ) -> Float[Tensor, "B N raw"]:
        """Raw outputs at every position. The last event is not read."""
        before = self.read_in(model)(points.y[:, :-1])
        tokens = torch.cat([self._start(model, len(points)), before], 1)[:, : points.count]
        if points.count <= SEGMENT_SIZE:
            return model.read_out(model.trunk(tokens, ALL_TOKENS))
        state, raw_outputs = model.start(len(points)), []
        for segment in tokens.split(SEGMENT_SIZE, 1):
            hidden, state = model.advance(state, segment, ALL_TOKENS)
            raw_outputs.append(model.read_out(hidden))
        return torch.cat(raw_outputs, 1)

    def condition(self, model: CausalTrunk[Any], context: Points, related: Points | None = None) -> EventState:
        batch = len(context)
        return self.update(model, EventState(model.start(batch), self._start(model, batch)), context)

    def update(self, model: CausalTrunk[Any], state: EventState, points: Points) -> EventState:
        """The state after further events. Open intervals are not read."""
        for start in range(0, points.count, SEGMENT_SIZE):
            segment, _ = events_of(points.span(start, start + SEGMENT_SIZE)).compact()
            tokens = torch.cat([state.pending, self.read_in(model)(segment.y)], 1)
            last_position = segment.counts.unsqueeze(1)
            # The last token is pending; without new events it is the previous pending token.
            is_read = torch.arange(segment.count, device=tokens.device) < last_position
            state = EventState(model.resume(state.trunk, tokens[:, :-1], is_read), take(tokens, last_position))
        return state

    def peek_layers(
        self, model: CausalTrunk[Any], state: EventState, x: Float[Tensor, "B Q 0"]
    ) -> Iterator[Float[Tensor, "B 1 D"]]:
        return model.peek_layers(state.trunk, state.pending)

    def _start(self, model: CausalTrunk[Any], batch: int) -> Float[Tensor, "B 1 D"]:
        return self.read_in(model).start.expand(batch, 1, -1)
