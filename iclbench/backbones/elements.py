"""The elements of a causal sequence: their tokens, and the tokens at which they are predicted.

A trunk maps tokens to hidden vectors. The type of element determines how many tokens an element has, which tokens come
before the first element, at which token an element is predicted, and what a state holds.
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
    """A type of element. It has no weights: the read-in is a module of the model, so that the model may replace it.

    Attributes:
        noun: plural name of the elements in messages.
        has_inputs: whether elements have an x, which a query specifies.
        read_in_name: the model's attribute for the read-in, which is also the prefix of its weights.
    """

    noun: ClassVar[str]
    has_inputs: ClassVar[bool]
    read_in_name: ClassVar[str] = "read_in"

    def pairs_of_positions(self, elements: int) -> int:
        """Return half the number of rows of the table of learned positions for a sequence of this many elements. The
        table for events is as large as that for pairs, and half of it is not used."""
        return elements

    @abstractmethod
    def make_read_in(self, shape: TaskShape, width: int) -> _ReadIn:
        """Create a read-in, which maps elements to tokens."""

    def read_in(self, model: CausalTrunk[Any]) -> _ReadIn:
        """Return the read-in of a model."""
        module: _ReadIn = getattr(model, self.read_in_name)
        return module

    @abstractmethod
    def outputs(
        self,
        model: CausalTrunk[Any],
        points: Points,
        x_query: Float[Tensor, "B N Dx"] | None,
        related: Points | None,
    ) -> Float[Tensor, "B N *window raw"]:
        """Return the raw outputs at every position, which predict an element from the elements before it.

        Args:
            model: the trunk, the read-in and the read-out.
            points: the elements, valid ones first; the values of invalid ones have no effect.
            x_query: the x of the query at every position; None means the x of the element.
            related: related datasets, which are read first.
        """

    @abstractmethod
    def condition(self, model: CausalTrunk[Any], context: Points, related: Points | None = None) -> State:
        """Return the state after a context. Masked elements are not read."""

    @abstractmethod
    def update(self, model: CausalTrunk[Any], state: Any, points: Points) -> State:
        """Return the state after further elements. Masked elements are not read."""

    @abstractmethod
    def peek_layers(
        self, model: CausalTrunk[Any], state: Any, x: Float[Tensor, "B Q Dx"]
    ) -> Iterator[Float[Tensor, " B #Q D"]]:
        """Yield the hidden vectors of the queries after each layer, first to last. If elements have no x, all queries
        share one vector."""
