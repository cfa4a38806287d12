"""Transformer neural process (Nguyen and Grover 2022) in the efficient form: in each layer, context tokens attend to
one another, and targets cross-attend to them (figure 7 of the ICICL-TNP paper). The cost is quadratic in the number of
context points.

On tables, this is the architecture of TabPFN v1 (Hollmann et al. 2023): rows are tokens, and targets attend to the
context only. `cells` has a token for every cell.
"""

from __future__ import annotations

from collections.abc import Iterator

from iclbench.backbones.transformer_np import TransformerNP, TransformerNPSettings
from iclbench.core.episodes import Points
from iclbench.core.task import TaskShape
from iclbench.layers.attention import KeysAndValues


class TNP(TransformerNP[TransformerNPSettings]):
    """Each layer updates the context tokens Zc by self-attention (SA) and the target tokens Zt by cross-attention (CA):
    Zc <- SA(Zc); Zt <- CA(Zt, Zc)."""

    Settings = TransformerNPSettings

    def __init__(self, settings: TransformerNPSettings, shape: TaskShape) -> None:
        super().__init__(settings, shape)
        self.context = self.stack()

    def memories(self, context: Points, related: Points | None) -> Iterator[KeysAndValues]:
        z = self.embed(context)
        for context_layer, target_layer in zip(self.context, self.targets, strict=True):
            z = context_layer(z, mask=context.mask)
            yield target_layer.keys(z, context.mask)
