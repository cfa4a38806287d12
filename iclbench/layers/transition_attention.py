"""Causal softmax attention whose logits depend on the tokens between a query and a key. Every token s has a log decay
g_s and a transition A_s, and the logit of query t and key j is

    q_t^T A_t A_{t-1} ... A_{j+1} k_j + g_{j+1} + ... + g_t,    A_s = I - beta_s w_s w_s^T.

Without decays and transitions, this is softmax attention without positions. The cache holds the keys as the next query
reads them: every token applies its transition to all keys before it, and adds its log decay to theirs.

The logits of a chunk of C tokens follow from one triangular system (Yang et al. 2025, "PaTH attention", arXiv
2505.16381). Let u_sj be beta_s times the product of w_s and the key j just before token s. Since the key is k_j minus
the sum of u_rj w_r over the tokens r between j and s,

    u_sj + beta_s sum_{j < r < s} (w_s w_r) u_rj = beta_s (w_s k_j)    for s > j,

and the first part of the logit is q_t k_j minus the sum of (q_t w_s) u_sj for j < s <= t. For the keys before the
chunk, the right-hand sides are linear in the keys, so that the system is solved for the vectors beta_s w_s only.

Log decays between two tokens are sums over the tokens between them, instead of differences of sums from the first
token, whose rounding errors are large after many strong decays.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from iclbench.core.denormals import flush_denormals
from iclbench.core.records import TensorRecord
from iclbench.layers.key_value_cache import valid_causal_mask

# Tokens per chunk, an even number.
CHUNK = 64


@dataclass(frozen=True)
class Terms(TensorRecord):
    """The terms of the logits of T tokens.

    Attributes:
        q, k, v: queries (divided by the square root of their width), keys and values.
        g: log decays; None means no decay.
        w, beta: directions and factors of the transitions; None means that A is the identity.
    """

    q: Float[Tensor, "B H T C"]
    k: Float[Tensor, "B H T C"]
    v: Float[Tensor, "B H T C"]
    g: Float[Tensor, "B H T"] | None = None
    w: Float[Tensor, "B H T C"] | None = None
    beta: Float[Tensor, "B H T 1"] | None = None


@dataclass(frozen=True)
class Cache(TensorRecord):
    """The keys and values of the tokens so far.

    Attributes:
        k: keys, multiplied by the transitions of all tokens after them.
        v: values.
        valid: slots that hold a token.
        g: the sum of the log decays of all tokens after each key; None means no decay.
    """

    k: Float[Tensor, "B H P C"]
    v: Float[Tensor, "B H P C"]
    valid: Bool[Tensor, "B P"]
    g: Float[Tensor, "B H P"] | None = None


@flush_denormals()
def attend(
    terms: Terms, cache: Cache, mask: Bool[Tensor, "B T"] | None = None, chunk: int = CHUNK
) -> tuple[Float[Tensor, "B H T C"], Cache]:
    """Return the outputs at tokens that follow a cache, and the cache after them.

    Args:
        terms: terms of the tokens.
        cache: keys and values before the first token.
        mask: valid tokens; None means all. Invalid tokens may occur only before all valid ones, so that their
            transitions and decays reach no key that is read.
        chunk: largest number of tokens per chunk.
    """
    outputs = []
    valid = cache.valid.new_ones(terms.v.shape[0], terms.v.shape[2]) if mask is None else mask
    for start in range(0, terms.v.shape[2], chunk):
        part = _Chunk(terms[:, :, start : start + chunk], cache, valid[:, start : start + chunk])
        outputs.append(part.outputs())
        cache = part.cache_after()
    return torch.cat(outputs, 2), cache


@flush_denormals()
def fork(
    terms: Terms, queries: Terms, cache: Cache, chunk: int = CHUNK
) -> tuple[Float[Tensor, "B H T C"], Float[Tensor, "B H N C"], Cache]:
    """Return the outputs at N pairs of tokens, the outputs of N queries (one before each pair), and the cache after all
    pairs. Queries do not change the cache.

    Args:
        terms: terms of the T = 2N tokens of the pairs.
        queries: terms of the queries.
        cache: keys and values before the first pair.
        chunk: largest number of tokens per chunk, an even number.
    """
    outputs, answers = [], []
    valid = cache.valid.new_ones(terms.v.shape[0], terms.v.shape[2])
    for start in range(0, terms.v.shape[2], chunk):
        part = _Chunk(terms[:, :, start : start + chunk], cache, valid[:, start : start + chunk])
        outputs.append(part.outputs())
        answers.append(part.answers(queries[:, :, start // 2 : (start + chunk) // 2]))
        cache = part.cache_after()
    return torch.cat(outputs, 2), torch.cat(answers, 2), cache


@flush_denormals()
def peek(terms: Terms, cache: Cache) -> Float[Tensor, "B H Q C"]:
    """Return the outputs at tokens, each read as the first token after the cache."""
    logits = _rows_before(terms) @ cache.k.mT
    if terms.g is not None and cache.g is not None:
        logits = logits + (terms.g.unsqueeze(-1) + cache.g.unsqueeze(-2))
    return _average_with_self(terms, logits.masked_fill(~cache.valid[:, None, None], -torch.inf), cache.v)


class _Chunk:
    """A chunk of C tokens after P cached keys."""

    def __init__(self, terms: Terms, cache: Cache, valid: Bool[Tensor, "B C"]) -> None:
        self.past = cache.k.shape[2]
        self.terms, self.cache, self.valid = terms, cache, torch.cat([cache.valid, valid], 1)
        self.values = torch.cat([cache.v, terms.v], 2)
        self.hidden = ~valid_causal_mask(self.valid, valid.shape[1])
        if terms.w is not None and terms.beta is not None:
            scaled = terms.beta * terms.w
            system = (scaled @ terms.w.mT).tril(-1)
            right_sides = (scaled @ terms.k.mT).tril(-1)
            if self.past:
                right_sides = torch.cat([right_sides, scaled], -1)
            solution = torch.linalg.solve_triangular(system, right_sides, upper=False, unitriangular=True)
            # u for the keys of the chunk, and the solutions for the vectors beta w.
            self.u, self.solved_w = solution[..., : system.shape[-1]], solution[..., system.shape[-1] :]
        if terms.g is not None and cache.g is not None:
            between = terms.g.unsqueeze(-1).expand(-1, -1, -1, valid.shape[1]).tril(-1).cumsum(2)
            past = terms.g.cumsum(-1).unsqueeze(-1) + cache.g.unsqueeze(-2)
            self.decays = torch.cat([past, between], -1)

    def outputs(self) -> Float[Tensor, "B H C V"]:
        """Return the outputs at the tokens."""
        logits = self._logits(self.terms.q, _lower(self.terms.q.shape[2], 0, self.valid))
        if self.terms.g is not None:
            logits = logits + self.decays
        return logits.masked_fill(self.hidden, -torch.inf).softmax(-1) @ self.values

    def answers(self, queries: Terms) -> Float[Tensor, "B H N V"]:
        """Return the outputs at queries, one before each pair of tokens."""
        tokens = self.terms.q.shape[2]
        logits = self._logits(_rows_before(queries), _lower(tokens, -1, self.valid)[::2])
        if queries.g is not None and self.cache.g is not None:
            # The first query follows the cache, and the others follow every second token.
            first = F.pad(self.cache.g, (0, tokens)).unsqueeze(-2)
            logits = logits + (torch.cat([first, self.decays], -2)[..., :-1:2, :] + queries.g.unsqueeze(-1))
        visible = (~self.hidden).tril(self.past - 1)[..., ::2, :]
        return _average_with_self(queries, logits.masked_fill(~visible, -torch.inf), self.values)

    def cache_after(self) -> Cache:
        """Return the cache after the chunk."""
        past, keys, decays = self.cache.k, self.terms.k, None
        if self.terms.w is not None:
            if self.past:
                past = past - (past @ self.solved_w.mT) @ self.terms.w
            keys = keys - self.u.mT @ self.terms.w
        if self.terms.g is not None:
            decays = self.decays[..., -1, :]
        return Cache(torch.cat([past, keys], 2), self.values, self.valid, decays)

    def _logits(self, rows: Float[Tensor, "B H R C"], after: Bool[Tensor, "R T"]) -> Float[Tensor, "B H R PC"]:
        """Return the logits of rows, without decays.

        Args:
            rows: queries.
            after: the tokens of the chunk whose transitions precede each row.
        """
        present = rows @ self.terms.k.mT
        if self.terms.w is not None:
            products = (rows @ self.terms.w.mT).masked_fill(~after, 0.0)
            present = present - products @ self.u
            if self.past:
                rows = rows - products @ self.solved_w
        return torch.cat([rows @ self.cache.k.mT, present], -1) if self.past else present


def _lower(tokens: int, diagonal: int, like: Tensor) -> Bool[Tensor, "T T"]:
    return torch.ones(tokens, tokens, dtype=torch.bool, device=like.device).tril(diagonal)


def _rows_before(terms: Terms) -> Float[Tensor, "B H Q C"]:
    """Return rows whose products with keys before a token's transition equal the products of its query with these keys
    after it."""
    if terms.w is None or terms.beta is None:
        return terms.q
    return terms.q - terms.beta * (terms.w * terms.q).sum(-1, keepdim=True) * terms.w


def _average_with_self(
    terms: Terms, logits: Float[Tensor, "B H Q P"], values: Float[Tensor, "B H P V"]
) -> Float[Tensor, "B H Q V"]:
    """Return the average of the values and of each token's own value. Its own key comes last, so that outputs do not
    depend on the order of the queries, not even in the last digit."""
    self_logit = (terms.q * terms.k).sum(-1, keepdim=True)
    weights = torch.cat([logits, self_logit], -1).softmax(-1)
    return weights[..., :-1] @ values + weights[..., -1:] * terms.v
