"""Averaging (Garg et al. 2022): w is the mean of y_j x_j, the result of one step of gradient descent from w = 0."""

from __future__ import annotations

from jaxtyping import Float, Int
from torch import Tensor

from iclbench.core.settings import NoSettings
from iclbench.estimators.base import Estimator, select_lengths


class Averaging(Estimator[NoSettings]):
    """Linear predictions with the mean of y_j x_j, which is an unbiased estimate of the weights if x ~ N(0, I)."""

    dtype = None  # a mean does not need a higher precision than the points

    def answer(
        self,
        x: Float[Tensor, "B N Dx"],
        y: Float[Tensor, "B N"],
        lengths: Int[Tensor, "#B P"],
        queries: Float[Tensor, "B P Q Dx"],
    ) -> Float[Tensor, "B P Q"]:
        sums = select_lengths((x * y.unsqueeze(-1)).cumsum(1), lengths)
        return (sums.unsqueeze(2) * queries).sum(-1) / lengths.unsqueeze(2)
