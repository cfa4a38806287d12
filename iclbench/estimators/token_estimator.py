"""Base class of estimators for token streams, which predict the next token from the tokens before it.

The base class handles masks, prefixes and queries. A subclass implements one function, `log_probabilities`.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import TypeVar

import torch
from jaxtyping import Float, Int
from torch import Tensor

from iclbench.core.episodes import Points
from iclbench.core.predictions import Categorical
from iclbench.core.settings import BaseSettings
from iclbench.core.tokens import check_tokens
from iclbench.estimators.base import FittedPredictor, move_valid_first, slices

# Maximum number of array entries per batch of episodes, which limits memory and fits into the processor's cache.
_MAX_ENTRIES = 1_000_000

_Settings = TypeVar("_Settings", bound=BaseSettings)


class TokenEstimator(FittedPredictor[_Settings], abstract=True):
    """A method that predicts the next token of a stream."""

    heads = ("categorical",)
    reads_streams = True

    @abstractmethod
    def log_probabilities(
        self, tokens: Int[Tensor, "B N"], lengths: Int[Tensor, "B P"], classes: int
    ) -> Float[Tensor, "B P K"]:
        """Return log-probabilities of the next token, in float64, after each prefix of `lengths` tokens (0 to N).

        Tokens after the end of an episode are 0.
        """

    def _predict_prefixes(
        self, points: Points, is_unmasked: bool, lengths: Int[Tensor, "#B P"], queries: Float[Tensor, "B P Q Dx"]
    ) -> Categorical:
        classes = check_tokens(points, self.facts.classes, type(self).__name__)
        tokens = (points if is_unmasked else move_valid_first(points)).y
        lengths = lengths.expand(len(tokens), -1)
        size = max(1, _MAX_ENTRIES // max(1, tokens.shape[1] * max(lengths.shape[1], classes)))
        chunks = slices(max(1, len(tokens)), size)
        logits = torch.cat([self.log_probabilities(tokens[chunk], lengths[chunk], classes) for chunk in chunks])
        return Categorical(logits.to(queries.dtype).unsqueeze(2).expand(-1, -1, queries.shape[2], -1))
