"""Predictions of the time and the mark of the next event in a sequence.

An event is a row `(gap, mark, time)` of `Points.y`, with columns `GAP`, `MARK` and `TIME`: the time since the previous
event (for the first event, since time 0), the mark as an integer from 0, and the absolute time. Events have no x.
Likelihoods are densities of the gap, in nats, and depend on the unit of time. If the unit is c times as long, each
log-density is larger by log c. A positive log-density only means that gaps are short in this unit.

A censored point is the open interval after the last event of an observation window: `(T - t_N, CENSORED, T)`. It is the
last point of its sequence, so no prediction depends on it. Its log-survival is part of the training loss and of the
likelihood of the sequence. Without this term, a model would learn gaps that are too short, because the end of the
window cuts off long gaps more often than short ones.
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
from iclbench.core.predictions import HeadSettings, Prediction, bisect, checked_level, draw_indices

GAP, MARK, TIME = range(3)
CENSORED = -1

_LOG_2PI = math.log(2 * math.pi)
# The released code of Meta TPP clips distribution functions to [_RELEASED_CLIP, 1 - _RELEASED_CLIP].
_RELEASED_CLIP = 1e-5
# Quadrature over gaps: number of panels, nodes per panel, and the compensator (minus the log-survival) at the upper
# end.
_PANELS, _NODES, _MAX_COMPENSATOR = 14, 8, 30.0
# Constant that is added to the scales of log-normal distributions.
_MIN_SCALE = 1e-4
_SETTINGS = HeadSettings()


def marks_of(y: Float[Tensor, "*shape 3"]) -> Tensor:
    """Return the marks as integers; 0 for censored points."""
    return y[..., MARK].long().clamp_min(0)


def open_intervals(points: Points) -> Bool[Tensor, "*batch points"]:
    """Return a mask of the points that are open intervals, not events."""
    return points.mask & (points.y[..., MARK] == CENSORED)


def events_of(points: Points) -> Points:
    """Mask out open intervals, which models must not read."""
    marks = points.y[..., MARK]
    if not marks.numel() or bool(marks.amin() >= 0):
        return points  # do not allocate a second mask, which would slow down streams
    return replace(points, mask=points.mask & (marks >= 0))


@dataclass(frozen=True)
class EventPrediction(Prediction):
    """The distribution of the next gap and its mark, given the history.

    Scores per event: `nll_time` and `nll_mark` in nats, and their sum `nll`; `squared_error` of the mean gap;
    `absolute_error` of the median gap; `accuracy` of the mark that is most likely before the gap is known; and whether
    the gap is in the central 50 % and 90 % intervals.
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
        """Return the log-density of the gap, summed over marks."""

    @abstractmethod
    def log_survival(self, gap: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
        """Return the log-probability that the next gap is longer than this gap."""

    @abstractmethod
    def log_marks(self, gap: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape K"]:
        """Return the log-probabilities of the marks, given that the event occurs after this gap."""

    @abstractmethod
    def mark_probabilities(self) -> Float[Tensor, "*shape K"]:
        """Return the probabilities of the next mark, before the time of the event is known."""

    @abstractmethod
    def mean(self) -> Float[Tensor, "*shape"]:
        """Return the expected gap."""

    @abstractmethod
    def quantile(self, level: float) -> Float[Tensor, "*shape"]:
        """Return the quantile of the gap at `level`, between 0 and 1."""

    @abstractmethod
    def sample_gaps(self, n: int, generator: torch.Generator) -> Tensor:
        """Draw `n` independent gaps, `(n, *shape)`."""

    def log_likelihood(self, y: Float[Tensor, "*shape 3"]) -> Float[Tensor, "*shape"]:
        """Return the joint log-density of time and mark. For a censored point, return the log-survival."""
        gap, is_event = y[..., GAP], y[..., MARK] >= 0
        event = self.log_density(gap) + self._log_mark(y)
        return event if bool(is_event.all()) else torch.where(is_event, event, self.log_survival(gap))

    def released_log_survival(self, gap: Float[Tensor, "*#shape"]) -> Float[Tensor, "*#shape"]:
        """Return the log-survival for `nll_published`, as computed in the released code of the head's authors (default:
        `log_survival`)."""
        return self.log_survival(gap)

    def loss(self, y: Tensor) -> Tensor:
        return -self.log_likelihood(y)

    def scores(self, y: Float[Tensor, "*shape 3"]) -> dict[str, Float[Tensor, "*shape"]]:
        gap = y[..., GAP]
        nll_time, nll_mark = -self.log_density(gap), -self._log_mark(y)
        probability_below = -torch.expm1(self.log_survival(gap))
        is_right = self.mark_probabilities().argmax(-1) == marks_of(y)
        return {
            "nll": nll_time + nll_mark,
            "nll_time": nll_time,
            "nll_mark": nll_mark,
            "squared_error": (self.mean() - gap).square(),
            "absolute_error": (self.quantile(0.5) - gap).abs(),
            "accuracy": is_right.to(nll_time.dtype),
            "covered_50": ((probability_below - 0.5).abs() <= 0.25).to(nll_time.dtype),
            "covered_90": ((probability_below - 0.5).abs() <= 0.45).to(nll_time.dtype),
        }

    def sequence_scores(
        self, y: Float[Tensor, "B N 3"], scored: Bool[Tensor, "B N"], mask: Bool[Tensor, "B N"]
    ) -> dict[str, Float[Tensor, " B"]]:
        """Return two scores of the released code of Meta TPP (Bae et al. 2023), and the score of the open interval.

        `nll_published` skips the first event and scores the last gap by its log-survival (`released_log_survival`).
        `squared_sum_error` is the square of the summed errors of all gaps except the first. The RMSE in the paper is
        the square root of its mean. Both scores are later divided by the number of all events. `nll_open` is minus the
        log-survival of the censored point, or NaN for sequences without one.
        """
        gap = y[..., GAP]
        # A failed prediction must not give NaN, because NaN means that a sequence has no open interval.
        survival_nll = (-self.log_survival(gap)).nan_to_num(nan=math.inf, posinf=math.inf)
        scored_so_far = scored.cumsum(1)
        is_first = scored & (scored_so_far == 1)
        is_last = scored & (scored_so_far == scored.sum(1, keepdim=True))
        is_counted = scored & ~is_first
        nll_time = torch.where(is_last, -self.released_log_survival(gap), -self.log_density(gap))
        published = (nll_time - self._log_mark(y)).masked_fill(~is_counted, 0).sum(1)
        error = (self.mean() - gap).masked_fill(~is_counted, 0).sum(1)
        censored = mask & (y[..., MARK] == CENSORED)
        nll_open = survival_nll.masked_fill(~censored, 0).sum(1).masked_fill(~censored.any(1), torch.nan)
        return {"nll_published": published, "squared_sum_error": error.square(), "nll_open": nll_open}

    def point(self) -> Float[Tensor, "*shape 2"]:
        """Return the expected gap and the most likely mark."""
        return torch.stack([self.mean(), self.mark_probabilities().argmax(-1).to(self.mean().dtype)], -1)

    def interval(self, level: float = 0.9) -> tuple[Tensor, Tensor]:
        """Return the ends of the central interval of the gap, `(*shape, 1)` each."""
        if checked_level(level) == 1:  # bisection cannot reach infinity
            median = self.quantile(0.5).unsqueeze(-1)
            return torch.zeros_like(median), torch.full_like(median, math.inf)
        low, high = (self.quantile(p).unsqueeze(-1) for p in (0.5 - level / 2, 0.5 + level / 2))
        return low, high

    def sample(self, n: int, generator: torch.Generator) -> Float[Tensor, "n *shape 2"]:
        """Draw gaps, and draw a mark for each gap from the distribution of marks given the gap."""
        gaps = self.sample_gaps(n, generator)
        marks = [_draw_index(self.log_marks(gap).exp(), generator) for gap in gaps]
        return torch.stack([gaps, torch.stack(marks).to(gaps) if n else gaps], -1)

    def columns(self) -> dict[str, Tensor]:
        """Return the mean, median and central 90 % interval of the gap, the most likely mark, and the probabilities of
        all marks."""
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
    """A log-normal mixture for the gap. Given the history, the mark is independent of the gap (Shchur et al. 2020).

    Attributes:
        logits: logits of the components.
        locs: means of the logarithm of the gap.
        scales: standard deviations of the logarithm of the gap: softplus(raw) + floor + 1e-4. The released code of Meta
            TPP uses softplus(raw), which can underflow to 0. The added 1e-4 keeps densities of exactly repeated gaps
            finite.
        marks: logits of the marks.
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
        logits, locs, raw_scales, marks = raw.split([c, c, c, outputs], -1)
        # Use at least single precision, because a rounding error in the logarithm is a relative error in the gap.
        logits, locs, raw_scales, marks = (
            t.to(torch.promote_types(t.dtype, torch.float32)) for t in (logits, locs, raw_scales, marks)
        )
        return cls(logits, locs, F.softplus(raw_scales) + settings.floor + _MIN_SCALE, marks)

    def log_density(self, gap: Tensor) -> Tensor:
        log = _logarithm(gap).unsqueeze(-1)
        z = (log - self.locs) / self.scales
        log_components = -0.5 * z.square() - self.scales.log() - 0.5 * _LOG_2PI - log
        return torch.logsumexp(self.logits.log_softmax(-1) + log_components, -1)

    def log_survival(self, gap: Tensor) -> Tensor:
        z = (_logarithm(gap).unsqueeze(-1) - self.locs) / self.scales
        return torch.logsumexp(self.logits.log_softmax(-1) + torch.special.log_ndtr(-z), -1)

    def released_log_survival(self, gap: Tensor) -> Tensor:
        """Return the log-survival with the distribution function of each component clipped to [1e-5, 1 - 1e-5], as in
        Meta TPP. The last gap then contributes at most 11.5 nats."""
        z = (_logarithm(gap).unsqueeze(-1) - self.locs) / self.scales
        below = torch.special.ndtr(z).clamp(_RELEASED_CLIP, 1 - _RELEASED_CLIP)
        return torch.logsumexp(self.logits.log_softmax(-1) + torch.log1p(-below), -1)

    def log_marks(self, gap: Tensor) -> Tensor:
        return self.marks.log_softmax(-1)

    def mark_probabilities(self) -> Tensor:
        return self.marks.softmax(-1)

    def mean(self) -> Tensor:
        """Return the mean in double precision, because heavy tails overflow single precision."""
        locs, scales = self.locs.double(), self.scales.double()
        log_means = self.logits.double().log_softmax(-1) + locs + scales.square() / 2
        return torch.logsumexp(log_means, -1).exp()

    def quantile(self, level: float) -> Tensor:
        """Return the quantile, by bisection of the logarithm of the gap to nearly floating-point precision."""
        reach = 40 * self.scales
        low, high = (self.locs - reach).amin(-1), (self.locs + reach).amax(-1)
        weights = self.logits.softmax(-1)

        def is_below(log: Tensor) -> Tensor:
            z = (log.unsqueeze(-1) - self.locs) / self.scales
            return (weights * torch.special.ndtr(z)).sum(-1) < level

        return bisect(is_below, low, high).exp()

    def sample_gaps(self, n: int, generator: torch.Generator) -> Tensor:
        *shape, c = self.locs.shape
        component = draw_indices(self.logits.softmax(-1).reshape(-1, c), n, generator).T.reshape(n, *shape, 1)
        loc, scale = (t.expand(n, *t.shape).gather(-1, component).squeeze(-1) for t in (self.locs, self.scales))
        noise = torch.randn(loc.shape, generator=generator, dtype=loc.dtype, device=loc.device)
        return (loc + scale * noise).exp()


@dataclass(frozen=True)
class HazardEvent(EventPrediction):
    """A point process whose rate of events with mark k is base_k + excited_k exp(-decay s) at time s after the last
    event.

    Special cases are homogeneous Poisson processes (excited = 0), exponential Hawkes processes with one decay, and
    self-correcting processes (base = 0, negative decay). The compensator has a closed form. The total rate must stay
    positive.
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
        """Return the rates of the marks at this time after the last event."""
        return self.base + self.excited * torch.exp(-self.decay * gap).unsqueeze(-1)

    def compensator(self, gap: Float[Tensor, "*#shape"]) -> Float[Tensor, "*#shape"]:
        """Return the integral of the total rate over a gap. For the next gap, this integral is exponentially
        distributed with mean 1 (time rescaling)."""
        u = self.decay * gap
        # (1 - exp(-u)) / u, whose limit at 0 is 1
        share = torch.where(u == 0, 1.0, -torch.expm1(-u) / torch.where(u == 0, 1.0, u))
        return gap * (self.base.sum(-1) + self.excited.sum(-1) * share)

    def log_rates(self, gap: Float[Tensor, "*#shape"]) -> Float[Tensor, "*#shape K"]:
        """Return the logarithms of the rates, which are finite even if a growing rate overflows."""
        decayed = self.excited.log() - (self.decay * gap).unsqueeze(-1)
        return torch.logaddexp(self.base.log(), decayed)

    def log_density(self, gap: Tensor) -> Tensor:
        return self.log_rates(gap).logsumexp(-1) - self.compensator(gap)

    def log_survival(self, gap: Tensor) -> Tensor:
        return -self.compensator(gap)

    def log_marks(self, gap: Tensor) -> Tensor:
        return self.log_rates(gap).log_softmax(-1)

    def mark_probabilities(self) -> Tensor:
        """Return the probabilities of the marks, averaged over the time of the event."""
        return self._integrals[1]

    def mean(self) -> Tensor:
        """Return the mean gap, which is the integral of the survival function."""
        return self._integrals[0]

    @cached_property
    def _integrals(self) -> tuple[Float[Tensor, "*shape"], Float[Tensor, "*shape K"]]:
        """The mean gap and the probabilities of the marks, computed by the same quadrature."""
        mean, marks = torch.zeros_like(self.decay), torch.zeros_like(self.base)
        for gap, width in self._panels():
            weighted_survival = width * self.log_survival(gap).exp()
            mean = mean + weighted_survival
            marks = marks + weighted_survival.unsqueeze(-1) * self.rates(gap)
        return mean, marks / marks.sum(-1, keepdim=True)

    def _panels(self) -> Iterator[tuple[Float[Tensor, "*shape"], Float[Tensor, "*shape"]]]:
        """Yield the gaps and weights of a Gauss-Legendre quadrature.

        The panels end at the gap whose log-survival is -30, and their widths double from one panel to the next. Some
        panels then resolve the rate, whatever its time scale is.
        """
        nodes, weights = np.polynomial.legendre.leggauss(_NODES)
        end = self.gap_with_compensator(torch.full_like(self.decay, _MAX_COMPENSATOR))
        for panel in range(_PANELS):
            high = 2.0**-panel
            low = 0.0 if panel == _PANELS - 1 else high / 2
            half, middle = (high - low) / 2, (high + low) / 2
            for node, weight in zip(nodes, weights, strict=True):
                yield (middle + half * float(node)) * end, half * float(weight) * end

    def quantile(self, level: float) -> Tensor:
        return self.gap_with_compensator(self.decay.new_full(self.decay.shape, -math.log1p(-level)))

    def sample_gaps(self, n: int, generator: torch.Generator) -> Tensor:
        shape = (n, *self.decay.shape)
        uniform = torch.rand(shape, generator=generator, dtype=self.decay.dtype, device=self.decay.device)
        return self.gap_with_compensator(-torch.log1p(-uniform))

    def gap_with_compensator(self, target: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
        """Return the gap over which the total rate integrates to `target`, by bisection to nearly floating-point
        precision."""
        high = target / self.rates(torch.zeros_like(target)).sum(-1)
        for _ in range(200):
            is_short = self.compensator(high) < target
            if not bool(is_short.any()):
                break
            high = torch.where(is_short, 2 * high, high)
        return bisect(lambda gap: self.compensator(gap) < target, torch.zeros_like(high), high)


@dataclass(frozen=True)
class MixedEvent(EventPrediction):
    """A log-normal prediction at some positions and a hazard prediction at the others. Oracles for mixtures of
    processes return it.

    Attributes:
        lognormal, hazard: the two predictions. At positions where a prediction is not used, it may be any proper
            distribution.
        is_renewal: a mask of the positions with the log-normal prediction.
    """

    lognormal: LogNormalEvent
    hazard: HazardEvent
    is_renewal: Bool[Tensor, "*shape"]

    @classmethod
    def raw_dim(cls, outputs: int, settings: HeadSettings = _SETTINGS) -> int:
        raise NotImplementedError("the answer of an oracle is not read from a network's outputs")

    @classmethod
    def from_raw(cls, raw: Tensor, outputs: int, settings: HeadSettings = _SETTINGS) -> MixedEvent:
        raise NotImplementedError("the answer of an oracle is not read from a network's outputs")

    def log_density(self, gap: Tensor) -> Tensor:
        return self._select(self.lognormal.log_density(gap), self.hazard.log_density(gap))

    def log_survival(self, gap: Tensor) -> Tensor:
        return self._select(self.lognormal.log_survival(gap), self.hazard.log_survival(gap))

    def log_marks(self, gap: Tensor) -> Tensor:
        return self._select(self.lognormal.log_marks(gap), self.hazard.log_marks(gap), per_mark=True)

    def mark_probabilities(self) -> Tensor:
        answers = self.lognormal.mark_probabilities(), self.hazard.mark_probabilities()
        return self._select(*answers, per_mark=True)

    def mean(self) -> Tensor:
        return self._select(self.lognormal.mean(), self.hazard.mean())

    def quantile(self, level: float) -> Tensor:
        return self._select(self.lognormal.quantile(level), self.hazard.quantile(level))

    def sample_gaps(self, n: int, generator: torch.Generator) -> Tensor:
        return self._select(self.lognormal.sample_gaps(n, generator), self.hazard.sample_gaps(n, generator))

    def _select(self, lognormal: Tensor, hazard: Tensor, per_mark: bool = False) -> Tensor:
        return torch.where(self.is_renewal.unsqueeze(-1) if per_mark else self.is_renewal, lognormal, hazard)


def _logarithm(gap: Tensor) -> Tensor:
    """Return the logarithm of the gap. It is finite for the gaps of 0 in padding, so that masked values do not make
    gradients infinite."""
    return gap.clamp_min(torch.finfo(gap.dtype).tiny).log()


def _draw_index(probabilities: Float[Tensor, "*shape K"], generator: torch.Generator) -> Tensor:
    """Draw one index from each row of probabilities."""
    return draw_indices(probabilities.reshape(-1, probabilities.shape[-1]), 1, generator).reshape(
        probabilities.shape[:-1]
    )
