"""Causal sequence models over interleaved pairs x_1, y_1, ..., x_N, y_N (Garg et al. 2022).

The prediction for x_n is read at its own token, which has seen n - 1 pairs; of events, which have no x, see
`event_sequence`. A subclass writes the trunk (`causal_trunk`); reading in, walking through long sequences and reading
out are the same for all of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import repeat
from typing import Any, TypeVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from iclbench.backbones import event_sequence
from iclbench.backbones.causal_trunk import CausalTrunk
from iclbench.config.cards import Strict
from iclbench.core.episodes import Points, take
from iclbench.core.predictions import Prediction
from iclbench.core.predictor import State
from iclbench.core.task import TaskShape
from iclbench.layers.event_read_in import EventReadIn
from iclbench.layers.feature_read_in import FeatureReadIn
from iclbench.layers.pair_read_in import PairReadIn
from iclbench.layers.prompt import Marks, Prompt

# Points that are taken in at once. Longer sequences are walked through in segments from state to state, so that
# memory does not grow with them beyond the state. A constant, so that answers do not depend on the machine.
SEGMENT = 512


_Settings = TypeVar("_Settings", bound=Strict)


class SequenceBackbone(CausalTrunk[_Settings], abstract=True):
    """A causal trunk between a read-in and a read-out.

    Related datasets stand before the context in the sequence. A model for tasks without them has no parameters for
    them and reads none.

    Attributes:
        events: whether it reads event sequences, one token each (`event_sequence`), and no pairs.
    """

    order = "causal"
    uses_related = True

    def __init__(self, settings: _Settings, shape: TaskShape, width: int) -> None:
        super().__init__(settings, shape)
        self.events = shape.marks is not None
        self.read_in: PairReadIn | FeatureReadIn
        if shape.marks is None:
            self.read_in = PairReadIn(shape, width)
        else:
            self.event_read_in = EventReadIn(shape.marks, width)
        self.read_out = nn.Linear(width, shape.raw_dim)
        self.uses_related = shape.related > 0
        self.marks = Marks(width) if self.uses_related else None

    def predict_next(
        self,
        points: Points,
        related: Points | None = None,
        *,
        x_query: Float[Tensor, "batch points dx"] | None = None,
        prefixes: Sequence[int] | None = None,
    ) -> Prediction:
        if x_query is not None:
            points = points.span(0, x_query.shape[1])  # no query sees what comes later
        if self.events:
            return event_sequence.predict_next(self, points, prefixes)
        # Always, without asking whether it is needed: the answer would be waited for on every training step.
        points, order = points.compact()
        x_query = None if x_query is None else take(x_query, order)
        before = None if self.marks is None or related is None else self.condition(points.span(0, 0), related)
        raw = take(self._raw(points, x_query, before), torch.argsort(order, dim=1))
        return self.read(raw if prefixes is None else raw[:, list(prefixes)])

    def _raw(
        self, points: Points, x_query: Float[Tensor, "B N Dx"] | None, state: State | None
    ) -> Float[Tensor, "B N raw"]:
        """Raw outputs for every prefix of points whose valid ones come first: what follows them may be anything. They
        go on from the state where there is one."""
        if state is None and points.count <= SEGMENT:
            return self.read_out(self._pass(points, x_query)[0])
        state = self.start(len(points)) if state is None else state
        queries: Iterable[Tensor | None] = repeat(None) if x_query is None else x_query.split(SEGMENT, 1)
        parts = []
        for segment, asked in zip(_segments(points), queries, strict=False):
            hidden, state = self._pass(segment, asked, state)
            parts.append(self.read_out(hidden))
        return torch.cat(parts, 1)

    def _pass(
        self, points: Points, x_query: Float[Tensor, "B N Dx"] | None, state: State | None = None
    ) -> tuple[Float[Tensor, "B N D"], State | None]:
        """Hidden vectors for every prefix of a further segment and the state after it, or of a whole sequence."""
        tokens = self.read_in(points)
        if x_query is not None:
            return self.fork(tokens, self.read_in.inputs(x_query), state)
        return (self.trunk(tokens), None) if state is None else self.advance(state, tokens)

    def condition(self, context: Points, related: Points | None = None) -> State:
        """One pass over the batch whatever its masks: `update` would go through it in groups of equal counts."""
        if self.events:
            return event_sequence.condition(self, context)
        prompt = self.prompt(context, related)
        complete = bool(prompt.points.mask.all())
        state = self.start(len(context))
        for segment in prompt.segments(SEGMENT):
            mask = None if complete else segment.points.mask.repeat_interleave(2, 1)
            state = self.absorb(state, self.tokens(segment), mask, segment.part)
        return state

    def prompt(self, context: Points, related: Points | None = None) -> Prompt:
        """What is read before a query, and what is missing of it on the side of `padding`."""
        prompt = Prompt.of(context, None if self.marks is None else related)
        return prompt if bool(prompt.points.mask.all()) else prompt.aligned(self.padding)

    def tokens(self, prompt: Prompt) -> Float[Tensor, "B T D"]:
        """Two tokens a point, before any position."""
        tokens = self.read_in(prompt.points)
        return tokens if self.marks is None or prompt.part is None else self.marks(tokens, prompt.part)

    def query(self, state: Any, x: Float[Tensor, "batch targets dx"]) -> Prediction:
        if self.events:
            return event_sequence.query(self, state, x)
        *_, last = self.peek_layers(state, self.read_in.inputs(x))
        return self.read(self.read_out(self.finish(last)))

    def predict_by_layer(
        self, context: Points, x_target: Float[Tensor, "B Q Dx"], related: Points | None = None
    ) -> list[Prediction]:
        state = self.condition(context, related)
        if isinstance(state, event_sequence.EventState):
            return list(event_sequence.by_layer(self, state, x_target.shape[1]))
        layers = self.peek_layers(state, self.read_in.inputs(x_target))
        return [self.read(self.read_out(self.finish(hidden))) for hidden in layers]

    def update(self, state: Any, points: Points) -> State:
        if self.events:
            return event_sequence.update(self, state, points)
        for segment in _segments(points):
            state = self.resume(state, self.read_in(segment), segment.mask.repeat_interleave(2, 1))
        return state


def _segments(points: Points) -> Iterator[Points]:
    """The points in stretches of at most `SEGMENT`; none where there are no points."""
    return (points.span(start, start + SEGMENT) for start in range(0, points.count, SEGMENT))
