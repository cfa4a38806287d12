"""Base class of estimators for streams of vectors, whose elements have no inputs.

The base class raises an error on other tasks. Each output dimension is predicted from its own earlier values.
"""

from __future__ import annotations

from typing import TypeVar

from jaxtyping import Float, Int
from torch import Tensor

from iclbench.core.episodes import Points
from iclbench.core.errors import UsageError
from iclbench.core.predictions import Point
from iclbench.core.settings import BaseSettings
from iclbench.estimators.base import Estimator

_Settings = TypeVar("_Settings", bound=BaseSettings)


class VectorStreamEstimator(Estimator[_Settings], abstract=True):
    """A method that predicts the next vector of a stream; for an empty context, it predicts 0."""

    order = "causal"
    reads_streams = True
    needs_inputs = False

    def _predict_prefixes(
        self, points: Points, is_unmasked: bool, lengths: Int[Tensor, "#B P"], queries: Float[Tensor, "B P Q Dx"]
    ) -> Point:
        if self.facts.marks is not None:
            task = "has events"
        elif not points.y.is_floating_point():
            task = "requires class labels"
        elif points.x.shape[-1]:
            task = "has inputs"
        else:
            return super()._predict_prefixes(points, is_unmasked, lengths, queries)
        raise UsageError(f"{type(self).__name__} reads streams of vectors; this task {task}", code="not-applicable")
