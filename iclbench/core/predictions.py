"""Predictions are distributions: how each is read off a network, its training loss and its scores live with it.

`loss(y)` and every entry of `scores(y)` have one value per asked position, `(batch, positions)`, summed over output
dimensions. Those of events (a time and a mark) are in `iclbench.core.events`, those of several positions together in
`iclbench.core.joint`; which a card may name, in `iclbench.core.heads`.
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

# The share of targets in central intervals: metrics of every prediction that has intervals.
_COVERED = {"covered_50": 0.5, "covered_90": 0.9}

# How a standard deviation is read off a raw output r: variance = softplus(r) + floor², the rule for everybody; exp(r);
# m + (1 - m) softplus(r), as public code of neural processes has it with m = 0.1 or 0.05.
Spread = Literal["floor", "exp", "bounded-0.1", "bounded-0.05"]


@dataclass(frozen=True)
class HeadSettings:
    """How a kind of prediction is read off a network; recorded with every run.

    Attributes:
        floor: least standard deviation of a Gaussian. It caps the attainable log-likelihood (0.1: at most 1.384 nats
            per output), so that numbers under different floors do not compare. Only the spread `floor` reads it.
        components: Gaussians of a mixture.
        spread: how a standard deviation of a Gaussian or a mixture is read; bounded ones have a least value of their
            own.
    """

    floor: float = 0.0
    components: int = 8
    spread: Spread = "floor"


@dataclass(frozen=True)
class Prediction(TensorRecord):
    """A distribution for every asked position.

    Subclasses say how many raw network outputs they need and build themselves from them. `metrics` are the names, in
    `core.metrics`, of what they are scored by; `headline` is the one that stands for all of them where a cell failed.
    A `Point` says nothing about its spread: it has no interval, and all its samples are alike.
    """

    metrics: ClassVar[tuple[str, ...]] = ()
    headline: ClassVar[str] = "squared_error"

    @classmethod
    @abstractmethod
    def raw_dim(cls, outputs: int, settings: HeadSettings = HeadSettings()) -> int:
        """Width of the raw network output for `outputs` output dimensions (or classes)."""

    @classmethod
    @abstractmethod
    def from_raw(
        cls: type[_P], raw: Float[Tensor, "*shape raw"], outputs: int, settings: HeadSettings = HeadSettings()
    ) -> _P:
        """Read the distribution off raw network outputs."""

    @property
    def marginals(self) -> Prediction:
        """The distribution of every position on its own."""
        return self

    @abstractmethod
    def loss(self, y: Tensor) -> Float[Tensor, "*shape"]:
        """The training loss, per position."""

    @abstractmethod
    def scores(self, y: Tensor) -> dict[str, Float[Tensor, "*shape"]]:
        """Every metric of `metrics`, per position."""

    def scores_within(
        self, y: Tensor, choices: Bool[Tensor, "batch classes"] | None
    ) -> dict[str, Float[Tensor, "batch positions"]]:
        """`scores`; of class labels also the accuracy among those that each episode admits, where it says which."""
        return self.scores(y)

    def point(self) -> Tensor:
        """The one best answer: the mean, `(*shape, dy)`; of classes the likeliest label, `(*shape)`."""
        raise NotImplementedError(f"{type(self).__name__} does not write point()")

    def interval(self, level: float = 0.9) -> tuple[Tensor, Tensor] | None:
        """Ends of the central interval that holds this much probability (from 0 to 1), per output, `(*shape, dy)`
        each; None: there is none (a single value, classes). Raises `ValueError` for another level."""
        return None

    def joint_log_likelihood(self, y: Tensor, mask: Bool[Tensor, "B Q"]) -> Float[Tensor, " B"] | None:
        """Log-density of the outputs at all positions of an episode together, those outside of the mask left out; None:
        this says nothing of densities."""
        return None

    def sample(self, n: int, generator: torch.Generator) -> Tensor:
        """`n` draws of all positions together, each in the shape of `point()`: `(n, *shape, dy)`, labels `(n, *shape)`;
        the generator is on the prediction's device. Positions are independent but for those of `core.joint`."""
        raise NotImplementedError(f"{type(self).__name__} does not write sample()")

    def sequence_scores(
        self, y: Tensor, scored: Bool[Tensor, "B N"], mask: Bool[Tensor, "B N"]
    ) -> dict[str, Float[Tensor, " B"]]:
        """Scores of whole sequences that are no mean over their positions; NaN where a sequence has none. Those whose
        metric is `per_event` are sums, which are divided by the mean number of scored positions.

        Args:
            y: outputs of all positions.
            scored: the positions that count.
            mask: those that are there.
        """
        return {}

    def columns(self) -> dict[str, Float[Tensor, "*shape columns"]]:
        """Groups of numbers that a stream prints: the mean; where there is a spread, standard deviation and the
        central 90 % interval; of classes the likeliest one and all probabilities."""
        raise NotImplementedError(f"{type(self).__name__} does not write columns()")

    def at(self: _P, index: slice | Tensor) -> _P:
        """The predictions at some positions (second axis)."""
        return self.map(lambda t: t[:, index])


