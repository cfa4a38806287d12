"""Recurrent sequence models: stacks of blocks that continue from a state.

A block maps tokens to tokens, and can continue from a state with a chunk of any length; a step is a chunk of length 1.
A query is read as the first token after a state, and does not change the state.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, repeat
from typing import TypeVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from iclbench.backbones.base import BackboneSettings
from iclbench.backbones.sequence import SequenceBackbone
from iclbench.core.episodes import take, valid_first
from iclbench.core.predictor import State
from iclbench.core.settings import BaseSettings, PositiveInt
from iclbench.core.task import TaskShape
from iclbench.layers.causal_transformer import INPUT_TOKENS

BlockState = tuple[Tensor, ...]


class RecurrentSettings(BackboneSettings):
    """Settings of recurrent models whose state can have a given size."""

    state_budget: PositiveInt | None = None
    """Number of float32 values in the state of an episode. If it is set, the search for the parameters of the preset
    also chooses heads and state (heads and width, for a model without the setting state), so that this number is met
    within 10 %. The stored last token of a stream, as many numbers as the width, is not part of this number."""


@dataclass(frozen=True)
class RecurrentState(State):
    """The states of the blocks, with the batch on the first axis."""

    layers: tuple[BlockState, ...]


def concatenate_states(states: Sequence[RecurrentState]) -> RecurrentState:
    """Concatenate states along the batch. Tensors that grow with the number of tokens are padded on the left to equal
    lengths."""

    def join(tensors: Sequence[Tensor]) -> Tensor:
        if len({t.shape[1:] for t in tensors}) > 1:
            longest = max(t.shape[1] for t in tensors)
            tensors = [torch.cat([t.new_zeros(len(t), longest - t.shape[1], *t.shape[2:]), t], 1) for t in tensors]
        return torch.cat(list(tensors))

    layers = zip(*(state.layers for state in states), strict=True)
    return RecurrentState(tuple(tuple(map(join, zip(*blocks, strict=True))) for blocks in layers))


class RecurrentBlock(nn.Module, ABC):
    """One layer of a recurrent sequence model, including its residual connection and norm.

    Attributes:
        state_grows: whether the state grows with the number of tokens.
    """

    @property
    def state_grows(self) -> bool:
        return False

    @abstractmethod
    def forward(self, x: Float[Tensor, "B T D"]) -> Float[Tensor, "B T D"]:
        """Return the outputs for a complete sequence."""

    @abstractmethod
    def start(self, batch: int) -> BlockState:
        """Return the state before any token."""

    @abstractmethod
    def resume(
        self, x: Float[Tensor, "B T D"], state: BlockState, mask: Bool[Tensor, "B T"] | None = None
    ) -> tuple[Float[Tensor, "B T D"], BlockState]:
        """Return the outputs for a further chunk of at least one token, and the state after the chunk.

        Tokens are invalid where the mask is False. Invalid tokens may occur only before the first valid token of an
        episode, and they do not change the episode's start state, not even in the last bit.
        """

    @abstractmethod
    def peek(self, queries: Float[Tensor, "B Q D"], state: BlockState) -> Float[Tensor, "B Q D"]:
        """Return the outputs for queries, each read as the first token after the state."""

    @abstractmethod
    def fork(
        self, x: Float[Tensor, "B T D"], queries: Float[Tensor, "B N D"], state: BlockState | None = None
    ) -> tuple[Float[Tensor, "B T D"], Float[Tensor, "B N D"], BlockState | None]:
        """Return the outputs for a further chunk of pairs, the outputs for queries (one before each pair), and the
        state after the chunk. Without a state, the chunk is a complete sequence, and None is returned instead of the
        state after it."""


_Settings = TypeVar("_Settings", bound=BaseSettings)


class RecurrentBackbone(SequenceBackbone[_Settings], abstract=True):
    """A stack of recurrent blocks.

    With `loops` above 1, every iteration has a separate state.
    In a pass over episodes of unequal length, episodes are padded on the left, where padding does not change the start
    state.

    Args:
        settings: settings of the subclass.
        shape: the task.
        width: width D of a token.
        blocks: the layers, first to last.
    """

    padding = "left"

    def __init__(self, settings: _Settings, shape: TaskShape, width: int, blocks: Iterable[RecurrentBlock]) -> None:
        super().__init__(settings, shape, width)
        self.layers = nn.ModuleList(blocks)

    @property
    def state_size(self) -> int | None:
        return None if any(block.state_grows for block in self._blocks()) else self.start(1).nbytes // 4

    def trunk(self, tokens: Float[Tensor, "B T D"], read: slice = INPUT_TOKENS) -> Float[Tensor, "B N *window D"]:
        def outputs() -> Iterator[Tensor]:
            hidden = tokens
            for layer, block in enumerate(self._blocks()):
                hidden = block(self.block_input(layer, len(self.layers), hidden, tokens))
                if self._ends_iteration(layer):
                    yield hidden[:, read]

        return self.read_hidden(outputs())

    def fork(
        self, tokens: Float[Tensor, "B T D"], queries: Float[Tensor, "B N D"], state: RecurrentState | None = None
    ) -> tuple[Float[Tensor, "B N *window D"], RecurrentState | None]:
        before: Iterable[BlockState | None] = repeat(None) if state is None else state.layers
        after = []

        def outputs() -> Iterator[Tensor]:
            hidden, answers = tokens, queries
            for layer, (block, block_state) in enumerate(zip(self._blocks(), before, strict=False)):
                hidden = self.block_input(layer, len(self.layers), hidden, tokens)
                answers = self.block_input(layer, len(self.layers), answers, queries)
                hidden, answers, new_state = block.fork(hidden, answers, block_state)
                if new_state is not None:
                    after.append(new_state)
                if self._ends_iteration(layer):
                    yield answers

        return self.read_hidden(outputs()), None if state is None else RecurrentState(tuple(after))

    def start(self, batch: int) -> RecurrentState:
        return RecurrentState(tuple(block.start(batch) for block in self._blocks()))

    def advance(
        self, state: RecurrentState, tokens: Float[Tensor, "B T D"], read: slice = INPUT_TOKENS
    ) -> tuple[Float[Tensor, "B N *window D"], RecurrentState]:
        after: list[BlockState] = []
        hidden = self.read_hidden(hidden[:, read] for hidden in self._continue(state, tokens, after))
        return hidden, RecurrentState(tuple(after))

    def absorb(
        self,
        state: RecurrentState,
        tokens: Float[Tensor, "B T D"],
        mask: Bool[Tensor, "B T"] | None = None,
        roles: Int[Tensor, "B N"] | None = None,
    ) -> RecurrentState:
        after: list[BlockState] = []
        for _ in self._continue(state, tokens, after, mask):
            pass
        return RecurrentState(tuple(after))

    def _continue(
        self,
        state: RecurrentState,
        tokens: Float[Tensor, "B T D"],
        after: list[BlockState],
        mask: Bool[Tensor, "B T"] | None = None,
    ) -> Iterator[Float[Tensor, "B T _"]]:
        """Yield the outputs for further tokens after each iteration, and append the states of the blocks after these
        tokens to `after`."""
        hidden = tokens
        for layer, (block, block_state) in enumerate(zip(self._blocks(), state.layers, strict=True)):
            hidden, new_state = block.resume(
                self.block_input(layer, len(self.layers), hidden, tokens), block_state, mask
            )
            after.append(new_state)
            if self._ends_iteration(layer):
                yield hidden

    def resume(
        self, state: RecurrentState, tokens: Float[Tensor, "B T D"], mask: Bool[Tensor, "B T"]
    ) -> RecurrentState:
        """Return the state after further tokens. Episodes with the same number of new tokens are processed as a group,
        without padding."""
        order = valid_first(mask)
        counts = mask.sum(1)
        groups = [torch.nonzero(counts == count).squeeze(1) for count in counts.unique()]
        if len(groups) == 1:
            return self._resume(state, tokens, order, int(counts[0]))
        states = [self._resume(state[rows], tokens[rows], order[rows], int(counts[rows[0]])) for rows in groups]
        return concatenate_states(states)[torch.argsort(torch.cat(groups))]

    def _resume(self, state: RecurrentState, tokens: Tensor, order: Tensor, count: int) -> RecurrentState:
        """Return the state after the first `count` tokens in this order, for all episodes."""
        if count == 0:
            return state
        return self.absorb(state, take(tokens, order[:, :count]))

    def peek_layers(self, state: RecurrentState, queries: Float[Tensor, "B Q D"]) -> Iterator[Float[Tensor, "B Q D"]]:
        hidden = queries
        for layer, (block, block_state) in enumerate(zip(self._blocks(), state.layers, strict=True)):
            hidden = block.peek(self.block_input(layer, len(self.layers), hidden, queries), block_state)
            if self.loops == 1 or self._ends_iteration(layer):
                yield hidden

    def _blocks(self) -> Iterator[RecurrentBlock]:
        """Yield the layers of all iterations, with their static type."""
        for block in chain.from_iterable(repeat(self.layers, self.loops)):
            assert isinstance(block, RecurrentBlock)
            yield block

    def _ends_iteration(self, layer: int) -> bool:
        """Return whether a layer, counted over all iterations, is the last one of an iteration."""
        return (layer + 1) % len(self.layers) == 0
