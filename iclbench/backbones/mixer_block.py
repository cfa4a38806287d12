"""A layer of a sequence model: a norm and a mixer, a norm and an optional channel MLP, each with a residual
connection."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from iclbench.backbones.recurrent import BlockState, RecurrentBlock
from iclbench.layers.channel_mlp import ChannelMLP
from iclbench.layers.mixers.mixer import Mixer


class MixerBlock(RecurrentBlock):
    """Norm, mixer and residual connection, followed by norm, channel MLP and residual connection.

    After its own channels, a token may have further channels: the values that the first layer with a mixer such as
    RWKV-7 shares with later layers. Other mixers ignore these channels.
    """

    def __init__(self, mixer: Mixer, width: int, norm_name: str, mlp: ChannelMLP | None = None) -> None:
        super().__init__()
        self.width = width
        self.norm, self.mixer = make_norm(norm_name, width), mixer
        self.norm_mlp = None if mlp is None else make_norm(norm_name, width)
        self.mlp = mlp

    @property
    def state_grows(self) -> bool:
        return self.mixer.state_grows

    def forward(self, x: Float[Tensor, "B T _"]) -> Float[Tensor, "B T _"]:
        return self._output(x, self.mixer.full_pass(self._mixer_input(x)))

    def start(self, batch: int) -> BlockState:
        return self.mixer.start(batch)

    def resume(
        self, x: Float[Tensor, "B T _"], state: BlockState, mask: Bool[Tensor, "B T"] | None = None
    ) -> tuple[Float[Tensor, "B T _"], BlockState]:
        mixed, after = self.mixer(self._mixer_input(x), state, mask)
        return self._output(x, mixed), after

    def peek(self, queries: Float[Tensor, "B Q _"], state: BlockState) -> Float[Tensor, "B Q _"]:
        return self._output(queries, self.mixer.peek(self._mixer_input(queries), state))

    def fork(
        self, x: Float[Tensor, "B T _"], queries: Float[Tensor, "B N _"], state: BlockState | None = None
    ) -> tuple[Float[Tensor, "B T _"], Float[Tensor, "B N _"], BlockState | None]:
        before = self.start(len(x)) if state is None else state
        mixed, answers, after = self.mixer.fork(self._mixer_input(x), self._mixer_input(queries), before)
        return self._output(x, mixed), self._output(queries, answers), None if state is None else after

    def _mixer_input(self, x: Tensor) -> Tensor:
        """Return the input of the mixer, which includes the shared values if the mixer uses them."""
        normed = self.norm(residual(self.norm, x[..., : self.width]))
        shared_values = x[..., self.width :]
        return (
            torch.cat([normed, shared_values.to(normed)], -1)
            if self.mixer.shares_values and shared_values.shape[-1]
            else normed
        )

    def _output(self, x: Tensor, mixed: Tensor) -> Tensor:
        """Return the output of the block, followed by the shared values."""
        shared_values = mixed[..., self.width :] if self.mixer.shares_values else x[..., self.width :]
        hidden = residual(self.norm, x[..., : self.width]) + mixed[..., : self.width]
        if self.norm_mlp is not None and self.mlp is not None:
            hidden = hidden + self.mlp(self.norm_mlp(hidden))
        return torch.cat([hidden, shared_values.to(hidden)], -1) if shared_values.shape[-1] else hidden


def make_norm(name: str, width: int) -> nn.Module:
    """Create an RMSNorm (`rms`) or a LayerNorm."""
    return nn.RMSNorm(width, eps=1e-5) if name == "rms" else nn.LayerNorm(width)


def residual(norm: nn.Module, x: Tensor) -> Tensor:
    """Return the residual stream in the precision of the weights, even with autocast."""
    weight = norm.weight
    assert isinstance(weight, torch.Tensor)
    return x.to(weight.dtype)
