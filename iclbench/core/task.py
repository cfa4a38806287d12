"""The properties of a task that determine the shape of a backbone, and the properties that an estimator may use."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from iclbench.core.heads import HEADS
from iclbench.core.predictions import HeadSettings, Prediction

InputKind = Literal["features", "images", "events", "tokens", "vectors"]


@dataclass(frozen=True)
class TaskShape:
    """The properties of a task that determine the shape of a backbone.

    Attributes:
        x_dim: input dimension Dx; 0 for streams, whose elements have no input.
        points: for the question `next`, number of points of the longest training sequence, including the query; for the
            question `targets`, number of points of the largest context.
        y_dim: output dimension Dy of a regression task.
        classes: number of classes; None for regression.
        marks: number of marks of events (`iclbench.core.events`); None for other tasks.
        x_shape: shape of the image into which x is unfolded; None for plain vectors.
        head: name of the head (`iclbench.core.heads`).
        question: the trained question, `next` or `targets`.
        related: largest number of related datasets.
        related_points: number of points of the largest related dataset.
        floor: smallest standard deviation of a Gaussian or mixture head; for an event head, a number that is added to
            the scales of the log-normals.
        components: number of Gaussians of a mixture head, or of log-normals of an event head.
        buckets: number of buckets of a bar head.
        y_scale: standard deviation of the outputs, which is the unit of a bar head's borders.
        encoded: whether x holds features from an image encoder in front of this backbone.
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
    buckets: int = 100
    y_scale: float = 1.0

    @property
    def inputs(self) -> InputKind:
        """The kind of inputs: features or images or, for streams without inputs, the kind of elements (events, tokens
        or vectors)."""
        if self.marks is not None:
            return "events"
        if not self.x_dim:
            return "vectors" if self.classes is None else "tokens"
        return "features" if self.x_shape is None else "images"

    @property
    def noun(self) -> str:
        """The word for a point in messages: event, element (of a stream of tokens or vectors) or point."""
        return "event" if self.inputs == "events" else "point" if self.x_dim else "element"

    @property
    def longest(self) -> int:
        """Number of points of the longest dataset in training, including the query or the separator that follows it."""
        context_points = self.points + (self.question == "targets")
        return max(context_points, self.related_points + 1) if self.related else context_points

    @property
    def outputs(self) -> int:
        """Number of output dimensions, classes or marks."""
        if self.marks is not None:
            return self.marks
        return self.y_dim if self.classes is None else self.classes

    @property
    def prediction(self) -> type[Prediction]:
        return HEADS[self.head]

    @property
    def head_settings(self) -> HeadSettings:
        return HeadSettings(self.floor, self.components, buckets=self.buckets, scale=self.y_scale)

    @property
    def raw_dim(self) -> int:
        """Width of the raw output that is passed to `Backbone.read`."""
        return self.prediction.raw_dim(self.outputs, self.head_settings)


@dataclass(frozen=True)
class TaskFacts:
    """The properties of a task that an estimator may use in addition to the data points.

    Attributes:
        noise_to_signal: label noise variance divided by the prior variance of a weight: the Bayes-optimal ridge
            penalty.
        hidden_width: hidden width of the networks that the task samples.
        family: the family of the task, which only its oracles may use.
        shift: name of the evaluated shift.
        classes: number of classes; None for regression.
        marks: number of marks of events; None for other tasks.
        mean_gap: mean gap between events in the training data, in the task's unit of time; None if the events are
            sampled by a family.
        mean_first_gap: mean time from the start of an observation to its first event; None as for `mean_gap`.
        predicts_labels: whether the target of each prefix of a stream is a label of the prefix, not the next element.
    """

    noise_to_signal: float = 0.0
    hidden_width: int = 100
    family: Any = None
    shift: str = "none"
    classes: int | None = None
    marks: int | None = None
    mean_gap: float | None = None
    mean_first_gap: float | None = None
    predicts_labels: bool = False
