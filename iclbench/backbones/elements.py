"""The elements of a causal sequence: what a model reads, what precedes it, and where predictions are read.

A trunk maps tokens to hidden vectors. All else depends on the elements: how many tokens an element has, the tokens
before the first element, the token at which the prediction of an element is read, and what a state holds.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any, ClassVar, Generic, TypeVar

from jaxtyping import Float
from torch import Tensor, nn

from iclbench.backbones.causal_trunk import CausalTrunk
from iclbench.core.episodes import Points
from iclbench.core.predictor import State
from iclbench.core.task import TaskShape

_ReadIn = TypeVar("_ReadIn", bound=nn.Module)


class Elements(ABC, Generic[_ReadIn]):
    """One kind of element. It has no weights: the read-in is a module of the model, so that the model may replace it.

    Attributes:
        noun: the elements in messages, plural.
        has_inputs: whether elements have an x, for which a query asks.
        read_in_name: the model's attribute for the read-in, and so the prefix of its weights.
    """

    noun: ClassVar[str]
    has_inputs: ClassVar[bool]
    read_in_name: ClassVar[str] = "read_in"

    @abstractmethod
    def make_read_in(self, shape: TaskShape, width: int) -> _ReadIn:
        """A new read-in, which maps elements to tokens."""

    def read_in(self, model: CausalTrunk[Any]) -> _ReadIn:
        """The read-in of a model."""
        module: _ReadIn = getattr(model, self.read_in_name)
        return module

    @abstractmethod
    def outputs(
        self,
        model: CausalTrunk[Any],
        points: Points,
        x_query: Float[Tensor, "B N Dx"] | None,
        related: Points | None,
    ) -> Float[Tensor, "B N raw"]:
        """Raw outputs at every position: the prediction of an element from the elements before it.

        Args:
            model: the trunk, the read-in and the read-out.
            points: the elements; the valid ones come first, and those behind them may be anything.
            x_query: the x to ask about at every position; None: the x of the element itself.
            related: further datasets, which are read first.
        """

    @abstractmethod
    def condition(self, model: CausalTrunk[Any], context: Points, related: Points | None = None) -> State:
        """The state after a context. Masked elements are not read."""

    @abstractmethod
    def update(self, model: CausalTrunk[Any], state: Any, points: Points) -> State:
        """The state after further elements. Masked elements are not read."""

    @abstractmethod
    def peek_layers(
        self, model: CausalTrunk[Any], state: Any, x: Float[Tensor, "B Q Dx"]
    ) -> Iterator[Float[Tensor, " B #Q D"]]:
        """Hidden vectors after each layer, first to last, from which the answers are read; one for all queries where
        elements have no x."""
