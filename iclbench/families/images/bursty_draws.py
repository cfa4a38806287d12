"""What a bursty sequence holds: the split of the classes, Zipf draws of classes, and drawings that do not repeat.

Labels are numbers of a seeded permutation of the data's classes: rare classes first, then the common ones, then those
held out, which have no label of their own in training. Training classes are ranked, the common ones first, both groups
in a random order of their own, so that labels 0 and 1 are rare classes of any rank; or, as in the code of Chan et al.,
from the last label to the first, so that labels 0 and 1 are the two rarest.

Weights are whole numbers. Leaving one rank out of a draw is then exact: a number drawn below the weight of all others
is moved past the one that is left out, and no episode is ever drawn again.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Int
from torch import Tensor

from iclbench.core.records import TensorRecord
from iclbench.core.seeds import generator as stream

# About the sum of the weights: large enough that rounding does not matter, and exact in float64.
_TOTAL = 2**50


@dataclass(frozen=True)
class ClassSplit(TensorRecord):
    """The classes of a task and how often each is drawn in training.

    Attributes:
        glyph: the class of the data that a label stands for, `(classes,)`; the last `holdout` are held out.
        ranked: the label of every rank, `(training,)`, the most frequent first.
        ends: for every rank the weight of all ranks up to it, `(training,)`.
        common: so many of the first ranks are the common classes.
    """

    glyph: Int[Tensor, " classes"]
    ranked: Int[Tensor, " training"]
    ends: Int[Tensor, " training"]
    common: int

    @classmethod
    def make(
        cls, available: int, classes: int, holdout: int, common: int, alpha: float, seed: int, by_label: bool = False
    ) -> ClassSplit:
        """A function of the seed: `classes` of the `available` ones, with weights 1 / rank^alpha; `by_label`: ranked
        from the last label to the first."""
        draw = stream(seed, "split")
        training = classes - holdout
        rare = training - common
        glyph = torch.randperm(available, generator=draw)[:classes]
        if by_label:
            ranked = torch.arange(training).flip(0)
        else:
            ranked = torch.cat([rare + torch.randperm(common, generator=draw), torch.randperm(rare, generator=draw)])
        weights = torch.arange(1, training + 1, dtype=torch.float64).pow(-alpha)
        ends = (weights / weights.sum() * _TOTAL).round().long().clamp(min=1).cumsum(0)
        return cls(glyph, ranked, ends, common)

    @property
    def training(self) -> int:
        """Number of classes to train on; these are the labels below it."""
        return len(self.ranked)

    @property
    def holdout(self) -> int:
        return len(self.glyph) - self.training

    def zipf(self, shape: tuple[int, ...], generator: torch.Generator) -> Int[Tensor, "..."]:
        """Independent ranks."""
        return torch.searchsorted(self.ends, _below(self.ends[-1].expand(shape), generator), right=True)

    def zipf_except(self, excluded: Int[Tensor, "*shape"], generator: torch.Generator) -> Int[Tensor, "*shape"]:
        """Independent ranks, each different from `excluded` at its place."""
        end = self.ends[excluded]
        start = torch.where(excluded > 0, self.ends[(excluded - 1).clamp(min=0)], 0)
        number = _below(self.ends[-1] - (end - start), generator)
        return torch.searchsorted(self.ends, number + (number >= start) * (end - start), right=True)


def distinct_drawings(classes: Int[Tensor, "B T"], drawings: int, generator: torch.Generator) -> Int[Tensor, "B T"]:
    """For the images of every sequence, the query last, which drawing of their class they are: all different.

    Only which classes are equal matters. A class that occurs more often than it has drawings repeats them, without the
    query's.
    """
    # The query first, so that its drawing can be left out when drawings repeat.
    ordered = classes.roll(1, 1)
    is_equal = ordered.unsqueeze(2) == ordered.unsqueeze(1)
    # Every class goes through the permutation that was drawn at its first place.
    first_place = is_equal.int().argmax(2)
    shape = (*classes.shape, drawings)
    order = torch.rand(shape, generator=generator, device=classes.device).argsort(2)
    place = is_equal.tril(-1).sum(2)
    of_query = is_equal[:, :1].squeeze(1)
    repeat_place = torch.where(of_query, 1 + (place - 1) % (drawings - 1), place % drawings)
    place = torch.where(place < drawings, place, repeat_place)
    drawing_order = order.gather(1, first_place.unsqueeze(2).expand(shape))
    return drawing_order.gather(2, place.unsqueeze(2)).squeeze(2).roll(-1, 1)


def _below(limit: Int[Tensor, "*shape"], generator: torch.Generator) -> Int[Tensor, "*shape"]:
    """Uniform whole numbers from 0 to just below `limit`."""
    uniform = torch.rand(limit.shape, generator=generator, device=limit.device, dtype=torch.float64)
    return (uniform * limit).long()