@dataclass(frozen=True)
class Point(Prediction):
    """A single value; scored by squared error."""

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
    """Independent Gaussians per output; variance = softplus(raw) + floor², floor a recorded hyper-parameter."""

    mean: Float[Tensor, "*shape dy"]
    std: Float[Tensor, "*shape dy"]

    metrics: ClassVar[tuple[str, ...]] = ("log_likelihood", "squared_error", "covered_50", "covered_90")

    @classmethod
    def raw_dim(cls, outputs: int, settings: HeadSettings = HeadSettings()) -> int:
        return 2 * outputs

    @classmethod
    def from_raw(cls, raw: Tensor, outputs: int, settings: HeadSettings = HeadSettings()) -> Gaussian:
        mean, pre = raw.split(outputs, -1)
        return cls(mean, _std(pre, settings))

    def log_likelihood(self, y: Tensor) -> Tensor:
        z = (y - self.mean) / self.std
        return (-0.5 * z.square() - self.std.log() - 0.5 * _LOG_2PI).sum(-1)

    def joint_log_likelihood(self, y: Tensor, mask: Bool[Tensor, "B Q"]) -> Tensor:
        return summed(self.log_likelihood(y), mask)

    def point(self) -> Tensor:
        return self.mean

    def interval(self, level: float = 0.9) -> tuple[Tensor, Tensor]:
        half = _half_width(checked_level(level)) * self.std
        return self.mean - half, self.mean + half

    def sample(self, n: int, generator: torch.Generator) -> Tensor:
        return self.mean + self.std * normal((n, *self.mean.shape), self.mean, generator)

    def columns(self) -> dict[str, Tensor]:
        low, high = self.interval(0.9)
        return {"mean": self.mean, "std": self.std, "low": low, "high": high}

    def loss(self, y: Tensor) -> Tensor:
        return -self.log_likelihood(y)

    def scores(self, y: Tensor) -> dict[str, Tensor]:
        z = ((y - self.mean) / self.std).abs()
        inside = {name: (z <= _half_width(level)).to(z.dtype).mean(-1) for name, level in _COVERED.items()}
        return {
            "log_likelihood": self.log_likelihood(y),
            "squared_error": (self.mean - y).square().sum(-1),
            **inside,
        }


