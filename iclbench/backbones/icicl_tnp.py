"""In-context in-context learning: a pseudo-token TNP that also conditions on related datasets (ICICL-TNP paper, section
3 and figure 1).

Each related dataset j has pseudo-tokens U_j, which are initialised from one learned set. They attend to their dataset
and to the context's pseudo-tokens U; then U attends to them, and targets attend to U. `coupling="direct"` is our
interpretation of the alternative in figure 10, which the text does not specify: each dataset is summarised separately,
and targets attend to U and all U_j. The paper "generally found little difference in performance" (appendix E).

The code of the model is not released. The paper does not specify which attention layers share weights; here, context
and related datasets share the layers that attend to points (step 1) and the self-attention layers (step 3). The paper
describes feed-forward networks with two hidden layers (appendix G); here they have one, as in the PT-TNP code of the
same group.

Without related datasets, the model is a PT-TNP with either coupling. The keys of absent datasets are masked; on a CPU,
absent datasets are not processed at all.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from iclbench.backbones.transformer_np import TransformerNP, TransformerNPSettings
from iclbench.core.episodes import Points
from iclbench.core.settings import PositiveInt
from iclbench.core.task import TaskShape
from iclbench.layers.attention import KeysAndValues

# Devices on which absent datasets are skipped. On other devices, counting them would require a synchronisation.
PACKED_DEVICES = ("cpu",)


class ICICLTNPSettings(TransformerNPSettings):
    """Settings of the TNP that reads related datasets."""

    pseudo_tokens: PositiveInt = 32
    """Number of pseudo-tokens M of the context."""
    related_pseudo_tokens: PositiveInt | None = None
    """Number of pseudo-tokens M_ic of each related dataset; by default the number for the context."""
    coupling: Literal["paper", "direct"] = "paper"
    """paper: related datasets and context attend to each other; direct: targets attend to all summaries."""


@dataclass(frozen=True)
class _Sets:
    """Related datasets as rows, ordered by episode.

    Attributes:
        points: points of the datasets, `(rows, N, dim)`.
        index: position of each row among the B * J datasets of the batch.
        is_present: datasets that have points.
    """

    points: Points
    index: Int[Tensor, " rows"]
    is_present: Bool[Tensor, "B J"]

    @classmethod
    def of(cls, related: Points | None) -> _Sets | None:
        """Create the rows; return None if no episode has related datasets."""
        if related is None or 0 in related.mask.shape:
            return None
        is_present = related.mask.any(-1)
        rows = related.map(lambda t: t.flatten(0, 1))
        if is_present.device.type not in PACKED_DEVICES:
            return cls(rows, torch.arange(is_present.numel(), device=is_present.device), is_present)
        index = is_present.flatten().nonzero().squeeze(1)
        return cls(rows[index], index, is_present) if len(index) else None

    @property
    def episode(self) -> Int[Tensor, " rows"]:
        """The episode of each row."""
        return self.index // self.is_present.shape[1]

    def by_episode(self, memory: KeysAndValues) -> KeysAndValues:
        """Concatenate the keys and values of all datasets of each episode; absent datasets are masked."""
        mask = self.is_present.repeat_interleave(memory.keys.shape[2], 1)
        return KeysAndValues(self._concatenate(memory.keys), self._concatenate(memory.values), mask)

    def _concatenate(self, t: Float[Tensor, "rows H M C"]) -> Float[Tensor, "B H JM C"]:
        if len(self.index) < self.is_present.numel():
            t = t.new_zeros(self.is_present.numel(), *t.shape[1:]).index_copy(0, self.index, t)
        return t.unflatten(0, self.is_present.shape).transpose(1, 2).flatten(2, 3)


class ICICLTNP(TransformerNP[ICICLTNPSettings]):
    """Each layer updates pseudo-tokens and targets by cross-attention (CA) and self-attention (SA). With
    `coupling="paper"`, the steps are:

    1. U_j <- CA(U_j, Z_j) for every related dataset, U <- CA(U, Zc), with the same weights;
    2. U_j <- CA(U_j, U);
    3. U_j <- SA(U_j), U <- SA(U), with the same weights;
    4. U <- CA(U, all U_j);
    5. Zt <- CA(Zt, U).

    `coupling="direct"` omits steps 2 and 4, and in step 5 targets attend to U and all U_j.
    """

    Settings = ICICLTNPSettings
    uses_related = True

    def __init__(self, settings: ICICLTNPSettings, shape: TaskShape) -> None:
        super().__init__(settings, shape)
        self.uses_related = shape.related > 0
        related_count = settings.related_pseudo_tokens or settings.pseudo_tokens
        self.pseudo_tokens = nn.Parameter(torch.randn(settings.pseudo_tokens, settings.width))
        self.related_pseudo_tokens = nn.Parameter(torch.randn(related_count, settings.width))
        self.from_data = self.stack()
        self.among = self.stack()
        if settings.coupling == "paper":
            self.from_context = self.stack()
            self.from_related = self.stack()

    def memories(self, context: Points, related: Points | None) -> Iterator[KeysAndValues]:
        u, z = self.pseudo_tokens.expand(len(context), -1, -1), self.embed(context)
        sets = _Sets.of(related)
        if sets is not None:
            u_sets, z_sets = self.related_pseudo_tokens.expand(len(sets.points), -1, -1), self.embed(sets.points)
        for layer, (from_data, among, target) in enumerate(zip(self.from_data, self.among, self.targets, strict=True)):
            u = from_data(u, z, context.mask)
            if sets is None:
                u = among(u)
                yield target.keys(u)
                continue
            u_sets = from_data(u_sets, z_sets, sets.points.mask)
            if self.settings.coupling == "direct":
                u, u_sets = among(u), among(u_sets)
                yield _joint_memory(target.keys(u), sets.by_episode(target.keys(u_sets)))
                continue
            from_context, from_related = self.from_context[layer], self.from_related[layer]
            u_sets = among(from_context.attend(u_sets, from_context.keys(u)[sets.episode]))
            u = from_related.attend(among(u), sets.by_episode(from_related.keys(u_sets)))
            yield target.keys(u)


def _joint_memory(a: KeysAndValues, b: KeysAndValues) -> KeysAndValues:
    """Concatenate the keys and values of `a`, which are all valid, and of `b`."""
    assert b.mask is not None
    mask = torch.cat([b.mask.new_ones(len(b.mask), a.keys.shape[2]), b.mask], 1)
    return KeysAndValues(torch.cat([a.keys, b.keys], 2), torch.cat([a.values, b.values], 2), mask)
