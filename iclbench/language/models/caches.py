"""A memory as the cache of a transformers model, for one forward pass.

A cache of transformers holds past and present of all layers afterwards, once per sequence: the pass has changed it, and
a memory shared by many queries is copied for each of them. This one hands every layer past and present together and
keeps the present only, so that the past stays what it was and its copies exist one layer at a time.
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
    """A cache for one pass after this memory, which has a row per sequence; without one: for a pass that begins."""
    if memory is None:
        return Cache(layer_class_to_replicate=Layer)
    return Cache(layers=[Layer(past) for past in zip(memory.keys, memory.values, strict=True)])


def present(cache: Cache) -> Memory:
    """Keys and values that the pass has added."""
    pairs = [layer.present for layer in cache.layers]
    return Memory(tuple(keys for keys, _ in pairs), tuple(values for _, values in pairs))
