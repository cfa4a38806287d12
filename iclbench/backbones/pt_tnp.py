"""Pseudo-token transformer neural processes: M learned tokens U summarise the context for the targets, so the cost is
linear in the number of context points and in the number of targets (ICICL-TNP paper, section 2.2 and appendix C).

The model has two styles. In `perceiver` (Jaegle et al. 2021; Feng et al. 2022), the paper's PT-TNP, the pseudo-tokens
attend to the context and to one another. In `ist` (Lee et al. 2019, induced set transformer), the self-attention is
omitted; instead, the context tokens attend to the pseudo-tokens, except in the last layer.
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
from iclbench.layers.attention import KeysAndValues


class PTTNPSettings(TransformerNPSettings):
    """Settings of pseudo-token TNPs."""

    pseudo_tokens: PositiveInt = 32
    """Number of pseudo-tokens M that summarise the context."""
    style: Literal["perceiver", "ist"] = "perceiver"
    """perceiver: pseudo-tokens attend to the data and to one another; ist: data and pseudo-tokens attend to each
    other."""


class PTTNP(TransformerNP[PTTNPSettings]):
    """Each layer updates the pseudo-tokens U, the context tokens Zc and the target tokens Zt by self-attention (SA) and
    cross-attention (CA): U <- CA(U, Zc); U <- SA(U); Zt <- CA(Zt, U). With `ist`, the steps are U <- CA(U, Zc); Zt <-
    CA(Zt, U); Zc <- CA(Zc, U)."""

    Settings = PTTNPSettings

    def __init__(self, settings: PTTNPSettings, shape: TaskShape) -> None:
        super().__init__(settings, shape)
        self.pseudo_tokens = nn.Parameter(torch.randn(settings.pseudo_tokens, settings.width))
        self.from_data = self.stack()
        if settings.style == "perceiver":
            self.among = self.stack()
        else:
            self.back_to_data = self.stack(settings.layers - 1)

    def memories(self, context: Points, related: Points | None) -> Iterator[KeysAndValues]:
        u, z = self.pseudo_tokens.expand(len(context), -1, -1), self.embed(context)
        for layer, target_layer in enumerate(self.targets):
            u = self.from_data[layer](u, z, context.mask)
            if self.settings.style == "perceiver":
                u = self.among[layer](u)
            elif layer < len(self.back_to_data):
                z = self.back_to_data[layer](z, u)
            yield target_layer.keys(u)
