"""Random parts of bursty sequences: the split of the classes, Zipf ranks, distinct drawings and random orders.

Labels are positions in a seeded permutation of the classes of the data: rare classes first, then common classes, then
held-out classes, which have no label in training. Ranks order the training classes by frequency. The common classes
come first, and both groups are in random order, so the rare classes with labels 0 and 1 can have any rank among the
rare classes. With `by_label`, as in the code of Chan et al., classes are ranked from the last label to the first, so
labels 0 and 1 belong to the two rarest classes.

Weights are integers, so excluding one rank from a draw is exact: a number below the total weight of the other ranks is
shifted past the excluded rank. No rejection is needed.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Int
from torch import Tensor

from iclbench.core.episodes import take
from iclbench.core.errors import UsageError
from iclbench.core.records import TensorRecord
from iclbench.core.seeds import generator as stream
from iclbench.families.images.bursty_parameters import TEST_CONTEXT

# The approximate sum of the weights: large enough that rounding does not matter, and exact in float64.
_TOTAL_WEIGHT = 2**50


@dataclass(frozen=True)
class ClassSplit(TensorRecord):
    """The classes of a task and their frequencies in training.

    Attributes:
        data_classes: the class in the data for each label, `(classes,)`; the last `holdout` classes are held out.
        labels_by_rank: the label of every rank, `(training,)`, with the most frequent class first.
        cumulative_weights: the cumulative weights of the ranks, `(training,)`.
        common: number of common classes, which are the first ranks.
    """

    data_classes: Int[Tensor, " classes"]
    labels_by_rank: Int[Tensor, " training"]
    cumulative_weights: Int[Tensor, " training"]
    common: int

    @classmethod
    def make(
        cls, available: int, classes: int, holdout: int, common: int, alpha: float, seed: int, by_label: bool = False
    ) -> ClassSplit:
        """Draw the split from the seed: `classes` of `available` classes with weights 1 / rank^alpha, in random order
        or (`by_label`) ranked from the last label to the first."""
        split_generator = stream(seed, "split")
        training = classes - holdout
        rare = training - common
        data_classes = torch.randperm(available, generator=split_generator)[:classes]
        if by_label:
            labels_by_rank = torch.arange(training).flip(0)
        else:
            labels_by_rank = torch.cat(
                [
                    rare + torch.randperm(common, generator=split_generator),
                    torch.randperm(rare, generator=split_generator),
                ]
            )
        weights = torch.arange(1, training + 1, dtype=torch.float64).pow(-alpha)
        cumulative_weights = (weights / weights.sum() * _TOTAL_WEIGHT).round().long().clamp(min=1).cumsum(0)
        return cls(data_classes, labels_by_rank, cumulative_weights, common)

    @property
    def n_training(self) -> int:
        """Number of training classes, whose labels come before those of the held-out classes."""
        return len(self.labels_by_rank)

    @property
    def holdout(self) -> int:
        return len(self.data_classes) - self.n_training

    def zipf(self, shape: tuple[int, ...], generator: torch.Generator) -> Int[Tensor, "..."]:
        """Draw independent ranks in proportion to their weights."""
        numbers = _random_below(self.cumulative_weights[-1].expand(shape), generator)
        return torch.searchsorted(self.cumulative_weights, numbers, right=True)

    def zipf_except(self, excluded: Int[Tensor, "*shape"], generator: torch.Generator) -> Int[Tensor, "*shape"]:
        """Draw independent ranks, each different from the rank at the same position of `excluded`."""
        end = self.cumulative_weights[excluded]
        start = torch.where(excluded > 0, self.cumulative_weights[(excluded - 1).clamp(min=0)], 0)
        number = _random_below(self.cumulative_weights[-1] - (end - start), generator)
        return torch.searchsorted(self.cumulative_weights, number + (number >= start) * (end - start), right=True)


def distinct_drawings(classes: Int[Tensor, "B T"], drawings: int, generator: torch.Generator) -> Int[Tensor, "B T"]:
    """Draw the drawing number of each image in every sequence, so that images of one class have different drawings.

    The query is the last image. `classes` is used only to find images of the same class. If a class occurs more often
    than it has drawings, drawings repeat, except the drawing of the query.
    """
    # The query comes first, so that its drawing can be excluded if drawings repeat.
    query_first = classes.roll(1, 1)
    is_equal = query_first.unsqueeze(2) == query_first.unsqueeze(1)
    # Every class uses the permutation of drawings at its first position.
    first_position = is_equal.int().argmax(2)
    shape = (*classes.shape, drawings)
    order = torch.rand(shape, generator=generator, device=classes.device).argsort(2)
    occurrence = is_equal.tril(-1).sum(2)
    has_query_class = is_equal[:, :1].squeeze(1)
    repeated_occurrence = torch.where(has_query_class, 1 + (occurrence - 1) % (drawings - 1), occurrence % drawings)
    occurrence = torch.where(occurrence < drawings, occurrence, repeated_occurrence)
    drawing_order = order.gather(1, first_position.unsqueeze(2).expand(shape))
    return drawing_order.gather(2, occurrence.unsqueeze(2)).squeeze(2).roll(-1, 1)


def shuffle(t: Int[Tensor, "B N"], generator: torch.Generator) -> Int[Tensor, "B N"]:
    """Shuffle every row independently."""
    return take(t, torch.rand(t.shape, generator=generator, device=generator.device).argsort(1))


def random_bits(episodes: int, generator: torch.Generator) -> Int[Tensor, "B 1"]:
    """Draw one random bit per episode."""
    return torch.randint(2, (episodes, 1), generator=generator, device=generator.device)


def two_labels(episodes: int, labels: int, generator: torch.Generator) -> Int[Tensor, "B 2"]:
    """Draw two different labels for every episode."""
    first = torch.randint(labels, (episodes, 1), generator=generator, device=generator.device)
    offset = torch.randint(1, labels, (episodes, 1), generator=generator, device=generator.device)
    return torch.cat([first, (first + offset) % labels], 1)


def random_positions_in_pair(episodes: int, generator: torch.Generator) -> Int[Tensor, "B T"]:
    """Draw the class of every item of a test as a position in a pair of classes, 0 or 1. In the context, both positions
    are equally frequent and in random order. The last item is the query, whose position is random."""
    positions = (torch.arange(TEST_CONTEXT, device=generator.device) % 2).expand(episodes, TEST_CONTEXT)
    return torch.cat([shuffle(positions, generator), random_bits(episodes, generator)], 1)


def pair_count(episodes: int) -> int:
    """Return the number of pairs of episodes of the test `icl_paired`.

    Raises:
        UsageError: the number of episodes is odd.
    """
    if episodes % 2:
        raise UsageError(
            f"icl_paired requires an even number of episodes, got {episodes}; change task.episodes", code="bad-value"
        )
    return episodes // 2


def _random_below(limit: Int[Tensor, "*shape"], generator: torch.Generator) -> Int[Tensor, "*shape"]:
    """Draw uniform integers from 0 to `limit` - 1."""
    uniform = torch.rand(limit.shape, generator=generator, device=limit.device, dtype=torch.float64)
    return (uniform * limit).long()
