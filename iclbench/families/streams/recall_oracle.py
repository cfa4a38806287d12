"""Exact oracles of the recall families: they predict the value after the last earlier occurrence of the key or, for
vectors, the value of the nearest earlier key."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from iclbench.core.episodes import Points, take
from iclbench.core.predictions import Categorical, Point, Prediction
from iclbench.core.records import cat
from iclbench.core.settings import NoSettings
from iclbench.families.family_predictor import FamilyPredictor
from iclbench.families.streams.recall import Recall
from iclbench.families.streams.recall_vectors import RecallVectors

# The logit of the predicted token if it is certain. All other tokens have the logit 0.
_CERTAIN = 50.0
_EPISODES_AT_ONCE = 32


class _RecallOracle(FamilyPredictor[NoSettings], abstract=True):
    """Base of both oracles, which read only the sequence. Raises `UsageError` for other families."""

    order = "causal"

    @abstractmethod
    def answer(self, y: Tensor) -> Prediction:
        """Return predictions of all elements of sequences `(B, N, ...)`, each from the elements before it."""

    def predict_next(
        self,
        points: Points,
        related: Points | None = None,
        *,
        x_query: Float[Tensor, "B N 0"] | None = None,
        prefixes: Sequence[int] | None = None,
    ) -> Prediction:
        points, order = points.compact()
        answers = cat([self.answer(y) for y in points.y.split(_EPISODES_AT_ONCE)])
        position_in_order = torch.argsort(order, dim=1)
        answer = answers.map(lambda t: take(t, position_in_order))
        return answer if prefixes is None else answer.at(torch.as_tensor(prefixes, device=order.device).long())


class RecallOracle(_RecallOracle):
    """An oracle that predicts the value token that followed the key, or equal probabilities if the key has not
    occurred.

    The oracle does not predict whether a key or a value is complete. It assumes that a key ends with the last token, or
    that a value continues. It is therefore exact at the scored positions, which are the positions of values.
    """

    family_class, family_name = Recall, "recall"
    heads = ("categorical",)

    def answer(self, y: Int[Tensor, "B N"]) -> Categorical:
        parameters = self.family.parameters
        classes = parameters.keys + parameters.values + 1
        logits = torch.zeros((*y.shape, classes), device=y.device)
        if y.shape[1] > 2:
            is_key, is_value = y < parameters.keys, (y >= parameters.keys) & (y < classes - 1)
            code, offset = torch.zeros_like(y), torch.zeros_like(y)
            for i in range(y.shape[1]):
                in_key = is_key[:, i - 1] if i else torch.zeros_like(is_key[:, 0])
                previous, steps = (code[:, i - 1], offset[:, i - 1]) if i else (code[:, 0], offset[:, 0])
                key_code = torch.where(in_key, previous, 0) * (parameters.keys + 1) + y[:, i] + 1
                code[:, i] = torch.where(is_key[:, i], key_code, torch.where(is_value[:, i], previous, 0))
                offset[:, i] = torch.where(is_value[:, i], steps + 1, 0)
            index = torch.arange(y.shape[1] - 1, device=y.device)
            before = slice(0, -1)  # the tokens that are followed by another token
            same = (code[:, before, None] == code[:, None, before]) & (code[:, before, None] > 0)
            same &= offset[:, before, None] == offset[:, None, before]
            same &= is_value[:, None, 1:] & (index < index.unsqueeze(1))
            last = (same * (index + 1)).amax(2) - 1
            answer = y.gather(1, (last + 1).clamp_min(0))
            answer_logit = torch.where(last >= 0, _CERTAIN, 0.0)
            logits[:, 1:].scatter_(2, answer.unsqueeze(-1), answer_logit.unsqueeze(-1))
        return Categorical(logits)


class RecallVectorOracle(_RecallOracle):
    """An oracle that predicts the value of the nearest earlier key at positions of values, and 0 at positions of
    keys."""

    family_class, family_name = RecallVectors, "recall-vectors"

    def answer(self, y: Float[Tensor, "B N Dy"]) -> Point:
        mean = torch.zeros_like(y)
        keys, values = y[:, ::2], y[:, 1::2]
        pairs = values.shape[1]
        if pairs > 1:
            distance = torch.cdist(  # without matrix products, which do not give 0 for equal keys
                keys[:, :pairs], keys[:, :pairs], compute_mode="donot_use_mm_for_euclid_dist"
            )
            index = torch.arange(pairs, device=y.device)
            distance = distance.masked_fill(index >= index.unsqueeze(1), torch.inf)
            nearest = distance[:, 1:].argmin(2)
            mean[:, 3::2] = take(values, nearest)
        return Point(mean)
