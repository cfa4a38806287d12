"""CoQE: context and query are encoded apart ("Reconciling in-context and in-weight learning: a dual-space modeling
perspective", section 4).

A sample encoder turns every x and y, each on its own, into a representation; a causal Transformer, the task encoder,
reads those of the context and never a query. What it puts out at the labels becomes vectors of the task, and an answer
is their inner product with the representation of the query: `task_vectors` for regression, `class_vectors` for
classification. So the representation of a query does not move with the context, nor the task vectors with the query.

Sizes are those of the paper: GPT-2 with width 64, 3 layers and 2 heads for regression; width 64, 4 layers, 8 heads and
sinusoidal positions for classification, where a residual network of 512 features reads images. GPT-2's blocks start
with projections to the residual stream that are smaller by 1 / sqrt(2 L) than Chan et al.'s.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import torch
from jaxtyping import Bool, Float
from pydantic import Field
from torch import Tensor, nn

from iclbench.backbones.base import SMALL_BUDGET, Backbone, BackboneSettings, mean_by_episode
from iclbench.backbones.pair_sequence import SEGMENT
from iclbench.core.episodes import Episodes, Points, take
from iclbench.core.errors import UsageError
from iclbench.core.predictions import Categorical, Prediction
from iclbench.core.predictor import State
from iclbench.core.settings import MIXTURES, NonNegativeFloat, PositiveFloat, PositiveInt
from iclbench.core.task import TaskShape
from iclbench.layers.causal_transformer import OUTPUTS
from iclbench.layers.coqe.class_vectors import ClassVectors, Variant, class_counts
from iclbench.layers.coqe.logit_noise import LogitNoise, Where
from iclbench.layers.coqe.task_encoder import TaskEncoder
from iclbench.layers.coqe.task_space import TaskSpace
from iclbench.layers.coqe.task_vectors import TaskVectors
from iclbench.layers.key_value_cache import KeyValueCache, causal
from iclbench.layers.pair_read_in import PairReadIn
from iclbench.layers.positions import Positions
from iclbench.layers.prompt import Prompt
from iclbench.layers.sample_encoder import FeatureEncoder, SampleEncoder

Fraction = Annotated[float, Field(ge=0, le=1)]
PositiveFraction = Annotated[float, Field(gt=0, le=1)]


class CoQESettings(BackboneSettings):
    """Sizes; for regression the sample representation, for classification how vectors are composed and the noise."""

    layers: PositiveInt | None = None
    """Blocks of the task encoder; by default 3 for regression, 4 for classification."""
    width: PositiveInt = 64
    """Width D of the task encoder."""
    heads: PositiveInt | None = None
    """Attention heads per layer; by default 2 for regression, 8 for classification."""
    feedforward: PositiveInt | None = None
    """Hidden width of the feed-forward networks; by default four times that of a token."""
    positions: Positions | None = None
    """Of the task encoder: none, learned, sinusoidal, rotary, as the contestant's name says; by default none for
    regression, sinusoidal for classification."""
    init_std: PositiveFloat | None = None
    """Standard deviation of the task encoder's initial weights; by default 0.02, for classification 1 / sqrt(width)."""
    sample_dim: PositiveInt | None = None
    """Regression: width of the sample representation; by default that of the task encoder."""
    readout: Literal["inner", "mlp"] = "inner"
    """Regression: how task vector and sample meet: inner product or mlp."""
    variant: Variant = "released"
    """Classification: as the released code composes vectors and adds noise, or as the paper says."""
    noise: NonNegativeFloat = 5.0
    """Classification: mean of the noise on the logits when training starts; 0: there is none."""
    noise_std: NonNegativeFloat | None = None
    """Classification: standard deviation of that noise; by default 3 as released, 1 in the paper."""
    noise_growth: NonNegativeFloat = 1.0
    """Classification: what both grow by with every further `noise_every` of training."""
    noise_every: PositiveFraction = 0.1
    """Classification: the part of training between two steps of growth."""
    noise_first: Fraction | None = None
    """Classification: the part of training before the first; by default 0.2 as released, 0.1 in the paper."""
    noise_on: Where | None = None
    """Classification: the logits that get noise, present (of labels in the context), lowest or all; by default lowest
    as released, all in the paper."""
    noise_lowest: PositiveFraction = 0.924
    """Classification: the share of logits that counts as the lowest."""

    def refuse_unused(self, labelled: bool) -> None:
        """Raise `UsageError` when something is set that this kind of task (class labels or numbers) has no use for."""
        unused, kind = (_OF_NUMBERS, "numbers") if labelled else (_OF_LABELS, "class labels")
        for name in unused:
            if getattr(self, name) != type(self).model_fields[name].default:
                task_kind = "class labels" if labelled else "numbers"
                raise UsageError(f"backbone.{name} is for tasks with {kind} and this one has {task_kind}; leave it out")

    @property
    def logit_noise(self) -> LogitNoise | None:
        if self.noise == 0:
            return None
        std, first, logits = _NOISE[self.variant]
        return LogitNoise(
            mean=self.noise,
            std=std if self.noise_std is None else self.noise_std,
            growth=self.noise_growth,
            every=self.noise_every,
            first=first if self.noise_first is None else self.noise_first,
            where=self.noise_on or logits,
            share=self.noise_lowest,
        )


