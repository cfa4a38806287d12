"""The few tokens before each token, and what a short causal depthwise convolution makes of them."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn

from iclbench.layers.depthwise_convolution import depthwise_convolution
from iclbench.layers.mixers.mixer import own


class Window(nn.Module):
    """A causal convolution of each channel over `taps` tokens, the last of them the token itself. Without taps it is
    the identity, and nothing is kept.

    Args:
        channels: E.
        taps: 0, or at least 2.
        bias: whether there is one.
    """

    def __init__(self, channels: int, taps: int, bias: bool = False) -> None:
        super().__init__()
        self.channels, self.kept = channels, max(0, taps - 1)
        self.conv1d = nn.Conv1d(channels, channels, taps, groups=channels, bias=bias) if taps else None

    def start(self, batch: int, like: Tensor) -> Float[Tensor, "B K E"]:
        """The tokens before the first."""
        return like.new_zeros(batch, self.kept, self.channels)

    def forward(
        self, x: Float[Tensor, "B T E"], tail: Float[Tensor, "B K E"]
    ) -> tuple[Float[Tensor, "B T E"], Float[Tensor, "B K E"]]:
        """A chunk after the tail of what came before, and the tail after it."""
        if self.conv1d is None:
            return x, tail
        padded = torch.cat([tail.to(x), x], 1)
        return self._convolve(padded), own(padded[:, padded.shape[1] - self.kept :]).to(tail)

    def peek(self, x: Float[Tensor, "B Q E"], tail: Float[Tensor, "B K E"]) -> Float[Tensor, "B Q E"]:
        """Tokens that each come next."""
        if self.conv1d is None:
            return x
        return self._alone(x, tail.to(x).unsqueeze(1).expand(-1, x.shape[1], -1, -1))

    def fork(
        self, x: Float[Tensor, "B T E"], queries: Float[Tensor, "B N E"], tail: Float[Tensor, "B K E"]
    ) -> Float[Tensor, "B N E"]:
        """Tokens that each come after the pairs of x before their own."""
        if self.conv1d is None:
            return queries
        padded = torch.cat([tail.to(x), x], 1)
        return self._alone(queries, padded.unfold(1, self.kept, 2)[:, : queries.shape[1]].mT)

    def _alone(self, x: Float[Tensor, "B Q E"], before: Float[Tensor, "B Q K E"]) -> Float[Tensor, "B Q E"]:
        return self._convolve(torch.cat([before, x.unsqueeze(2)], 2).flatten(0, 1)).view_as(x)

    def _convolve(self, padded: Float[Tensor, "B KT E"]) -> Float[Tensor, "B T E"]:
        assert self.conv1d is not None
        bias = padded.new_zeros(self.channels) if self.conv1d.bias is None else self.conv1d.bias
        return depthwise_convolution(padded, self.conv1d.weight.squeeze(1), bias)


class Shift(Window):
    """The token before each token, as RWKV shifts them."""

    def __init__(self, channels: int) -> None:
        super().__init__(channels, 0)
        self.kept = 1

    def forward(
        self, x: Float[Tensor, "B T E"], tail: Float[Tensor, "B K E"]
    ) -> tuple[Float[Tensor, "B T E"], Float[Tensor, "B K E"]]:
        padded = torch.cat([tail.to(x), x], 1)
        return padded[:, :-1], own(padded[:, -1:]).to(tail)

    def peek(self, x: Float[Tensor, "B Q E"], tail: Float[Tensor, "B K E"]) -> Float[Tensor, "B Q E"]:
        return tail.to(x).expand_as(x)

    def fork(
        self, x: Float[Tensor, "B T E"], queries: Float[Tensor, "B N E"], tail: Float[Tensor, "B K E"]
    ) -> Float[Tensor, "B N E"]:
        return torch.cat([tail.to(x), x[:, 1:-1:2]], 1)
