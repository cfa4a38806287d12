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
    """Settings of all built-in backbones. `iclbench show` prints the text below a setting."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    encoder: EncoderName | None = None
    """Image encoder; by default that of the backbone on images, and none on other inputs."""


def description(docstring: str | None) -> str:
    """The part of a docstring before its first section."""
    return re.split(r"\n(?:Args|Attributes|Raises|Returns):\n", inspect.cleandoc(docstring or ""))[0].strip()


def split_by_weight_decay(model: nn.Module, endings: tuple[str, ...]) -> list[dict[str, Any]]:
    """Parameter groups for the optimiser, without weight decay for parameters whose names have one of the `endings`."""
    parameters = dict(model.named_parameters())
    without_decay = [p for name, p in parameters.items() if name.endswith(endings)]
    with_decay = [p for name, p in parameters.items() if not name.endswith(endings)]
    return [{"params": with_decay}, *([{"params": without_decay, "weight_decay": 0.0}] if without_decay else [])]


def mean_by_episode(losses: Float[Tensor, "B Q"], scored: Bool[Tensor, "B Q"]) -> Float[Tensor, ""]:
    """Mean over the scored positions of every episode, then over the episodes that have any; 0 if no position is
    scored.

    It is one weighted sum. If all episodes have the same number of scored positions, all weights are exactly 1, and the
    result is exactly the plain mean.
    """
    counts, total = scored.sum(1, keepdim=True), scored.sum()
    weights = total / ((counts > 0).sum() * counts).clamp(min=1)
    return (losses * scored * weights.to(losses.dtype)).sum() / total.clamp(min=1)


def mean_by_event(losses: Float[Tensor, "B Q"], events: Bool[Tensor, "B Q"], points: Points) -> Float[Tensor, ""]:
    """The sum over all events and open intervals of a batch, divided by the number of events, as in the likelihood of a
    data set.

    Args:
        losses: losses; for an open interval, minus the log-survival.
        events: positions that are events.
        points: the points at these positions.
    """
    return (losses * (events | open_intervals(points))).sum() / events.sum().clamp(min=1)


_Settings = TypeVar("_Settings", bound=BaseSettings)

# Settings for budgets below 100 thousand, 2 million and 20 million parameters, and above.
_BUDGET_LIMITS = (100_000, 2_000_000, 20_000_000)
_SETTINGS_BY_BUDGET = {
    "layers": (2, 4, 8, 12),
    "heads": (4, 4, 8, 8),
    "pseudo_tokens": (8, 16, 32, 32),
    "latents": (8, 16, 64, 128),
    "state": (8, 8, 16, 16),
}
SMALLEST_BUDGET, SMALL_BUDGET = _BUDGET_LIMITS[:2]


class Backbone(nn.Module, Predictor, Generic[_Settings], abstract=True):
    """A trainable predictor.

    Attributes:
        Settings: settings that a preset or `-o backbone.key=value` may set; the defaults are the paper's size. On tasks
            with images, `image_backbone.build_backbone` adds an image encoder if they derive from `BackboneSettings`;
            otherwise the backbone reads pixels.
        computed_by: settings that only determine how to compute. They apply to training; trained weights are loaded
            with the defaults of these settings, so that a run can be used on any machine.
        default_encoder: image encoder if the settings name none.
        grows: settings that are searched to meet the budget of a preset, from coarse to fine; those that the backbone
            does not have are skipped (`iclbench.config.sizes`).
        input_kinds: the kinds of inputs (`TaskShape.inputs`) that it reads.
        reads_any_columns: whether it reads inputs of any dimension, also more than that of its task.
        own_context_targets: the setting that scores context points in training, for a backbone that would read each
            of them twice with the task's `context_targets`.
        head_step: factor of the width of a head in a search over widths.
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

    @classmethod
    def unfit_reason(cls, inputs: InputKind) -> str | None:
        """Why it cannot read these inputs; None if it can."""
        if inputs in cls.input_kinds:
            return None
        if cls.reads_only_events():
            return f"{cls.__name__} reads event sequences only; choose a task like point-process"
        if inputs == "images":
            return f"{cls.__name__} reads columns of a table, and images have none; choose another backbone, like tnp"
        reason = "does not read the order of its points" if cls.order == "set" else "needs inputs"
        return f"{cls.__name__} {reason}, and {inputs} are a sequence without inputs; choose a causal model, like gpt2"

    @classmethod
    def reads_only_events(cls) -> bool:
        """Whether it reads event sequences and no other inputs."""
        return cls.input_kinds == {"events"}

    @classmethod
    def at_budget(cls, budget: int, shape: TaskShape) -> dict[str, Any]:
        """The settings that are fixed before the search for a budget: depth, heads and memory of usual networks of this
        size. A subclass may override this method.

        Args:
            budget: number of parameters, excluding the image encoder.
            shape: the task.
        """
        column = sum(budget >= limit for limit in _BUDGET_LIMITS)
        return {key: values[column] for key, values in _SETTINGS_BY_BUDGET.items() if key in cls.Settings.model_fields}

    @classmethod
    def explanation(cls) -> str:
        """Description of the computation, for `iclbench show` and the reference; may be empty."""
        return description(cls.__doc__)

    @classmethod
    def step(cls, key: str, settings: Mapping[str, Any]) -> int:
        """The step of a setting in the search: for a width, the number of heads times `head_step`; for others, the
        multiple that their type requires."""
        if key == "width":
            heads = settings.get("heads") or getattr(cls.Settings(), "heads", 0)
            return heads * cls.head_step if heads else 1
        constraints = cls.Settings.model_fields[key].metadata
        multiples = (getattr(constraint, "multiple_of", None) for constraint in constraints)
        return next((int(multiple) for multiple in multiples if multiple), 1)

    @classmethod
    def searched_settings(cls, settings: Mapping[str, Any]) -> tuple[str, ...]:
        """The settings of `grows` that are searched, given these settings."""
        return cls.grows

    def read(self, raw: Float[Tensor, "B Q raw"]) -> Prediction:
        """The prediction of the task's head from raw outputs."""
        return self.shape.prediction.from_raw(raw, self.shape.outputs, self.shape.head_settings)

    def loss(
        self, episodes: Episodes, progress: float, generator: torch.Generator
    ) -> tuple[Float[Tensor, ""], dict[str, Tensor]]:
        """Training loss: the head's loss for the trained question, averaged by `mean_by_episode` (event sequences:
        `mean_by_event`). It is 0 if no position is scored, as in a curriculum with fewer points than the first scored
        one.

        Args:
            episodes: a batch.
            progress: 0 at the start of training, 1 at its end.
            generator: the only source of randomness.

        Returns:
            The loss and its named parts.
        """
        losses = self.ask(episodes, self.shape.question).loss(episodes.queries.y)
        if self.shape.marks is None:
            loss = mean_by_episode(losses, episodes.scored)
        else:
            loss = mean_by_event(losses, episodes.scored, episodes.queries)
        return loss, {"loss": loss.detach()}

    @property
    def shares_batches(self) -> bool:
        """Whether several processes may share a batch: the loss of a batch must be the mean over its parts (in the
        sense of `mean_by_episode` or `mean_by_event`) and not random."""
        return type(self).loss is Backbone.loss

    @property
    def has_layers(self) -> bool:
        """Whether it has layers to probe, that is, implements `predict_by_layer`."""
        return type(self).predict_by_layer is not Backbone.predict_by_layer

    def predict_by_layer(
        self, context: Points, x_target: Float[Tensor, "B Q Dx"], related: Points | None = None
    ) -> list[Prediction]:
        """Predictions from every layer, first to last: its output at the targets, decoded by the final norm and the
        read-out. The last prediction equals `predict_targets`.

        Raises:
            UsageError: this backbone has no layers.
        """
        raise UsageError(
            f"{type(self).__name__} has no layers to probe (it does not implement predict_by_layer)",
            code="not-applicable",
        )

    def parameter_groups(self) -> list[dict[str, Any]]:
        """Parameter groups for the optimiser. A group may have `lr_factor`, a factor on the schedule's learning rate,
        and any option of the optimiser (`weight_decay`)."""
        return [{"params": list(self.parameters())}]

    def notes(self, device: str) -> list[str]:
        """Short notes for the user on how the backbone computes on the device; logged once per run."""
        return []

    def save_state(self, state: State, path: Path | str, about: Mapping[str, str] | None = None) -> None:
        """Write a state of this model to one file, with a fingerprint of the model.

        Args:
            state: the state.
            path: the file; a file that `save_state` wrote is replaced.
            about: further entries for `read_about`.

        Raises:
            UsageError: another file exists at `path`.
        """
        check_state_file(Path(path))
        state.save(path, {**(about or {}), **self._fingerprint()})

    def load_state(self, path: Path | str) -> State:
        """Read a file written by `save_state` of this model, onto the device of its weights.

        Raises:
            DataError: the file is not a state, or it is the state of a model with another class, precision, settings or
                weights.
        """
        saved, fingerprint = read_about(path), self._fingerprint()
        if not saved:
            raise DataError(f"{path} does not name the model of its state; write it with save_state", code="bad-syntax")
        for key in fingerprint:
            if saved.get(key) != fingerprint[key]:
                is_readable = key in ("class", "precision")
                difference = f"{saved.get(key)}, not {fingerprint[key]}" if is_readable else f"other {key}"
                raise DataError(
                    f"{path} is the state of another model ({difference}); load it into the model that saved it",
                    code="not-applicable",
                )
        return State.load(path, next(self.parameters()).device)

    def _fingerprint(self) -> dict[str, str]:
        """Class, precision, settings and weights; equal for two models whose states can be exchanged."""
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
    def encoder_parameter_count(self) -> int:
        """Number of parameters of the image encoder, which a budget excludes; 0 if there is no encoder."""
        return 0