# Settings that tasks of the other kind have no use for.
_OF_NUMBERS = ("sample_dim", "readout")
_OF_LABELS = (
    "variant",
    "noise",
    "noise_std",
    "noise_growth",
    "noise_every",
    "noise_first",
    "noise_on",
    "noise_lowest",
)
# Standard deviation, time of the first growth and place of the noise.
_NOISE: dict[Variant, tuple[float, float, Where]] = {"released": (3.0, 0.2, "lowest"), "paper": (1.0, 0.1, "all")}


@dataclass(frozen=True)
class CoQEState(State):
    """The cache of the task encoder, and the memory that answers are composed of."""

    cache: KeyValueCache
    memory: State


class CoQE(Backbone[CoQESettings]):
    """Sample encoder, task encoder, and the space that their outputs meet in.

    Attributes:
        encoder: the sample encoder, of inputs and of outputs.
        widen: from sample representations to the width of the task encoder, where they differ.
        task_encoder: what reads the context.
        space: the memory of the context and its composition with a query.

    Raises:
        UsageError: the width does not divide by the heads, something is set that the task has no use for, or, with
            learned positions, a sequence is longer than the trained ones.
    """

    Settings = CoQESettings
    order = "causal"
    default_encoder = "resnet-512"
    head_step = 2  # sinusoidal and rotary positions come in pairs

    @classmethod
    def at_budget(cls, budget: int, shape: TaskShape) -> dict[str, Any]:
        """Small ones on numbers start wider: 0.02 leaves attention nearly uniform at such widths."""
        small = budget < SMALL_BUDGET and shape.classes is None
        return super().at_budget(budget, shape) | ({"init_std": 0.12} if small else {})

    def __init__(self, settings: CoQESettings, shape: TaskShape) -> None:
        super().__init__(settings, shape)
        width, space = settings.width, settings.sample_dim or settings.width
        labelled = shape.classes is not None
        settings.refuse_unused(labelled)
        self.encoder: PairReadIn
        self.space: TaskSpace
        if shape.classes is not None:
            space = width
            self.encoder = FeatureEncoder(shape, width) if shape.encoded else SampleEncoder(shape, width)
            self.space = ClassVectors(width, shape.classes, settings.variant)
        else:
            self.encoder = SampleEncoder(shape, width, space)
            sample_dim, mixed = space if shape.x_dim else 1, shape.head in MIXTURES
            self.space = TaskVectors(width, sample_dim, shape.raw_dim, settings.readout, apart=mixed)
        self.widen: nn.Module = nn.Identity() if space == width else nn.Linear(space, width)
        positions = settings.positions or ("sinusoidal" if labelled else "none")
        self.task_encoder = TaskEncoder(
            layers=settings.layers or (4 if labelled else 3),
            width=width,
            heads=settings.heads or (8 if labelled else 2),
            points=shape.points,
            positions=positions,
            init_std=settings.init_std or (width**-0.5 if labelled else 0.02),
            feedforward=settings.feedforward,
        )
        # A query takes no place in the sequence; to `next` every point is one that is read.
        self.longest = shape.points + (shape.question == "targets") if positions == "learned" else None

    def represent(self, x: Float[Tensor, "B N Dx"]) -> Float[Tensor, "B N S"]:
        """Sample representations phi(x), each of its own x alone; the number 1 where there is no input to tell samples
        apart, so that a task vector is one number per raw output."""
        return self.encoder.inputs(x) if self.shape.x_dim else x.new_ones(*x.shape[:-1], 1)

    def predict_next(
        self,
        points: Points,
        related: Points | None = None,
        *,
        x_query: Float[Tensor, "batch points dx"] | None = None,
        prefixes: Sequence[int] | None = None,
    ) -> Prediction:
        if x_query is not None:
            points = points.span(0, x_query.shape[1])
        points, order = points.compact()
        features = self.represent(points.x if x_query is None else take(x_query, order))
        if not points.count:
            return self.read(features.new_zeros(len(points), 0, self.shape.raw_dim))
        state, parts = self._start(len(points)), []
        for segment, segment_features in zip(
            Prompt.of(points).segments(SEGMENT), features.split(SEGMENT, 1), strict=True
        ):
            # Without a mask: invalid points come after all valid ones, and their outputs are not read.
            hidden, cache = self._read(state, segment.points, None)
            parts.append(self.space.along(state.memory, hidden, segment.points, segment_features))
            state = CoQEState(cache, self.space.after(state.memory, hidden, segment.points))
        raw = take(torch.cat(parts, 1), torch.argsort(order, dim=1))
        return self.read(raw if prefixes is None else raw[:, list(prefixes)])

    def condition(self, context: Points, related: Points | None = None) -> CoQEState:
        return self.update(self._start(len(context)), context)

    def update(self, state: CoQEState, points: Points) -> CoQEState:
        for segment in Prompt.of(points).segments(SEGMENT):
            hidden, cache = self._read(state, segment.points, segment.points.mask)
            state = CoQEState(cache, self.space.after(state.memory, hidden, segment.points))
        return state

    def query(self, state: CoQEState, x: Float[Tensor, "batch targets dx"]) -> Prediction:
        return self.read(self.space.answer(state.memory, self.represent(x)))

    def predict_by_layer(
        self, context: Points, x_target: Float[Tensor, "B Q Dx"], related: Points | None = None
    ) -> list[Prediction]:
        """Task representations read after every layer of the task encoder, for the same features of the targets."""
        context, start, features = context.compact()[0], self.space.start(len(context)), self.represent(x_target)
        layers = self.task_encoder.by_layer(self._tokens(context))
        memories = (self.space.after(start, hidden, context) for hidden in layers)
        return [self.read(self.space.answer(memory, features)) for memory in memories]

    def loss(
        self, episodes: Episodes, progress: float, generator: torch.Generator
    ) -> tuple[Float[Tensor, ""], dict[str, Tensor]]:
        """On class labels the sum of two cross-entropies: of the composed logits, with noise, and of the static ones
        alone, which would learn slowly otherwise (section 4.2)."""
        if not isinstance(self.space, ClassVectors):
            return super().loss(episodes, progress, generator)
        asked, noise = episodes.asked, self.settings.logit_noise
        static = self.space.static(self.represent(asked.x))
        modified = self.ask(episodes, self.shape.question)
        assert isinstance(modified, Categorical)
        logits = modified.logits
        if noise is not None:
            logits = logits + noise.draw(static, self._present(episodes), progress, generator)
        parts = {
            name: mean_by_episode(Categorical(values).loss(asked.y), episodes.scored)
            for name, values in (("modified", logits), ("original", static))
        }
        loss = parts["modified"] + parts["original"]
        return loss, {name: part.detach() for name, part in {"loss": loss, **parts}.items()}

    @property
    def shares_batches(self) -> bool:
        return not isinstance(self.space, ClassVectors) or self.settings.logit_noise is None

    def _present(self, episodes: Episodes) -> Bool[Tensor, " B #Q classes"]:
        """The classes in the context of every asked position."""
        context, visible = episodes.context, episodes.context.mask.unsqueeze(1)
        if self.shape.question == "next":
            before = causal(context.count, 0, visible.device).tril(-1)
            visible = (visible & before)[:, : episodes.asked.count]
        return class_counts(context.y, visible, self.shape.outputs) > 0

    def _start(self, batch: int) -> CoQEState:
        return CoQEState(self.task_encoder.start(batch), self.space.start(batch))

    def _tokens(self, points: Points) -> Float[Tensor, "B T D"]:
        return self.widen(self.encoder(points))

    def _read(
        self, state: CoQEState, points: Points, mask: Bool[Tensor, "B N"] | None
    ) -> tuple[Float[Tensor, "B N D"], KeyValueCache]:
        """The task encoder's outputs at the labels of further points, and its cache after them."""
        pairs = None if mask is None else mask.repeat_interleave(2, 1)
        hidden, cache = self.task_encoder.follow(state.cache, self._tokens(points), pairs, OUTPUTS)
        assert hidden is not None
        return hidden, cache
