"""Bursty few-shot classification: is the label read from the context (ICL) or remembered in the weights (IWL)?

Sequences of eight characters with labels and a query (Chan et al. 2022, arXiv 2205.05055; CoQE, section 5.2). With
probability `p_bursty` a training sequence is bursty: `SHOTS` images each of two classes, the query another image of one
of them, the remaining context pairs of any class, shuffled; otherwise all classes are independent. Classes are drawn
from Zipf weights over the training classes, p ~ 1/rank^alpha; their labels are fixed (see
`iclbench.families.images.bursty_draws` for the split). Contexts of fewer than six pairs hold as many shots as fit.

Tests, all with eight pairs in context:

- `icl`: two held-out classes, four images of each, with two labels assigned at random; which labels is `icl_labels`:
  labels 0 and 1 (`first`), those of the two rarest or two most common classes, two random training labels in every
  sequence, or a list of two;
- `icl_paired`: neighbouring episodes are the same `icl` sequence with the labels exchanged; a pair counts once, and
  only when both are right, so that likeness to the trained classes of these labels does not help;
- `flip`: as `icl`, with two trained classes from the Zipf weights and each other's trained label; the label of the
  context is right, that of the weights wrong;
- `iwl`: no context image is of the query's class; the query is from the Zipf weights, the context from the same weights
  without the query's class; `iwl_macro`, `iwl_common`, `iwl_rare`: the query's class is uniform over all training
  classes, the common or the rare ones; `iwl_new_drawings`: the query is a drawing beyond the `train_drawings` of each
  class that are trained on.

`anchor_compat` samples as the code of the two papers does (`datasets/data_generators.py` of
google-deepmind/emergent_in_context_learning): the two classes of a sequence are drawn with replacement (of ten held-out
classes every tenth `icl` sequence then holds one class under two labels, a ceiling of 0.95; at alpha = 2, 40 % of the
bursty sequences hold six images of one class); drawings of a class are not, but those of the two free images of a
bursty sequence are drawn apart from the seven others, so that they alone may repeat one; and labels follow the ranks,
the rarest class first: labels 0 and 1, which `icl` shows, are those of the two rarest classes.
"""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from iclbench.core.episodes import Episodes, Points, take
from iclbench.core.errors import UsageError
from iclbench.families.base import Evaluator, Family
from iclbench.families.images.bursty_draws import ClassSplit, distinct_drawings
from iclbench.families.images.bursty_parameters import TESTED, BurstyParameters
from iclbench.families.images.character_sets import CharacterSet, omniglot_characters, procedural_characters
from iclbench.families.images.omniglot import ALL_CLASSES, DRAWINGS
from iclbench.families.request import Request

SHOTS = 3


class Sequences(NamedTuple):
    """Sequences before their images are looked up, the query last.

    Attributes:
        classes: number of each image's class in the split, which is its label in training.
        labels: what it is labelled.
        drawings: which drawing of the class it is.
        choices: the labels admitted.
    """

    classes: Int[Tensor, "B T"]
    labels: Int[Tensor, "B T"]
    drawings: Int[Tensor, "B T"]
    choices: Bool[Tensor, "B classes"]


