"""A short causal depthwise convolution over each token and the tokens before it."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from iclbench.layers.depthwise_convolution import depthwise_convolution
from iclbench.layers.mixers.mixer import copy_slice


class Window(nn.Module):
    """A causal convolution of each channel over `taps` tokens, up to and including the token itself. Weights have the
    shape and initialisation of `nn.Conv1d`. With 0 taps, the window is the identity and its state is empty.

    The state is the tail: the K = taps - 1 inputs before the next token.

    Args:
        channels: number of channels E.
        taps: number of taps.
        bias: whether the convolution has a bias.
    """

    def __init__(self, channels: int, taps: int, bias: bool = False) -> None:
        super().__init__()
        self.channels, self.tail_length = channels, max(0, taps - 1)
        self.weight: Tensor | None = None
        self.bias: Tensor | None = None
        if taps:
            convolution = nn.Conv1d(channels, channels, taps, groups=channels, bias=bias)
            self.weight, self.bias = convolution.weight, convolution.bias

    def start(self, batch: int, like: Tensor) -> Float[Tensor, "B K E"]:
        """Return the tail before the first token, which is zero."""
        return like.new_zeros(batch, self.tail_length, self.channels)

    def activate(self, u: Float[Tensor, "B T E"]) -> Float[Tensor, "B T E"]:
        """Apply SiLU if the window has a convolution; otherwise return `u` unchanged."""
        return u if self.weight is None else F.silu(u)

    def forward(
        self, x: Float[Tensor, "B T E"], tail: Float[Tensor, "B K E"]
    ) -> tuple[Float[Tensor, "B T E"], Float[Tensor, "B K E"]]:
        """Return the outputs for a chunk that follows the tail, and the tail after the chunk."""
        padded = self._prepend_tail(x, tail)
        return self._convolve(padded), self._tail(padded, tail)

    def peek(self, x: Float[Tensor, "B Q E"], tail: Float[Tensor, "B K E"]) -> Float[Tensor, "B Q E"]:
        """Return the outputs for tokens, each read as the first token after the tail."""
        return self._convolve_each(x, tail.unsqueeze(1).expand(-1, x.shape[1], -1, -1))

    def fork(
        self, x: Float[Tensor, "B T E"], queries: Float[Tensor, "B N E"], tail: Float[Tensor, "B K E"]
    ) -> tuple[Float[Tensor, "B T E"], Float[Tensor, "B N E"], Float[Tensor, "B K E"]]:
        """Return the outputs for a chunk of pairs, the outputs for queries (one before each pair), and the tail after
        the chunk."""
        padded = self._prepend_tail(x, tail)
        past = padded.unfold(1, self.tail_length, 2)[:, : queries.shape[1]].mT
        return self._convolve(padded), self._convolve_each(queries, past), self._tail(padded, tail)

    def _prepend_tail(self, x: Float[Tensor, "B T E"], tail: Float[Tensor, "B K E"]) -> Float[Tensor, "B KT E"]:
        return torch.cat([tail, x], 1) if self.tail_length else x

    def _tail(self, padded: Float[Tensor, "B KT E"], like: Tensor) -> Float[Tensor, "B K E"]:
        return copy_slice(padded[:, padded.shape[1] - self.tail_length :]).to(like)

    def _convolve_each(self, x: Float[Tensor, "B Q E"], past: Float[Tensor, "B Q K E"]) -> Float[Tensor, "B Q E"]:
        return self._convolve(torch.cat([past, x.unsqueeze(2)], 2).flatten(0, 1)).view_as(x)

    def _convolve(self, padded: Float[Tensor, "B KT E"]) -> Float[Tensor, "B T E"]:
        if self.weight is None:
            return padded
        bias = padded.new_zeros(self.channels) if self.bias is None else self.bias
        return depthwise_convolution(padded, self.weight.squeeze(1), bias)


class TokenShift(Window):
    """A window that replaces each token by the token before it (the token shift of RWKV)."""

    def __init__(self, channels: int) -> None:
        super().__init__(channels, 0)
        self.tail_length = 1

    def _convolve(self, padded: Float[Tensor, "B KT E"]) -> Float[Tensor, "B T E"]:
        return padded[:, :-1]
