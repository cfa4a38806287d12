"""Exact predictors for Markov chains. `oracle-chain` has access to the chain, and `oracle-bayes-chain` only to the
tokens and the distribution of chains.

`oracle-chain` has access to the chain in force at every token, so models that infer the chain cannot reach its score.
With switches, it also has access to the times at which chains are replaced.

`oracle-bayes-chain` is the best predictor that a model can learn (`chain_posterior`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from jaxtyping import Float, Int
from torch import Tensor

from iclbench.core.episodes import Points, take
from iclbench.core.errors import UsageError
from iclbench.core.predictions import Categorical
from iclbench.core.predictor import Oracle, State
from iclbench.core.settings import NoSettings
from iclbench.core.task import TaskFacts
from iclbench.core.tokens import check_tokens, from_probabilities, prefix_lengths
from iclbench.families.family_predictor import FamilyPredictor
from iclbench.families.streams.chain_posterior import posterior_rows
from iclbench.families.streams.markov import MarkovChains


@dataclass(frozen=True)
class ChainPosition(State):
    """The distributions of all tokens of an episode, and the number of tokens so far."""

    rows: Float[Tensor, "B N K"]
    count: Int[Tensor, " B"]


class ChainOracle(FamilyPredictor[NoSettings], Oracle):
    """The distribution of the next token under the true chain; raises `UsageError` for other families.

    The oracle predicts only along the sampled sequence: the prediction after n tokens is the true distribution of token
    n + 1.
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
        return from_probabilities(take(self._rows(), prefix_lengths(points, prefixes)), points.x)

    def condition(self, context: Points, related: Points | None = None) -> ChainPosition:
        return ChainPosition(self._rows(), context.counts)

    def query(self, state: ChainPosition, x: Float[Tensor, "B Q 0"]) -> Categorical:
        """Return the same prediction for every query, since tokens have no x."""
        rows = take(state.rows, state.count.unsqueeze(1))
        return from_probabilities(rows.expand(-1, x.shape[1], -1), x)

    def update(self, state: ChainPosition, points: Points) -> ChainPosition:
        return ChainPosition(state.rows, state.count + points.counts)

    def _rows(self) -> Float[Tensor, "B N K"]:
        if self.truth is None:
            raise UsageError("oracle-chain needs the chains; call informed(episodes.truth) first", code="missing-value")
        return self.truth["rows"]


class BayesChain(FamilyPredictor[NoSettings]):
    """The distribution of the next token given the tokens so far and the distribution of chains; raises `UsageError`
    for other families."""

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
        classes = check_tokens(points, self.facts.classes, type(self).__name__)
        lengths = prefix_lengths(points, prefixes)
        points, _ = points.compact()
        tokens = points.y.masked_fill(~points.mask, 0)
        return from_probabilities(posterior_rows(tokens, lengths, self.chain_order, classes, self.prior), points.x)
