"""Bursty few-shot classification, which tests in-context learning (ICL) against in-weight learning (IWL).

A sequence has eight labelled characters and a query (Chan et al. 2022, arXiv 2205.05055; CoQE, section 5.2). With
probability `p_bursty` a training sequence is bursty: its context has `SHOTS` images of each of two classes and further
images of any class, in random order, and the query is another image of one of the two classes. Otherwise all classes
are independent. Classes are drawn with Zipf weights, p ~ 1/rank^alpha, from the training classes. Their labels are
fixed (see `iclbench.families.images.bursty_draws` for the split). Contexts of fewer than six images have fewer shots.

The tests have eight images in context:

- `icl`: four images of each of two held-out classes, with two labels assigned at random. The labels (`icl_labels`) are
  0 and 1 (`first`), the labels of the two rarest or the two most common classes (`rarest`, `common`), two random
  training labels per sequence (`random`), or a list of two labels;
- `icl_paired`: each `icl` sequence is followed by the same sequence with the labels exchanged. The pair counts as one
  episode and is right only if both answers are, so similarity to the trained classes of these labels does not help;
- `flip`: as `icl`, with two trained classes drawn with the Zipf weights, whose trained labels are exchanged. The label
  in the context is right, and the label in the weights is wrong;
- `iwl`: no context image has the class of the query. The class of the query is drawn with the Zipf weights, and the
  classes of the context are drawn with the same weights from the other classes. In `iwl_macro`, `iwl_common` and
  `iwl_rare`, the class of the query is uniform over all, the common or the rare training classes. In
  `iwl_new_drawings`, the query is a drawing that is not among the `train_drawings` training drawings of its class.

With `anchor_compat`, sequences are sampled as in the code of the two papers (`datasets/data_generators.py` of
google-deepmind/emergent_in_context_learning), which differs from the default in three ways. The two classes of a
sequence are drawn with replacement: with ten held-out classes, one in ten `icl` sequences has a single class with two
labels, which limits the accuracy to 0.95; at alpha = 2, 40 % of the bursty sequences have six images of one class. The
drawings of the two further images of a bursty sequence are chosen independently of the other seven drawings and can
repeat one of them. Labels are ordered by rank, from the rarest class to the most common, so labels 0 and 1 of `icl`
belong to the two rarest classes.
"""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from iclbench.core.episodes import Episodes, Points
from iclbench.core.errors import UsageError
from iclbench.families.base import Evaluator, Family
from iclbench.families.images.bursty_draws import (
    ClassSplit,
    distinct_drawings,
    pair_count,
    random_bits,
    random_positions_in_pair,
    shuffle,
    two_labels,
)
from iclbench.families.images.bursty_parameters import TEST_CONTEXT, BurstyParameters
from iclbench.families.images.character_sets import CharacterSet, omniglot_characters, procedural_characters
from iclbench.families.images.omniglot import ALL_CLASSES, DRAWINGS
from iclbench.families.request import Request

SHOTS = 3


class Sequences(NamedTuple):
    """Classes, labels and drawings of sequences. The last image of a sequence is the query.

    Attributes:
        classes: index of each image's class in the split; in training, this is also its label.
        labels: label of each image in the sequence.
        drawings: index of each image's drawing among the drawings of its class.
        choices: the allowed labels.
    """

    classes: Int[Tensor, "B T"]
    labels: Int[Tensor, "B T"]
    drawings: Int[Tensor, "B T"]
    choices: Bool[Tensor, "B classes"]


