"""The base class of backbones: torch modules that are predictors and have a training loss."""

from __future__ import annotations

import hashlib
import inspect
import re
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

import torch
from jaxtyping import Bool, Float
from pydantic import ConfigDict
from torch import Tensor, nn

from iclbench.core.episodes import Episodes, Points
from iclbench.core.errors import DataError, UsageError
from iclbench.core.events import open_intervals
from iclbench.core.files import check_state_file
from iclbench.core.hashing import content_hash
from iclbench.core.heads import HEADS
from iclbench.core.predictions import Prediction
from iclbench.core.predictor import Predictor, State
from iclbench.core.records import read_about
from iclbench.core.settings import BaseSettings
from iclbench.core.task import InputKind, TaskShape
from iclbench.layers.vision.image_encoder import EncoderName


class BackboneSettings(BaseSettings):
    """Settings of all built-in backbones. `iclbench show` prints the text below each setting."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    encoder: EncoderName | None = None
    """Image encoder; by default the backbone's encoder for images, and no encoder for other inputs."""


def description(docstring: str | None) -> str:
    """Return the part of a docstring before its first section."""
    return re.split(r"\n(?:Args|Attributes|Raises|Returns):\n", inspect.cleandoc(docstring or ""))[0].strip()


def split_by_weight_decay(model: nn.Module, endings: tuple[str, ...]) -> list[dict[str, Any]]:
    """Return parameter groups for the optimiser, without weight decay for parameters whose names end with one of
    `endings`."""
    parameters = dict(model.named_parameters())
    without_decay = [p for name, p in parameters.items() if name.endswith(endings)]
    with_decay = [p for name, p in parameters.items() if not name.endswith(endings)]
    return [{"params": with_decay}, *([{"params": without_decay, "weight_decay": 0.0}] if without_decay else [])]


def mean_by_episode(losses: Float[Tensor, "B Q"], scored: Bool[Tensor, "B Q"]) -> Float[Tensor, ""]:
    """Average losses over the scored positions of each episode, and then over the episodes that have scored positions.
    The result is 0 if no position is scored.

    The average is computed as one weighted sum. If all episodes have the same number of scored positions, all weights
    are exactly 1, and the result is exactly the plain mean.
    """
    counts, total = scored.sum(1, keepdim=True), scored.sum()
    weights = total / ((counts > 0).sum() * counts).clamp(min=1)
    return (losses * scored * weights.to(losses.dtype)).sum() / total.clamp(min=1)


def mean_by_event(losses: Float[Tensor, "B Q"], events: Bool[Tensor, "B Q"], points: Points) -> Float[Tensor, ""]:
    """Return the sum of the losses of all events and open intervals of a batch, divided by the number of events, as in
    the likelihood of a data set.

    Args:
        losses: losses at all positions; for an open interval, minus the log-survival.
        events: positions that are events.
        points: the points at these positions.
    """
    return (losses * (events | open_intervals(points))).sum() / events.sum().clamp(min=1)


_Settings = TypeVar("_Settings", bound=BaseSettings)
# A type variable instead of `Self`, which beartype rejects in methods.
_Backbone = TypeVar("_Backbone", bound="Backbone[Any]")

# Settings for budgets below 100 thousand, 2 million and 20 million parameters, and for larger budgets.
_BUDGET_LIMITS = (100_000, 2_000_000, 20_000_000)
_SETTINGS_BY_BUDGET = {
    "layers": (2, 4, 8, 12),
    "heads": (4, 4, 8, 8),
    "pseudo_tokens": (8, 16, 32, 32),
    "latents": (8, 16, 64, 128),
    "state": (8, 8, 16, 16),
}
SMALLEST_BUDGET, SMALL_BUDGET = _BUDGET_LIMITS[:2]


def initial_weights(budget: int, shape: TaskShape) -> dict[str, float]:
    """Return the setting `init_std` of attention models for a budget, if it differs from the default. Small models for
    regression have larger initial weights, because with a standard deviation of 0.02, attention is nearly uniform at
    small widths."""
    return {"init_std": 0.12} if budget < SMALL_BUDGET and shape.classes is None else {}


