"""Mamba (Gu and Dao 2023): a gated recurrence whose step size, input and output vectors depend on the token.

The sizes are those of Grazzi et al. 2024, appendix A.1.1: 24 blocks of width 256. The parameters have the names, layout
and initialisation of mamba-ssm's `MixerModel`, so that weights can be exchanged with this class and with
`transformers.MambaModel`; the forward pass is a separate implementation for tensors of shape `(batch, tokens,
channels)`. Read-in and read-out are linear, without positions and without an embedding table.
"""

from __future__ import annotations

from typing import Annotated, Any

import torch
from jaxtyping import Float
from pydantic import BeforeValidator
from torch import Tensor

from iclbench.backbones.base import split_by_weight_decay
from iclbench.backbones.mixer_block import MixerBlock, make_norm
from iclbench.backbones.recurrent import RecurrentBackbone, RecurrentSettings
from iclbench.core.settings import PositiveInt
from iclbench.core.task import TaskShape
from iclbench.layers.mixers import mamba
from iclbench.layers.mixers.mixer import Sizes
from iclbench.layers.scan.scan import Backend, resolve_backend


def _check_taps(value: Any) -> Any:
    if value == 0:
        raise ValueError(
            'mamba requires a convolution; for the mixer without one, use hybrid with -o backbone.mixers=["mamba"] '
            "-o backbone.conv=0"
        )
    if value == 1:
        raise ValueError("1 is not a number of taps; write at least 2 (4 is usual)")
    return value


class MambaSettings(RecurrentSettings):
    """Settings of mamba. The names in mamba-ssm are d_state, d_conv, expand and dt_rank."""

    layers: PositiveInt = 24
    """Mamba blocks."""
    width: PositiveInt = 256
    """Width D of a token."""
    state: PositiveInt = 16
    """Size of the recurrent state per channel (d_state)."""
    conv: Annotated[PositiveInt, BeforeValidator(_check_taps)] = 4
    """Taps of the causal convolution (d_conv)."""
    expand: PositiveInt = 2
    """Ratio of the inner width to the width."""
    dt_rank: PositiveInt | None = None
    """Rank of the map to the step sizes dt; by default width / 16, rounded up."""
    scan: Backend = "auto"
    """Implementation of the recurrence; auto selects the fastest one for the device."""


class Mamba(RecurrentBackbone[MambaSettings]):
    """A stack of Mamba blocks."""

    Settings = MambaSettings
    computed_by = frozenset({"scan"})

    def __init__(self, settings: MambaSettings, shape: TaskShape) -> None:
        if settings.scan != "auto":
            resolve_backend(settings.scan, torch.device("cuda" if torch.cuda.is_available() else "cpu"))
        sizes = Sizes(
            settings.width, state=settings.state, conv=settings.conv, rank=settings.dt_rank, layers=settings.layers
        )
        blocks = (
            MixerBlock(mamba.Mamba(sizes, settings.expand, settings.scan), settings.width, "rms")
            for _ in range(settings.layers)
        )
        super().__init__(settings, shape, settings.width, blocks)
        self.norm_f = make_norm("rms", settings.width)

    def parameter_groups(self) -> list[dict[str, Any]]:
        """Return parameter groups in which A and D have no weight decay, as in mamba-ssm."""
        return split_by_weight_decay(self, (".A_log", ".D"))

    def notes(self, device: str) -> list[str]:
        return [f"selective scan by {resolve_backend(self.settings.scan, torch.device(device))}"]

    def finish(self, hidden: Float[Tensor, "B Q D"]) -> Float[Tensor, "B Q D"]:
        return self.norm_f(hidden)
