"""Exact probabilities of the next token under the posterior of Markov chains given the previous tokens.

Without switches, the posterior of each row is a Dirichlet distribution, and the probability of a token is its share of
the tokens that followed the last m tokens, after adding `concentration` to each count. With switches, the prediction is
the mean of these probabilities over the posterior of the first token of the chain in force (Adams and MacKay 2007,
Bayesian online changepoint detection, arXiv 0710.3742). The recursion is exact. Its time is quadratic in the length of
the sequence, since the chain in force may start at any token.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from iclbench.core.episodes import take
from iclbench.core.tokens import after_same_context, followers

# Largest number of array entries per batch of episodes. It limits memory and fits into the processor's cache.
_MAX_ENTRIES = 500_000


class ChainPrior(NamedTuple):
    """The distribution of chains: the Dirichlet parameter of the rows, and the probability of a switch before a
    token."""

    concentration: float
    switch: float


def posterior_rows(
    tokens: Int[Tensor, "B N"], lengths: Int[Tensor, "B P"], order: int, classes: int, prior: ChainPrior
) -> Float[Tensor, "B P K"]:
    """Return the distribution of the next token after each prefix, in float64.

    Args:
        tokens: the sequences.
        lengths: numbers of tokens of the prefixes.
        order: number of previous tokens on which the next token depends.
        classes: size of the vocabulary.
        prior: the distribution of chains.
    """
    size = max(1, _MAX_ENTRIES // max(1, tokens.shape[1] * max(lengths.shape[1], classes)))
    chunks = [slice(start, start + size) for start in range(0, max(1, len(tokens)), size)]
    return torch.cat([_chunk_rows(tokens[chunk], lengths[chunk], order, classes, prior) for chunk in chunks])


def _chunk_rows(
    tokens: Int[Tensor, "B N"], lengths: Int[Tensor, "B P"], order: int, classes: int, prior: ChainPrior
) -> Float[Tensor, "B P K"]:
    if prior.switch:
        return take(rows_with_switches(tokens, order, classes, prior), lengths)
    return _posterior_mean(followers(tokens, lengths, order, classes), prior.concentration)


def rows_with_switches(
    tokens: Int[Tensor, "B N"], order: int, classes: int, prior: ChainPrior
) -> Float[Tensor, "B N_and_1 K"]:
    """Return the probabilities of the next token after 0, 1, ..., N tokens if the chain may be replaced before every
    token.

    The state of the recursion is the posterior of the first token of the chain in force. Tokens before position `order`
    are uniform and carry no information about a chain, so all chains that start there count as one.
    """
    batch, length = tokens.shape
    rows = torch.full((batch, length + 1, classes), 1 / classes, dtype=torch.float64, device=tokens.device)
    lengths = torch.arange(length + 1, device=tokens.device).expand(batch, -1)
    is_after_context, symbols = after_same_context(tokens, lengths, order), F.one_hot(tokens, classes).double()
    starts = torch.ones((batch, 1), dtype=torch.float64, device=tokens.device)
    for n in range(order, length + 1):
        if n > order:
            starts = torch.cat([starts * (1 - prior.switch), torch.full_like(starts[:, :1], prior.switch)], 1)
        counted = symbols[:, order:n] * is_after_context[:, n, order:n].unsqueeze(-1)
        # Counts of the tokens since each possible start of the chain; the last possible start is the next token.
        counts = F.pad(counted.flip(1).cumsum(1).flip(1), (0, 0, 0, 1))
        row_by_start = _posterior_mean(counts, prior.concentration)
        rows[:, n] = (starts.unsqueeze(1) @ row_by_start).squeeze(1)
        if n < length:
            likelihood = take(row_by_start.mT, tokens[:, n : n + 1]).squeeze(1)
            starts = starts * likelihood
            starts = starts / starts.sum(1, keepdim=True)
    return rows


def _posterior_mean(counts: Float[Tensor, "*shape K"], concentration: float) -> Float[Tensor, "*shape K"]:
    """Return the posterior mean of a row given the counts of its tokens. All parameters of its Dirichlet prior are
    `concentration`."""
    return (counts + concentration) / (counts.sum(-1, keepdim=True) + counts.shape[-1] * concentration)
