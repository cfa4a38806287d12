"""What CoQE keeps of a context, apart from the cache of its task encoder, and how it is composed with a sample."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

from jaxtyping import Float
from torch import Tensor, nn

from iclbench.core.episodes import Points
from iclbench.core.predictor import State


class TaskSpace(nn.Module):
    """Task representations, made of the task encoder's outputs at the labels, and their products with features of
    samples. A memory is a state of its own; it never depends on a query."""

    @abstractmethod
    def start(self, batch: int) -> State:
        """The memory before any point."""

    @abstractmethod
    def after(self, memory: Any, hidden: Float[Tensor, "B N D"], points: Points) -> State:
        """The memory after further points; `hidden` are the outputs at their labels."""

    @abstractmethod
    def answer(self, memory: Any, features: Float[Tensor, "B Q S"]) -> Float[Tensor, "B Q raw"]:
        """Raw outputs for samples that are asked after the points so far."""

    @abstractmethod
    def along(
        self, memory: Any, hidden: Float[Tensor, "B N D"], points: Points, features: Float[Tensor, "B N S"]
    ) -> Float[Tensor, "B N raw"]:
        """Raw outputs for one sample per point, asked before that point; valid points come first."""
