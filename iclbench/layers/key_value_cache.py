"""The state of a causal Transformer, and attention masks over its slots."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from iclbench.core.predictor import State


@dataclass(frozen=True)
class KeyValueCache(State):
    """Keys and values of all layers.

    Attributes:
        keys, values: `(B, H, T, D/H)` for each layer.
        mask: slots that hold a token.
        before: number of tokens before the dataset that is currently being read, if positions restart in every
            dataset; None if positions do not restart.
    """

    keys: tuple[Tensor, ...]
    values: tuple[Tensor, ...]
    mask: Bool[Tensor, "B T"]
    before: Int[Tensor, "B 1"] | None = None

    @property
    def next(self) -> Int[Tensor, "B 1"]:
        """The position of the next token."""
        count = self.mask.sum(1, keepdim=True)
        return count if self.before is None else count - self.before


class GrowingCache:
    """A cache that is extended layer by layer."""

    def __init__(self, state: KeyValueCache) -> None:
        self.state = state
        self.layers: list[tuple[Tensor, Tensor]] = []

    def add(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Add new keys and values to the layer, and return all keys and values of the layer, with the cached ones
        first."""
        self.layers.append((torch.cat([self.state.keys[layer], k], 2), torch.cat([self.state.values[layer], v], 2)))
        return self.layers[-1]

    def to_state(self, mask: Bool[Tensor, "B T"], before: Int[Tensor, "B 1"] | None = None) -> KeyValueCache:
        """Return the state that includes the new tokens.

        Args:
            mask: valid new tokens.
            before: the cache's `before` after the new tokens; None means unchanged.
        """
        keys, values = zip(*self.layers, strict=True)
        before = self.state.before if before is None else before
        return KeyValueCache(keys, values, torch.cat([self.state.mask, mask], 1), before)


def causal_mask(new: int, past: int, device: torch.device) -> Bool[Tensor, "T held_and_T"]:
    """Return the mask of tokens that each new token sees: all cached tokens, the new tokens before it, and the token
    itself."""
    return torch.ones(new, past + new, dtype=torch.bool, device=device).tril(past)


def causal_mask_after(state: KeyValueCache, new: int) -> Bool[Tensor, "*any T held_and_T"]:
    """Return the mask of slots that each new token sees, excluding empty slots of the cache. If the cache has empty
    slots, the shape is `(B, 1, T, held + T)`."""
    visible = causal_mask(new, state.mask.shape[1], state.mask.device)
    if bool(state.mask.all()):
        return visible
    return visible & F.pad(state.mask, (0, new), value=True)[:, None, None]


def valid_causal_mask_after(state: KeyValueCache, mask: Bool[Tensor, "B T"]) -> Bool[Tensor, "B 1 T held_and_T"]:
    """Return the mask of slots that each new token sees, excluding empty slots and invalid new tokens."""
    return valid_causal_mask(torch.cat([state.mask, mask], 1), mask.shape[1])


def valid_causal_mask(valid: Bool[Tensor, "B held_and_T"], new: int) -> Bool[Tensor, "B 1 T held_and_T"]:
    """Return the mask of valid slots that each new token sees. The last `new` slots hold the new tokens. An invalid
    token still sees itself, so that the softmax of its (unused) row is defined."""
    past = valid.shape[1] - new
    itself = torch.eye(new, past + new, dtype=torch.bool, device=valid.device).roll(past, 1)
    return causal_mask(new, past, valid.device) & valid[:, None, None] | itself


def attend_past_and_self(
    q: Float[Tensor, "B H Q C"],
    k_past: Float[Tensor, "B H T C"],
    v_past: Float[Tensor, "B H T C"],
    visible: Bool[Tensor, "*any Q T"],
    k: Float[Tensor, "B H Q C"],
    v: Float[Tensor, "B H Q C"],
) -> Float[Tensor, "B H Q C"]:
    """Compute the attention of each query to the visible past and to itself, but not to other queries. The query's own
    key always comes last, so that outputs do not depend on the order of the queries, not even in the last digit."""
    q = q * q.shape[-1] ** -0.5
    past_scores = (q @ k_past.transpose(-1, -2)).masked_fill(~visible, -torch.inf)
    self_score = (q * k).sum(-1, keepdim=True)
    weights = torch.cat([past_scores, self_score], -1).softmax(-1)
    return weights[..., :-1] @ v_past + weights[..., -1:] * v
