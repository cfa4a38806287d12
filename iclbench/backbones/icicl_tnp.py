"""In-context in-context learning: a pseudo-token TNP that also conditions on related datasets (ICICL-TNP paper, section
3 and figure 1).

Every related dataset j has pseudo-tokens U_j of its own, which start from one learned set. They read their dataset and
the context's pseudo-tokens U, and are then read by U; targets read U. `coupling="direct"` is our
reading of the alternative of figure 10, which the text does not determine: datasets are summarised each on its own, and
targets read U and all U_j. The paper "generally found little difference in performance" (appendix E).

No code of the model is released, and the paper leaves two things open. It does not say which attention layers share
weights: here context and related datasets share them where they read their points (step 1) and themselves (step 3). It
describes feed-forward networks with two hidden layers (appendix G); here they have one, as in the code of the group's
PT-TNP.

Without related datasets both are a PT-TNP. An absent dataset is masked as keys; on a CPU it is left out altogether.
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
from iclbench.layers.attention import KeysValues

# Where rows of absent datasets are left out: devices that need not be waited for to count them.
PACKED_ON = ("cpu",)


class ICICLTNPSettings(TransformerNPSettings):
    """Settings of the TNP that reads related datasets."""

    pseudo_tokens: PositiveInt = 32
    """Pseudo-tokens M of the context."""
    related_pseudo_tokens: PositiveInt | None = None
    """Pseudo-tokens M_ic of every related dataset; by default as many."""
    coupling: Literal["paper", "direct"] = "paper"
    """paper: related datasets and context tell each other; direct: targets read all summaries."""


@dataclass(frozen=True)
class _Sets:
    """Related datasets as rows, one after the other, those of one episode together.

    Attributes:
        points: `(rows, N, dim)`.
        place: which of the B * J places of the batch a row has.
        present: which datasets are there at all.
    """

    points: Points
    place: Int[Tensor, " rows"]
    present: Bool[Tensor, "B J"]

    @classmethod
    def of(cls, related: Points | None) -> _Sets | None:
        """None where there is nothing to read."""
        if related is None or 0 in related.mask.shape:
            return None
        present = related.mask.any(-1)
        rows = related.map(lambda t: t.flatten(0, 1))
        if present.device.type not in PACKED_ON:
            return cls(rows, torch.arange(present.numel(), device=present.device), present)
        place = present.flatten().nonzero().squeeze(1)
        return cls(rows[place], place, present) if len(place) else None

    @property
    def episode(self) -> Int[Tensor, " rows"]:
        """The episode that a row belongs to."""
        return self.place // self.present.shape[1]

    def by_episode(self, memory: KeysValues) -> KeysValues:
        """Keys and values of all datasets of an episode side by side, absent ones masked."""
        mask = self.present.repeat_interleave(memory.keys.shape[2], 1)
        return KeysValues(self._side_by_side(memory.keys), self._side_by_side(memory.values), mask)

    def _side_by_side(self, t: Float[Tensor, "rows H M C"]) -> Float[Tensor, "B H JM C"]:
        if len(self.place) < self.present.numel():
            t = t.new_zeros(self.present.numel(), *t.shape[1:]).index_copy(0, self.place, t)
        return t.unflatten(0, self.present.shape).transpose(1, 2).flatten(2, 3)


class ICICLTNP(TransformerNP[ICICLTNPSettings]):
    """Per layer, with `coupling="paper"`:

    1. U_j <- CA(U_j, Z_j) for every related dataset, U <- CA(U, Zc), same weights;
    2. U_j <- CA(U_j, U);
    3. U_j <- SA(U_j), U <- SA(U), same weights;
    4. U <- CA(U, all U_j);
    5. Zt <- CA(Zt, U).

    With `coupling="direct"` steps 2 and 4 are left out, and in 5 targets read U and all U_j.
    """

    Settings = ICICLTNPSettings
    uses_related = True

    def __init__(self, settings: ICICLTNPSettings, shape: TaskShape) -> None:
        super().__init__(settings, shape)
        self.uses_related = shape.related > 0
        related = settings.related_pseudo_tokens or settings.pseudo_tokens
        self.pseudo_tokens = nn.Parameter(torch.randn(settings.pseudo_tokens, settings.width))
        self.related_pseudo_tokens = nn.Parameter(torch.randn(related, settings.width))
        self.from_data = self.stack()
        self.among = self.stack()
        if settings.coupling == "paper":
            self.from_context = self.stack()
            self.from_related = self.stack()

    def memories(self, context: Points, related: Points | None) -> Iterator[KeysValues]:
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
                yield _joined(target.keys(u), sets.by_episode(target.keys(u_sets)))
                continue
            from_context, from_related = self.from_context[layer], self.from_related[layer]
            u_sets = among(from_context.attend(u_sets, from_context.keys(u)[sets.episode]))
            u = from_related.attend(among(u), sets.by_episode(from_related.keys(u_sets)))
            yield target.keys(u)


def _joined(a: KeysValues, b: KeysValues) -> KeysValues:
    """Tokens of `a`, all of them there, and those of `b`."""
    assert b.mask is not None
    mask = torch.cat([b.mask.new_ones(len(b.mask), a.keys.shape[2]), b.mask], 1)
    return KeysValues(torch.cat([a.keys, b.keys], 2), torch.cat([a.values, b.values], 2), mask)
