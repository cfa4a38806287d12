"""Pairs as the elements of a causal sequence: x_1, y_1, ..., x_N, y_N (Garg et al. 2022), two tokens per point.

y_n is predicted at the token of x_n, after n - 1 pairs. A query is the first token after a state. Related datasets are
read before the context.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import repeat
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from iclbench.backbones.causal_trunk import CausalTrunk
from iclbench.backbones.elements import Elements
from iclbench.core.episodes import Points
from iclbench.core.predictor import State
from iclbench.core.task import TaskShape
from iclbench.layers.feature_read_in import FeatureReadIn
from iclbench.layers.pair_read_in import PairReadIn
from iclbench.layers.prompt import Prompt

# Points per pass. Longer sequences are processed in segments, from state to state, so that memory beyond the state does
# not grow with their length. This is a constant, so that predictions do not depend on the machine.
SEGMENT_SIZE = 512


class Pairs(Elements[PairReadIn | FeatureReadIn]):
    """Pairs of an input and an output."""

    noun = "pairs"
    has_inputs = True

    def make_read_in(self, shape: TaskShape, width: int) -> PairReadIn:
        return PairReadIn(shape, width)

    def outputs(
        self,
        model: CausalTrunk[Any],
        points: Points,
        x_query: Float[Tensor, "B N Dx"] | None,
        related: Points | None,
    ) -> Float[Tensor, "B N *window raw"]:
        state = None
        if model.marks is not None and related is not None:
            state = self.condition(model, points.span(0, 0), related)
        if state is None and points.count <= SEGMENT_SIZE:
            return model.read_out(self._hidden_vectors(model, points, x_query)[0])
        state = model.start(len(points)) if state is None else state
        queries: Iterable[Tensor | None] = repeat(None) if x_query is None else x_query.split(SEGMENT_SIZE, 1)
        raw_outputs = []
        for segment, x_segment in zip(_segments(points), queries, strict=False):
            hidden, state = self._hidden_vectors(model, segment, x_segment, state)
            raw_outputs.append(model.read_out(hidden))
        return torch.cat(raw_outputs, 1)

    def _hidden_vectors(
        self, model: CausalTrunk[Any], points: Points, x_query: Float[Tensor, "B N Dx"] | None, state: Any = None
    ) -> tuple[Float[Tensor, "B N *window D"], State | None]:
        """Return the hidden vectors at every position of a further segment, and the state after it. Without a `state`,
        the points are a complete sequence, and None is returned instead of the state after them."""
        read_in = self.read_in(model)
        tokens = read_in(points)
        if x_query is not None:
            return model.fork(tokens, read_in.inputs(x_query), state)
        return (model.trunk(tokens), None) if state is None else model.advance(state, tokens)

    def condition(self, model: CausalTrunk[Any], context: Points, related: Points | None = None) -> State:
        """Return the state after a context. Episodes with different numbers of points are processed in one pass,
        whereas `update` may require one pass per number of points."""
        prompt = self.prompt(model, context, related)
        is_complete = bool(prompt.points.mask.all())
        state = model.start(len(context))
        for segment in prompt.segments(SEGMENT_SIZE):
            mask = None if is_complete else segment.points.mask.repeat_interleave(2, 1)
            state = model.absorb(state, self.tokens(model, segment), mask, segment.roles)
        return state

    def prompt(self, model: CausalTrunk[Any], context: Points, related: Points | None = None) -> Prompt:
        """Return the prompt before a query, padded on the side that the model's `padding` specifies."""
        prompt = Prompt.of(context, None if model.marks is None else related)
        return prompt if bool(prompt.points.mask.all()) else prompt.align(model.padding)

    def tokens(self, model: CausalTrunk[Any], prompt: Prompt) -> Float[Tensor, "B T D"]:
        """Return two tokens per point, without positions."""
        tokens = self.read_in(model)(prompt.points)
        return tokens if model.marks is None or prompt.roles is None else model.marks(tokens, prompt.roles)

    def update(self, model: CausalTrunk[Any], state: Any, points: Points) -> State:
        for segment in _segments(points):
            state = model.resume(state, self.read_in(model)(segment), segment.mask.repeat_interleave(2, 1))
        return state

    def peek_layers(
        self, model: CausalTrunk[Any], state: Any, x: Float[Tensor, "B Q Dx"]
    ) -> Iterator[Float[Tensor, "B Q D"]]:
        return model.peek_layers(state, self.read_in(model).inputs(x))


def _segments(points: Points) -> Iterator[Points]:
    """Yield consecutive segments of at most `SEGMENT_SIZE` points."""
    return (points.span(start, start + SEGMENT_SIZE) for start in range(0, points.count, SEGMENT_SIZE))
