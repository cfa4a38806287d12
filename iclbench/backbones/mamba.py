"""Mamba (Gu and Dao 2023): a gated recurrence whose step size, input and output vectors depend on the token.

The sizes are those of Grazzi et al. 2024, appendix A.1.1: 24 blocks of width 256. Names, layout and initialisation of
the parameters are those of mamba-ssm's `MixerModel`, so that weights can be exchanged with it and with
`transformers.MambaModel`; the forward path is our own, `(batch, tokens, channels)` throughout. Read-in and read-out are
linear, without positions and without an embedding table.
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from iclbench.backbones.base import BackboneSettings
from iclbench.backbones.recurrent import BlockState, RecurrentBackbone, RecurrentBlock
from iclbench.config.cards import PositiveInt
from iclbench.core.task import TaskShape
from iclbench.layers.mixers import mamba
from iclbench.layers.mixers.mixer import Sizes
from iclbench.layers.scan.scan import Backend, chosen

_EPS = 1e-5


class MambaSettings(BackboneSettings):
    """Mamba's own names for the sizes: d_state, d_conv, expand, dt_rank."""

    layers: PositiveInt = 24
    """Mamba blocks."""
    width: PositiveInt = 256
    """Width D of a token."""
    state: PositiveInt = 16
    """Numbers of recurrent state per channel (d_state)."""
    conv: PositiveInt = 4
    """Taps of the causal convolution (d_conv)."""
    expand: PositiveInt = 2
    """Inner width over width."""
    dt_rank: PositiveInt | None = None
    """Rank of the map to the step sizes dt; by default width / 16, rounded up."""
    scan: Backend = "auto"
    """What computes the recurrence; auto: the fastest that the device has."""


class MambaBlock(RecurrentBlock):
    """Norm, mixer, residual."""

    def __init__(self, settings: MambaSettings) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(settings.width, eps=_EPS)
        sizes = Sizes(
            settings.width, state=settings.state, conv=settings.conv, rank=settings.dt_rank, layers=settings.layers
        )
        self.mixer = mamba.Mamba(sizes, settings.expand, settings.scan)

    def forward(self, x: Float[Tensor, "B T D"]) -> Float[Tensor, "B T D"]:
        return self.resume(x, self.start(len(x)))[0]

    def start(self, batch: int) -> BlockState:
        return self.mixer.start(batch)

    def resume(
        self, x: Float[Tensor, "B T D"], state: BlockState, mask: Bool[Tensor, "B T"] | None = None
    ) -> tuple[Float[Tensor, "B T D"], BlockState]:
        x = self._residual(x)
        mixed, after = self.mixer(self.norm(x), state, mask)
        return x + mixed, after

    def peek(self, queries: Float[Tensor, "B Q D"], state: BlockState) -> Float[Tensor, "B Q D"]:
        queries = self._residual(queries)
        return queries + self.mixer.peek(self.norm(queries), state)

    def fork(
        self, x: Float[Tensor, "B T D"], queries: Float[Tensor, "B N D"], state: BlockState | None = None
    ) -> tuple[Float[Tensor, "B T D"], Float[Tensor, "B N D"], BlockState | None]:
        x, queries = self._residual(x), self._residual(queries)
        held = self.start(len(x)) if state is None else state
        mixed, answers, after = self.mixer.fork(self.norm(x), self.norm(queries), held)
        return x + mixed, queries + answers, None if state is None else after

    def _residual(self, x: Tensor) -> Tensor:
        """In float32, also under autocast."""
        return x.to(self.norm.weight.dtype)


class Mamba(RecurrentBackbone[MambaSettings]):
    """A stack of Mamba blocks."""

    Settings = MambaSettings
    computed_by = frozenset({"scan"})

    def __init__(self, settings: MambaSettings, shape: TaskShape) -> None:
        if settings.scan != "auto":
            chosen(settings.scan, torch.device("cuda" if torch.cuda.is_available() else "cpu"))
        super().__init__(settings, shape, settings.width, (MambaBlock(settings) for _ in range(settings.layers)))
        self.norm_f = nn.RMSNorm(settings.width, eps=_EPS)

    def parameter_groups(self) -> list[dict[str, Any]]:
        """A and D are not decayed, as in mamba-ssm."""
        fixed = [p for name, p in self.named_parameters() if name.endswith((".A_log", ".D"))]
        others = [p for name, p in self.named_parameters() if not name.endswith((".A_log", ".D"))]
        return [{"params": others}, {"params": fixed, "weight_decay": 0.0}]

    def notes(self, device: str) -> list[str]:
        return [f"selective scan by {chosen(self.settings.scan, torch.device(device))}"]

    def finish(self, hidden: Float[Tensor, "B Q D"]) -> Float[Tensor, "B Q D"]:
        return self.norm_f(hidden)
