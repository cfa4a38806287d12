"""Predictions of the next event of a sequence: when it comes, and with what mark.

An event is `(gap, mark, time)` in `Points.y`, columns `GAP`, `MARK`, `TIME`: the gap to the event before (to time 0 for
the first), the mark as a number from 0, the absolute time. There is no x. Likelihoods are densities over the gap, in
nats, so that they depend on the unit of time: in units c times as long every log-density is log c larger, and one above
0 only says that gaps are short in this unit.

A censored point is the open interval after the last event of a window of observation: `(T - t_N, CENSORED, T)`. It is
the last of its sequence, so no answer has read it. Its log-survival enters the training loss and the likelihood of the
sequence. Without it a model learns that gaps are short: long ones are cut off by the end of the window more often.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from iclbench.core.episodes import Points
from iclbench.core.predictions import HeadSettings, Prediction, bisected, checked_level, drawn

GAP, MARK, TIME = range(3)
CENSORED = -1

_LOG_2PI = math.log(2 * math.pi)
# Quadrature over gaps: panels, nodes on each, and minus the log-probability of a gap beyond the last.
_RELEASED = 1e-5
_PANELS, _NODES, _SURVIVING = 14, 8, 30.0
# What is added to every scale of a log-normal.
_LEAST_SCALE = 1e-4
_SETTINGS = HeadSettings()


def marks_of(y: Float[Tensor, "*shape 3"]) -> Tensor:
    """Marks as integers; 0 where the point is censored."""
    return y[..., MARK].long().clamp_min(0)


def open_intervals(points: Points) -> Bool[Tensor, "*batch points"]:
    """Which points are open intervals and not events."""
    return points.mask & (points.y[..., MARK] == CENSORED)


def events_of(points: Points) -> Points:
    """The points without open intervals, which no model reads."""
    marks = points.y[..., MARK]
    if not marks.numel() or bool(marks.amin() >= 0):
        return points  # without another mask, so that a stream takes no memory for it
    return replace(points, mask=points.mask & (marks >= 0))


@dataclass(frozen=True)
class EventPrediction(Prediction):
    """The distribution of the next gap, and of the mark given the history.

    Scores, per event: `nll_time` and `nll_mark` in nats and their sum `nll`; `squared_error` of the gap against the
    mean, `absolute_error` against the median; `accuracy` of the likeliest mark given the history alone; whether the gap
    lies in the central 50 % and 90 % interval.
    """

    metrics: ClassVar[tuple[str, ...]] = (
        "nll",
        "nll_time",
        "nll_mark",
        "squared_error",
        "absolute_error",
        "accuracy",
        "covered_50",
        "covered_90",
    )
    headline: ClassVar[str] = "nll"

    @abstractmethod
    def log_density(self, gap: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
        """Log-density of the gap, whatever the mark."""

    @abstractmethod
    def log_survival(self, gap: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
        """Log-probability of a longer gap."""

    @abstractmethod
    def log_marks(self, gap: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape K"]:
        """Log-probabilities of the marks of an event that comes after this gap."""

    @abstractmethod
    def mark_probabilities(self) -> Float[Tensor, "*shape K"]:
        """Probabilities of the next mark while its time is not known."""

    @abstractmethod
    def mean(self) -> Float[Tensor, "*shape"]:
        """Expected gap."""

    @abstractmethod
    def quantile(self, level: float) -> Float[Tensor, "*shape"]:
        """The gap that is not exceeded with this probability, between 0 and 1."""

    @abstractmethod
    def sample_gaps(self, n: int, generator: torch.Generator) -> Tensor:
        """Independent draws of the gap, `(n, *shape)`."""

    def log_likelihood(self, y: Float[Tensor, "*shape 3"]) -> Float[Tensor, "*shape"]:
        """Joint log-density of time and mark; of a censored point the log-survival."""
        gap, is_event = y[..., GAP], y[..., MARK] >= 0
        event = self.log_density(gap) + self._log_mark(y)
        return event if bool(is_event.all()) else torch.where(is_event, event, self.log_survival(gap))

    def released_log_survival(self, gap: Float[Tensor, "*#shape"]) -> Float[Tensor, "*#shape"]:
        """`log_survival` as the released code of a head computes it, for `nll_published` alone."""
        return self.log_survival(gap)

    def loss(self, y: Tensor) -> Tensor:
        return -self.log_likelihood(y)

    def scores(self, y: Float[Tensor, "*shape 3"]) -> dict[str, Float[Tensor, "*shape"]]:
        gap = y[..., GAP]
        time, mark = -self.log_density(gap), -self._log_mark(y)
        below = -torch.expm1(self.log_survival(gap))
        right = self.mark_probabilities().argmax(-1) == marks_of(y)
        return {
            "nll": time + mark,
            "nll_time": time,
            "nll_mark": mark,
            "squared_error": (self.mean() - gap).square(),
            "absolute_error": (self.quantile(0.5) - gap).abs(),
            "accuracy": right.to(time.dtype),
            "covered_50": ((below - 0.5).abs() <= 0.25).to(time.dtype),
            "covered_90": ((below - 0.5).abs() <= 0.45).to(time.dtype),
        }

    def sequence_scores(
        self, y: Float[Tensor, "B N 3"], scored: Bool[Tensor, "B N"], mask: Bool[Tensor, "B N"]
    ) -> dict[str, Float[Tensor, " B"]]:
        """Two quantities as public code defines them, under names of their own, and the open interval.

        `nll_published` (Meta TPP, Bae et al. 2023): the first event is skipped, the gap before the last one counts as
        one that is longer, by its log-survival. `squared_sum_error`: the errors of a sequence, without the first event,
        are added before they are squared; what is published as an RMSE is the root of its mean. Both are divided by
        the number of all events, and the survival is that of the released code (`released_log_survival`). `nll_open`:
        minus the log-survival of a censored point, NaN where there is none.
        """
        gap, survival = y[..., GAP], -self.log_survival(y[..., GAP])
        survival = survival.nan_to_num(nan=math.inf, posinf=math.inf)  # NaN: there is no open interval
        released = -self.released_log_survival(gap)
        place = scored.cumsum(1)
        is_first, is_last = scored & (place == 1), scored & (place == scored.sum(1, keepdim=True))
        is_counted = scored & ~is_first
        time = torch.where(is_last, released, -self.log_density(gap))
        published = (time - self._log_mark(y)).masked_fill(~is_counted, 0).sum(1)
        error = (self.mean() - gap).masked_fill(~is_counted, 0).sum(1)
        censored = mask & (y[..., MARK] == CENSORED)
        opened = survival.masked_fill(~censored, 0).sum(1).masked_fill(~censored.any(1), torch.nan)
        return {"nll_published": published, "squared_sum_error": error.square(), "nll_open": opened}

    def point(self) -> Float[Tensor, "*shape 2"]:
        """Expected gap and likeliest mark."""
        return torch.stack([self.mean(), self.mark_probabilities().argmax(-1).to(self.mean().dtype)], -1)

    def interval(self, level: float = 0.9) -> tuple[Tensor, Tensor]:
        """Ends of the central interval of the gap, `(*shape, 1)` each."""
        if checked_level(level) == 1:  # beyond what bisection reaches
            median = self.quantile(0.5).unsqueeze(-1)
            return torch.zeros_like(median), torch.full_like(median, math.inf)
        low, high = (self.quantile(p).unsqueeze(-1) for p in (0.5 - level / 2, 0.5 + level / 2))
        return low, high

    def sample(self, n: int, generator: torch.Generator) -> Float[Tensor, "n *shape 2"]:
        """Gaps and marks, each mark given its gap."""
        gaps = self.sample_gaps(n, generator)
        marks = [_one_of_each(self.log_marks(gap).exp(), generator) for gap in gaps]
        return torch.stack([gaps, torch.stack(marks).to(gaps) if n else gaps], -1)

    def columns(self) -> dict[str, Tensor]:
        """Mean, median and central 90 % interval of the gap, the likeliest mark and the probabilities of all."""
        probabilities = self.mark_probabilities()
        gaps = {
            "gap": self.mean(),
            "median": self.quantile(0.5),
            "low": self.quantile(0.05),
            "high": self.quantile(0.95),
        }
        mark = probabilities.argmax(-1, keepdim=True).to(probabilities.dtype)
        return {**{name: t.unsqueeze(-1) for name, t in gaps.items()}, "mark": mark, "p": probabilities}

    def _log_mark(self, y: Float[Tensor, "*shape 3"]) -> Float[Tensor, "*shape"]:
        return self.log_marks(y[..., GAP]).gather(-1, marks_of(y).unsqueeze(-1)).squeeze(-1)


@dataclass(frozen=True)
class LogNormalEvent(EventPrediction):
    """A mixture of log-normal gaps and a mark that is independent of the gap given the history (Shchur et al. 2020).

    Attributes:
        logits: of the components.
        locs, scales: of the logarithm of the gap. A network's scale is softplus(raw) + floor + 1e-4. The released code
            of Meta TPP has softplus(raw) alone; 1e-4 keeps the density of gaps that repeat to the last digit finite
            where softplus underflows to 0.
        marks: logits.
    """

    logits: Float[Tensor, "*shape C"]
    locs: Float[Tensor, "*shape C"]
    scales: Float[Tensor, "*shape C"]
    marks: Float[Tensor, "*shape K"]

    @classmethod
    def raw_dim(cls, outputs: int, settings: HeadSettings = _SETTINGS) -> int:
        return 3 * settings.components + outputs

    @classmethod
    def from_raw(
        cls, raw: Float[Tensor, "*shape raw"], outputs: int, settings: HeadSettings = _SETTINGS
    ) -> LogNormalEvent:
        c = settings.components
        logits, locs, pre, marks = raw.split([c, c, c, outputs], -1)
        # In full precision: half a digit of a large gap's logarithm is a factor.
        logits, locs, pre, marks = (
            t.to(torch.promote_types(t.dtype, torch.float32)) for t in (logits, locs, pre, marks)
        )
        return cls(logits, locs, F.softplus(pre) + settings.floor + _LEAST_SCALE, marks)

    def log_density(self, gap: Tensor) -> Tensor:
        log = _logarithm(gap).unsqueeze(-1)
        z = (log - self.locs) / self.scales
        log_components = -0.5 * z.square() - self.scales.log() - 0.5 * _LOG_2PI - log
        return torch.logsumexp(self.logits.log_softmax(-1) + log_components, -1)

    def log_survival(self, gap: Tensor) -> Tensor:
        z = (_logarithm(gap).unsqueeze(-1) - self.locs) / self.scales
        return torch.logsumexp(self.logits.log_softmax(-1) + torch.special.log_ndtr(-z), -1)

    def released_log_survival(self, gap: Tensor) -> Tensor:
        """Meta TPP keeps the distribution function of every component within [1e-5, 1 - 1e-5], so that a last gap costs
        11.5 nats at most."""
        z = (_logarithm(gap).unsqueeze(-1) - self.locs) / self.scales
        below = torch.special.ndtr(z).clamp(_RELEASED, 1 - _RELEASED)
        return torch.logsumexp(self.logits.log_softmax(-1) + torch.log1p(-below), -1)

    def log_marks(self, gap: Tensor) -> Tensor:
        return self.marks.log_softmax(-1)

    def mark_probabilities(self) -> Tensor:
        return self.marks.softmax(-1)

    def mean(self) -> Tensor:
        """The mean, in double precision, since heavy tails overflow single precision."""
        locs, scales = self.locs.double(), self.scales.double()
        log_means = self.logits.double().log_softmax(-1) + locs + scales.square() / 2
        return torch.logsumexp(log_means, -1).exp()

    def quantile(self, level: float) -> Tensor:
        """By bisection of the logarithm, to the last bit but a few."""
        reach = 40 * self.scales
        low, high = (self.locs - reach).amin(-1), (self.locs + reach).amax(-1)
        weights = self.logits.softmax(-1)

        def below(log: Tensor) -> Tensor:
            z = (log.unsqueeze(-1) - self.locs) / self.scales
            return (weights * torch.special.ndtr(z)).sum(-1) < level

        return bisected(below, low, high).exp()

    def sample_gaps(self, n: int, generator: torch.Generator) -> Tensor:
        *shape, c = self.locs.shape
        component = drawn(self.logits.softmax(-1).reshape(-1, c), n, generator).T.reshape(n, *shape, 1)
        loc, scale = (t.expand(n, *t.shape).gather(-1, component).squeeze(-1) for t in (self.locs, self.scales))
        noise = torch.randn(loc.shape, generator=generator, dtype=loc.dtype, device=loc.device)
        return (loc + scale * noise).exp()


@dataclass(frozen=True)
class HazardEvent(EventPrediction):
    """Events of mark k at the rate base_k + excited_k exp(-decay s), s after the last event, while nothing happens.

    All kinds with such a rate have closed forms: homogeneous Poisson (nothing excited), exponential Hawkes with one
    decay, self-correcting (no base, a negative decay). The rate of all marks stays positive: a next event comes.
    """

    base: Float[Tensor, "*shape K"]
    excited: Float[Tensor, "*shape K"]
    decay: Float[Tensor, "*shape"]

    @classmethod
    def raw_dim(cls, outputs: int, settings: HeadSettings = _SETTINGS) -> int:
        return 2 * outputs + 1

    @classmethod
    def from_raw(cls, raw: Tensor, outputs: int, settings: HeadSettings = _SETTINGS) -> HazardEvent:
        base, excited, decay = raw.split([outputs, outputs, 1], -1)
        return cls(F.softplus(base) + 1e-6, F.softplus(excited), F.softplus(decay).squeeze(-1) + 1e-6)

    def rates(self, gap: Float[Tensor, "*#shape"]) -> Float[Tensor, "*#shape K"]:
        """Intensities of the marks so long after the last event."""
        return self.base + self.excited * torch.exp(-self.decay * gap).unsqueeze(-1)

    def compensator(self, gap: Float[Tensor, "*#shape"]) -> Float[Tensor, "*#shape"]:
        """Integral of the intensity of all marks over the gap: a unit exponential (time rescaling)."""
        u = self.decay * gap
        # (1 - exp(-u)) / u, whose limit at 0 is 1
        share = torch.where(u == 0, 1.0, -torch.expm1(-u) / torch.where(u == 0, 1.0, u))
        return gap * (self.base.sum(-1) + self.excited.sum(-1) * share)

    def log_rates(self, gap: Float[Tensor, "*#shape"]) -> Float[Tensor, "*#shape K"]:
        """Their logarithms, finite also where a growing rate overflows."""
        decayed = self.excited.log() - (self.decay * gap).unsqueeze(-1)
        return torch.logaddexp(self.base.log(), decayed)

    def log_density(self, gap: Tensor) -> Tensor:
        return self.log_rates(gap).logsumexp(-1) - self.compensator(gap)

    def log_survival(self, gap: Tensor) -> Tensor:
        return -self.compensator(gap)

    def log_marks(self, gap: Tensor) -> Tensor:
        return self.log_rates(gap).log_softmax(-1)

    def mark_probabilities(self) -> Tensor:
        """Averaged over the time of the event."""
        return self._over_time[1]

    def mean(self) -> Tensor:
        """The integral of the survival function."""
        return self._over_time[0]

    @cached_property
    def _over_time(self) -> tuple[Float[Tensor, "*shape"], Float[Tensor, "*shape K"]]:
        """Mean gap and probabilities of the marks, from one walk: every score of an event asks for one of them."""
        mean, marks = torch.zeros_like(self.decay), torch.zeros_like(self.base)
        for gap, width in self._panels():
            survives = width * self.log_survival(gap).exp()
            mean = mean + survives
            marks = marks + survives.unsqueeze(-1) * self.rates(gap)
        return mean, marks / marks.sum(-1, keepdim=True)

    def _panels(self) -> Iterator[tuple[Float[Tensor, "*shape"], Float[Tensor, "*shape"]]]:
        """Gaps and weights of Gauss-Legendre quadrature on panels that double in width up to where hardly anything
        survives, so that rates which change on any scale are met by some of them."""
        nodes, weights = np.polynomial.legendre.leggauss(_NODES)
        end = self.waited(torch.full_like(self.decay, _SURVIVING))
        for panel in range(_PANELS):
            high = 2.0**-panel
            low = 0.0 if panel == _PANELS - 1 else high / 2
            half, middle = (high - low) / 2, (high + low) / 2
            for node, weight in zip(nodes, weights, strict=True):
                yield (middle + half * float(node)) * end, half * float(weight) * end

    def quantile(self, level: float) -> Tensor:
        return self.waited(self.decay.new_full(self.decay.shape, -math.log1p(-level)))

    def sample_gaps(self, n: int, generator: torch.Generator) -> Tensor:
        shape = (n, *self.decay.shape)
        uniform = torch.rand(shape, generator=generator, dtype=self.decay.dtype, device=self.decay.device)
        return self.waited(-torch.log1p(-uniform))

    def waited(self, target: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
        """The gap over which the intensity integrates to `target`, by bisection to the last bit but a few."""
        high = target / self.rates(torch.zeros_like(target)).sum(-1)
        for _ in range(200):
            short = self.compensator(high) < target
            if not bool(short.any()):
                break
            high = torch.where(short, 2 * high, high)
        return bisected(lambda gap: self.compensator(gap) < target, torch.zeros_like(high), high)


@dataclass(frozen=True)
class MixedEvent(EventPrediction):
    """A log-normal gap at some positions, a hazard at the others: what an oracle of several kinds answers.

    Attributes:
        lognormal, hazard: the answers; each is any proper distribution where the other one holds.
        renewal: where the log-normal one holds.
    """

    lognormal: LogNormalEvent
    hazard: HazardEvent
    renewal: Bool[Tensor, "*shape"]

    @classmethod
    def raw_dim(cls, outputs: int, settings: HeadSettings = _SETTINGS) -> int:
        raise NotImplementedError("an oracle's answer is not read off a network")

    @classmethod
    def from_raw(cls, raw: Tensor, outputs: int, settings: HeadSettings = _SETTINGS) -> MixedEvent:
        raise NotImplementedError("an oracle's answer is not read off a network")

    def log_density(self, gap: Tensor) -> Tensor:
        return self._either(self.lognormal.log_density(gap), self.hazard.log_density(gap))

    def log_survival(self, gap: Tensor) -> Tensor:
        return self._either(self.lognormal.log_survival(gap), self.hazard.log_survival(gap))

    def log_marks(self, gap: Tensor) -> Tensor:
        return self._either(self.lognormal.log_marks(gap), self.hazard.log_marks(gap), of_marks=True)

    def mark_probabilities(self) -> Tensor:
        answers = self.lognormal.mark_probabilities(), self.hazard.mark_probabilities()
        return self._either(*answers, of_marks=True)

    def mean(self) -> Tensor:
        return self._either(self.lognormal.mean(), self.hazard.mean())

    def quantile(self, level: float) -> Tensor:
        return self._either(self.lognormal.quantile(level), self.hazard.quantile(level))

    def sample_gaps(self, n: int, generator: torch.Generator) -> Tensor:
        return self._either(self.lognormal.sample_gaps(n, generator), self.hazard.sample_gaps(n, generator))

    def _either(self, lognormal: Tensor, hazard: Tensor, of_marks: bool = False) -> Tensor:
        return torch.where(self.renewal.unsqueeze(-1) if of_marks else self.renewal, lognormal, hazard)


def _logarithm(gap: Tensor) -> Tensor:
    """The logarithm, finite for a gap of 0 as in padding: masked values must not make gradients infinite."""
    return gap.clamp_min(torch.finfo(gap.dtype).tiny).log()


def _one_of_each(probabilities: Float[Tensor, "*shape K"], generator: torch.Generator) -> Tensor:
    """One draw from every row."""
    return drawn(probabilities.reshape(-1, probabilities.shape[-1]), 1, generator).reshape(probabilities.shape[:-1])
