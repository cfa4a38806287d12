"""The state of a causal Transformer, and which of its slots a token sees."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from iclbench.core.predictor import State


@dataclass(frozen=True)
class KeyValueCache(State):
    """Keys and values of all layers, `(B, H, T, D/H)` each, and which of the T slots hold a token. Where positions
    restart in every dataset, also the tokens `before` the one that is being read; None: positions run through."""

    keys: tuple[Tensor, ...]
    values: tuple[Tensor, ...]
    mask: Bool[Tensor, "B T"]
    before: Int[Tensor, "B 1"] | None = None

    @property
    def next(self) -> Int[Tensor, "B 1"]:
        """The position of a token that comes next."""
        count = self.mask.sum(1, keepdim=True)
        return count if self.before is None else count - self.before


class Growing:
    """A cache that becomes longer, layer by layer."""

    def __init__(self, state: KeyValueCache) -> None:
        self.state = state
        self.layers: list[tuple[Tensor, Tensor]] = []

    def add(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """All keys and values of the layer, those held first."""
        self.layers.append((torch.cat([self.state.keys[layer], k], 2), torch.cat([self.state.values[layer], v], 2)))
        return self.layers[-1]

    def cache(self, mask: Bool[Tensor, "B T"], before: Int[Tensor, "B 1"] | None = None) -> KeyValueCache:
        """The longer cache; the mask is that of the new tokens, `before` what it is after them (None: as it was)."""
        keys, values = zip(*self.layers, strict=True)
        before = self.state.before if before is None else before
        return KeyValueCache(keys, values, torch.cat([self.state.mask, mask], 1), before)


def causal(new: int, past: int, device: torch.device) -> Bool[Tensor, "T held_and_T"]:
    """Which tokens each of the new ones sees: all that are held, those before it, and itself."""
    return torch.ones(new, past + new, dtype=torch.bool, device=device).tril(past)


def causal_past(state: KeyValueCache, new: int) -> Bool[Tensor, "*any T held_and_T"]:
    """Which slots each new token sees, without the empty slots of the cache, `(B, 1, T, held + T)` where there are
    any."""
    before = causal(new, state.mask.shape[1], state.mask.device)
    if bool(state.mask.all()):
        return before
    return before & F.pad(state.mask, (0, new), value=True)[:, None, None]


def causal_present(state: KeyValueCache, mask: Bool[Tensor, "B T"]) -> Bool[Tensor, "B 1 T held_and_T"]:
    """Which slots each new token sees, without empty slots and without invalid new tokens."""
    return causal_valid(torch.cat([state.mask, mask], 1), mask.shape[1])


def causal_valid(valid: Bool[Tensor, "B held_and_T"], new: int) -> Bool[Tensor, "B 1 T held_and_T"]:
    """The same of slots that are `valid`, the last of which are the new tokens. One that is not there still sees
    itself, so that its (unused) row is no softmax over nothing."""
    past = valid.shape[1] - new
    itself = torch.eye(new, past + new, dtype=torch.bool, device=valid.device).roll(past, 1)
    return causal(new, past, valid.device) & valid[:, None, None] | itself


def attend_past_and_self(
    q: Float[Tensor, "B H Q C"],
    k_past: Float[Tensor, "B H T C"],
    v_past: Float[Tensor, "B H T C"],
    visible: Bool[Tensor, "*any Q T"],
    k: Float[Tensor, "B H Q C"],
    v: Float[Tensor, "B H Q C"],
) -> Float[Tensor, "B H Q C"]:
    """Attention of queries to the visible past and each to itself, never to one another. A query's own key comes last,
    whichever query it is, so that answers do not depend on the order of the queries, not even in the last digit."""
    q = q * q.shape[-1] ** -0.5
    past = (q @ k_past.transpose(-1, -2)).masked_fill(~visible, -torch.inf)
    self_score = (q * k).sum(-1, keepdim=True)
    weights = torch.cat([past, self_score], -1).softmax(-1)
    return weights[..., :-1] @ v_past + weights[..., -1:] * v
