"""Conversion of a memory to a cache of a transformers model, for one forward pass.

The cache classes of transformers append the new keys and values of a forward pass to the past ones. If many queries
share one memory, these classes store a copy of the memory for each query in all layers at once. The cache in this
module passes the concatenation of past and new keys and values to each layer, but stores only the new ones. The memory
does not change, and its copies exist in only one layer at a time.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache, DynamicLayer

from iclbench.deep_thinking.memory import Memory


class OnePassLayer(DynamicLayer):
    """The past keys and values of one layer and, after the forward pass, the new ones, of shape `(B, H, T, C)`."""

    def __init__(self, past: tuple[Tensor, Tensor] | None = None) -> None:
        super().__init__()
        self.past = past
        self.new: tuple[Tensor, Tensor] | None = None

    def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        self.new = key_states, value_states
        if self.past is None:
            return self.new
        keys, values = self.past
        return torch.cat([keys, key_states], dim=-2), torch.cat([values, value_states], dim=-2)

    def get_seq_length(self, *_: Any) -> int:
        return sum(pair[0].shape[-2] for pair in (self.past, self.new) if pair is not None)


def cache_of(memory: Memory | None) -> Cache:
    """Return a cache for one forward pass after a memory with one row for each sequence, or an empty cache for None."""
    if memory is None:
        return Cache(layer_class_to_replicate=OnePassLayer)
    return Cache(layers=[OnePassLayer(past) for past in zip(memory.keys, memory.values, strict=True)])


def new_memory(cache: Cache) -> Memory:
    """Return the keys and values of the tokens of the forward pass."""
    pairs = [layer.new for layer in cache.layers]
    return Memory(tuple(keys for keys, _ in pairs), tuple(values for _, values in pairs))
