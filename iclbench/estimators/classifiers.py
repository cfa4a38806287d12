"""Untrained classifiers that compare the pixels of labelled images.

Each classifier defines a distance and predicts the label of the nearest context point. If several points are equally
near, the first one is used. The predicted label has probability 0.99, and the other labels share the rest equally, so
the cross-entropy of a wrong prediction is finite. For an empty context, all classes are equally likely.
"""

from __future__ import annotations

import math
from abc import abstractmethod

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from iclbench.core.episodes import Points
from iclbench.core.errors import UsageError
from iclbench.core.predictions import Categorical
from iclbench.core.settings import NoSettings
from iclbench.estimators.base import FittedPredictor, move_valid_first, slices

# Probability of the predicted label.
_CONFIDENCE = 0.99


class Classifier(FittedPredictor[NoSettings], abstract=True):
    """A method that predicts the label of the nearest context point."""

    order = "causal"  # ties between points or labels are decided by their order
    heads = ("categorical",)

    @abstractmethod
    def distance(
        self,
        x: Float[Tensor, "B N Dx"],
        y: Int[Tensor, "B N"],
        valid: Bool[Tensor, "B P N"],
        queries: Float[Tensor, "B P Q Dx"],
    ) -> Float[Tensor, "B P #Q N"]:
        """Return the distances from all queries to all context points (or to their classes).

        The distances may depend only on the `valid` points; distances to other points are not used.
        """

    def _predict_prefixes(
        self, points: Points, is_unmasked: bool, lengths: Int[Tensor, "#B P"], queries: Float[Tensor, "B P Q Dx"]
    ) -> Categorical:
        classes = self.facts.classes
        if classes is None or points.y.is_floating_point():
            raise UsageError(
                f"{type(self).__name__} predicts class labels; this task requires numbers", code="not-applicable"
            )
        logits = points.x.new_zeros(*queries.shape[:3], classes)
        if points.count == 0 or logits.numel() == 0:
            return Categorical(logits)
        points = points if is_unmasked else move_valid_first(points)
        dtype = self.dtype or points.x.dtype
        valid = torch.arange(points.count, device=lengths.device) < lengths.unsqueeze(-1)
        valid = valid.expand(len(points), -1, -1)
        log_rest = math.log((1 - _CONFIDENCE) / max(1, classes - 1))
        for chunk in slices(len(points), self.episodes_at_once):
            x, query = points.x[chunk].to(dtype), queries[chunk].to(dtype)
            distances = self.distance(x, points.y[chunk], valid[chunk], query)
            nearest = distances.masked_fill(~valid[chunk].unsqueeze(2), math.inf).argmin(-1).expand(query.shape[:3])
            answer = points.y[chunk].gather(1, nearest.flatten(1)).view(nearest.shape)
            logits[chunk].fill_(log_rest).scatter_(-1, answer.unsqueeze(-1), math.log(_CONFIDENCE))
        return Categorical(logits.masked_fill_((lengths == 0)[..., None, None], 0))


class PixelNearestNeighbour(Classifier):
    """Nearest neighbour by the Euclidean distance between pixels."""

    def distance(
        self,
        x: Float[Tensor, "B N Dx"],
        y: Int[Tensor, "B N"],
        valid: Bool[Tensor, "B P N"],
        queries: Float[Tensor, "B P Q Dx"],
    ) -> Float[Tensor, "B P Q N"]:
        return _distances(queries.flatten(1, 2), x).unflatten(1, queries.shape[1:3])


class NearestClassMean(Classifier):
    """Nearest class mean over context images (Rocchio classifier; prototypical networks without learned features)."""

    def distance(
        self,
        x: Float[Tensor, "B N Dx"],
        y: Int[Tensor, "B N"],
        valid: Bool[Tensor, "B P N"],
        queries: Float[Tensor, "B P Q Dx"],
    ) -> Float[Tensor, "B P Q N"]:
        members = _same_class(y, valid).to(x.dtype)
        means = members @ x.unsqueeze(1) / members.sum(-1, keepdim=True).clamp_min(1)
        return _distances(queries, means)


class Majority(Classifier):
    """The most frequent label in the context, for all queries."""

    def distance(
        self,
        x: Float[Tensor, "B N Dx"],
        y: Int[Tensor, "B N"],
        valid: Bool[Tensor, "B P N"],
        queries: Float[Tensor, "B P Q Dx"],
    ) -> Float[Tensor, "B P 1 N"]:
        return -_same_class(y, valid).sum(-1).to(x.dtype).unsqueeze(2)


def _same_class(y: Int[Tensor, "B N"], valid: Bool[Tensor, "B P N"]) -> Bool[Tensor, "B P N N"]:
    """Return a mask of the valid points with the same label, for each point."""
    return (y.unsqueeze(2) == y.unsqueeze(1)).unsqueeze(1) & valid.unsqueeze(2)


def _distances(a: Float[Tensor, "*batch Q Dx"], b: Float[Tensor, "*batch N Dx"]) -> Float[Tensor, "*batch Q N"]:
    """Return Euclidean distances, computed without matrix products so that distances to equal images are equal."""
    return torch.cdist(a, b, compute_mode="donot_use_mm_for_euclid_dist")