class Bursty(Family):
    """Sequences of labelled characters, some of them bursty, and tests that distinguish ICL from IWL.

    `truth` contains the class in the data and the index of the drawing for every image, with the query last.

    Args:
        parameters: see `BurstyParameters`.
        data_dir: the folder that contains `omniglot/`; not needed for procedural glyphs.

    Raises:
        DataError: on first use, if the archives are missing, incomplete or damaged.
    """

    Parameters = BurstyParameters
    questions = frozenset({"targets"})
    reads_images = True
    data_parameters = ("glyphs",)
    parameters: BurstyParameters

    def __init__(self, parameters: BurstyParameters, data_dir: Path | None = None) -> None:
        super().__init__(parameters, data_dir)
        p = parameters
        self.classes, self.x_shape = p.classes, (p.image_size, p.image_size)
        available = ALL_CLASSES if p.glyphs == "omniglot" else p.classes
        split = ClassSplit.make(available, p.classes, p.holdout, p.common, p.alpha, p.split_seed, p.anchor_compat)
        self._splits = {torch.device("cpu"): split}
        self._procedural_classes = p.classes

    @property
    def x_dim(self) -> int:
        return int(self.parameters.image_size**2)

    def validation(self) -> Bursty:
        """Return the same task with other held-out characters, which the evaluation prompts do not use.

        Raises:
            UsageError: Omniglot does not have enough unused characters.
        """
        family, split, p = copy.copy(self), self.split(), self.parameters
        if p.glyphs == "omniglot":
            unused = torch.tensor(sorted({*range(ALL_CLASSES)} - {*split.data_classes.tolist()}), dtype=torch.long)
            if len(unused) < split.holdout:
                raise UsageError(
                    f"choosing a learning rate requires {split.holdout} unused characters, but only {len(unused)} of "
                    f"Omniglot's {ALL_CLASSES} are unused; use a smaller preset, or lower task.classes",
                    code="not-applicable",
                )
        else:
            unused = torch.arange(p.classes, p.classes + split.holdout)
            family._procedural_classes = p.classes + split.holdout
        data_classes = split.data_classes.clone()
        data_classes[split.n_training : split.n_training + split.holdout] = unused[: split.holdout]
        family._splits = {torch.device("cpu"): replace(split, data_classes=data_classes)}
        return family

    @property
    def fingerprint(self) -> str:
        return self.characters.fingerprint

    @property
    def needs_data(self) -> bool:
        return self.parameters.glyphs == "omniglot"

    @property
    def characters(self) -> CharacterSet:
        """All drawings of all classes of the data."""
        p = self.parameters
        if p.glyphs == "omniglot":
            return omniglot_characters(self.data_dir, p.image_size)
        return procedural_characters(self._procedural_classes, p.image_size, p.jitter)

    def split(self, device: torch.device | str = "cpu") -> ClassSplit:
        """Return the rare, common and held-out classes and their frequencies."""
        device = torch.device(device)
        if device not in self._splits:
            self._splits[device] = self._splits[torch.device("cpu")].to(device)
        return self._splits[device]

    def evaluators(self) -> dict[str, Evaluator]:
        iwl_names = ("iwl", "iwl_macro", "iwl_common", "iwl_rare", "iwl_new_drawings")
        return {
            "icl": Evaluator(0.5),
            "icl_paired": Evaluator(0.25, group_size=2),
            "flip": Evaluator(0.5, answer_source="either"),
            **dict.fromkeys(iwl_names, Evaluator(1 / self.split().n_training, answer_source="weights")),
        }

    def sample(self, request: Request) -> Episodes:
        episodes, points, generator = request.episodes, request.points, request.generator
        self.parse_shift(request.shift)
        split, shots, anchor = self.split(generator.device), min(SHOTS, points // 2), self.parameters.anchor_compat
        pair = self._pair(episodes, generator, are_different=not anchor)
        further_ranks = split.zipf((episodes, points - 2 * shots), generator)
        # Classes depend on ranks modulo the number of classes, but drawings are distinct only among equal ranks. Adding
        # the number of classes therefore does not change the classes, but allows their drawings to repeat those of the
        # pair.
        further_ranks = further_ranks + split.n_training * anchor
        context = shuffle(torch.cat([pair.repeat_interleave(shots, 1), further_ranks], 1), generator)
        bursty_ranks = torch.cat([context, pair.gather(1, random_bits(episodes, generator))], 1)
        is_bursty = torch.rand((episodes, 1), generator=generator, device=generator.device) < self.parameters.p_bursty
        independent_ranks = split.zipf((episodes, points + 1), generator)
        sequences = self._with_trained_labels(torch.where(is_bursty, bursty_ranks, independent_ranks), generator)
        return self._episodes(sequences, request.active_dims)

    def check_test(self, evaluator: str) -> None:
        super().check_test(evaluator)
        if evaluator == "iwl_new_drawings" and self.parameters.train_drawings == DRAWINGS:
            raise UsageError(
                f"iwl_new_drawings requires drawings that are not used in training, but all {DRAWINGS} are used; lower "
                "task.train_drawings, as in bursty-new-drawings",
                code="not-applicable",
            )

    def sample_test(self, evaluator: str, episodes: int, generator: torch.Generator) -> Episodes:
        self.check_test(evaluator)
        match evaluator:
            case "icl":
                sequences = self._icl(episodes, generator)
            case "icl_paired":
                sequences = self._with_exchanged_labels(self._icl(pair_count(episodes), generator))
            case "flip":
                # The two classes differ, since the trained label of a single class would be the answer both in context
                # and in weights.
                pair = self.split(generator.device).labels_by_rank[self._pair(episodes, generator, are_different=True)]
                sequences = self._two_class_sequences(pair, pair.flip(1), self.parameters.train_drawings, generator)
            case _:
                sequences = self._iwl(evaluator, episodes, generator)
        return self._episodes(sequences)

    def _pair(self, episodes: int, generator: torch.Generator, are_different: bool) -> Int[Tensor, "B 2"]:
        """Draw two ranks of training classes for every sequence. The ranks may be equal if `are_different` is false."""
        split = self.split(generator.device)
        ranks = split.zipf((episodes, 1), generator)
        other_ranks = split.zipf_except(ranks, generator) if are_different else split.zipf((episodes, 1), generator)
        return torch.cat([ranks, other_ranks], 1)

    def _icl(self, episodes: int, generator: torch.Generator) -> Sequences:
        split, device = self.split(generator.device), generator.device
        first_class = torch.randint(split.holdout, (episodes, 1), generator=generator, device=device)
        low = 0 if self.parameters.anchor_compat else 1
        offset = torch.randint(low, split.holdout, (episodes, 1), generator=generator, device=device)
        pair = split.n_training + torch.cat([first_class, (first_class + offset) % split.holdout], 1)
        # Both classes are equally likely to be the first, so this assigns the labels at random.
        return self._two_class_sequences(pair, self._icl_labels(episodes, generator), DRAWINGS, generator)

    def _icl_labels(self, episodes: int, generator: torch.Generator) -> Int[Tensor, "B 2"]:
        split, choice = self.split(generator.device), self.parameters.icl_labels
        if choice == "random":
            return two_labels(episodes, split.n_training, generator)
        pairs = {"first": torch.arange(2), "rarest": split.labels_by_rank[-2:], "common": split.labels_by_rank[:2]}
        pair = pairs[choice] if isinstance(choice, str) else torch.tensor(choice)
        return pair.to(generator.device).expand(episodes, 2)

    def _two_class_sequences(
        self, pair: Int[Tensor, "B 2"], labels: Int[Tensor, "B 2"], drawings: int, generator: torch.Generator
    ) -> Sequences:
        """Return shuffled sequences with an equal number of images from two classes, which have the given labels, and a
        query from one of these classes."""
        pair_index = random_positions_in_pair(len(pair), generator)
        classes = pair.gather(1, pair_index)
        choices = torch.zeros((len(pair), self.parameters.classes), dtype=torch.bool, device=pair.device)
        drawing_numbers = distinct_drawings(classes, drawings, generator)
        return Sequences(classes, labels.gather(1, pair_index), drawing_numbers, choices.scatter(1, labels, True))

    @staticmethod
    def _with_exchanged_labels(sequences: Sequences) -> Sequences:
        """Insert after each sequence a copy in which the two labels are exchanged."""
        doubled = Sequences(*(t.repeat_interleave(2, 0) for t in sequences))
        label_sums = doubled.choices.nonzero()[:, 1].reshape(-1, 2).sum(1, keepdim=True)
        is_second = (torch.arange(len(label_sums), device=label_sums.device) % 2 == 1).unsqueeze(1)
        return doubled._replace(labels=torch.where(is_second, label_sums - doubled.labels, doubled.labels))

    def _iwl(self, evaluator: str, episodes: int, generator: torch.Generator) -> Sequences:
        split, trained_drawings = self.split(generator.device), self.parameters.train_drawings
        ranks = {
            "iwl_macro": (0, split.n_training),
            "iwl_common": (0, split.common),
            "iwl_rare": (split.common, split.n_training),
        }
        if evaluator in ranks:
            query = torch.randint(*ranks[evaluator], (episodes, 1), generator=generator, device=generator.device)
        else:
            query = split.zipf((episodes, 1), generator)
        context = split.zipf_except(query.expand(episodes, TEST_CONTEXT), generator)
        sequences = self._with_trained_labels(torch.cat([context, query], 1), generator)
        if evaluator == "iwl_new_drawings":
            new_drawings = torch.randint(
                trained_drawings, DRAWINGS, (episodes, 1), generator=generator, device=generator.device
            )
            sequences = sequences._replace(drawings=torch.cat([sequences.drawings[:, :-1], new_drawings], 1))
        return sequences

    def _with_trained_labels(self, ranks: Int[Tensor, "B T"], generator: torch.Generator) -> Sequences:
        """Return images of training classes with their trained labels. Ranks are taken modulo the number of these
        classes."""
        split = self.split(generator.device)
        classes = split.labels_by_rank[ranks % split.n_training]
        choices = torch.arange(self.parameters.classes, device=classes.device) < split.n_training
        drawing_numbers = distinct_drawings(ranks, self.parameters.train_drawings, generator)
        return Sequences(classes, classes, drawing_numbers, choices.repeat(len(classes), 1))

    def _episodes(self, sequences: Sequences, active_dims: int | None = None) -> Episodes:
        data_classes = self.split(sequences.classes.device).data_classes[sequences.classes]
        x = self.characters.read(data_classes, sequences.drawings).float() / 255
        if active_dims is not None:
            x = x * (torch.arange(x.shape[-1], device=x.device) < active_dims)
        points = Points.full(x, sequences.labels)
        targets = points.span(-1)
        return Episodes(
            context=points.span(0, -1),
            targets=targets,
            scored=targets.mask,
            classes=self.classes,
            choices=sequences.choices,
            truth={"class": data_classes, "drawing": sequences.drawings},
        )
