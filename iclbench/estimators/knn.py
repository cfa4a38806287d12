"""k nearest neighbours: the mean of the outputs of the min(k, n) nearest context points by Euclidean distance."""

from __future__ import annotations

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor

from iclbench.core.settings import BaseSettings, PositiveInt
from iclbench.estimators.base import Estimator


class NeighbourSettings(BaseSettings):
    """Settings of k nearest neighbours; `k` is the number of neighbours."""

    k: PositiveInt = 3


class NearestNeighbours(Estimator[NeighbourSettings]):
    """k nearest neighbours; as in scikit-learn, exactly min(k, n) points are averaged even if distances are tied."""

    Settings = NeighbourSettings
    order = "causal"  # ties between distances are decided by the order of the points
    episodes_at_once = 32

    def answer(
        self,
        x: Float[Tensor, "B N Dx"],
        y: Float[Tensor, "B N"],
        lengths: Int[Tensor, "#B P"],
        queries: Float[Tensor, "B P Q Dx"],
    ) -> Float[Tensor, "B P Q"]:
        # |q|² is the same for all points, so the ranking needs only |x|² - 2 q·x. The first input is subtracted,
        # because inputs far from 0 would lose digits.
        x, queries = x - x[:, :1], queries - x[:, :1].unsqueeze(1)
        rank = torch.baddbmm(x.square().sum(-1).unsqueeze(1), queries.flatten(1, 2), x.mT, alpha=-2)
        is_outside = torch.arange(x.shape[1], device=x.device) >= lengths.unsqueeze(-1)
        rank.view(len(x), *queries.shape[1:3], -1).masked_fill_(is_outside.unsqueeze(2), math.inf)
        k = self.settings.k
        total = torch.zeros_like(rank[..., 0])
        for count in range(min(k, x.shape[1])):
            # For small k and short rows, k minima are faster than topk.
            nearest = rank.min(-1).indices
            has_neighbour = (count < lengths).repeat_interleave(queries.shape[2], 1)
            total += torch.gather(y, 1, nearest).masked_fill(~has_neighbour, 0)
            rank.scatter_(2, nearest.unsqueeze(-1), math.inf)
        return total.unflatten(1, queries.shape[1:3]) / lengths.clamp_max(k).unsqueeze(-1)