class Backbone(nn.Module, Predictor, Generic[_Settings], abstract=True):
    """A trainable predictor.

    Attributes:
        Settings: class of the settings, which a preset or `-o backbone.key=value` can change; the defaults are the
            sizes of the paper. On tasks with images, `image_backbone.build_backbone` adds an image encoder if the class
            derives from `BackboneSettings`; otherwise the backbone reads pixels.
        computed_by: names of settings that affect only how outputs are computed, and not their values. They apply to
            training. Trained weights are loaded with the defaults of these settings, so that a run can be used on any
            machine.
        default_encoder: image encoder if the settings do not name one.
        grows: names of the settings that are searched to meet the budget of a preset, from coarse to fine. Names that
            the backbone does not have are skipped (`iclbench.config.sizes`).
        input_kinds: the kinds of inputs (`TaskShape.inputs`) that the backbone reads.
        reads_any_columns: whether the backbone reads inputs of any dimension, including more columns than in its task.
        own_context_targets: the backbone's setting that replaces the task's `context_targets`, with which the backbone
            would read each context point twice; None if the backbone supports `context_targets`.
        head_step: in a search over widths, the width of a head is a multiple of this number.
    """

    Settings: ClassVar[type[BaseSettings]]
    computed_by: ClassVar[frozenset[str]] = frozenset()
    default_encoder: ClassVar[EncoderName] = "resnet-64"
    grows: ClassVar[tuple[str, ...]] = ("width", "feedforward", "hidden", "pseudo_tokens", "latents", "state")
    input_kinds: ClassVar[frozenset[InputKind]] = frozenset({"features", "images", "events"})
    reads_any_columns: ClassVar[bool] = False
    own_context_targets: ClassVar[str | None] = None
    head_step: ClassVar[int] = 1
    heads = tuple(HEADS)

    def __init__(self, settings: _Settings, shape: TaskShape) -> None:
        super().__init__()
        if (reason := self.unfit_reason(shape.inputs)) is not None:
            raise UsageError(reason, code="not-applicable")
        self.settings = settings
        self.shape = shape

    def too_long(self, examples: int) -> str | None:
        reason = super().too_long(examples)
        if reason is None or self.longest is None or self.shape.x_dim:
            return reason
        return f"it takes in at most {self.longest - 1} {self.shape.noun}s"

    @classmethod
    def unfit_reason(cls, inputs: InputKind) -> str | None:
        """Return the reason why the backbone cannot read these inputs; None if it can."""
        if inputs in cls.input_kinds:
            return None
        if cls.reads_only_events():
            return f"{cls.__name__} reads event sequences only; choose a task like point-process"
        if inputs == "images":
            return f"{cls.__name__} reads columns of a table, and images have none; choose another backbone, like tnp"
        reason = "does not read the order of its points" if cls.order == "set" else "needs inputs"
        return f"{cls.__name__} {reason}, but {inputs} form a sequence without inputs; choose a causal model, like gpt2"

    @classmethod
    def reads_only_events(cls) -> bool:
        """Return whether the backbone reads event sequences and no other inputs."""
        return cls.input_kinds == {"events"}

    @classmethod
    def at_budget(cls, budget: int, shape: TaskShape) -> dict[str, Any]:
        """Return the settings that are fixed before the search for a budget: the depth, the number of heads and the
        size of the memory, as in typical networks with this number of parameters. A subclass may override this method.

        Args:
            budget: number of parameters, excluding the image encoder.
            shape: the task.
        """
        column = sum(budget >= limit for limit in _BUDGET_LIMITS)
        return {key: values[column] for key, values in _SETTINGS_BY_BUDGET.items() if key in cls.Settings.model_fields}

    @classmethod
    def explanation(cls) -> str:
        """Return a description of the computation for `iclbench show` and the reference; it may be empty."""
        return description(cls.__doc__)

    @classmethod
    def step(cls, key: str, settings: Mapping[str, Any]) -> int:
        """Return the step size of a setting in the search. For the width, it is the number of heads times `head_step`;
        for other settings, it is the multiple that their type requires."""
        if key == "width":
            heads = settings.get("heads") or getattr(cls.Settings(), "heads", 0)
            return heads * cls.head_step if heads else 1
        constraints = cls.Settings.model_fields[key].metadata
        multiples = (getattr(constraint, "multiple_of", None) for constraint in constraints)
        return next((int(multiple) for multiple in multiples if multiple), 1)

    @classmethod
    def searched_settings(cls, settings: Mapping[str, Any]) -> tuple[str, ...]:
        """Return the names in `grows` that are searched, given these settings."""
        return cls.grows

    @classmethod
    def state_settings(cls, settings: Mapping[str, Any]) -> tuple[str, ...]:
        """Return the names of the settings that are searched to meet `state_budget`, given these settings
        (`iclbench.config.state_sizes`)."""
        return tuple(key for key in ("heads", "state") if key in cls.Settings.model_fields)

    def read(self, raw: Float[Tensor, "B Q raw"]) -> Prediction:
        """Convert raw outputs to the prediction of the task's head."""
        return self.shape.prediction.from_raw(raw, self.shape.outputs, self.shape.head_settings)

    def loss(
        self, episodes: Episodes, progress: float, generator: torch.Generator
    ) -> tuple[Float[Tensor, ""], dict[str, Tensor]]:
        """Return the training loss: the head's loss for the task's question, averaged by `mean_by_episode` (for event
        sequences, by `mean_by_event`). It is 0 if no position is scored, for example in a curriculum whose episodes end
        before the first scored point.

        Args:
            episodes: a batch.
            progress: 0 at the start of training, 1 at its end.
            generator: the only source of randomness.

        Returns:
            The loss and its named parts.
        """
        answers = [answer.loss(episodes.queries.y) for answer in self.trained_answers(episodes)]
        losses = answers[0] if len(answers) == 1 else torch.stack(answers).mean(0)
        if self.shape.marks is None:
            loss = mean_by_episode(losses, episodes.scored)
        else:
            loss = mean_by_event(losses, episodes.scored, episodes.queries)
        return loss, {"loss": loss.detach()}

    def trained_answers(self, episodes: Episodes) -> list[Prediction]:
        """Return the answers whose losses the training loss averages: by default, only the answer to the question of
        the task."""
        return [self.ask(episodes, self.shape.question)]

    def with_loops(self: _Backbone, loops: int) -> _Backbone:
        """Return a model with the same weights and another number of iterations.

        Raises:
            UsageError: the model was built without loops.
        """
        raise UsageError(
            "the model has no loops; train one with -o backbone.loops=N, for example gpt2", code="not-applicable"
        )

    @property
    def shares_batches(self) -> bool:
        """Whether several processes may share a batch. This requires that the loss of a batch is the mean over its
        parts (in the sense of `mean_by_episode` or `mean_by_event`) and is not random."""
        return type(self).loss is Backbone.loss

    @property
    def has_layers(self) -> bool:
        """Whether the backbone has layers to probe, that is, whether it implements `predict_by_layer`."""
        return type(self).predict_by_layer is not Backbone.predict_by_layer

    def predict_by_layer(
        self, context: Points, x_target: Float[Tensor, "B Q Dx"], related: Points | None = None
    ) -> list[Prediction]:
        """Return the predictions from every layer, first to last. The output of each layer at the targets is decoded by
        the final norm and the read-out. The last prediction equals `predict_targets`.

        Raises:
            UsageError: this backbone has no layers.
        """
        raise UsageError(
            f"{type(self).__name__} has no layers to probe (it does not implement predict_by_layer)",
            code="not-applicable",
        )

    def parameter_groups(self) -> list[dict[str, Any]]:
        """Return parameter groups for the optimiser. A group may have `lr_factor`, which multiplies the learning rate
        of the schedule, and any option of the optimiser, such as `weight_decay`."""
        return [{"params": list(self.parameters())}]

    def notes(self, device: str) -> list[str]:
        """Return short notes for the user on how the backbone computes on the device; they are logged once per run."""
        return []

    def save_state(self, state: State, path: Path | str, about: Mapping[str, str] | None = None) -> None:
        """Write a state of this model to one file, with a fingerprint of the model.

        Args:
            state: the state.
            path: the file; an existing file is replaced only if `save_state` wrote it.
            about: further entries for `read_about`.

        Raises:
            UsageError: another file exists at `path`.
        """
        check_state_file(Path(path))
        state.save(path, {**(about or {}), **self._fingerprint()})

    def load_state(self, path: Path | str) -> State:
        """Load a state that `save_state` of this model wrote, onto the device of the model's weights.

        Raises:
            DataError: the file is not a state, or it is the state of a model with another class, precision, settings or
                weights.
        """
        saved, fingerprint = read_about(path), self._fingerprint()
        if not saved:
            raise DataError(
                f"{path} does not record which model saved it; save the state with save_state", code="bad-syntax"
            )
        for key in fingerprint:
            if saved.get(key) != fingerprint[key]:
                is_readable = key in ("class", "precision")
                difference = f"{saved.get(key)}, not {fingerprint[key]}" if is_readable else f"different {key}"
                raise DataError(
                    f"{path} is the state of another model ({difference}); load it into the model that saved it",
                    code="not-applicable",
                )
        return State.load(path, next(self.parameters()).device)

    def _fingerprint(self) -> dict[str, str]:
        """Return the class, the precision, and hashes of settings and weights. They are equal for two models whose
        states can be exchanged."""
        settings = self.settings.model_dump(mode="json", exclude=set(self.computed_by))
        weights = hashlib.sha256()
        for name, t in sorted(self.state_dict().items()):
            weights.update(f"{name} {t.dtype} {tuple(t.shape)}".encode())
            weights.update(t.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
        shape = asdict(self.shape)
        del shape["related_points"]  # only sets the size of the table of positions, which is one of the weights
        configuration = {"settings": settings, "shape": shape}
        return {
            "class": type(self).__name__,
            "precision": str(next(self.parameters()).dtype).removeprefix("torch."),
            "settings": content_hash(configuration),
            "weights": weights.hexdigest(),
        }

    @property
    def parameter_count(self) -> int:
        return sum(p.numel() for p in self.parameters())

    @property
    def state_size(self) -> int | None:
        """Size of an episode's state in float32 values (4 bytes); None if it depends on the context, like a cache of
        keys and values. For streams, tables of costs also count the last token, which is stored with the state."""
        return None

    @property
    def encoder_parameter_count(self) -> int:
        """Number of parameters of the image encoder, which a budget excludes; 0 for a model without an encoder."""
        return 0
