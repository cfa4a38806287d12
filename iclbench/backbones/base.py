"""What a backbone is: a torch module that fulfils the predictor contract and has a training loss."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from iclbench.cards import Strict
from iclbench.episodes import Episodes, Points
from iclbench.errors import UsageError
from iclbench.predictions import HEADS, Prediction
from iclbench.predictor import Predictor


@dataclass(frozen=True)
class TaskShape:
    """What a backbone must know of the task to be built.

    Attributes:
        x_dim: input dimension Dx.
        points: points of the longest training sequence, the query included.
        y_dim: output dimension Dy of a regression task.
        classes: number of classes; None for regression.
        x_shape: how to unfold x into an image; None for plain vectors.
        head: name of the kind of prediction.
        question: what is trained: `next`, `targets` or `both`.
    """

    x_dim: int
    points: int
    y_dim: int = 1
    classes: int | None = None
    x_shape: tuple[int, ...] | None = None
    head: str = "point"
    question: str = "next"

    @property
    def outputs(self) -> int:
        return self.y_dim if self.classes is None else self.classes

    @property
    def prediction(self) -> type[Prediction]:
        return HEADS[self.head]


class Backbone(nn.Module, Predictor, abstract=True):
    """A trainable predictor.

    Attributes:
        Settings: what a preset or `-o backbone.key=value` may set; the defaults are the paper's size.
    """

    Settings: ClassVar[type[Strict]]
    heads = tuple(HEADS)

    def __init__(self, settings: Any, shape: TaskShape) -> None:
        super().__init__()
        self.settings = settings
        self.shape = shape

    def read(self, raw: Float[Tensor, "B Q raw"]) -> Prediction:
        """The task's kind of prediction from raw outputs."""
        return self.shape.prediction.from_raw(raw, self.shape.outputs)

    def loss(
        self, episodes: Episodes, progress: float, generator: torch.Generator
    ) -> tuple[Float[Tensor, ""], dict[str, Tensor]]:
        """Training loss: the trained question, scored by the head, averaged over the positions that count.

        Args:
            episodes: a batch.
            progress: 0 at the start of training, 1 at its end.
            generator: for losses that draw something; the only randomness allowed.

        Returns:
            The loss and its named parts.
        """
        question = "next" if self.shape.question == "both" else self.shape.question
        each = self.ask(episodes, question).loss(episodes.asked.y)
        loss = (each * episodes.scored).sum() / episodes.scored.sum()
        return loss, {"loss": loss.detach()}

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
        """What a user should know of how this computes on the device, in a few words each; said once per run."""
        return []

    @property
    def parameter_count(self) -> int:
        return sum(p.numel() for p in self.parameters())
