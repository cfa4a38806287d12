"""Two trivial baselines for learning curves: the constant 0, and the mean of the outputs so far."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from iclbench.core.settings import NoSettings
from iclbench.estimators.base import Estimator, select_lengths


class Zero(Estimator[NoSettings]):
    """The prediction 0 for all queries. Its expected normalised squared error is 1 on families without noise."""

    dtype = None
    needs_inputs = False

    def answer(
        self,
        x: Float[Tensor, "B N Dx"],
        y: Float[Tensor, "B N"],
        lengths: Int[Tensor, "#B P"],
        queries: Float[Tensor, "B P Q Dx"],
    ) -> Float[Tensor, "B P Q"]:
        return queries.new_zeros(queries.shape[:3])


class Mean(Estimator[NoSettings]):
    """The mean of the outputs so far, for all queries."""

    needs_inputs = False

    def answer(
        self,
        x: Float[Tensor, "B N Dx"],
        y: Float[Tensor, "B N"],
        lengths: Int[Tensor, "#B P"],
        queries: Float[Tensor, "B P Q Dx"],
    ) -> Float[Tensor, "B P Q"]:
        means = y.cumsum(1) / torch.arange(1, y.shape[1] + 1, device=y.device)
        return select_lengths(means, lengths).unsqueeze(2).expand(queries.shape[:3])
