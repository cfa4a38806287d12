"""A memory as the cache of a transformers model, for one forward pass.

A forward pass appends the present keys and values to the cache of transformers, and a memory that many queries share is
copied for each of them in all layers. This cache gives each layer past and present concatenated, but stores the present
only. The past does not change, and its copies exist for one layer at a time.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache, DynamicLayer

from iclbench.deep_thinking.memory import Memory


class Layer(DynamicLayer):
    """The past of one layer and, after the pass, its present: keys and values `(B, H, L, C)`."""

    def __init__(self, past: tuple[Tensor, Tensor] | None = None) -> None:
        super().__init__()
        self.past = past
        self.present: tuple[Tensor, Tensor] | None = None

    def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        self.present = key_states, value_states
        if self.past is None:
            return self.present
        keys, values = self.past
        return torch.cat([keys, key_states], dim=-2), torch.cat([values, value_states], dim=-2)

    def get_seq_length(self, *_: Any) -> int:
        return sum(pair[0].shape[-2] for pair in (self.past, self.present) if pair is not None)


def cache_of(memory: Memory | None) -> Cache:
    """A cache for one pass after this memory, which has a row per sequence; None gives an empty cache."""
    if memory is None:
        return Cache(layer_class_to_replicate=Layer)
    return Cache(layers=[Layer(past) for past in zip(memory.keys, memory.values, strict=True)])


def present(cache: Cache) -> Memory:
    """The keys and values of the tokens in the pass."""
    pairs = [layer.present for layer in cache.layers]
    return Memory(tuple(keys for keys, _ in pairs), tuple(values for _, values in pairs))
