"""What mixes tokens in a layer of a sequence model: one contract for recurrences, convolutions and attention."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from iclbench.layers.attention import check_heads

# What a mixer keeps of the tokens so far, batch first. What grows with them has them on its second axis, and is padded
# on the left, with zeros, where episodes of unequal length go together.
MixerState = tuple[Tensor, ...]
Mlp = Literal["none", "gelu", "swiglu", "relu2"]


@dataclass(frozen=True)
class Sizes:
    """How big a mixer is, and which layer it is of.

    Attributes:
        width: D of a token.
        heads: H of them, where it has heads.
        inner: channels of the values of all heads together; None: the mixer's own multiple of the width.
        state: rows K of the state of a head, which are the numbers kept per channel of values; None: the mixer's own.
        conv: taps of the short convolution; 0: none; None: the mixer's own.
        rank: of low-rank maps; None: the mixer's own.
        longest: tokens of the longest sequence, where that is bounded.
        residuals: what is added to the residual stream in the whole model; 0: once per layer.
        layers: of the model ...
        layer: ... and which of them this is, from 0.
        first: whether it is the first of its kind.
    """

    width: int
    heads: int = 4
    inner: int | None = None
    state: int | None = None
    conv: int | None = None
    rank: int | None = None
    longest: int = 128
    residuals: int = 0
    layers: int = 1
    layer: int = 0
    first: bool = True


class Mixer(nn.Module, ABC):
    """Tokens to tokens, each from those before it and itself.

    Attributes:
        uses: the sizes, besides the width, that it has a use for.
        block: what `inner` is a multiple of, besides the heads, where it is searched.
        head_step: what the channels of a head of the width are a multiple of, where the width is searched.
        default_conv: taps of the convolution that its paper has; 0: none.
        mlp: the channel MLP of its blocks by default: after its paper or its released code, for RetNet after
            flash-linear-attention.
        hands_on: whether it hands the values of the first such layer to all further ones.
        unconvolved: what is said to be in the place of its paper's convolution, where that has none.
    """

    uses: ClassVar[frozenset[str]] = frozenset({"heads", "inner", "state", "conv"})
    block: ClassVar[int] = 1
    head_step: ClassVar[int] = 1
    default_conv: ClassVar[int] = 0
    mlp: ClassVar[Mlp] = "swiglu"
    hands_on: ClassVar[bool] = False
    unconvolved: ClassVar[str] = "no short convolution"

    @classmethod
    def block_said(cls) -> str:
        """What its block has where no setting says otherwise."""
        conv = f"a short convolution of {cls.default_conv} taps" if cls.default_conv else cls.unconvolved
        return f"{conv}, {'no channel MLP' if cls.mlp == 'none' else f'a channel MLP ({cls.mlp})'}"

    @classmethod
    def taps(cls, sizes: Sizes) -> int:
        """Taps of the short convolution."""
        return cls.default_conv if sizes.conv is None else sizes.conv

    @abstractmethod
    def start(self, batch: int) -> MixerState:
        """The state before any token."""

    @abstractmethod
    def forward(
        self, x: Float[Tensor, "B T D"], state: MixerState, mask: Bool[Tensor, "B T"] | None = None
    ) -> tuple[Float[Tensor, "B T _"], MixerState]:
        """A chunk of tokens after a state, and the state after it. Where the mask is False there is no token; this may
        only be before an episode's first one, and leaves the start state as it is, exactly."""

    def full_pass(self, x: Float[Tensor, "B T D"]) -> Float[Tensor, "B T _"]:
        """A whole sequence, after which nothing is kept."""
        return self(x, self.start(len(x)))[0]

    @abstractmethod
    def peek(self, x: Float[Tensor, "B Q D"], state: MixerState) -> Float[Tensor, "B Q _"]:
        """Tokens that each come next after the state, on their own."""

    @abstractmethod
    def fork(
        self, x: Float[Tensor, "B T D"], queries: Float[Tensor, "B N D"], state: MixerState
    ) -> tuple[Float[Tensor, "B T _"], Float[Tensor, "B N _"], MixerState]:
        """A chunk of pairs of tokens after a state, tokens that each come after the state and the pairs before their
        own and leave no trace, and the state after the chunk."""


def divided(sizes: Sizes, times: int = 1) -> int:
    """Channels of a head of so many times the width; raises `UsageError` unless they are a whole number."""
    if times * sizes.width % sizes.heads:
        check_heads(sizes.width, sizes.heads)  # then the width itself does not divide either
    return times * sizes.width // sizes.heads


def values(sizes: Sizes, compact: int) -> int:
    """Channels of a head's values, `compact` where no inner width is set; raises `UsageError` unless it divides."""
    if sizes.inner is None:
        return compact
    check_heads(sizes.inner, sizes.heads, "inner")
    return sizes.inner // sizes.heads


def shrunk(linear: nn.Linear, sizes: Sizes) -> nn.Linear:
    """A layer whose outputs go into the residual stream, smaller where many do: by the root of their number, as
    mamba-ssm has it."""
    linear.weight.data /= math.sqrt(sizes.residuals or sizes.layers)
    return linear


def heads(t: Float[Tensor, "B T HC"], count: int) -> Float[Tensor, "B H T C"]:
    """Channels by head."""
    return t.unflatten(-1, (count, -1)).transpose(1, 2)


def joined(t: Float[Tensor, "B H T C"]) -> Float[Tensor, "B T HC"]:
    """Heads side by side again."""
    return t.transpose(1, 2).flatten(2)


def unit(t: Float[Tensor, "*B K"]) -> Float[Tensor, "*B K"]:
    """Vectors of length 1; as in flash-linear-attention, 1e-6 under the root."""
    return t * (t.square().sum(-1, keepdim=True) + 1e-6).rsqrt()


def silenced(x: Float[Tensor, "B T E"], mask: Bool[Tensor, "B T"] | None) -> Float[Tensor, "B T E"]:
    """The tokens, with 0 where there is no token."""
    return x if mask is None else x.masked_fill(~mask.unsqueeze(2), 0.0)


def gated(t: Float[Tensor, "*B C"], gate: Float[Tensor, "*B C"]) -> Float[Tensor, "*B C"]:
    """Product with the gate's SiLU."""
    return t * F.silu(gate)


def in_full(x: Tensor) -> torch.autocast:
    """A context without autocast: sums over all tokens are not for half precision."""
    return torch.autocast(x.device.type, enabled=False)


def compact(t: Tensor) -> Tensor:
    """A part of a longer tensor as a copy, so that a state does not hold the longer tensor."""
    return t if torch.is_grad_enabled() else t.clone()
