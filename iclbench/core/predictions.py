"""Predictive distributions: how they are read from network outputs, and their training losses and scores.

`loss(y)` and all entries of `scores(y)` have one value per query, `(batch, positions)`, summed over output dimensions.
Only the coverage of intervals is averaged over output dimensions.

Predictions of events (a time and a mark) are in `iclbench.core.events`, histograms in `iclbench.core.bar`, and joint
predictions of several positions in `iclbench.core.joint`. `iclbench.core.heads` lists the predictions that a task card
can select.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import ClassVar, Literal, TypeVar

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from iclbench.core.records import TensorRecord

_P = TypeVar("_P", bound="Prediction")

_LOG_2PI = math.log(2 * math.pi)

# Metrics for the share of targets within a central interval, and the probability of that interval.
COVERED = {"covered_50": 0.5, "covered_90": 0.9}

# How the standard deviation depends on the raw output r. "floor" (default): variance = softplus(r) + floor². "exp":
# exp(r). "bounded-m": m + (1 - m) softplus(r), as in public code of neural processes, with m = 0.1 or 0.05.
Spread = Literal["floor", "exp", "bounded-0.1", "bounded-0.05"]


@dataclass(frozen=True)
class HeadSettings:
    """Settings for the mapping from raw network outputs to predictions. They are recorded with every run.

    Attributes:
        floor: smallest standard deviation of a Gaussian, used only with the spread "floor". It bounds the
            log-likelihood (for 0.1, at most 1.384 nats per output), so likelihoods with different floors cannot be
            compared. For events, it is added to the scales of the log-normal distributions.
        components: number of Gaussians of a mixture, or of log-normals for events.
        spread: how the standard deviations of Gaussians and mixtures depend on the raw output.
        buckets: number of buckets of a bar head, at least 2.
        scale: standard deviation of the task's outputs, which is the unit of a bar head's borders.
    """

    floor: float = 0.0
    components: int = 8
    spread: Spread = "floor"
    buckets: int = 100
    scale: float = 1.0


@dataclass(frozen=True)
class Prediction(TensorRecord):
    """A predictive distribution for each query.

    Subclasses define the number of raw network outputs that they need (`raw_dim`), and how a prediction is built from
    these outputs (`from_raw`). A `Point` has no spread: it has no interval, and all its samples are equal.

    Attributes:
        metrics: names of the scores (`iclbench.core.metrics`).
        headline: metric of the single row that is written for a failed cell.
    """

    metrics: ClassVar[tuple[str, ...]] = ()
    headline: ClassVar[str] = "squared_error"

    @classmethod
    @abstractmethod
    def raw_dim(cls, outputs: int, settings: HeadSettings = HeadSettings()) -> int:
        """Return the width of the raw network output for `outputs` output dimensions (or classes)."""

    @classmethod
    @abstractmethod
    def from_raw(
        cls: type[_P], raw: Float[Tensor, "*shape raw"], outputs: int, settings: HeadSettings = HeadSettings()
    ) -> _P:
        """Create predictions from raw network outputs."""

    @property
    def marginals(self) -> Prediction:
        """The marginal distributions of the positions."""
        return self

    @abstractmethod
    def loss(self, y: Tensor) -> Float[Tensor, "*shape"]:
        """Return the training loss of each position."""

    @abstractmethod
    def scores(self, y: Tensor) -> dict[str, Float[Tensor, "*shape"]]:
        """Return the values of all `metrics` for each position."""

    def scores_within(
        self, y: Tensor, choices: Bool[Tensor, "batch classes"] | None
    ) -> dict[str, Float[Tensor, "batch positions"]]:
        """Return `scores`. For class labels, add the accuracy among the labels that each episode allows.

        Args:
            y: the true outputs.
            choices: the labels that each episode allows; None if all are allowed.
        """
        return self.scores(y)

    def point(self) -> Tensor:
        """Return the point prediction: the mean, `(*shape, dy)`, or the most likely class label, `(*shape)`."""
        raise NotImplementedError(f"{type(self).__name__} does not implement point()")

    def interval(self, level: float = 0.9) -> tuple[Tensor, Tensor] | None:
        """Return the ends of the central interval with this probability, `(*shape, dy)` each.

        Each output has its own interval. The result is None for predictions of single values or classes, which have no
        intervals.

        Raises:
            ValueError: the level is not between 0 and 1.
        """
        return None

    def joint_log_likelihood(self, y: Tensor, mask: Bool[Tensor, "B Q"]) -> Float[Tensor, " B"] | None:
        """Return the joint log-density of an episode's outputs at all positions in the mask; None for predictions
        without a density."""
        return None

    def sample(self, n: int, generator: torch.Generator) -> Tensor:
        """Draw `n` joint samples of all positions, `(n, *shape, dy)`, or `(n, *shape)` for labels.

        Positions are independent, except in the joint predictions of `iclbench.core.joint`.

        Args:
            n: number of samples.
            generator: a generator on the device of the prediction.
        """
        raise NotImplementedError(f"{type(self).__name__} does not implement sample()")

    def sequence_scores(
        self, y: Tensor, scored: Bool[Tensor, "B N"], mask: Bool[Tensor, "B N"]
    ) -> dict[str, Float[Tensor, " B"]]:
        """Return scores of complete sequences that are not means over positions; NaN for sequences without a value.

        If the metric of a score is `per_event`, the score is a sum, which is later divided by the mean number of scored
        positions.

        Args:
            y: outputs at all positions.
            scored: the positions that count.
            mask: the valid positions.
        """
        return {}

    def columns(self) -> dict[str, Float[Tensor, "*shape columns"]]:
        """Return the columns that `iclbench stream` prints.

        For numbers, they are the mean and, if the prediction has a spread, the standard deviation and the central 90 %
        interval. For classes, they are the most likely class and the probabilities of all classes.
        """
        raise NotImplementedError(f"{type(self).__name__} does not implement columns()")

    def at(self: _P, index: slice | Tensor) -> _P:
        """Return the predictions at some positions (indices along the second axis)."""
        return self.map(lambda t: t[:, index])


@dataclass(frozen=True)
class Point(Prediction):
    """A single value, scored by squared error."""

    mean: Float[Tensor, "*shape dy"]

    metrics: ClassVar[tuple[str, ...]] = ("squared_error",)

    @classmethod
    def raw_dim(cls, outputs: int, settings: HeadSettings = HeadSettings()) -> int:
        return outputs

    @classmethod
    def from_raw(cls, raw: Tensor, outputs: int, settings: HeadSettings = HeadSettings()) -> Point:
        return cls(raw)

    def loss(self, y: Tensor) -> Tensor:
        return (self.mean - y).square().sum(-1)

    def scores(self, y: Tensor) -> dict[str, Tensor]:
        return {"squared_error": self.loss(y)}

    def point(self) -> Tensor:
        return self.mean

    def sample(self, n: int, generator: torch.Generator) -> Tensor:
        return self.mean.expand(n, *self.mean.shape)

    def columns(self) -> dict[str, Tensor]:
        return {"mean": self.mean}


@dataclass(frozen=True)
class Gaussian(Prediction):
    """An independent Gaussian for each output. By default, variance = softplus(raw) + floor²."""

    mean: Float[Tensor, "*shape dy"]
    std: Float[Tensor, "*shape dy"]

    metrics: ClassVar[tuple[str, ...]] = ("log_likelihood", "squared_error", "covered_50", "covered_90")

    @classmethod
    def raw_dim(cls, outputs: int, settings: HeadSettings = HeadSettings()) -> int:
        return 2 * outputs

    @classmethod
    def from_raw(cls, raw: Tensor, outputs: int, settings: HeadSettings = HeadSettings()) -> Gaussian:
        mean, raw_std = raw.split(outputs, -1)
        return cls(mean, _std(raw_std, settings))

    def log_likelihood(self, y: Tensor) -> Tensor:
        z = (y - self.mean) / self.std
        return (-0.5 * z.square() - self.std.log() - 0.5 * _LOG_2PI).sum(-1)

    def joint_log_likelihood(self, y: Tensor, mask: Bool[Tensor, "B Q"]) -> Tensor:
        return masked_sum(self.log_likelihood(y), mask)

    def point(self) -> Tensor:
        return self.mean

    def interval(self, level: float = 0.9) -> tuple[Tensor, Tensor]:
        half_width = _half_width(checked_level(level)) * self.std
        return self.mean - half_width, self.mean + half_width

    def sample(self, n: int, generator: torch.Generator) -> Tensor:
        return self.mean + self.std * normal((n, *self.mean.shape), self.mean, generator)

    def columns(self) -> dict[str, Tensor]:
        low, high = self.interval(0.9)
        return {"mean": self.mean, "std": self.std, "low": low, "high": high}

    def loss(self, y: Tensor) -> Tensor:
        return -self.log_likelihood(y)

    def scores(self, y: Tensor) -> dict[str, Tensor]:
        z = ((y - self.mean) / self.std).abs()
        coverage = {name: (z <= _half_width(level)).to(z.dtype).mean(-1) for name, level in COVERED.items()}
        return {
            "log_likelihood": self.log_likelihood(y),
            "squared_error": (self.mean - y).square().sum(-1),
            **coverage,
        }


@dataclass(frozen=True)
class Mixture(Prediction):
    """A mixture of K Gaussians with diagonal covariance at each position. A component may have the logit -inf.

    A mixture is scored by its log-likelihood. The log-likelihood of the Gaussian with the same mean and variance is a
    second score.
    """

    logits: Float[Tensor, "*shape k"]
    means: Float[Tensor, "*shape k dy"]
    stds: Float[Tensor, "*shape k dy"]

    metrics: ClassVar[tuple[str, ...]] = (
        "log_likelihood",
        "log_likelihood_gaussian",
        "squared_error",
        "covered_50",
        "covered_90",
    )

    @classmethod
    def raw_dim(cls, outputs: int, settings: HeadSettings = HeadSettings()) -> int:
        return settings.components * (1 + 2 * outputs)

    @classmethod
    def from_raw(cls, raw: Tensor, outputs: int, settings: HeadSettings = HeadSettings()) -> Mixture:
        k = settings.components
        logits, means, raw_stds = raw.split([k, k * outputs, k * outputs], -1)
        shape = (*raw.shape[:-1], k, outputs)
        return cls(logits, means.reshape(shape), _std(raw_stds.reshape(shape), settings))

    @property
    def mean(self) -> Tensor:
        return self._average(self.means)

    @property
    def std(self) -> Tensor:
        """Standard deviation of the mixture, per output."""
        squared_offsets = (self.means - self.mean.unsqueeze(-2)).square()
        return self._average(self.stds.square() + squared_offsets).sqrt()

    @property
    def moments(self) -> Gaussian:
        """The Gaussian with the same mean and standard deviation."""
        return Gaussian(self.mean, self.std)

    def _average(self, values: Tensor) -> Tensor:
        """Return the weighted mean over components, from `(*shape, k, dy)` to `(*shape, dy)`."""
        return (self.logits.softmax(-1).unsqueeze(-1) * values).sum(-2)

    def cumulative(self, y: Tensor) -> Tensor:
        """Return the probability of values below `y`, per output."""
        z = (y.unsqueeze(-2) - self.means) / self.stds
        return self._average(torch.special.ndtr(z))

    def quantile(self, level: float) -> Float[Tensor, "*shape dy"]:
        """Return the quantile of each output, by bisection to nearly floating-point precision."""
        low = (self.means - 10 * self.stds).amin(-2)
        high = (self.means + 10 * self.stds).amax(-2)
        return bisect(lambda middle: self.cumulative(middle) < level, low, high)

    def point(self) -> Tensor:
        return self.mean

    def interval(self, level: float = 0.9) -> tuple[Tensor, Tensor]:
        if checked_level(level) == 1:  # bisection cannot reach infinity
            infinity = torch.full_like(self.mean, math.inf)
            return -infinity, infinity
        return self.quantile(0.5 - level / 2), self.quantile(0.5 + level / 2)

    def sample(self, n: int, generator: torch.Generator) -> Tensor:
        *shape, k, dy = self.means.shape
        weights = self.logits.softmax(-1).reshape(-1, k)
        component = draw_indices(weights, n, generator).T.reshape(n, *shape, 1, 1)
        index = component.expand(n, *shape, 1, dy)
        mean, std = (t.expand(n, *t.shape).gather(-2, index).squeeze(-2) for t in (self.means, self.stds))
        return mean + std * normal(mean.shape, mean, generator)

    def columns(self) -> dict[str, Tensor]:
        low, high = self.interval(0.9)
        return {"mean": self.mean, "std": self.std, "low": low, "high": high}

    def log_likelihood(self, y: Tensor) -> Tensor:
        z = (y.unsqueeze(-2) - self.means) / self.stds
        log_components = (-0.5 * z.square() - self.stds.log() - 0.5 * _LOG_2PI).sum(-1)
        return torch.logsumexp(self.logits.log_softmax(-1) + log_components, -1)

    def joint_log_likelihood(self, y: Tensor, mask: Bool[Tensor, "B Q"]) -> Tensor:
        return masked_sum(self.log_likelihood(y), mask)

    def loss(self, y: Tensor) -> Tensor:
        return -self.log_likelihood(y)

    def scores(self, y: Tensor) -> dict[str, Tensor]:
        distance_from_median = (self.cumulative(y) - 0.5).abs()  # in probability
        return {
            "log_likelihood": self.log_likelihood(y),
            "log_likelihood_gaussian": self.moments.log_likelihood(y),
            "squared_error": (self.mean - y).square().sum(-1),
            **{name: (distance_from_median <= level / 2).to(y.dtype).mean(-1) for name, level in COVERED.items()},
        }


@dataclass(frozen=True)
class Categorical(Prediction):
    """A distribution over classes."""

    logits: Float[Tensor, "*shape classes"]

    metrics: ClassVar[tuple[str, ...]] = ("cross_entropy", "accuracy")
    headline: ClassVar[str] = "accuracy"

    @classmethod
    def raw_dim(cls, outputs: int, settings: HeadSettings = HeadSettings()) -> int:
        return outputs

    @classmethod
    def from_raw(cls, raw: Tensor, outputs: int, settings: HeadSettings = HeadSettings()) -> Categorical:
        return cls(raw)

    def loss(self, y: Int[Tensor, "*shape"]) -> Tensor:
        return -self.logits.log_softmax(-1).gather(-1, y.unsqueeze(-1)).squeeze(-1)

    def within(self, choices: Bool[Tensor, "batch classes"]) -> Categorical:
        """Return the distribution restricted to the labels in `choices`."""
        return Categorical(self.logits.masked_fill(~choices.unsqueeze(1), -torch.inf))

    def scores(self, y: Tensor) -> dict[str, Tensor]:
        return {"cross_entropy": self.loss(y), "accuracy": (self.point() == y).to(self.logits.dtype)}

    def scores_within(
        self, y: Tensor, choices: Bool[Tensor, "batch classes"] | None
    ) -> dict[str, Float[Tensor, "batch positions"]]:
        scores = self.scores(y)
        if choices is not None:
            scores["accuracy_within_choices"] = self.within(choices).scores(y)["accuracy"]
        return scores

    def point(self) -> Int[Tensor, "*shape"]:
        return self.logits.argmax(-1)

    def sample(self, n: int, generator: torch.Generator) -> Tensor:
        *shape, classes = self.logits.shape
        probabilities = self.logits.softmax(-1).reshape(-1, classes)
        return draw_indices(probabilities, n, generator).T.reshape(n, *shape)

    def columns(self) -> dict[str, Tensor]:
        probabilities = self.logits.softmax(-1)
        return {"label": probabilities.argmax(-1, keepdim=True).to(probabilities.dtype), "p": probabilities}


@cache
def checked_level(level: float) -> float:
    """Return the level of an interval. Raise `ValueError` if it is not a probability."""
    if not 0 <= level <= 1:
        raise ValueError(f"the level of an interval must be a probability from 0 to 1, not {level}")
    return level


def draw_indices(probabilities: Float[Tensor, "P k"], n: int, generator: torch.Generator) -> Int[Tensor, "P n"]:
    """Draw `n` independent indices from each row. Unlike in `torch.multinomial`, n may be 0."""
    if n == 0:
        return torch.empty(len(probabilities), 0, dtype=torch.long, device=probabilities.device)
    return torch.multinomial(probabilities, n, replacement=True, generator=generator)


def _half_width(level: float) -> float:
    """Return half the width of a standard normal distribution's central interval with this probability."""
    from scipy.special import ndtri

    return float(ndtri(0.5 + level / 2))


