"""What a backbone is: a torch module that fulfils the predictor contract and has a training loss."""

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
from iclbench.core.task import TaskShape
from iclbench.layers.vision.image_encoder import EncoderName


class BackboneSettings(BaseSettings):
    """Settings shared by all built-in backbones; the text below a setting is what `iclbench show` says of it."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    encoder: EncoderName | None = None
    """What turns images into features; by default the backbone's own on images, nothing elsewhere."""


def described(docstring: str | None) -> str:
    """A docstring up to its first section."""
    return re.split(r"\n(?:Args|Attributes|Raises|Returns):\n", inspect.cleandoc(docstring or ""))[0].strip()


def without_decay(model: nn.Module, endings: tuple[str, ...]) -> list[dict[str, Any]]:
    """Parameters as the optimiser groups them, those whose names end so without weight decay."""
    names = dict(model.named_parameters())
    undecayed = [p for name, p in names.items() if name.endswith(endings)]
    others = [p for name, p in names.items() if not name.endswith(endings)]
    return [{"params": others}, *([{"params": undecayed, "weight_decay": 0.0}] if undecayed else [])]


def mean_by_episode(losses: Float[Tensor, "B Q"], scored: Bool[Tensor, "B Q"]) -> Float[Tensor, ""]:
    """Mean over the scored positions of every episode, then over the episodes that have any; 0 where none has.

    As one weighted sum, so that it is the plain mean to the last digit where all episodes have equally many: their
    weights are exactly 1.
    """
    counts, every = scored.sum(1, keepdim=True), scored.sum()
    weights = every / ((counts > 0).sum() * counts).clamp(min=1)
    return (losses * scored * weights.to(losses.dtype)).sum() / every.clamp(min=1)


def mean_by_event(losses: Float[Tensor, "B Q"], events: Bool[Tensor, "B Q"], points: Points) -> Float[Tensor, ""]:
    """The sum over all events and open intervals of a batch per event, as the likelihood of a data set has it.

    Args:
        losses: losses; of an open interval minus the log-survival.
        events: which positions are events.
        points: the points of these positions.
    """
    return (losses * (events | open_intervals(points))).sum() / events.sum().clamp(min=1)


_Settings = TypeVar("_Settings", bound=BaseSettings)

# What goes with a budget of parameters: below 100 thousand, 2 million, 20 million, and beyond. Two layers at 25
# thousand and four at 200 thousand are what presets always had.
_LIMITS = (100_000, 2_000_000, 20_000_000)
_AT_BUDGET = {
    "layers": (2, 4, 8, 12),
    "heads": (4, 4, 8, 8),
    "pseudo_tokens": (8, 16, 32, 32),
    "latents": (8, 16, 64, 128),
    "state": (8, 8, 16, 16),
}
SMALLEST_BUDGET, SMALL_BUDGET = _LIMITS[:2]


