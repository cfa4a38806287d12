"""Few-shot classification of vectors, which tests in-context learning (ICL) against in-weight learning (IWL).

The items of `bursty` are images, which need an encoder and hours of training. Here, items are vectors (Reddy 2024, The
mechanistic basis of data dependence and abrupt learning in an in-context classification task, arXiv 2312.03002, section
2): a small model learns the task in minutes, and the number of classes influences whether it learns to read the labels
in context or memorises them in its weights. There are K classes with means mu_k ~ N(0, I / D) and L labels; class k has
the label k mod L. An item of a class is (mu_k + eps z) / sqrt(1 + eps²) with z ~ N(0, I / D).

With probability `p_bursty` a training sequence is bursty: its context has `copies` items of each of some classes, in
random order, and the query is another item of one of these classes. Otherwise the classes of all items are independent.
Classes are drawn with Zipf weights, p ~ 1/rank^alpha, with replacement. The tests have eight items in context:

- `icl`: four items of each of two new classes, with two different random labels;
- `icl_paired`: each `icl` sequence is followed by the same sequence with the labels exchanged. The pair counts as one
  episode and is right only if both answers are;
- `flip`: as `icl`, but with two trained classes whose labels are exchanged. The label in the context is right, and the
  label in the weights is wrong;
- `iwl`: no item in context has the class of the query.

The released code differs in these details. It draws new classes from a set of 128 classes, so the two classes of a
sequence may be equal or have the same label; here, new classes are drawn for every sequence, with different labels. It
represents labels as vectors; here, the backbone embeds the labels. In its test of in-weight learning, the class of the
query may be in the context. Its flip test increases every label by 1; here, two labels are exchanged. It counts the
most probable of all labels in every test; here, only the two labels of the context are allowed in `icl` and `flip`, so
that a model that uses only its weights is right in half of the `icl` sequences instead of about 1/L.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, NamedTuple

import torch
from jaxtyping import Float, Int
from pydantic import Field, model_validator
from torch import Tensor

from iclbench.core.episodes import Episodes, Points, take
from iclbench.core.seeds import generator as stream
from iclbench.core.settings import BaseSettings, NonNegativeFloat, SeedInt
from iclbench.families.base import Evaluator, Family
from iclbench.families.images.bursty_draws import ClassSplit, pair_count, random_positions_in_pair, shuffle, two_labels
from iclbench.families.images.bursty_parameters import TEST_CONTEXT
from iclbench.families.request import Request
from iclbench.families.sampling import normal


class BurstyVectorParameters(BaseSettings):
    """Parameters of sequences of labelled vectors.

    Attributes:
        dim: dimension D of an item.
        classes: number of classes K.
        labels: number of labels L, at most one per class.
        noise: eps, the size of the variation within a class relative to the class means.
        copies: number of context items of each class in a bursty sequence.
        p_bursty: probability that a training sequence is bursty.
        alpha: exponent of the Zipf weights of the classes.
        split_seed: seed of the class means and of the ranks of the classes.
    """

    dim: Annotated[int, Field(ge=1, le=1_000)] = 63
    classes: Annotated[int, Field(ge=3, le=100_000)] = 1024
    labels: Annotated[int, Field(ge=2, le=10_000)] = 32
    noise: NonNegativeFloat = 0.1
    copies: Annotated[int, Field(ge=1)] = 4
    p_bursty: Annotated[float, Field(ge=0, le=1)] = 1.0
    alpha: NonNegativeFloat = 0.0
    split_seed: SeedInt = 0

    @model_validator(mode="after")
    def _check_labels(self) -> BurstyVectorParameters:
        if self.labels > self.classes:
            raise ValueError(
                f"labels: expected at most one per class, got {self.labels} labels and {self.classes} classes; raise "
                "classes or lower labels"
            )
        return self


class Sequences(NamedTuple):
    """Sequences of labelled items. The last item of a sequence is the query.

    Attributes:
        x: the items.
        classes: class of each item; -1 for new classes.
        labels: label of each item in the sequence.
        allowed_labels: the two allowed labels; None if all labels are allowed.
    """

    x: Float[Tensor, "B T D"]
    classes: Int[Tensor, "B T"]
    labels: Int[Tensor, "B T"]
    allowed_labels: Int[Tensor, "B 2"] | None = None


class BurstyVectors(Family):
    """Sequences of labelled vectors, some of them bursty, and tests that distinguish ICL from IWL.

    `truth["class"]` contains the class of every item, with the query last. New classes have the number -1.

    Args:
        parameters: see `BurstyVectorParameters`.
        data_dir: not used.
    """

    Parameters = BurstyVectorParameters
    questions = frozenset({"targets"})
    parameters: BurstyVectorParameters

    def __init__(self, parameters: BurstyVectorParameters, data_dir: Path | None = None) -> None:
        super().__init__(parameters, data_dir)
        self.classes = parameters.labels
        self._classes_by_device: dict[torch.device, tuple[ClassSplit, Tensor]] = {}

    @property
    def x_dim(self) -> int:
        return self.parameters.dim

    def evaluators(self) -> dict[str, Evaluator]:
        return {
            "icl": Evaluator(0.5),
            "icl_paired": Evaluator(0.25, group_size=2),
            "flip": Evaluator(0.5, answer_source="either"),
            "iwl": Evaluator(1 / self.parameters.labels, answer_source="weights"),
        }

    def sample(self, request: Request) -> Episodes:
        episodes, points, generator = request.episodes, request.points, request.generator
        self.parse_shift(request.shift)
        split, means = self._classes(generator.device)
        copies = min(self.parameters.copies, max(1, points // 2))
        groups = max(1, points // copies)
        group_ranks = split.zipf((episodes, groups), generator)
        query = take(group_ranks, torch.randint(groups, (episodes, 1), generator=generator, device=generator.device))
        single_ranks = split.zipf((episodes, max(0, points - groups * copies)), generator)
        context = torch.cat([group_ranks.repeat_interleave(copies, 1)[:, :points], single_ranks], 1)
        ranks = torch.cat([shuffle(context, generator), query], 1)
        is_bursty = torch.rand((episodes, 1), generator=generator, device=generator.device) < self.parameters.p_bursty
        ranks = torch.where(is_bursty, ranks, split.zipf((episodes, points + 1), generator))
        classes = split.labels_by_rank[ranks]
        x = self._items(means[classes], generator)
        if request.active_dims is not None:
            x = x * (torch.arange(self.x_dim, device=x.device) < request.active_dims)
        return self._episodes(Sequences(x, classes, classes % self.parameters.labels))

    def sample_test(self, evaluator: str, episodes: int, generator: torch.Generator) -> Episodes:
        self.check_test(evaluator)
        match evaluator:
            case "icl":
                sequences = self._icl(episodes, generator)
            case "icl_paired":
                sequences = _with_exchanged_labels(self._icl(pair_count(episodes), generator))
            case "flip":
                sequences = self._flip(episodes, generator)
            case _:
                sequences = self._iwl(episodes, generator)
        return self._episodes(sequences)

    def _classes(self, device: torch.device) -> tuple[ClassSplit, Float[Tensor, "classes D"]]:
        """Return the frequencies and the means of the classes."""
        if device not in self._classes_by_device:
            p = self.parameters
            split = ClassSplit.make(p.classes, p.classes, 0, 1, p.alpha, p.split_seed)
            means = normal((p.classes, p.dim), stream(p.split_seed, "means")) / p.dim**0.5
            self._classes_by_device[device] = split.to(device), means.to(device)
        return self._classes_by_device[device]

    def _items(self, means: Float[Tensor, "B T D"], generator: torch.Generator) -> Float[Tensor, "B T D"]:
        eps = self.parameters.noise
        return (means + eps / self.x_dim**0.5 * normal(tuple(means.shape), generator)) / (1 + eps**2) ** 0.5

    def _icl(self, episodes: int, generator: torch.Generator) -> Sequences:
        means = normal((episodes, 2, self.x_dim), generator) / self.x_dim**0.5
        labels = two_labels(episodes, self.parameters.labels, generator)
        return self._two_classes(means, torch.full_like(labels, -1), labels, generator)

    def _flip(self, episodes: int, generator: torch.Generator) -> Sequences:
        split, means = self._classes(generator.device)
        n_labels = self.parameters.labels
        first_class = split.labels_by_rank[split.zipf((episodes, 1), generator)]
        # The label of the second class is drawn uniformly from the other labels, and the class uniformly from the
        # classes with this label. Zipf weights would need a normaliser for every label.
        offset = torch.randint(1, n_labels, (episodes, 1), generator=generator, device=generator.device)
        second_label = (first_class + offset) % n_labels
        counts = (self.parameters.classes - second_label - 1) // n_labels + 1  # classes of this label
        uniform = torch.rand(counts.shape, generator=generator, device=generator.device, dtype=torch.float64)
        classes = torch.cat([first_class, second_label + n_labels * (uniform * counts).long()], 1)
        return self._two_classes(means[classes], classes, classes.flip(1) % n_labels, generator)

    def _two_classes(
        self,
        means: Float[Tensor, "B 2 D"],
        classes: Int[Tensor, "B 2"],
        labels: Int[Tensor, "B 2"],
        generator: torch.Generator,
    ) -> Sequences:
        """Return shuffled sequences with an equal number of items from two classes, which have the given labels, and a
        query from one of these classes."""
        position = random_positions_in_pair(len(labels), generator)
        x = self._items(take(means, position), generator)
        return Sequences(x, take(classes, position), take(labels, position), labels)

    def _iwl(self, episodes: int, generator: torch.Generator) -> Sequences:
        split, means = self._classes(generator.device)
        query = split.zipf((episodes, 1), generator)
        context = split.zipf_except(query.expand(episodes, TEST_CONTEXT), generator)
        classes = split.labels_by_rank[torch.cat([context, query], 1)]
        return Sequences(self._items(means[classes], generator), classes, classes % self.parameters.labels)

    def _episodes(self, sequences: Sequences) -> Episodes:
        x, classes, labels, allowed_labels = sequences
        choices = torch.ones((len(x), self.parameters.labels), dtype=torch.bool, device=x.device)
        if allowed_labels is not None:
            choices = torch.zeros_like(choices).scatter(1, allowed_labels, True)
        points = Points.full(x, labels)
        targets = points.span(-1)
        return Episodes(
            context=points.span(0, -1),
            targets=targets,
            scored=targets.mask,
            classes=self.classes,
            choices=choices,
            truth={"class": classes},
        )


def _with_exchanged_labels(sequences: Sequences) -> Sequences:
    """Insert after each sequence a copy in which the two labels are exchanged."""
    x, classes, labels, allowed_labels = (t.repeat_interleave(2, 0) for t in sequences if t is not None)
    is_second = (torch.arange(len(x), device=x.device) % 2 == 1).unsqueeze(1)
    exchanged_labels = allowed_labels.sum(1, keepdim=True) - labels
    return Sequences(x, classes, torch.where(is_second, exchanged_labels, labels), allowed_labels)
