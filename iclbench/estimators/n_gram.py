"""Baselines for token streams: equal probabilities, and n-gram models, which count the tokens of the context."""

from __future__ import annotations

import math
from typing import Annotated

import torch
from jaxtyping import Float, Int
from pydantic import Field
from torch import Tensor

from iclbench.core.episodes import Points
from iclbench.core.errors import UsageError
from iclbench.core.predictions import Categorical
from iclbench.core.settings import BaseSettings, NoSettings, PositiveFloat
from iclbench.core.tokens import followers
from iclbench.estimators.token_estimator import TokenEstimator


class Uniform(TokenEstimator[NoSettings]):
    """Equal probabilities of all tokens."""

    def log_probabilities(
        self, tokens: Int[Tensor, "B N"], lengths: Int[Tensor, "B P"], classes: int
    ) -> Float[Tensor, "B P K"]:
        shape = *lengths.shape, classes
        return torch.full(shape, -math.log(classes), dtype=torch.float64, device=tokens.device)


class NGramSettings(BaseSettings):
    """Settings of n-grams.

    Attributes:
        order: number of previous tokens on which the next token depends: 0 for unigrams, 1 for bigrams, 2 for trigrams.
        smoothing: number that is added to each count; 1 is Laplace's rule of succession.
    """

    order: Annotated[int, Field(ge=0, le=16)] = 1
    smoothing: PositiveFloat = 1.0


class NGram(TokenEstimator[NGramSettings]):
    """Smoothed frequencies of the tokens that have followed the last `order` tokens in the context so far.

    If the context has at most `order` tokens, all tokens are equally likely.
    """

    Settings = NGramSettings
    order = "causal"

    def _predict_prefixes(
        self, points: Points, is_unmasked: bool, lengths: Int[Tensor, "#B P"], queries: Float[Tensor, "B P Q Dx"]
    ) -> Categorical:
        if self.facts.predicts_labels:
            raise UsageError(
                f"{type(self).__name__} predicts the next token; this task requires a label of the tokens so far",
                code="not-applicable",
            )
        return super()._predict_prefixes(points, is_unmasked, lengths, queries)

    def log_probabilities(
        self, tokens: Int[Tensor, "B N"], lengths: Int[Tensor, "B P"], classes: int
    ) -> Float[Tensor, "B P K"]:
        counts = followers(tokens, lengths, self.settings.order, classes) + self.settings.smoothing
        return (counts / counts.sum(-1, keepdim=True)).log()
