"""Deep-Thinking on our own causal Transformers: the context is read several times over before a query is answered.

What a query runs on is again the state of the backbone, of keys and values that moved. After one pass it is causal in
the context, from the second pass on it is not: an early point's keys have then been read after later points. So every
prefix of the question `next` is thought over on its own, and never together with the point that is asked.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from jaxtyping import Bool, Float
from torch import Tensor

from iclbench.backbones.base import Backbone
from iclbench.backbones.image_backbone import ImageBackbone
from iclbench.backbones.pair_sequence import SEGMENT
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
    """The moved keys and values, and the points, which further points are thought over together with."""

    cache: KeyValueCache
    context: Points
    related: Points | None = None


class ThinkingBackbone(Predictor):
    """A causal Transformer that thinks over its context. Related datasets are part of what is thought over.

    Args:
        backbone: a causal Transformer whose state is a `KeyValueCache`.
        settings: of Deep-Thinking, with a fixed number of passes.

    Raises:
        UsageError: the backbone has no such state, or the settings are only defined for language models.
    """

    order = "causal"

    def __init__(self, backbone: Backbone, settings: DeepThinking) -> None:
        obstacle = forgets(backbone)
        if obstacle:
            raise UsageError(
                f"Deep-Thinking needs the keys and values of a causal Transformer, as gpt2 has them: {obstacle}"
            )
        if not isinstance(settings.passes, int) or settings.setting != "paper" or not settings.trace:
            raise UsageError(
                "passes=dev, setting=released and trace are for language models (iclbench lm eval); give runs a number "
                "of passes, as -o method.passes=5"
            )
        if backbone.uses_related and isinstance(backbone.positions, LearnedPositions):
            raise UsageError(
                "Deep-Thinking is not defined for related datasets at positions that restart; give a run with others"
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
        return f"{reason}, since Deep-Thinking reads them twice; -o method.positions=reuse takes more"

    def condition(self, context: Points, related: Points | None = None) -> ThoughtState:
        """Raises `UsageError` beyond the positions that were trained."""
        if reason := self.too_long(int(context.counts.max())):
            raise UsageError(reason)
        return ThoughtState(self._cache(context, related), context, related)

    def query(self, state: ThoughtState, x: Float[Tensor, "batch targets dx"]) -> Prediction:
        return self.backbone.query(state.cache, x)

    def update(self, state: ThoughtState, points: Points) -> ThoughtState:
        """All points are thought over again."""
        return self.condition(state.context.append(points), state.related)

    def _cache(self, context: Points, related: Points | None) -> KeyValueCache:
        plain: KeyValueCache = self.backbone.condition(context, related)
        if not plain.mask.shape[1]:
            return plain
        # Without masks: invalid tokens come after all valid ones, and their outputs are not read.
        pairs, model = self.backbone.elements, self.backbone
        segments = [pairs.tokens(model, segment) for segment in pairs.prompt(model, context, related).segments(SEGMENT)]

        def read(history: Memory | None) -> Memory:
            if history is None:
                return Memory(plain.keys, plain.values)
            state = KeyValueCache(history.keys, history.values, plain.mask)
            for tokens in segments:
                state = self.backbone.follow(state, tokens, start=self._first(state.mask, history.length))[1]
            return Memory(state.keys, state.values).last(history.length)

        *_, final = think(read, self.settings, self.passes)
        return KeyValueCache(final.memory.keys, final.memory.values, plain.mask)

    def _first(self, mask: Bool[Tensor, "B T"], history: int) -> Tensor | None:
        """Position of the next tokens: after all others (None), or after those of this pass."""
        reuse = self.settings.positions == "reuse" and self.backbone.positions is not None
        return mask[:, history:].sum(1, keepdim=True) if reuse else None


def forgets(backbone: Backbone) -> str:
    """Why there are no keys and values to think over, as a clause for an error line; empty: there are."""
    if isinstance(backbone, ImageBackbone):
        return "this one has an image encoder in front"
    if isinstance(backbone, SequenceBackbone) and not backbone.elements.has_inputs:
        return f"this one reads {backbone.elements.noun}, and the last one is not part of its keys and values"
    if isinstance(backbone, CausalTransformer) and isinstance(backbone, SequenceBackbone):
        return ""
    if backbone.order == "set":
        return "this one reads a set, which has no end to go on from"
    if isinstance(backbone, SequenceBackbone):
        return "the state of this one is recurrent"
    return "this one answers from something else that it makes of them"
