"""The interface of mixers. A mixer is the part of a sequence model's layer that mixes tokens: a recurrence, a
convolution or attention."""

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

# The state of a mixer after the tokens so far: tensors with the batch on the first axis. Tensors that grow with the
# number of tokens have the tokens on the second axis, padded on the left with zeros if episodes have unequal lengths.
MixerState = tuple[Tensor, ...]
Mlp = Literal["none", "gelu", "swiglu", "relu2"]
# The sign of the smallest eigenvalue that the transition of a token can have in a delta rule.
Eigenvalues = Literal["positive", "negative"]


@dataclass(frozen=True)
class Sizes:
    """Sizes of a mixer, and its position in the model.

    Attributes:
        width: width D of a token.
        heads: number of heads H, if the mixer has heads.
        inner: total number of channels of the values of all heads; None means a multiple of the width, which depends on
            the mixer.
        state: number of rows K of a head's state, which is the size of the state per channel of the values; None means
            the mixer's default.
        conv: number of taps of the short convolution; 0 means no convolution, and None means the mixer's default.
        rank: rank of low-rank maps; None means the mixer's default.
        eigenvalues: sign of the smallest eigenvalue of a delta rule's transitions; None means the mixer's default.
        householders: number of steps of the delta rule per token, if the mixer has several; None means the mixer's
            default.
        longest: number of tokens of the longest sequence, for mixers that limit the length.
        filter_order: number of units in each hidden layer of the network that computes a filter; None means the mixer's
            default.
        residuals: number of terms added to the residual stream in the model; 0 means one per layer.
        layers: number of layers of the model.
        layer: index of this layer, from 0.
        first: whether this is the first layer with this mixer.
    """

    width: int
    heads: int = 4
    inner: int | None = None
    state: int | None = None
    conv: int | None = None
    rank: int | None = None
    eigenvalues: Eigenvalues | None = None
    householders: int | None = None
    longest: int = 128
    filter_order: int | None = None
    residuals: int = 0
    layers: int = 1
    layer: int = 0
    first: bool = True


class Mixer(nn.Module, ABC):
    """A causal map from tokens to tokens: each output depends on its token and the tokens before it.

    Attributes:
        uses: names of the sizes that the mixer uses, in addition to the width.
        block: in a search over sizes, `inner` is a multiple of this number and of the number of heads.
        head_step: in a search over sizes, the numbers of channels and of state rows of a head are multiples of this
            number.
        default_conv: number of taps of the short convolution in the mixer's paper; 0 means no convolution.
        mlp: default channel MLP of the mixer's blocks, as in its paper or released code (for RetNet, as in
            flash-linear-attention).
        shares_values: whether the first layer with this mixer passes its values to all later layers with this mixer.
        state_grows: whether the state grows with the number of tokens, like the keys and values of attention.
        no_conv_text: text in `block_summary` for a mixer without a short convolution by default.
    """

    uses: ClassVar[frozenset[str]] = frozenset({"heads", "inner", "state", "conv"})
    block: ClassVar[int] = 1
    head_step: ClassVar[int] = 1
    default_conv: ClassVar[int] = 0
    mlp: ClassVar[Mlp] = "swiglu"
    shares_values: ClassVar[bool] = False
    state_grows: ClassVar[bool] = False
    no_conv_text: ClassVar[str] = "no short convolution"

    @classmethod
    def block_summary(cls) -> str:
        """Describe the parts of the mixer's block with default settings."""
        conv = f"a short convolution of {cls.default_conv} taps" if cls.default_conv else cls.no_conv_text
        return f"{conv}, {'no channel MLP' if cls.mlp == 'none' else f'a channel MLP ({cls.mlp})'}"

    @classmethod
    def taps(cls, sizes: Sizes) -> int:
        """Return the number of taps of the short convolution."""
        return cls.default_conv if sizes.conv is None else sizes.conv

    @abstractmethod
    def start(self, batch: int) -> MixerState:
        """Return the state before any token."""

    @abstractmethod
    def forward(
        self, x: Float[Tensor, "B T D"], state: MixerState, mask: Bool[Tensor, "B T"] | None = None
    ) -> tuple[Float[Tensor, "B T _"], MixerState]:
        """Return the outputs for a chunk of tokens after a state, and the state after the chunk. Tokens are invalid
        where the mask is False. Invalid tokens may occur only before the first valid token of an episode, and they do
        not change the episode's start state, not even in the last bit."""

    def full_pass(self, x: Float[Tensor, "B T D"]) -> Float[Tensor, "B T _"]:
        """Return the outputs for a complete sequence, but not the state after it."""
        return self(x, self.start(len(x)))[0]

    @abstractmethod
    def peek(self, x: Float[Tensor, "B Q D"], state: MixerState) -> Float[Tensor, "B Q _"]:
        """Return the outputs for tokens, each read as the first token after the state."""

    @abstractmethod
    def fork(
        self, x: Float[Tensor, "B T D"], queries: Float[Tensor, "B N D"], state: MixerState
    ) -> tuple[Float[Tensor, "B T _"], Float[Tensor, "B N _"], MixerState]:
        """Return the outputs for a chunk of pairs of tokens after a state, the outputs for queries (one before each
        pair), and the state after the chunk. Queries do not change the state."""


