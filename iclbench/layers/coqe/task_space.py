"""CoQE's representation of a task, and its products with samples. A state holds it with the task encoder's cache."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

from jaxtyping import Float
from torch import Tensor, nn

from iclbench.core.episodes import Points
from iclbench.core.predictor import State


class TaskSpace(nn.Module):
    """Task representations from the task encoder's outputs at the labels, and their products with features of samples.
    A memory is a state; it does not depend on queries."""

    @abstractmethod
    def start(self, batch: int) -> State:
        """The memory before any point."""

    @abstractmethod
    def extend(self, memory: Any, hidden: Float[Tensor, "B N D"], points: Points) -> State:
        """The memory after further points; `hidden` are the outputs at their labels."""

    @abstractmethod
    def answer(self, memory: Any, features: Float[Tensor, "B Q S"]) -> Float[Tensor, "B Q raw"]:
        """Raw outputs for queries after the points so far."""

    @abstractmethod
    def answer_prefixes(
        self, memory: Any, hidden: Float[Tensor, "B N D"], points: Points, features: Float[Tensor, "B N S"]
    ) -> Float[Tensor, "B N raw"]:
        """Raw outputs for one query before each point; valid points are first."""
