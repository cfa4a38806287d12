"""Facts of the task that a predictor gets: a backbone when it is built, an estimator when it is fitted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from iclbench.core.heads import HEADS
from iclbench.core.predictions import HeadSettings, Prediction


@dataclass(frozen=True)
class TaskShape:
    """What a backbone must know of the task to be built.

    Attributes:
        x_dim: input dimension Dx.
        points: points of the longest training sequence, the query of the question `next` included; for the question
            `targets` those of the largest context.
        y_dim: output dimension Dy of a regression task.
        classes: number of classes; None for regression.
        marks: number of marks of events (`iclbench.core.events`); None where there are none.
        x_shape: how to unfold x into an image; None for plain vectors.
        head: name of the kind of prediction.
        question: what is trained: `next` or `targets`.
        related: the largest number of related datasets.
        related_points: points of the largest of them.
        floor: least standard deviation of a Gaussian head.
        components: Gaussians of a mixture head.
        encoded: whether x are features of images, from an encoder in front of this backbone.
    """

    x_dim: int
    points: int
    y_dim: int = 1
    classes: int | None = None
    x_shape: tuple[int, ...] | None = None
    head: str = "point"
    question: str = "next"
    related: int = 0
    floor: float = 0.0
    components: int = 8
    encoded: bool = False
    related_points: int = 0
    marks: int | None = None

    @property
    def inputs(self) -> Literal["features", "images", "events"]:
        """What a model reads: rows of features, images or events."""
        if self.marks is not None:
            return "events"
        return "features" if self.x_shape is None else "images"

    @property
    def longest(self) -> int:
        """Points of the longest dataset that is read in training, with the query or the separator behind it."""
        own_points = self.points + (self.question == "targets")
        return max(own_points, self.related_points + 1) if self.related else own_points

    @property
    def outputs(self) -> int:
        """What a raw output is about: output dimensions, classes or marks."""
        if self.marks is not None:
            return self.marks
        return self.y_dim if self.classes is None else self.classes

    @property
    def prediction(self) -> type[Prediction]:
        return HEADS[self.head]

    @property
    def head_settings(self) -> HeadSettings:
        return HeadSettings(self.floor, self.components)

    @property
    def raw_dim(self) -> int:
        """Width of the raw output that `Backbone.read` takes."""
        return self.prediction.raw_dim(self.outputs, self.head_settings)


@dataclass(frozen=True)
class TaskFacts:
    """What an estimator may know of the task in addition to the points.

    Attributes:
        noise_to_signal: label noise variance over the prior variance of a weight; the Bayes-optimal ridge penalty.
        hidden_width: width of the task's own networks.
        family: the family itself; only its oracles may ask it.
        shift: the change of the distribution that is evaluated.
        classes: number of classes, None for regression.
        marks: number of marks of events, None where there are none.
        mean_gap: mean time per event of the sequences trained on, in the time of the task; None: there are none,
            episodes come from a process.
        mean_first_gap: the same of the time from the start of an observation to its first event.
    """

    noise_to_signal: float = 0.0
    hidden_width: int = 100
    family: Any = None
    shift: str = "none"
    classes: int | None = None
    marks: int | None = None
    mean_gap: float | None = None
    mean_first_gap: float | None = None
