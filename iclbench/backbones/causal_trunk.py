"""The trunk of a causal sequence model: it maps tokens to hidden vectors, and can continue from a state."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from typing import Any, ClassVar, Literal, TypeVar

from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from iclbench.backbones.base import Backbone
from iclbench.core.predictor import State
from iclbench.core.settings import BaseSettings
from iclbench.layers.causal_transformer import INPUT_TOKENS
from iclbench.layers.loops import Looped
from iclbench.layers.prompt import DatasetMarkers

_Settings = TypeVar("_Settings", bound=BaseSettings)


class CausalTrunk(Looped, Backbone[_Settings], abstract=True):
    """The methods that a causal sequence model implements.

    A trunk with loops returns hidden vectors as described in `Looped`.

    Attributes:
        padding: position of masked tokens in `absorb`: after ("right") or before ("left") all valid tokens.
        read_out: linear layer from hidden vectors to raw outputs.
        marks: learned markers of related datasets; None on tasks without related datasets.
    """

    padding: ClassVar[Literal["left", "right"]]
    read_out: nn.Linear
    marks: DatasetMarkers | None

    @abstractmethod
    def trunk(self, tokens: Float[Tensor, "B T D"], read: slice = INPUT_TOKENS) -> Float[Tensor, "B N *window D"]:
        """Return the hidden vectors at the tokens `read` (by default, the inputs of pairs) of a complete sequence, in
        one pass."""

    @abstractmethod
    def fork(
        self, tokens: Float[Tensor, "B T D"], queries: Float[Tensor, "B N D"], state: Any = None
    ) -> tuple[Float[Tensor, "B N *window D"], State | None]:
        """Return the hidden vectors of queries (one before each pair), and the state after all pairs. A query reads the
        state and the pairs before it, and does not change them. Without a state, the pairs are a complete sequence, and
        None is returned instead of the state after them."""

    @abstractmethod
    def start(self, batch: int) -> State:
        """Return the state before any token."""

    @abstractmethod
    def advance(
        self, state: Any, tokens: Float[Tensor, "B T D"], read: slice = INPUT_TOKENS
    ) -> tuple[Float[Tensor, "B N *window D"], State]:
        """Return the hidden vectors at the tokens `read` of a further segment without gaps, and the state after the
        segment."""

    @abstractmethod
    def absorb(
        self,
        state: Any,
        tokens: Float[Tensor, "B T D"],
        mask: Bool[Tensor, "B T"] | None = None,
        roles: Int[Tensor, "B N"] | None = None,
    ) -> State:
        """Return the state after a further segment of a prompt.

        Args:
            state: the state so far.
            tokens: the segment.
            mask: valid tokens, with invalid ones on the side of `padding`; None means all.
            roles: roles of the segment's points in the prompt, for positions that restart.
        """

    @abstractmethod
    def resume(self, state: Any, tokens: Float[Tensor, "B T D"], mask: Bool[Tensor, "B T"]) -> State:
        """Return the state after further tokens. The tokens in the mask are valid; unlike in `absorb`, invalid tokens
        may be anywhere."""

    @abstractmethod
    def peek_layers(self, state: Any, queries: Float[Tensor, "B Q D"]) -> Iterator[Float[Tensor, "B Q D"]]:
        """Yield the hidden vectors of queries after each layer (with loops, after each iteration), first to last. Each
        query is read as the first token after the state."""

    @abstractmethod
    def finish(self, hidden: Float[Tensor, "B Q D"]) -> Float[Tensor, "B Q D"]:
        """Apply the layer between the last block and the read-out: the final norm, if the model has one."""
