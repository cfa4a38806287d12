"""Persistence: the last element of a stream is the prediction of the next element."""

from __future__ import annotations

from jaxtyping import Float, Int
from torch import Tensor

from iclbench.core.settings import NoSettings
from iclbench.estimators.base import select_lengths
from iclbench.estimators.vector_stream import VectorStreamEstimator


class LastValue(VectorStreamEstimator[NoSettings]):
    """The last element as the prediction, which is optimal for a random walk without observation noise."""

    dtype = None  # nothing is computed

    def answer(
        self,
        x: Float[Tensor, "B N 0"],
        y: Float[Tensor, "B N"],
        lengths: Int[Tensor, "#B P"],
        queries: Float[Tensor, "B P Q 0"],
    ) -> Float[Tensor, "B P Q"]:
        return select_lengths(y, lengths).unsqueeze(2).expand(queries.shape[:3])
