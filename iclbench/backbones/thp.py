"""Transformer Hawkes process (Zuo et al. 2020) with the mixture head of Shchur et al. 2020: a baseline in Bae et al.
2023 (Meta TPP) and Feng et al. 2023 (table 3).

The token of an event is the embedding of its mark plus a sinusoidal encoding of its time. The encoding is added again
before every further layer. Layers are post-norm, and attention is causal over all events. The output of the last layer
at event n is decoded to the time and the mark of event n + 1. With the sizes of Meta TPP (the defaults) and K marks,
the model has

    64 K + 64 (events, start) + 2 · 25,024 (layers) + 5,720 (gap) + 65 K (mark) = 55,832 + 129 K

parameters: 68,345 for Mooc with its 97 marks.

By default, the gap before an event is encoded instead of its absolute time, because Meta TPP's code reads gaps and
computes the likelihood of the same gaps. Equation 2 of Zuo et al. encodes absolute times (`encode=time`).

Differences from the published code:

- Zuo et al. read the intensity of event i from the output at event i, which depends on that event, including its mark.
  Here, as in Meta TPP, event i is predicted at event i - 1, and later events do not affect the prediction (checked by a
  test).
- Neither Zuo et al. nor Meta TPP predicts the first event. Here, the first event is predicted at a learned token with
  the encoding of time 0, the start of the observation.
- Meta TPP's loss is the sum over all events of a batch, with the log-survival of the last gap of a sequence instead of
  its density, plus 5e-5 times the squared norm of all weights; for a mean per event, this factor corresponds to about
  1e-7. (For such a mean, the epsilon of 1e-5 in Meta TPP's Adam has about the effect of the 1e-8 used here.) Here the
  loss is the sum over all scored events and open intervals, divided by the number of events. `LogNormalEvent` adds 1e-4
  to the log-normal scales; Meta TPP does not.
- Zuo et al. have 4 layers of width 512, an LSTM after them, and an intensity that is the softplus of a linear function
  within a gap. Meta TPP has none of these. It has a few unused linear layers, which are omitted here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from iclbench.backbones.base import SMALLEST_BUDGET
from iclbench.backbones.event_backbone import EventBackbone, EventSettings
from iclbench.backbones.stream_elements import SEGMENT_SIZE
from iclbench.core.episodes import Episodes, Points, take
from iclbench.core.events import events_of
from iclbench.core.predictions import Prediction
from iclbench.core.predictor import State
from iclbench.core.seeds import global_draws
from iclbench.core.settings import Decay, PositiveInt
from iclbench.core.task import TaskShape
from iclbench.layers.key_value_cache import GrowingCache, KeyValueCache, causal_mask, valid_causal_mask_after
from iclbench.layers.post_norm_layer import PostNormLayer


class THPSettings(EventSettings):
    """Settings of thp. The defaults are the sizes of Meta TPP."""

    heads: PositiveInt = 1
    """Attention heads per layer."""
    feedforward: PositiveInt | None = None
    """Hidden width of the feed-forward networks; by default the width of a token."""
    dropout: Decay = 0.1
    """Dropout rate in training, on attention weights and in every sub-layer."""


@dataclass(frozen=True)
class THPState(State):
    """Keys and values of the start token and all events, and the outputs of each layer at the last token."""

    cache: KeyValueCache
    last: Float[Tensor, "B L D"]


class THP(EventBackbone[THPSettings]):
    """A causal Transformer with post-norm layers over a start token and the events. The output of the last layer at an
    event is decoded to the gap and the mark of the next event."""

    Settings = THPSettings
    order = "causal"
    grows = ("width", "feedforward", "decoder")

    @classmethod
    def at_budget(cls, budget: int, shape: TaskShape) -> dict[str, Any]:
        """Return the settings for a budget. The model has one head, as published, unless it is larger than the
        published models."""
        return super().at_budget(budget, shape) | ({"heads": 1} if budget < SMALLEST_BUDGET else {})

    def __init__(self, settings: THPSettings, shape: TaskShape) -> None:
        width = settings.width
        super().__init__(settings, shape, width)
        self.start = nn.Parameter(torch.randn(width))
        self.layers = nn.ModuleList(
            PostNormLayer(width, settings.heads, settings.feedforward or width, settings.dropout)
            for _ in range(settings.layers)
        )

    @property
    def shares_batches(self) -> bool:
        return not self.settings.dropout

    def loss(
        self, episodes: Episodes, progress: float, generator: torch.Generator
    ) -> tuple[Float[Tensor, ""], dict[str, Tensor]]:
        if not self.settings.dropout:
            return super().loss(episodes, progress, generator)
        with global_draws(generator):
            return super().loss(episodes, progress, generator)

    def predict_next(
        self,
        points: Points,
        related: Points | None = None,
        *,
        x_query: Float[Tensor, "batch points dx"] | None = None,
        prefixes: Sequence[int] | None = None,
    ) -> Prediction:
        """Predict the next event after every prefix, in one pass."""
        points = points if x_query is None else points.span(0, x_query.shape[1])
        points, order = points.compact()
        tokens, times = self._with_start(points.span(0, max(0, points.count - 1)))
        for layer in self._layers():
            tokens = tokens + times
            tokens = layer.finish(tokens, *layer.project(tokens))
        raw = take(self.read_out(tokens[:, : points.count]), torch.argsort(order, dim=1))
        return self.read(raw if prefixes is None else raw[:, list(prefixes)])

    def condition(self, context: Points, related: Points | None = None) -> THPState:
        batch, settings = len(context), self.settings
        empty_keys = self.start.new_zeros(batch, settings.heads, 0, settings.width // settings.heads)
        no_slots = torch.zeros(batch, 0, dtype=torch.bool, device=empty_keys.device)
        cache = KeyValueCache((empty_keys,) * settings.layers, (empty_keys,) * settings.layers, no_slots)
        tokens, times = self._with_start(context.span(0, 0))
        outputs, cache = self._extend(cache, tokens, times, no_slots.new_ones(batch, 1))
        return self.update(THPState(cache, outputs[:, :, 0]), context)

    def update(self, state: THPState, points: Points) -> THPState:
        for start in range(0, points.count, SEGMENT_SIZE):
            segment, _ = events_of(points.span(start, start + SEGMENT_SIZE)).compact()
            tokens, times = self.embed(segment.y)
            outputs, cache = self._extend(state.cache, tokens, times, segment.mask)
            # The last event of an episode without new events does not change.
            outputs = torch.cat([state.last.unsqueeze(2), outputs], 2).transpose(1, 2)
            state = THPState(cache, take(outputs, segment.counts.unsqueeze(1)).squeeze(1))
        return state

    def summaries(self, state: THPState) -> Iterator[Float[Tensor, "B D"]]:
        return iter(state.last.unbind(1))

    def _with_start(self, events: Points) -> tuple[Float[Tensor, "B T D"], Float[Tensor, "B T D"]]:
        """Return the start token and the events after it, and the encodings of their times."""
        _, time = self.embed(events.y.new_zeros(len(events), 1, events.y.shape[-1]))
        tokens, times = self.embed(events.y)
        return torch.cat([self.start.expand_as(time), tokens], 1), torch.cat([time, times], 1)

    def _extend(
        self,
        cache: KeyValueCache,
        tokens: Float[Tensor, "B T D"],
        times: Float[Tensor, "B T D"],
        mask: Bool[Tensor, "B T"],
    ) -> tuple[Float[Tensor, "B L T D"], KeyValueCache]:
        """Return the outputs of each layer at further tokens, and the extended cache. The tokens in the mask are
        valid."""
        is_complete = bool(mask.all()) and bool(cache.mask.all())
        visible = (
            causal_mask(mask.shape[1], cache.mask.shape[1], mask.device)
            if is_complete
            else valid_causal_mask_after(cache, mask)
        )
        growing_cache, outputs = GrowingCache(cache), []
        for i, layer in enumerate(self._layers()):
            tokens = tokens + times
            q, k, v = layer.project(tokens)
            tokens = layer.finish(tokens, q, *growing_cache.add(i, k, v), visible)
            outputs.append(tokens)
        return torch.stack(outputs, 1), growing_cache.to_state(mask)

    def _layers(self) -> Iterator[PostNormLayer]:
        """Yield the layers with their static type."""
        for layer in self.layers:
            assert isinstance(layer, PostNormLayer)
            yield layer
