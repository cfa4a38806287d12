"""CoQE: context and query are encoded separately ("Reconciling in-context and in-weight learning: a dual-space modeling
perspective", section 4).

A sample encoder maps each x and each y to a representation. A causal Transformer, the task encoder, reads the
representations of the context but not those of queries. Its outputs at the labels become task vectors for regression
(`task_vectors`) or class vectors for classification (`class_vectors`). A prediction is the inner product of these
vectors with the representation of the query. The representation of a query therefore does not depend on the context,
and the vectors do not depend on the query.

Sizes are as in the paper: GPT-2 with width 64, 3 layers and 2 heads for regression; width 64, 4 layers, 8 heads and
sinusoidal positions for classification, with a residual network of 512 features for images. As in GPT-2, the initial
weights of projections to the residual stream are smaller than those of Chan et al. by a factor of sqrt(2 L).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import torch
from jaxtyping import Bool, Float
from pydantic import Field
from torch import Tensor, nn

from iclbench.backbones.base import Backbone, BackboneSettings, initial_weights, mean_by_episode
from iclbench.backbones.pair_sequence import SEGMENT_SIZE
from iclbench.core.episodes import Episodes, Points, take
from iclbench.core.errors import UsageError
from iclbench.core.predictions import Categorical, Prediction
from iclbench.core.predictor import State
from iclbench.core.settings import MIXTURES, NonNegativeFloat, PositiveFloat, PositiveInt
from iclbench.core.task import TaskShape
from iclbench.layers.causal_transformer import OUTPUT_TOKENS
from iclbench.layers.coqe.class_vectors import ClassVectors, ClassVectorVariant, class_counts
from iclbench.layers.coqe.logit_noise import LogitNoise, NoisyLogits
from iclbench.layers.coqe.task_encoder import TaskEncoder
from iclbench.layers.coqe.task_space import TaskSpace
from iclbench.layers.coqe.task_vectors import TaskVectors
from iclbench.layers.key_value_cache import KeyValueCache, causal_mask
from iclbench.layers.pair_read_in import PairReadIn
from iclbench.layers.positions import PositionEncoding
from iclbench.layers.prompt import Prompt
from iclbench.layers.sample_encoder import FeatureEncoder, SampleEncoder

Fraction = Annotated[float, Field(ge=0, le=1)]
PositiveFraction = Annotated[float, Field(gt=0, le=1)]


class CoQESettings(BackboneSettings):
    """Settings of coqe, some of which apply only to regression or only to classification."""

    layers: PositiveInt | None = None
    """Blocks of the task encoder; by default 3 for regression, 4 for classification."""
    width: PositiveInt = 64
    """Width D of the task encoder."""
    heads: PositiveInt | None = None
    """Attention heads per layer; by default 2 for regression, 8 for classification."""
    feedforward: PositiveInt | None = None
    """Hidden width of the feed-forward networks; by default four times the width of a token."""
    positions: PositionEncoding | None = None
    """Position encoding of the task encoder: none, learned, sinusoidal or rotary; part of the model's name; by default
    none for regression, sinusoidal for classification."""
    init_std: PositiveFloat | None = None
    """Standard deviation of the task encoder's initial weights; by default 0.02 for regression, 1 / sqrt(width) for
    classification."""
    sample_dim: PositiveInt | None = None
    """Regression: width of the sample representation; by default the width of the task encoder."""
    readout: Literal["inner", "mlp"] = "inner"
    """Regression: map to task vectors: inner (identity or linear layer) or mlp."""
    variant: ClassVectorVariant = "released"
    """Classification: composition of vectors and noise as in the released code, or as in the paper."""
    noise: NonNegativeFloat = 5.0
    """Classification: mean of the noise on the logits at the start of training; 0 means no noise."""
    noise_std: NonNegativeFloat | None = None
    """Classification: standard deviation of the noise at the start; by default 3 as released, 1 in the paper."""
    noise_growth: NonNegativeFloat = 1.0
    """Classification: increment of mean and standard deviation after each `noise_every` of training."""
    noise_every: PositiveFraction = 0.1
    """Classification: fraction of training between two increments."""
    noise_first: Fraction | None = None
    """Classification: fraction of training before the first increment; by default 0.2 as released, 0.1 in the paper."""
    noise_on: NoisyLogits | None = None
    """Classification: the logits with noise: present (of classes in the context), lowest or all; by default lowest as
    released, all in the paper."""
    noise_lowest: PositiveFraction = 0.924
    """Classification: the fraction of logits that counts as the lowest."""

    def check_unused_settings(self, has_labels: bool) -> None:
        """Check that every setting that differs from its default applies to the task, whose outputs are class labels if
        `has_labels`, and numbers otherwise.

        Raises:
            UsageError: a setting does not apply to the task.
        """
        numbers, labels = "numbers", "class labels"
        unused, needed, actual = (
            (_REGRESSION_SETTINGS, numbers, labels) if has_labels else (_CLASSIFICATION_SETTINGS, labels, numbers)
        )
        for name in unused:
            if getattr(self, name) != type(self).model_fields[name].default:
                raise UsageError(
                    f"backbone.{name} is for tasks with {needed}, but this one has {actual}; remove it",
                    code="not-applicable",
                )

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


# Settings that apply only to regression, and settings that apply only to classification.
_REGRESSION_SETTINGS = ("sample_dim", "readout")
_CLASSIFICATION_SETTINGS = (
    "variant",
    "noise",
    "noise_std",
    "noise_growth",
    "noise_every",
    "noise_first",
    "noise_on",
    "noise_lowest",
)
# Defaults of each variant: standard deviation of the noise, fraction of training before its first increment, and logits
# with noise.
_NOISE: dict[ClassVectorVariant, tuple[float, float, NoisyLogits]] = {
    "released": (3.0, 0.2, "lowest"),
    "paper": (1.0, 0.1, "all"),
}


@dataclass(frozen=True)
class CoQEState(State):
    """The cache of the task encoder, and the memory of the task space."""

    cache: KeyValueCache
    memory: State


class CoQE(Backbone[CoQESettings]):
    """Sample encoder, task encoder, and task space.

    Attributes:
        encoder: the sample encoder, for inputs and outputs.
        widen: linear layer from sample representations to the width of the task encoder; the identity if the widths are
            equal.
        task_encoder: the causal Transformer over the context.
        space: the task or class vectors of the context, and their products with queries.

    Raises:
        UsageError: the width is not a multiple of the number of heads, a setting does not apply to the task, or
            positions are learned and a sequence is longer than in training.
    """

    Settings = CoQESettings
    order = "causal"
    default_encoder = "resnet-512"
    head_step = 2  # sinusoidal and rotary positions require pairs of channels

    @classmethod
    def at_budget(cls, budget: int, shape: TaskShape) -> dict[str, Any]:
        return super().at_budget(budget, shape) | initial_weights(budget, shape)

    def __init__(self, settings: CoQESettings, shape: TaskShape) -> None:
        super().__init__(settings, shape)
        width, sample_width = settings.width, settings.sample_dim or settings.width
        has_labels = shape.classes is not None
        settings.check_unused_settings(has_labels)
        self.encoder: PairReadIn
        self.space: TaskSpace
        if shape.classes is not None:
            sample_width = width
            self.encoder = FeatureEncoder(shape, width) if shape.encoded else SampleEncoder(shape, width)
            self.space = ClassVectors(width, shape.classes, settings.variant)
        else:
            self.encoder = SampleEncoder(shape, width, sample_width)
            sample_dim, is_mixture = sample_width if shape.x_dim else 1, shape.head in MIXTURES
            self.space = TaskVectors(width, sample_dim, shape.raw_dim, settings.readout, distinct_starts=is_mixture)
        self.widen: nn.Module = nn.Identity() if sample_width == width else nn.Linear(sample_width, width)
        positions = settings.positions or ("sinusoidal" if has_labels else "none")
        self.task_encoder = TaskEncoder(
            layers=settings.layers or (4 if has_labels else 3),
            width=width,
            heads=settings.heads or (8 if has_labels else 2),
            points=shape.points,
            positions=positions,
            init_std=settings.init_std or (width**-0.5 if has_labels else 0.02),
            feedforward=settings.feedforward,
        )
        # `longest` counts the query. Only points that are read need a position in the table: with the question
        # `targets`, all points except the query; with `next`, all points.
        self.longest = shape.points + (shape.question == "targets") if positions == "learned" else None

    def represent(self, x: Float[Tensor, "B N Dx"]) -> Float[Tensor, "B N S"]:
        """Return the sample representations phi(x), each of which depends only on its x. Without inputs, phi is the
        number 1, and a task vector is one number per raw output."""
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
        state, raw_outputs = self._start(len(points)), []
        for segment, segment_features in zip(
            Prompt.of(points).segments(SEGMENT_SIZE), features.split(SEGMENT_SIZE, 1), strict=True
        ):
            # No mask is needed: invalid points are after all valid ones, and their outputs are not used.
            hidden, cache = self._read(state, segment.points, None)
            raw_outputs.append(self.space.answer_prefixes(state.memory, hidden, segment.points, segment_features))
            state = CoQEState(cache, self.space.extend(state.memory, hidden, segment.points))
        raw = take(torch.cat(raw_outputs, 1), torch.argsort(order, dim=1))
        return self.read(raw if prefixes is None else raw[:, list(prefixes)])

    def condition(self, context: Points, related: Points | None = None) -> CoQEState:
        return self.update(self._start(len(context)), context)

    def update(self, state: CoQEState, points: Points) -> CoQEState:
        for segment in Prompt.of(points).segments(SEGMENT_SIZE):
            hidden, cache = self._read(state, segment.points, segment.points.mask)
            state = CoQEState(cache, self.space.extend(state.memory, hidden, segment.points))
        return state

    def query(self, state: CoQEState, x: Float[Tensor, "batch targets dx"]) -> Prediction:
        return self.read(self.space.answer(state.memory, self.represent(x)))

    def predict_by_layer(
        self, context: Points, x_target: Float[Tensor, "B Q Dx"], related: Points | None = None
    ) -> list[Prediction]:
        """Return the predictions with the task representations of every layer of the task encoder. All of them use the
        same representations of the targets."""
        context, start, features = context.compact()[0], self.space.start(len(context)), self.represent(x_target)
        layers = self.task_encoder.outputs_by_layer(self._tokens(context))
        memories = (self.space.extend(start, hidden, context) for hidden in layers)
        return [self.read(self.space.answer(memory, features)) for memory in memories]

    def loss(
        self, episodes: Episodes, progress: float, generator: torch.Generator
    ) -> tuple[Float[Tensor, ""], dict[str, Tensor]]:
        """Return the training loss. For class labels, it is the sum of two cross-entropies, one for the composed logits
        with noise and one for the static logits. Without the second one, the static logits would be learned slowly
        (section 4.2)."""
        if not isinstance(self.space, ClassVectors):
            return super().loss(episodes, progress, generator)
        queries, noise = episodes.queries, self.settings.logit_noise
        static = self.space.static(self.represent(queries.x))
        modified = self.ask(episodes, self.shape.question)
        assert isinstance(modified, Categorical)
        logits = modified.logits
        if noise is not None:
            logits = logits + noise.draw(static, self._present(episodes), progress, generator)
        parts = {
            name: mean_by_episode(Categorical(values).loss(queries.y), episodes.scored)
            for name, values in (("modified", logits), ("original", static))
        }
        loss = parts["modified"] + parts["original"]
        return loss, {name: part.detach() for name, part in {"loss": loss, **parts}.items()}

    @property
    def shares_batches(self) -> bool:
        return not isinstance(self.space, ClassVectors) or self.settings.logit_noise is None

    def _present(self, episodes: Episodes) -> Bool[Tensor, " B #Q classes"]:
        """Return which classes occur in the context of each query."""
        context, visible = episodes.context, episodes.context.mask.unsqueeze(1)
        if self.shape.question == "next":
            before = causal_mask(context.count, 0, visible.device).tril(-1)
            visible = (visible & before)[:, : episodes.queries.count]
        return class_counts(context.y, visible, self.shape.outputs) > 0

    def _start(self, batch: int) -> CoQEState:
        return CoQEState(self.task_encoder.start(batch), self.space.start(batch))

    def _tokens(self, points: Points) -> Float[Tensor, "B T D"]:
        return self.widen(self.encoder(points))

    def _read(
        self, state: CoQEState, points: Points, mask: Bool[Tensor, "B N"] | None
    ) -> tuple[Float[Tensor, "B N D"], KeyValueCache]:
        """Return the task encoder's outputs at the labels of further points, and its cache after these points."""
        pairs = None if mask is None else mask.repeat_interleave(2, 1)
        hidden, cache = self.task_encoder.resume_with_hidden(state.cache, self._tokens(points), pairs, OUTPUT_TOKENS)
        assert hidden is not None
        return hidden, cache
