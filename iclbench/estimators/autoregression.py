"""Autoregression: ridge regression of each element of a stream on earlier elements, by recursive least squares."""

from __future__ import annotations

from typing import Annotated

import torch.nn.functional as F
from jaxtyping import Float, Int
from pydantic import Field
from torch import Tensor

from iclbench.core.settings import BaseSettings, PositiveFloat
from iclbench.core.task import TaskFacts
from iclbench.estimators.base import select_lengths
from iclbench.estimators.ridge import Ridge, RidgeSettings
from iclbench.estimators.vector_stream import VectorStreamEstimator


class AutoregressionSettings(BaseSettings):
    """Settings of autoregression.

    Attributes:
        order: number p of earlier elements that a prediction uses; elements before the start of the stream count as 0.
        penalty: lambda in |y - Xw|² + lambda |w|², where row n of X contains the p elements before element n.
    """

    order: Annotated[int, Field(gt=0, le=1000)] = 2
    penalty: PositiveFloat = 0.3


class Autoregression(VectorStreamEstimator[AutoregressionSettings]):
    """Autoregression without intercept, refitted after each element."""

    Settings = AutoregressionSettings

    def __init__(
        self, settings: AutoregressionSettings | None = None, facts: TaskFacts | None = None, seed: int = 0
    ) -> None:
        super().__init__(settings, facts, seed)
        self.ridge = Ridge(RidgeSettings(penalty=self.settings.penalty))

    def answer(
        self,
        x: Float[Tensor, "B N 0"],
        y: Float[Tensor, "B N"],
        lengths: Int[Tensor, "#B P"],
        queries: Float[Tensor, "B P Q 0"],
    ) -> Float[Tensor, "B P Q"]:
        rows = self._earlier_elements(y)
        coefficients = self.ridge.weights(rows[:, :-1], y)
        # Row n contains the elements before element n, so it is the query after n elements.
        predictions = (coefficients * rows[:, 1:]).sum(-1)
        return select_lengths(predictions, lengths).unsqueeze(2).expand(queries.shape[:3])

    def _earlier_elements(self, y: Float[Tensor, "B N"]) -> Float[Tensor, "B N_and_1 p"]:
        """Return the p elements before element n, for each n from 0 to N."""
        order = self.settings.order
        return F.pad(y, (order, 0)).unfold(1, order, 1)
