"""Streams of tokens: check tokens, count the tokens in prefixes and the tokens that followed a context, and convert
probabilities to predictions."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from iclbench.core.episodes import Points
from iclbench.core.errors import DataError, UsageError
from iclbench.core.predictions import Categorical

# Lower bound of all probabilities. An excluded token then has a finite logit of about -69.
_SMALLEST = 1e-30


def check_tokens(points: Points, classes: int | None, name: str) -> int:
    """Check that the points are tokens without inputs, and return the size of the vocabulary.

    Args:
        points: the elements of the stream.
        classes: size of the vocabulary; None for tasks without labels.
        name: name of the method, for messages.

    Raises:
        UsageError: the points are not tokens without inputs (code `not-applicable`).
        DataError: a token is not part of the vocabulary.
    """
    if classes is None or points.y.is_floating_point() or points.x.shape[-1]:
        raise UsageError(
            f"{name} predicts the next token of a stream; this task is not a stream of tokens without inputs",
            code="not-applicable",
        )
    tokens = points.y[points.mask]
    if bool(((tokens < 0) | (tokens >= classes)).any()):
        invalid_token = int(tokens.min()) if bool((tokens < 0).any()) else int(tokens.max())
        raise DataError(f"a token is {invalid_token}; this task has tokens 0 to {classes - 1}")
    return classes


def prefix_lengths(points: Points, prefixes: Sequence[int] | None = None) -> Int[Tensor, "B P"]:
    """Return the number of valid tokens in each prefix (default: in the prefix before each point)."""
    lengths = points.mask.cumsum(1) - points.mask.long()
    return lengths if prefixes is None else lengths[:, torch.as_tensor(prefixes, device=lengths.device).long()]


def from_probabilities(probabilities: Float[Tensor, "B P K"], like: Tensor) -> Categorical:
    """Return predictions with these probabilities and the dtype of `like`."""
    return Categorical(probabilities.clamp_min(_SMALLEST).log().to(like.dtype))


def after_same_context(tokens: Int[Tensor, "B N"], lengths: Int[Tensor, "B P"], order: int) -> Bool[Tensor, "B P N"]:
    """Return, for each prefix, a mask of its tokens that follow an earlier occurrence of its last `order` tokens.

    The prefixes have `lengths` tokens. The mask of a prefix with at most `order` tokens is empty.
    """
    index = torch.arange(tokens.shape[1], device=tokens.device)
    is_same = (index >= order) & (index < lengths.unsqueeze(-1))
    if not tokens.shape[1]:
        return is_same
    for distance in range(1, order + 1):
        last_tokens = tokens.gather(1, (lengths - distance).clamp_min(0))
        is_same &= tokens.roll(distance, 1).unsqueeze(1) == last_tokens.unsqueeze(2)
    return is_same


def followers(
    tokens: Int[Tensor, "B N"], lengths: Int[Tensor, "B P"], order: int, classes: int
) -> Float[Tensor, "B P K"]:
    """Count, for each prefix of `lengths` tokens, the tokens that followed earlier occurrences of its last `order`
    tokens. The counts are float64."""
    return after_same_context(tokens, lengths, order).double() @ F.one_hot(tokens, classes).double()
