"""Predictors for state tracking: the exact product, and its distribution given only the number of tokens."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from iclbench.core.episodes import Points, take
from iclbench.core.predictions import Categorical
from iclbench.core.predictor import State
from iclbench.core.settings import NoSettings
from iclbench.core.tokens import check_tokens, from_probabilities, prefix_lengths
from iclbench.families.family_predictor import FamilyPredictor
from iclbench.families.streams.permutations import (
    IDENTITY,
    multiplication_table,
    running_products,
    word_distributions,
)
from iclbench.families.streams.state_tracking import StateTracking


@dataclass(frozen=True)
class WordState(State):
    """The product of the tokens of each episode so far, and the number of these tokens."""

    product: Int[Tensor, " B"]
    count: Int[Tensor, " B"]


class _WordPredictor(FamilyPredictor[NoSettings], abstract=True):
    """Base of both predictors. Raises `UsageError` for other families."""

    family_class, family_name = StateTracking, "state-tracking"
    order = "causal"
    heads = ("categorical",)
    family: StateTracking

    @abstractmethod
    def probabilities(self, product: Int[Tensor, "B P"], count: Int[Tensor, "B P"]) -> Float[Tensor, "B P K"]:
        """Return the predicted distribution of the product of each word, in float64, given the exact product and the
        number of tokens."""

    def predict_next(
        self,
        points: Points,
        related: Points | None = None,
        *,
        x_query: Float[Tensor, "B N 0"] | None = None,
        prefixes: Sequence[int] | None = None,
    ) -> Categorical:
        count = prefix_lengths(points, prefixes)
        product = take(self._products(points.compact()[0]), count)
        return from_probabilities(self.probabilities(product, count), points.x)

    def condition(self, context: Points, related: Points | None = None) -> WordState:
        product = torch.full((len(context),), IDENTITY, device=context.y.device)
        return self.update(WordState(product, torch.zeros_like(product)), context)

    def update(self, state: WordState, points: Points) -> WordState:
        table = multiplication_table(self.family.objects, points.y.device)
        return WordState(table[state.product, self._products(points)[:, -1]], state.count + points.counts)

    def query(self, state: WordState, x: Float[Tensor, "B Q 0"]) -> Categorical:
        """Return the same prediction for every query, since tokens have no x."""
        product, count = (t.unsqueeze(1).expand(-1, x.shape[1]) for t in (state.product, state.count))
        return from_probabilities(self.probabilities(product, count), x)

    def _products(self, points: Points) -> Int[Tensor, "B N_and_1"]:
        check_tokens(points, self.facts.classes, type(self).__name__)
        return running_products(points.y.masked_fill(~points.mask, IDENTITY), self.family.objects)


class ProductOracle(_WordPredictor):
    """An oracle that multiplies the tokens. It is always right, with probability 1."""

    def probabilities(self, product: Int[Tensor, "B P"], count: Int[Tensor, "B P"]) -> Float[Tensor, "B P K"]:
        return F.one_hot(product, self.family.classes).double()


class TokenCount(_WordPredictor):
    """The exact distribution of the product given only the number of tokens, the best prediction of a model that only
    counts. It is the distribution of a random walk on the group whose steps are the generators.

    With adjacent transpositions, the number of tokens determines the sign of the product. For long words, the elements
    with this sign are equally likely.
    """

    def probabilities(self, product: Int[Tensor, "B P"], count: Int[Tensor, "B P"]) -> Float[Tensor, "B P K"]:
        longest = int(count.max()) if count.numel() else 0
        return word_distributions(self.family.generators, longest, self.family.objects).to(count.device)[count]
