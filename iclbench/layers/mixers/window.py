"""A short causal depthwise convolution of each token and the few tokens before it."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from iclbench.layers.depthwise_convolution import depthwise_convolution
from iclbench.layers.mixers.mixer import compact


class Window(nn.Module):
    """A causal convolution of each channel over `taps` tokens, the last of them the token itself, with weights as
    `nn.Conv1d` has and draws them. Without taps it is the identity, and nothing is kept.

    Args:
        channels: E.
        taps: how many.
        bias: whether there is one.
    """

    def __init__(self, channels: int, taps: int, bias: bool = False) -> None:
        super().__init__()
        self.channels, self.kept = channels, max(0, taps - 1)
        self.weight: Tensor | None = None
        self.bias: Tensor | None = None
        if taps:
            drawn = nn.Conv1d(channels, channels, taps, groups=channels, bias=bias)
            self.weight, self.bias = drawn.weight, drawn.bias

    def start(self, batch: int, like: Tensor) -> Float[Tensor, "B K E"]:
        """The tokens before the first."""
        return like.new_zeros(batch, self.kept, self.channels)

    def activated(self, u: Float[Tensor, "B T E"]) -> Float[Tensor, "B T E"]:
        """Apply the SiLU after a convolution; the identity where there is none."""
        return u if self.weight is None else F.silu(u)

    def forward(
        self, x: Float[Tensor, "B T E"], tail: Float[Tensor, "B K E"]
    ) -> tuple[Float[Tensor, "B T E"], Float[Tensor, "B K E"]]:
        """A chunk after the tail of what came before, and the tail after it."""
        padded = self._padded(x, tail)
        return self._convolved(padded), self._tail(padded, tail)

    def peek(self, x: Float[Tensor, "B Q E"], tail: Float[Tensor, "B K E"]) -> Float[Tensor, "B Q E"]:
        """Tokens that each come next."""
        return self._alone(x, tail.unsqueeze(1).expand(-1, x.shape[1], -1, -1))

    def fork(
        self, x: Float[Tensor, "B T E"], queries: Float[Tensor, "B N E"], tail: Float[Tensor, "B K E"]
    ) -> tuple[Float[Tensor, "B T E"], Float[Tensor, "B N E"], Float[Tensor, "B K E"]]:
        """A chunk of pairs, tokens that each come after the pairs before their own, and the tail after the chunk."""
        padded = self._padded(x, tail)
        behind = padded.unfold(1, self.kept, 2)[:, : queries.shape[1]].mT
        return self._convolved(padded), self._alone(queries, behind), self._tail(padded, tail)

    def _padded(self, x: Float[Tensor, "B T E"], tail: Float[Tensor, "B K E"]) -> Float[Tensor, "B KT E"]:
        return torch.cat([tail, x], 1) if self.kept else x

    def _tail(self, padded: Float[Tensor, "B KT E"], like: Tensor) -> Float[Tensor, "B K E"]:
        return compact(padded[:, padded.shape[1] - self.kept :]).to(like)

    def _alone(self, x: Float[Tensor, "B Q E"], behind: Float[Tensor, "B Q K E"]) -> Float[Tensor, "B Q E"]:
        return self._convolved(torch.cat([behind, x.unsqueeze(2)], 2).flatten(0, 1)).view_as(x)

    def _convolved(self, padded: Float[Tensor, "B KT E"]) -> Float[Tensor, "B T E"]:
        if self.weight is None:
            return padded
        bias = padded.new_zeros(self.channels) if self.bias is None else self.bias
        return depthwise_convolution(padded, self.weight.squeeze(1), bias)


class Shift(Window):
    """The token before each token, as RWKV shifts them."""

    def __init__(self, channels: int) -> None:
        super().__init__(channels, 0)
        self.kept = 1

    def _convolved(self, padded: Float[Tensor, "B KT E"]) -> Float[Tensor, "B T E"]:
        return padded[:, :-1]
