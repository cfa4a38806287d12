"""Deep-Thinking for causal Transformer backbones: several passes over the context before a query is answered.

A query uses the state of the backbone with the updated keys and values. After one pass, the keys and values of a point
depend only on the points up to it. From the second pass on, they also depend on later points, which the first pass has
read. To predict the next point after every prefix (question `next`), the passes are therefore repeated for each prefix,
without the query.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from jaxtyping import Bool, Float
from torch import Tensor

from iclbench.backbones.base import Backbone
from iclbench.backbones.image_backbone import ImageBackbone
from iclbench.backbones.pair_sequence import SEGMENT_SIZE
from iclbench.backbones.sequence import SequenceBackbone
from iclbench.core.episodes import Points
from iclbench.core.errors import UsageError
from iclbench.core.predictions import Prediction
from iclbench.core.predictor import Predictor, State
from iclbench.deep_thinking.memory import Memory
from iclbench.deep_thinking.passes import think
from iclbench.deep_thinking.settings import DeepThinking
from iclbench.layers.causal_transformer import CausalTransformer
from iclbench.layers.key_value_cache import KeyValueCache
from iclbench.layers.positions import LearnedPositions


@dataclass(frozen=True)
class ThoughtState(State):
    """The updated keys and values, and the points, which an update reads again together with further points."""

    cache: KeyValueCache
    context: Points
    related: Points | None = None


class ThinkingBackbone(Predictor):
    """A causal Transformer with Deep-Thinking over its context and related datasets.

    Args:
        backbone: a causal Transformer whose state is a `KeyValueCache`.
        settings: settings of Deep-Thinking, with a fixed number of passes.

    Raises:
        UsageError: the backbone has no such state, it has learned positions and reads related datasets, or the settings
            are defined only for language models.
    """

    order = "causal"

    def __init__(self, backbone: Backbone, settings: DeepThinking) -> None:
        obstacle = missing_cache_reason(backbone)
        if obstacle:
            raise UsageError(
                f"Deep-Thinking needs the keys and values of a causal Transformer, like gpt2: {obstacle}",
                code="not-applicable",
            )
        if not isinstance(settings.passes, int) or settings.setting != "paper" or not settings.trace:
            raise UsageError(
                "passes=dev, setting=released and trace=false are for language models (iclbench lm eval); for a run "
                "give a number of passes, for example -o method.passes=5",
                code="not-applicable",
            )
        if backbone.uses_related and isinstance(backbone.positions, LearnedPositions):
            raise UsageError(
                "Deep-Thinking does not support learned positions with related datasets; give a run with other "
                "positions",
                code="not-applicable",
            )
        self.backbone: Any = backbone
        self.settings, self.passes = settings, settings.passes
        self.heads, self.uses_related = backbone.heads, backbone.uses_related  # type: ignore[misc]
        self.longest = backbone.longest
        if self.longest is not None and self.passes > 1 and settings.positions == "continue":
            self.longest = self.longest // 2 + 1  # the context is read twice

    def too_long(self, examples: int) -> str | None:
        reason = super().too_long(examples)
        if reason is None or self.longest == self.backbone.longest:
            return reason
        return f"{reason}, because Deep-Thinking reads them twice; -o method.positions=reuse allows more"

    def condition(self, context: Points, related: Points | None = None) -> ThoughtState:
        """Return the state after all passes.

        Raises:
            UsageError: the context has more points than the positions of the backbone allow.
        """
        if reason := self.too_long(int(context.counts.max())):
            raise UsageError(reason, code="not-applicable")
        return ThoughtState(self._cache(context, related), context, related)

    def query(self, state: ThoughtState, x: Float[Tensor, "batch targets dx"]) -> Prediction:
        return self.backbone.query(state.cache, x)

    def update(self, state: ThoughtState, points: Points) -> ThoughtState:
        """Return the state after new passes over all points."""
        return self.condition(state.context.append(points), state.related)

    def _cache(self, context: Points, related: Points | None) -> KeyValueCache:
        first_pass: KeyValueCache = self.backbone.condition(context, related)
        if not first_pass.mask.shape[1]:
            return first_pass
        # No masks are needed: invalid tokens are after all valid ones, and their outputs are not used.
        pairs, model = self.backbone.elements, self.backbone
        segments = [
            pairs.tokens(model, segment) for segment in pairs.prompt(model, context, related).segments(SEGMENT_SIZE)
        ]

        def read(history: Memory | None) -> Memory:
            if history is None:
                return Memory(first_pass.keys, first_pass.values)
            state = KeyValueCache(history.keys, history.values, first_pass.mask)
            for tokens in segments:
                start = self._start(state.mask, history.length)
                _, state = self.backbone.resume_with_hidden(state, tokens, start=start)
            return Memory(state.keys, state.values).last(history.length)

        *_, final = think(read, self.settings, self.passes)
        return KeyValueCache(final.memory.keys, final.memory.values, first_pass.mask)

    def _start(self, mask: Bool[Tensor, "B T"], history_length: int) -> Tensor | None:
        """Return the position of the next token. With positions=reuse, it is the number of tokens that this pass has
        read so far; otherwise it is None, which means the position after all tokens of the state."""
        reuses_positions = self.settings.positions == "reuse" and self.backbone.positions is not None
        return mask[:, history_length:].sum(1, keepdim=True) if reuses_positions else None


def missing_cache_reason(backbone: Backbone) -> str:
    """Return the reason why a backbone has no keys and values for Deep-Thinking, as a clause of an error message; empty
    if it has them."""
    if isinstance(backbone, ImageBackbone):
        return "this model has an image encoder"
    if isinstance(backbone, SequenceBackbone) and not backbone.elements.has_inputs:
        return f"this model reads {backbone.elements.noun}, and the last one is not part of its keys and values"
    if isinstance(backbone, CausalTransformer) and isinstance(backbone, SequenceBackbone):
        return ""
    if backbone.order == "set":
        return "this model reads a set, not a sequence"
    if isinstance(backbone, SequenceBackbone):
        return "the state of this model is recurrent"
    return "this model does not predict from keys and values directly"
