"""Exact predictors for Markov chains: one is given the chain, the other only the tokens and the distribution of chains.

`oracle-chain` has access to the chain in force at every token, so models that infer the chain cannot reach its score.
With switches it also knows when the chain is replaced.

`oracle-bayes-chain` is the best that a model can learn. Without switches, the posterior of each row is a Dirichlet
distribution, and the probability of a token is its share of the tokens that followed the last m tokens, after adding
`concentration` to each count. With switches, the answer is the mean of these probabilities over the posterior of the
first token of the chain in force (Adams and MacKay 2007, Bayesian online changepoint detection, arXiv 0710.3742). The
recursion is exact. Its time is quadratic in the length of the sequence, since every token may be the first one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from iclbench.core.episodes import Points, take
from iclbench.core.errors import UsageError
from iclbench.core.predictions import Categorical
from iclbench.core.predictor import Oracle, State
from iclbench.core.settings import NoSettings
from iclbench.core.task import TaskFacts
from iclbench.core.tokens import after_same_context, check_tokens, followers
from iclbench.families.family_predictor import FamilyPredictor
from iclbench.families.streams.markov import ChainPrior, MarkovChains

# Number of array entries per batch of episodes, which limits memory and fits into the processor's cache.
_MAX_ENTRIES = 500_000
# Smallest probability: a token that a chain excludes has a finite logit.
_SMALLEST = 1e-30


@dataclass(frozen=True)
class ChainPosition(State):
    """The distributions of all tokens of an episode, and the number of tokens so far."""

    rows: Float[Tensor, "B N K"]
    count: Int[Tensor, " B"]


class ChainOracle(FamilyPredictor[NoSettings], Oracle):
    """The distribution of the next token under the true chain; raises `UsageError` for other families.

    It answers only along the sampled sequence: the answer after n tokens is the true distribution of token n + 1.
    """

    family_class, family_name = MarkovChains, "markov"
    order = "causal"
    heads = ("categorical",)

    def predict_next(
        self,
        points: Points,
        related: Points | None = None,
        *,
        x_query: Float[Tensor, "B N 0"] | None = None,
        prefixes: Sequence[int] | None = None,
    ) -> Categorical:
        return _categorical(take(self._rows(), _lengths(points, prefixes)), points.x)

    def condition(self, context: Points, related: Points | None = None) -> ChainPosition:
        return ChainPosition(self._rows(), context.counts)

    def query(self, state: ChainPosition, x: Float[Tensor, "B Q 0"]) -> Categorical:
        """The same prediction for every query, since tokens have no x."""
        rows = take(state.rows, state.count.unsqueeze(1))
        return _categorical(rows.expand(-1, x.shape[1], -1), x)

    def update(self, state: ChainPosition, points: Points) -> ChainPosition:
        return ChainPosition(state.rows, state.count + points.counts)

    def _rows(self) -> Float[Tensor, "B N K"]:
        if self.truth is None:
            raise UsageError("oracle-chain needs the chains; call informed(episodes.truth) first", code="missing-value")
        return self.truth["rows"]


class BayesChain(FamilyPredictor[NoSettings]):
    """The next token given the tokens so far and the distribution of chains; raises `UsageError` for other families."""

    family_class, family_name = MarkovChains, "markov"
    order = "causal"
    heads = ("categorical",)
    family: MarkovChains

    def __init__(self, settings: NoSettings | None = None, facts: TaskFacts | None = None, seed: int = 0) -> None:
        super().__init__(settings, facts, seed)
        self.chain_order, self.prior = self.family.parameters.order, self.family.prior(self.facts.shift)

    def predict_next(
        self,
        points: Points,
        related: Points | None = None,
        *,
        x_query: Float[Tensor, "B N 0"] | None = None,
        prefixes: Sequence[int] | None = None,
    ) -> Categorical:
        classes, lengths = check_tokens(points, self.facts.classes, type(self).__name__), _lengths(points, prefixes)
        points, _ = points.compact()
        tokens = points.y.masked_fill(~points.mask, 0)
        size = max(1, _MAX_ENTRIES // max(1, tokens.shape[1] * max(lengths.shape[1], classes)))
        chunks = [slice(start, start + size) for start in range(0, max(1, len(tokens)), size)]
        rows = torch.cat([self._rows(tokens[chunk], lengths[chunk], classes) for chunk in chunks])
        return _categorical(rows, points.x)

    def _rows(self, tokens: Int[Tensor, "B N"], lengths: Int[Tensor, "B P"], classes: int) -> Float[Tensor, "B P K"]:
        if self.prior.switch:
            return take(rows_with_switches(tokens, self.chain_order, classes, self.prior), lengths)
        return _posterior_mean(followers(tokens, lengths, self.chain_order, classes), self.prior.concentration)


def rows_with_switches(
    tokens: Int[Tensor, "B N"], order: int, classes: int, prior: ChainPrior
) -> Float[Tensor, "B N_and_1 K"]:
    """Probabilities of the next token after 0, 1, ..., N tokens, if the chain may be replaced before every token.

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
    """The mean of a row given the counts of its tokens. Its Dirichlet prior has all parameters `concentration`."""
    return (counts + concentration) / (counts.sum(-1, keepdim=True) + counts.shape[-1] * concentration)


def _lengths(points: Points, prefixes: Sequence[int] | None) -> Int[Tensor, "B P"]:
    """The numbers of valid tokens in prefixes (default: before each point)."""
    lengths = points.mask.cumsum(1) - points.mask.long()
    return lengths if prefixes is None else lengths[:, torch.as_tensor(prefixes, device=lengths.device).long()]


def _categorical(rows: Float[Tensor, "B Q K"], like: Tensor) -> Categorical:
    """Predictions with these probabilities and the dtype of `like`."""
    return Categorical(rows.clamp_min(_SMALLEST).log().to(like.dtype))
