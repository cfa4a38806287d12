"""Pseudo-token transformer neural processes: M learned tokens U are between context and targets, so that the cost is
linear in both (ICICL-TNP paper, section 2.2 and appendix C).

Two styles. `perceiver` (Jaegle et al. 2021; Feng et al. 2023), the paper's PT-TNP: the pseudo-tokens read the context
and one another. `ist` (Lee et al. 2019, induced set transformer): instead of reading one another, they are read by the
context tokens, which the next layer's pseudo-tokens read; the last layer leaves this out.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import torch
from torch import nn

from iclbench.backbones.transformer_np import TransformerNP, TransformerNPSettings
from iclbench.core.episodes import Points
from iclbench.core.settings import PositiveInt
from iclbench.core.task import TaskShape
from iclbench.layers.attention import KeysValues


class PTTNPSettings(TransformerNPSettings):
    """Settings of pseudo-token TNPs."""

    pseudo_tokens: PositiveInt = 32
    """Pseudo-tokens M that summarise the context."""
    style: Literal["perceiver", "ist"] = "perceiver"
    """perceiver: pseudo-tokens read the data and one another; ist: the data read them too."""


class PTTNP(TransformerNP[PTTNPSettings]):
    """Per layer: U <- CA(U, Zc); U <- SA(U); Zt <- CA(Zt, U), or with `ist`
    U <- CA(U, Zc); Zt <- CA(Zt, U); Zc <- CA(Zc, U)."""

    Settings = PTTNPSettings

    def __init__(self, settings: PTTNPSettings, shape: TaskShape) -> None:
        super().__init__(settings, shape)
        self.pseudo_tokens = nn.Parameter(torch.randn(settings.pseudo_tokens, settings.width))
        self.from_data = self.stack()
        if settings.style == "perceiver":
            self.among = self.stack()
        else:
            self.back_to_data = self.stack(settings.layers - 1)

    def memories(self, context: Points, related: Points | None) -> Iterator[KeysValues]:
        u, z = self.pseudo_tokens.expand(len(context), -1, -1), self.embed(context)
        for layer, target in enumerate(self.targets):
            u = self.from_data[layer](u, z, context.mask)
            if self.settings.style == "perceiver":
                u = self.among[layer](u)
            elif layer < len(self.back_to_data):
                z = self.back_to_data[layer](z, u)
            yield target.keys(u)
