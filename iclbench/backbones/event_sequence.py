"""Causal sequence models on event sequences: one token per event, after a learned start token.

The answer for event n + 1 is read at token n, that of the n-th event, so that nothing is asked by a token of its own.
A state holds what the trunk keeps of all tokens but the last, and the last token, which is still pending: what it puts
out is the answer, and a further event sends it on.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from iclbench.backbones.causal_trunk import CausalTrunk
from iclbench.core.episodes import Points, take
from iclbench.core.events import events_of
from iclbench.core.predictions import Prediction
from iclbench.core.predictor import State

# Events that are taken in at once, as `sequence.SEGMENT` for pairs.
SEGMENT = 1024


@dataclass(frozen=True)
class EventState(State):
    """The trunk's state after the start token and all events but the last; the token of the last."""

    trunk: State
    pending: Float[Tensor, "B 1 D"]


def predict_next(model: CausalTrunk[Any], points: Points, prefixes: Sequence[int] | None) -> Prediction:
    """The next event after every prefix, in one pass."""
    points, order = points.compact()
    raw = take(torch.cat(list(_raw(model, points)), 1), torch.argsort(order, dim=1))
    return model.read(raw if prefixes is None else raw[:, list(prefixes)])


def _raw(model: CausalTrunk[Any], points: Points) -> Iterator[Float[Tensor, "B N raw"]]:
    """Raw outputs for every prefix but the whole, of events whose valid ones come first, segment by segment."""
    tokens = torch.cat([_start(model, len(points)), model.event_read_in(points.y[:, :-1])], 1)[:, : points.count]
    if points.count <= SEGMENT:
        yield model.read_out(model.trunk(tokens, slice(None)))
        return
    state = model.start(len(points))
    for segment in tokens.split(SEGMENT, 1):
        hidden, state = model.advance(state, segment, slice(None))
        yield model.read_out(hidden)


def condition(model: CausalTrunk[Any], context: Points) -> EventState:
    return update(model, EventState(model.start(len(context)), _start(model, len(context))), context)


def update(model: CausalTrunk[Any], state: EventState, points: Points) -> EventState:
    """The state after further events; masked points and open intervals are not read."""
    for start in range(0, points.count, SEGMENT):
        state = _update(model, state, points.span(start, start + SEGMENT))
    return state


def _update(model: CausalTrunk[Any], state: EventState, points: Points) -> EventState:
    points, _ = events_of(points).compact()
    tokens = torch.cat([state.pending, model.event_read_in(points.y)], 1)
    last = points.counts.unsqueeze(1)
    # The last token is pending, and so is, where nothing is new, the one that was.
    sent = torch.arange(points.count, device=tokens.device) < last
    return EventState(model.resume(state.trunk, tokens[:, :-1], sent), take(tokens, last))


def query(model: CausalTrunk[Any], state: EventState, x: Float[Tensor, "B Q 0"]) -> Prediction:
    *_, last = by_layer(model, state, x.shape[1])
    return last


def by_layer(model: CausalTrunk[Any], state: EventState, targets: int) -> Iterator[Prediction]:
    """What every layer puts out at the pending token, decoded; the same for all targets, which ask the same."""
    for hidden in model.peek_layers(state.trunk, state.pending):
        yield model.read(model.read_out(model.finish(hidden)).expand(-1, targets, -1))


def _start(model: CausalTrunk[Any], batch: int) -> Float[Tensor, "B 1 D"]:
    return model.event_read_in.start.expand(batch, 1, -1)