def head_channels(sizes: Sizes, multiple: int = 1) -> int:
    """Return the number of channels of a head if all heads together have `multiple` times as many channels as a token.

    Raises:
        UsageError: this number is not an integer.
    """
    if multiple * sizes.width % sizes.heads:
        check_heads(sizes.width, sizes.heads)  # raises, because the width is not a multiple of `heads` either
    return multiple * sizes.width // sizes.heads


def value_channels(sizes: Sizes, default: int) -> int:
    """Return the number of channels of a head's values; `default` if no inner width is set.

    Raises:
        UsageError: the inner width is not a multiple of the number of heads.
    """
    if sizes.inner is None:
        return default
    check_heads(sizes.inner, sizes.heads, "inner")
    return sizes.inner // sizes.heads


def scale_by_depth(linear: nn.Linear, sizes: Sizes) -> nn.Linear:
    """Divide the initial weights of an output layer by the square root of the number of terms in the residual stream,
    as in mamba-ssm, and return the layer."""
    linear.weight.data /= math.sqrt(sizes.residuals or sizes.layers)
    return linear


def split_heads(t: Float[Tensor, "B T HC"], count: int) -> Float[Tensor, "B H T C"]:
    """Split channels into heads."""
    return t.unflatten(-1, (count, -1)).transpose(1, 2)


def join_heads(t: Float[Tensor, "B H T C"]) -> Float[Tensor, "B T HC"]:
    """Concatenate heads."""
    return t.transpose(1, 2).flatten(2)


def unit_vectors(t: Float[Tensor, "*B K"]) -> Float[Tensor, "*B K"]:
    """Scale vectors to length 1; as in flash-linear-attention, 1e-6 is added to the squared length."""
    return t * (t.square().sum(-1, keepdim=True) + 1e-6).rsqrt()


def zero_invalid(x: Float[Tensor, "B T E"], mask: Bool[Tensor, "B T"] | None) -> Float[Tensor, "B T E"]:
    """Set invalid tokens to 0."""
    return x if mask is None else x.masked_fill(~mask.unsqueeze(2), 0.0)


def apply_silu_gate(t: Float[Tensor, "*B C"], gate: Float[Tensor, "*B C"]) -> Float[Tensor, "*B C"]:
    """Multiply by the SiLU of the gate."""
    return t * F.silu(gate)


def full_precision(x: Tensor) -> torch.autocast:
    """Return a context without autocast, because sums over all tokens need full precision."""
    return torch.autocast(x.device.type, enabled=False)


def copy_slice(t: Tensor) -> Tensor:
    """Copy a slice if gradients are disabled, so that a state does not keep the longer tensor in memory."""
    return t if torch.is_grad_enabled() else t.clone()