class Backbone(nn.Module, Predictor, Generic[_Settings], abstract=True):
    """A trainable predictor.

    Attributes:
        Settings: what a preset or `-o backbone.key=value` may set; the defaults are the paper's size. With
            `BackboneSettings` among its bases, `image_backbone.for_task` puts an encoder before it on tasks with
            images; without, it reads pixels.
        computed_by: the settings that only say how to compute. They hold for training; finished weights are loaded with
            their defaults, so that they can be used on any machine.
        default_encoder: of images, where the settings name none.
        grows: settings by which it takes a size: the first of them that it has is searched until a preset's budget is
            met, then the next, as finer ones (`iclbench.config.sizes`).
        events_only: whether it reads event sequences and nothing else.
        own_context_targets: how it scores the context points in training, where the task's `context_targets` would show
            it each of them twice.
        head_step: what the width of a head is a multiple of where the width is searched.
    """

    Settings: ClassVar[type[BaseSettings]]
    computed_by: ClassVar[frozenset[str]] = frozenset()
    default_encoder: ClassVar[EncoderName] = "resnet-64"
    grows: ClassVar[tuple[str, ...]] = ("width", "feedforward", "hidden", "pseudo_tokens", "latents", "state")
    events_only: ClassVar[bool] = False
    own_context_targets: ClassVar[str | None] = None
    head_step: ClassVar[int] = 1
    heads = tuple(HEADS)

    def __init__(self, settings: _Settings, shape: TaskShape) -> None:
        super().__init__()
        if self.events_only and shape.marks is None:
            raise UsageError(
                f"{type(self).__name__} reads event sequences and nothing else; train it on point-process or events"
            )
        self.settings = settings
        self.shape = shape

    @classmethod
    def at_budget(cls, budget: int, shape: TaskShape) -> dict[str, Any]:
        """Settings that go with a budget of parameters before anything is searched: depth, heads and memory of the
        kind's usual networks of that size. A backbone that takes its size in another way writes its own.

        Args:
            budget: parameters, without those of an image encoder.
            shape: the task.
        """
        column = sum(budget >= limit for limit in _LIMITS)
        return {key: values[column] for key, values in _AT_BUDGET.items() if key in cls.Settings.model_fields}

    @classmethod
    def explained(cls) -> str:
        """Description of what it computes, for `iclbench show` and the reference; empty: none."""
        return described(cls.__doc__)

    @classmethod
    def step(cls, key: str, settings: Mapping[str, Any]) -> int:
        """The step in which a setting is searched: for a width, heads times `head_step`; for others, the multiple that
        their type requires."""
        if key == "width":
            heads = settings.get("heads") or getattr(cls.Settings(), "heads", 0)
            return heads * cls.head_step if heads else 1
        multiples = (getattr(multiple, "multiple_of", None) for multiple in cls.Settings.model_fields[key].metadata)
        return next((int(multiple) for multiple in multiples if multiple), 1)

    @classmethod
    def growing(cls, settings: Mapping[str, Any]) -> tuple[str, ...]:
        """The settings of `grows` by which it takes a size beside these."""
        return cls.grows

    def read(self, raw: Float[Tensor, "B Q raw"]) -> Prediction:
        """The task's kind of prediction from raw outputs."""
        return self.shape.prediction.from_raw(raw, self.shape.outputs, self.shape.head_settings)

    def loss(
        self, episodes: Episodes, progress: float, generator: torch.Generator
    ) -> tuple[Float[Tensor, ""], dict[str, Tensor]]:
        """Training loss: the trained question, scored by the head, as `mean_by_episode` sums it up (of event sequences
        as `mean_by_event`); 0 where nothing counts (a curriculum may give fewer points than the first that is scored).

        Args:
            episodes: a batch.
            progress: 0 at the start of training, 1 at its end.
            generator: for losses that draw something; the only randomness allowed.

        Returns:
            The loss and its named parts.
        """
        losses = self.ask(episodes, self.shape.question).loss(episodes.asked.y)
        if self.shape.marks is None:
            loss = mean_by_episode(losses, episodes.scored)
        else:
            loss = mean_by_event(losses, episodes.scored, episodes.asked)
        return loss, {"loss": loss.detach()}

    @property
    def shares_batches(self) -> bool:
        """Whether the loss of a batch is the mean of those of its parts, as `mean_by_episode` (of event sequences
        `mean_by_event`) has it, and draws nothing: only then may several processes share a batch."""
        return type(self).loss is Backbone.loss

    @property
    def layered(self) -> bool:
        """Whether there are layers to probe: `predict_by_layer` is written."""
        return type(self).predict_by_layer is not Backbone.predict_by_layer

    def predict_by_layer(
        self, context: Points, x_target: Float[Tensor, "B Q Dx"], related: Points | None = None
    ) -> list[Prediction]:
        """What every layer, first to last, would answer if it were the last: its output at the targets, decoded by
        the model's own final norm and read-out. The last of them equals `predict_targets`.

        Raises:
            UsageError: this backbone has no layers.
        """
        raise UsageError(f"{type(self).__name__} has no layers to probe (it does not write predict_by_layer)")

    def parameter_groups(self) -> list[dict[str, Any]]:
        """Parameters as the optimiser groups them. A group may have `lr_factor`, by which the schedule's learning
        rate is multiplied for it, and any option of the optimiser (`weight_decay`)."""
        return [{"params": list(self.parameters())}]

    def notes(self, device: str) -> list[str]:
        """Notes for the user on how this computes on the device, in a few words each; logged once per run."""
        return []

    def save_state(self, state: State, path: Path | str, about: Mapping[str, str] | None = None) -> None:
        """Write a state of this model to one file, together with what tells this model from all others, and what else
        `read_about` shall tell of it. A file that `save_state` wrote is replaced; any other raises `UsageError`."""
        check_state_file(Path(path))
        state.save(path, {**(about or {}), **self._fingerprint()})

    def load_state(self, path: Path | str) -> State:
        """Read a file written by `save_state` of this very model, onto the device of its weights.

        Raises:
            DataError: the file holds no state, or that of a model of another class, other settings or other weights.
        """
        saved, fingerprint = read_about(path), self._fingerprint()
        if not saved:
            raise DataError(f"{path} does not say which model's state it holds; write it with save_state")
        for key in fingerprint:
            if saved.get(key) != fingerprint[key]:
                is_readable = key in ("class", "precision")
                difference = f"{saved.get(key)}, this is {fingerprint[key]}" if is_readable else f"it has other {key}"
                raise DataError(
                    f"{path} is the state of another model ({difference}); load it into the one that saved it"
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
        del shape["related_points"]  # for a table of positions alone, which is one of the weights
        built = {"settings": settings, "shape": shape}
        return {
            "class": type(self).__name__,
            "precision": str(next(self.parameters()).dtype).removeprefix("torch."),
            "settings": content_hash(built),
            "weights": weights.hexdigest(),
        }

    @property
    def parameter_count(self) -> int:
        return sum(p.numel() for p in self.parameters())

    @property
    def encoder_parameter_count(self) -> int:
        """Parameters of what turns images into features, which a budget leaves out; 0: nothing does."""
        return 0