@dataclass(frozen=True)
class Mixture(Prediction):
    """K Gaussians with diagonal covariance per position; a component may have the logit -inf.

    Scored by its own density and by that of the one Gaussian with its mean and variance, which is what a Gaussian head
    could attain.
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
        logits, means, pre = raw.split([k, k * outputs, k * outputs], -1)
        shape = (*raw.shape[:-1], k, outputs)
        return cls(logits, means.reshape(shape), _std(pre.reshape(shape), settings))

    @property
    def mean(self) -> Tensor:
        return self._average(self.means)

    @property
    def std(self) -> Tensor:
        """Standard deviation of the whole mixture, per output."""
        about_mean = (self.means - self.mean.unsqueeze(-2)).square()
        return self._average(self.stds.square() + about_mean).sqrt()

    @property
    def moments(self) -> Gaussian:
        """The Gaussian with the same mean and standard deviation."""
        return Gaussian(self.mean, self.std)

    def _average(self, values: Tensor) -> Tensor:
        """Mean over components, `(*shape, k, dy)` to `(*shape, dy)`."""
        return (self.logits.softmax(-1).unsqueeze(-1) * values).sum(-2)

    def cumulative(self, y: Tensor) -> Tensor:
        """Probability of an output below `y`, per output."""
        z = (y.unsqueeze(-2) - self.means) / self.stds
        return self._average(torch.special.ndtr(z))

    def quantile(self, level: float) -> Float[Tensor, "*shape dy"]:
        """Where the distribution of each output reaches `level`, by bisection to the last bit but a few."""
        low = (self.means - 10 * self.stds).amin(-2)
        high = (self.means + 10 * self.stds).amax(-2)
        return bisected(lambda middle: self.cumulative(middle) < level, low, high)

    def point(self) -> Tensor:
        return self.mean

    def interval(self, level: float = 0.9) -> tuple[Tensor, Tensor]:
        if checked_level(level) == 1:  # beyond what bisection reaches
            everything = torch.full_like(self.mean, math.inf)
            return -everything, everything
        return self.quantile(0.5 - level / 2), self.quantile(0.5 + level / 2)

    def sample(self, n: int, generator: torch.Generator) -> Tensor:
        *shape, k, dy = self.means.shape
        weights = self.logits.softmax(-1).reshape(-1, k)
        component = drawn(weights, n, generator).T.reshape(n, *shape, 1, 1)
        at = component.expand(n, *shape, 1, dy)
        mean, std = (t.expand(n, *t.shape).gather(-2, at).squeeze(-2) for t in (self.means, self.stds))
        return mean + std * normal(mean.shape, mean, generator)

    def columns(self) -> dict[str, Tensor]:
        low, high = self.interval(0.9)
        return {"mean": self.mean, "std": self.std, "low": low, "high": high}

    def log_likelihood(self, y: Tensor) -> Tensor:
        z = (y.unsqueeze(-2) - self.means) / self.stds
        log_components = (-0.5 * z.square() - self.stds.log() - 0.5 * _LOG_2PI).sum(-1)
        return torch.logsumexp(self.logits.log_softmax(-1) + log_components, -1)

    def joint_log_likelihood(self, y: Tensor, mask: Bool[Tensor, "B Q"]) -> Tensor:
        return summed(self.log_likelihood(y), mask)

    def loss(self, y: Tensor) -> Tensor:
        return -self.log_likelihood(y)

    def scores(self, y: Tensor) -> dict[str, Tensor]:
        tail = (self.cumulative(y) - 0.5).abs()
        return {
            "log_likelihood": self.log_likelihood(y),
            "log_likelihood_gaussian": self.moments.log_likelihood(y),
            "squared_error": (self.mean - y).square().sum(-1),
            **{name: (tail <= level / 2).to(y.dtype).mean(-1) for name, level in _COVERED.items()},
        }


@dataclass(frozen=True)
class Categorical(Prediction):
    """A distribution over classes; `choices` restricts the admitted labels per episode when accuracy is counted."""

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
        """This distribution with every label outside `choices` excluded."""
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
        return drawn(probabilities, n, generator).T.reshape(n, *shape)

    def columns(self) -> dict[str, Tensor]:
        probabilities = self.logits.softmax(-1)
        return {"label": probabilities.argmax(-1, keepdim=True).to(probabilities.dtype), "p": probabilities}


@cache
def checked_level(level: float) -> float:
    """The level of an interval; raises `ValueError` where it is no probability."""
    if not 0 <= level <= 1:
        raise ValueError(f"an interval holds a probability from 0 to 1, not {level}")
    return level


def drawn(probabilities: Float[Tensor, "P k"], n: int, generator: torch.Generator) -> Int[Tensor, "P n"]:
    """`n` independent draws from every row; none where n is 0, which torch refuses."""
    if n == 0:
        return torch.empty(len(probabilities), 0, dtype=torch.long, device=probabilities.device)
    return torch.multinomial(probabilities, n, replacement=True, generator=generator)


def _half_width(level: float) -> float:
    """Half the width of the central interval of a standard normal that holds this much probability."""
    from scipy.special import ndtri

    return float(ndtri(0.5 + level / 2))


def bisected(below: Callable[[Tensor], Tensor], low: Tensor, high: Tensor) -> Tensor:
    """Between `low` and `high` the place up to which `below` holds, to the last bit but a few."""
    for _ in range(60):
        middle = (low + high) / 2
        yes = below(middle)
        low, high = torch.where(yes, middle, low), torch.where(yes, high, middle)
    return (low + high) / 2


def summed(values: Float[Tensor, "*shape Q"], mask: Bool[Tensor, "*#shape Q"]) -> Float[Tensor, " *shape"]:
    """The sum over positions, ignoring those outside of the mask."""
    return torch.where(mask, values, 0.0).sum(-1)


def normal(shape: Sequence[int], like: Tensor, generator: torch.Generator) -> Tensor:
    """Standard normal numbers of another tensor's type."""
    return torch.randn(tuple(shape), generator=generator, dtype=like.dtype, device=like.device)


def _std(pre: Tensor, settings: HeadSettings) -> Tensor:
    """Standard deviation as the settings read it."""
    if settings.spread == "exp":
        return pre.exp()
    if settings.spread.startswith("bounded"):
        least = float(settings.spread.removeprefix("bounded-"))
        return least + (1 - least) * F.softplus(pre)
    return (F.softplus(pre) + settings.floor**2 + 1e-12).sqrt()