class Bursty(Family):
    """Sequences of labelled characters, some bursty: the query's class in context; tests tell ICL from IWL.

    `truth` holds for every image, the query last, the class of the data and the drawing.

    Args:
        parameters: see `BurstyParameters`.
        data_dir: the folder that holds `omniglot/`; procedural glyphs need none.

    Raises:
        DataError: on first use, when the archives are not there, incomplete or damaged.
    """

    Parameters = BurstyParameters
    questions = frozenset({"targets"})
    data_parameters = ("glyphs",)
    parameters: BurstyParameters

    def __init__(self, parameters: BurstyParameters, data_dir: Path | None = None) -> None:
        super().__init__(parameters, data_dir)
        p = parameters
        self.classes, self.x_shape = p.classes, (p.image_size, p.image_size)
        available = ALL_CLASSES if p.glyphs == "omniglot" else p.classes
        split = ClassSplit.make(available, p.classes, p.holdout, p.common, p.alpha, p.split_seed, p.anchor_compat)
        self._splits = {torch.device("cpu"): split}
        self._drawn = p.classes  # procedural characters

    @property
    def x_dim(self) -> int:
        return int(self.parameters.image_size**2)

    def validation(self) -> Bursty:
        """The same task with other held-out characters, which the prompts of its tests never show.

        Raises:
            UsageError: the task leaves fewer of Omniglot's characters unused.
        """
        bursty, split, p = copy.copy(self), self.split(), self.parameters
        if p.glyphs == "omniglot":
            unused = torch.tensor(sorted({*range(ALL_CLASSES)} - {*split.glyph.tolist()}), dtype=torch.long)
            if len(unused) < split.holdout:
                raise UsageError(
                    f"of Omniglot's {ALL_CLASSES} characters {len(unused)} are unused, and choosing a learning rate by "
                    f"new characters takes {split.holdout}: choose it at a smaller preset, or lower task.classes"
                )
        else:
            unused = torch.arange(p.classes, p.classes + split.holdout)
            bursty._drawn = p.classes + split.holdout
        glyph = split.glyph.clone()
        glyph[split.training : split.training + split.holdout] = unused[: split.holdout]
        bursty._splits = {torch.device("cpu"): replace(split, glyph=glyph)}
        return bursty

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
        return procedural_characters(self._drawn, p.image_size, p.jitter)

    def split(self, device: torch.device | str = "cpu") -> ClassSplit:
        """Which classes are rare, common and held out, and how often each is drawn."""
        device = torch.device(device)
        if device not in self._splits:
            self._splits[device] = self._splits[torch.device("cpu")].to(device)
        return self._splits[device]

    def evaluators(self) -> dict[str, Evaluator]:
        two, all_labels = Evaluator(0.5), Evaluator(1 / self.split().training, knows="weights")
        iwl = ("iwl", "iwl_macro", "iwl_common", "iwl_rare", "iwl_new_drawings")
        flip = Evaluator(0.5, knows="either")
        return {"icl": two, "icl_paired": Evaluator(0.25, group_size=2), "flip": flip, **dict.fromkeys(iwl, all_labels)}

    def sample(self, request: Request) -> Episodes:
        episodes, points, generator = request.episodes, request.points, request.generator
        self.parse_shift(request.shift)
        split, shots, anchor = self.split(generator.device), min(SHOTS, points // 2), self.parameters.anchor_compat
        pair = self._pair(episodes, generator, apart=not anchor)
        free = split.zipf((episodes, points - 2 * shots), generator)
        # A rank beyond the last is the same class, whose drawing is chosen without regard to those of the rank itself.
        free = free + split.training * anchor
        context = _shuffled(torch.cat([pair.repeat_interleave(shots, 1), free], 1), generator)
        bursty = torch.cat([context, pair.gather(1, _coins(episodes, generator))], 1)
        is_bursty = torch.rand((episodes, 1), generator=generator, device=generator.device) < self.parameters.p_bursty
        independent = split.zipf((episodes, points + 1), generator)
        sequences = self._with_own_labels(torch.where(is_bursty, bursty, independent), generator)
        return self._episodes(sequences, request.active_dims)

    def check_test(self, evaluator: str) -> None:
        super().check_test(evaluator)
        if evaluator == "iwl_new_drawings" and self.parameters.train_drawings == DRAWINGS:
            raise UsageError(
                f"iwl_new_drawings needs drawings that are not trained on: of {DRAWINGS}, {DRAWINGS} are; "
                "lower task.train_drawings, as bursty-new-drawings does"
            )

    def sample_test(self, evaluator: str, episodes: int, generator: torch.Generator) -> Episodes:
        self.check_test(evaluator)
        match evaluator:
            case "icl":
                sequences = self._icl(episodes, generator)
            case "icl_paired":
                if episodes % 2:
                    raise UsageError(f"icl_paired asks for pairs of episodes, got {episodes}; make task.episodes even")
                sequences = self._exchanged(self._icl(episodes // 2, generator))
            case "flip":
                # Always two: one class under its own label would be right both in context and in weights.
                pair = self.split(generator.device).ranked[self._pair(episodes, generator, apart=True)]
                sequences = self._two_class_sequences(pair, pair.flip(1), self.parameters.train_drawings, generator)
            case _:
                sequences = self._iwl(evaluator, episodes, generator)
        return self._episodes(sequences)

    def _pair(self, episodes: int, generator: torch.Generator, apart: bool) -> Int[Tensor, "B 2"]:
        """Two ranks of training classes for every sequence, different ones where they are to be `apart`."""
        split = self.split(generator.device)
        ranks = split.zipf((episodes, 1), generator)
        other_ranks = split.zipf_except(ranks, generator) if apart else split.zipf((episodes, 1), generator)
        return torch.cat([ranks, other_ranks], 1)

    def _icl(self, episodes: int, generator: torch.Generator) -> Sequences:
        split, device = self.split(generator.device), generator.device
        first = torch.randint(split.holdout, (episodes, 1), generator=generator, device=device)
        low = 0 if self.parameters.anchor_compat else 1
        offset = torch.randint(low, split.holdout, (episodes, 1), generator=generator, device=device)
        pair = split.training + torch.cat([first, (first + offset) % split.holdout], 1)
        # Either class is as likely to be the first, so the labels are assigned at random already.
        return self._two_class_sequences(pair, self._icl_labels(episodes, generator), DRAWINGS, generator)

    def _icl_labels(self, episodes: int, generator: torch.Generator) -> Int[Tensor, "B 2"]:
        split, choice = self.split(generator.device), self.parameters.icl_labels
        if choice == "random":
            first = torch.randint(split.training, (episodes, 1), generator=generator, device=generator.device)
            offset = torch.randint(1, split.training, (episodes, 1), generator=generator, device=generator.device)
            return torch.cat([first, (first + offset) % split.training], 1)
        pairs = {"first": torch.arange(2), "rarest": split.ranked[-2:], "common": split.ranked[:2]}
        pair = pairs[choice] if isinstance(choice, str) else torch.tensor(choice)
        return pair.to(generator.device).expand(episodes, 2)

    def _two_class_sequences(
        self, pair: Int[Tensor, "B 2"], labels: Int[Tensor, "B 2"], drawings: int, generator: torch.Generator
    ) -> Sequences:
        """Equally many images of both classes under these labels, shuffled; the query is one more of either."""
        sides = (torch.arange(TESTED, device=pair.device) % 2).expand(len(pair), TESTED)
        sides = torch.cat([_shuffled(sides, generator), _coins(len(pair), generator)], 1)
        classes = pair.gather(1, sides)
        choices = torch.zeros((len(pair), self.parameters.classes), dtype=torch.bool, device=pair.device)
        drawing_numbers = distinct_drawings(classes, drawings, generator)
        return Sequences(classes, labels.gather(1, sides), drawing_numbers, choices.scatter(1, labels, True))

    @staticmethod
    def _exchanged(sequences: Sequences) -> Sequences:
        """Every sequence a second time, right behind itself, each of its two labels in the place of the other."""
        doubled = Sequences(*(t.repeat_interleave(2, 0) for t in sequences))
        label_sums = doubled.choices.nonzero()[:, 1].reshape(-1, 2).sum(1, keepdim=True)
        is_second = (torch.arange(len(label_sums), device=label_sums.device) % 2 == 1).unsqueeze(1)
        return doubled._replace(labels=torch.where(is_second, label_sums - doubled.labels, doubled.labels))

    def _iwl(self, evaluator: str, episodes: int, generator: torch.Generator) -> Sequences:
        split, trained_drawings = self.split(generator.device), self.parameters.train_drawings
        ranks = {
            "iwl_macro": (0, split.training),
            "iwl_common": (0, split.common),
            "iwl_rare": (split.common, split.training),
        }
        if evaluator in ranks:
            query = torch.randint(*ranks[evaluator], (episodes, 1), generator=generator, device=generator.device)
        else:
            query = split.zipf((episodes, 1), generator)
        context = split.zipf_except(query.expand(episodes, TESTED), generator)
        sequences = self._with_own_labels(torch.cat([context, query], 1), generator)
        if evaluator == "iwl_new_drawings":
            new_drawings = torch.randint(
                trained_drawings, DRAWINGS, (episodes, 1), generator=generator, device=generator.device
            )
            sequences = sequences._replace(drawings=torch.cat([sequences.drawings[:, :-1], new_drawings], 1))
        return sequences

    def _with_own_labels(self, ranks: Int[Tensor, "B T"], generator: torch.Generator) -> Sequences:
        """Images of training classes under their own labels; ranks count on from the first behind the last."""
        split = self.split(generator.device)
        classes = split.ranked[ranks % split.training]
        choices = torch.arange(self.parameters.classes, device=classes.device) < split.training
        drawing_numbers = distinct_drawings(ranks, self.parameters.train_drawings, generator)
        return Sequences(classes, classes, drawing_numbers, choices.repeat(len(classes), 1))

    def _episodes(self, sequences: Sequences, active_dims: int | None = None) -> Episodes:
        data_classes = self.split(sequences.classes.device).glyph[sequences.classes]
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


def _coins(episodes: int, generator: torch.Generator) -> Int[Tensor, "B 1"]:
    return torch.randint(2, (episodes, 1), generator=generator, device=generator.device)


def _shuffled(t: Int[Tensor, "B N"], generator: torch.Generator) -> Int[Tensor, "B N"]:
    """Every row in an order of its own."""
    return take(t, torch.rand(t.shape, generator=generator, device=generator.device).argsort(1))
