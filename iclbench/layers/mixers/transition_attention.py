"""The base class of mixers with the softmax attention of `iclbench.layers.transition_attention`; a subclass defines its
terms."""

from __future__ import annotations

from abc import abstractmethod

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from iclbench.layers import transition_attention as attention
from iclbench.layers.mixers.mixer import (
    Mixer,
    MixerState,
    Sizes,
    full_precision,
    head_channels,
    join_heads,
    scale_by_depth,
    split_heads,
    value_channels,
    zero_invalid,
)
from iclbench.layers.mixers.window import Window
from iclbench.layers.transition_attention import Cache, Terms


class TransitionAttention(Mixer):
    """Softmax attention whose logits depend on the tokens between a query and a key. The terms of the logits come from
    channels after a short convolution (the window) and from channels that bypass the window.

    The state holds the tail of the window, all keys and values, `(B, T, HC)`, the sum of the log decays after each key,
    `(B, T, H)`, if the logits have decays, and the mask of valid tokens. Keys and sums change with every token.

    Attributes:
        has_decays: whether the logits have decays.
    """

    has_decays: bool
    window: Window
    state_grows = True

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.heads, self.inner = sizes.heads, sizes.heads * value_channels(sizes, head_channels(sizes))
        self.out_proj = scale_by_depth(nn.Linear(self.inner, sizes.width, bias=False), sizes)

    @abstractmethod
    def channels(self, x: Float[Tensor, "B T D"]) -> tuple[Float[Tensor, "B T E"], Float[Tensor, "B T R"]]:
        """Return the channels for the window, and those that bypass the window."""

    @abstractmethod
    def terms(self, u: Float[Tensor, "B T E"], bypass: Float[Tensor, "B T R"]) -> Terms:
        """Compute the terms of the logits from u, the output of the window, and from the channels that bypass the
        window."""

    def start(self, batch: int) -> MixerState:
        weight = self.out_proj.weight
        empty = weight.new_zeros(batch, 0, self.inner)
        decays = (weight.new_zeros(batch, 0, self.heads),) if self.has_decays else ()
        valid = torch.zeros_like(empty[..., 0], dtype=torch.bool)
        return self.window.start(batch, weight), empty, empty, *decays, valid

    def forward(
        self, x: Float[Tensor, "B T D"], state: MixerState, mask: Bool[Tensor, "B T"] | None = None
    ) -> tuple[Float[Tensor, "B T D"], MixerState]:
        inputs, bypass = self.channels(x)
        u, tail = self.window(zero_invalid(inputs, mask), state[0])
        with full_precision(x):
            o, cache = attention.attend(self._terms(u, bypass), self._cache(state), mask)
        return self._out(o), (tail, *self._slots(cache))

    def peek(self, x: Float[Tensor, "B Q D"], state: MixerState) -> Float[Tensor, "B Q D"]:
        inputs, bypass = self.channels(x)
        u = self.window.peek(inputs, state[0])
        with full_precision(x):
            o = attention.peek(self._terms(u, bypass), self._cache(state))
        return self._out(o)

    def fork(
        self, x: Float[Tensor, "B T D"], queries: Float[Tensor, "B N D"], state: MixerState
    ) -> tuple[Float[Tensor, "B T D"], Float[Tensor, "B N D"], MixerState]:
        (inputs, bypass), (query_inputs, query_bypass) = self.channels(x), self.channels(queries)
        u, query_u, tail = self.window.fork(inputs, query_inputs, state[0])
        with full_precision(x):
            terms, query_terms = self._terms(u, bypass), self._terms(query_u, query_bypass)
            o, answers, cache = attention.fork(terms, query_terms, self._cache(state))
        return self._out(o), self._out(answers), (tail, *self._slots(cache))

    def _terms(self, u: Tensor, bypass: Tensor) -> Terms:
        weight = self.out_proj.weight
        return self.terms(u.to(weight), bypass.to(weight))

    def _cache(self, state: MixerState) -> Cache:
        keys, values, *decays, valid = state[1:]
        k, v = (split_heads(t, self.heads) for t in (keys, values))
        return Cache(k, v, valid, decays[0].mT if decays else None)

    def _slots(self, cache: Cache) -> MixerState:
        """Return the part of the state that grows with the number of tokens."""
        decays = () if cache.g is None else (cache.g.mT.contiguous(),)
        return join_heads(cache.k), join_heads(cache.v), *decays, cache.valid

    def _out(self, o: Float[Tensor, "B H T C"]) -> Float[Tensor, "B T D"]:
        return self.out_proj(join_heads(o))
