"""The interface of CoQE's task representations."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

from jaxtyping import Float
from torch import Tensor, nn

from iclbench.core.episodes import Points
from iclbench.core.predictor import State


class TaskSpace(nn.Module):
    """Task representations, and their products with the representations of queries.

    A memory holds the task representation after the points so far, which is computed from the task encoder's outputs at
    the labels. It does not depend on queries. A state of CoQE holds the memory and the task encoder's cache.
    """

    @abstractmethod
    def start(self, batch: int) -> State:
        """Return the memory before any point."""

    @abstractmethod
    def extend(self, memory: Any, hidden: Float[Tensor, "B N D"], points: Points) -> State:
        """Return the memory after further points; `hidden` holds the task encoder's outputs at their labels."""

    @abstractmethod
    def answer(self, memory: Any, features: Float[Tensor, "B Q S"]) -> Float[Tensor, "B Q raw"]:
        """Return the raw outputs for queries with these features, after the points so far."""

    @abstractmethod
    def answer_prefixes(
        self, memory: Any, hidden: Float[Tensor, "B N D"], points: Points, features: Float[Tensor, "B N S"]
    ) -> Float[Tensor, "B N raw"]:
        """Return the raw outputs for one query before each point. Valid points must come first."""