def bisect(below: Callable[[Tensor], Tensor], low: Tensor, high: Tensor) -> Tensor:
    """Return the value between `low` and `high` up to which `below` holds, to nearly floating-point precision."""
    for _ in range(60):
        middle = (low + high) / 2
        is_below = below(middle)
        low, high = torch.where(is_below, middle, low), torch.where(is_below, high, middle)
    return (low + high) / 2


def masked_sum(values: Float[Tensor, "*shape Q"], mask: Bool[Tensor, "*#shape Q"]) -> Float[Tensor, " *shape"]:
    """Return the sum over the positions in the mask."""
    return torch.where(mask, values, 0.0).sum(-1)


def normal(shape: Sequence[int], like: Tensor, generator: torch.Generator) -> Tensor:
    """Draw standard normal numbers with the dtype and device of `like`."""
    return torch.randn(tuple(shape), generator=generator, dtype=like.dtype, device=like.device)


def _std(raw: Tensor, settings: HeadSettings) -> Tensor:
    """Return the standard deviation for a raw output; see `Spread`."""
    if settings.spread == "exp":
        return raw.exp()
    if settings.spread.startswith("bounded"):
        minimum = float(settings.spread.removeprefix("bounded-"))
        return minimum + (1 - minimum) * F.softplus(raw)
    return (F.softplus(raw) + settings.floor**2 + 1e-12).sqrt()
