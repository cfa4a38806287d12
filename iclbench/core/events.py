"""Predictions of the time and the mark of the next event of a sequence.

An event is `(gap, mark, time)` in `Points.y`, columns `GAP`, `MARK`, `TIME`: the time since the previous event (since
time 0 for the first event), the mark as a number from 0, and the absolute time. Events have no x. Likelihoods are
densities of the gap, in nats, and depend on the unit of time: in units c times as long, each log-density is log c
larger. A positive log-density only means that gaps are short in this unit.

A censored point is the open interval after the last event of an observation window: `(T - t_N, CENSORED, T)`. It is
the last point of its sequence, so no prediction depends on it. Its log-survival is part of the training loss and of the
likelihood of the sequence. Without it, a model learns gaps that are too short, because the end of the window cuts off
long gaps more often.
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
# Quadrature over gaps: number of panels, nodes per panel, and the compensator (minus the log-survival) at the end of
# the last panel.
_PANELS, _NODES, _MAX_COMPENSATOR = 14, 8, 30.0
# Added to the scales of log-normals.
_MIN_SCALE = 1e-4
_SETTINGS = HeadSettings()


def marks_of(y: Float[Tensor, "*shape 3"]) -> Tensor:
    """Marks as integers; 0 for censored points."""
    return y[..., MARK].long().clamp_min(0)


def open_intervals(points: Points) -> Bool[Tensor, "*batch points"]:
    """A mask of the points that are open intervals, not events."""
    return points.mask & (points.y[..., MARK] == CENSORED)


def events_of(points: Points) -> Points:
    """The points without open intervals, which models must not read."""
    marks = points.y[..., MARK]
    if not marks.numel() or bool(marks.amin() >= 0):
        return points  # so that a stream does not allocate a second mask
    return replace(points, mask=points.mask & (marks >= 0))


@dataclass(frozen=True)
class EventPrediction(Prediction):
    """The distribution of the next gap and its mark, given the history.

    Scores, per event: `nll_time` and `nll_mark` in nats, and their sum `nll`; `squared_error` of the mean gap;
    `absolute_error` of the median gap; `accuracy` of the most likely mark before the gap is known; and whether the gap
    is in the central 50 % and 90 % intervals.
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
        """Log-density of the gap, summed over the marks."""

    @abstractmethod
    def log_survival(self, gap: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
        """Log-probability that the next gap is longer than this gap."""

    @abstractmethod
    def log_marks(self, gap: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape K"]:
        """Log-probabilities of the marks of an event after this gap."""

    @abstractmethod
    def mark_probabilities(self) -> Float[Tensor, "*shape K"]:
        """Probabilities of the next mark before its time is known."""

    @abstractmethod
    def mean(self) -> Float[Tensor, "*shape"]:
        """Expected gap."""

    @abstractmethod
    def quantile(self, level: float) -> Float[Tensor, "*shape"]:
        """The gap that the next gap does not exceed with probability `level`, between 0 and 1."""

    @abstractmethod
    def sample_gaps(self, n: int, generator: torch.Generator) -> Tensor:
        """Independent draws of the gap, `(n, *shape)`."""

    def log_likelihood(self, y: Float[Tensor, "*shape 3"]) -> Float[Tensor, "*shape"]:
        """Joint log-density of time and mark; for a censored point, the log-survival."""
        gap, is_event = y[..., GAP], y[..., MARK] >= 0
        event = self.log_density(gap) + self._log_mark(y)
        return event if bool(is_event.all()) else torch.where(is_event, event, self.log_survival(gap))

    def released_log_survival(self, gap: Float[Tensor, "*#shape"]) -> Float[Tensor, "*#shape"]:
        """`log_survival` as computed by the code released with a head, only for `nll_published`."""
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
        """Two scores as defined in the released code of Meta TPP (Bae et al. 2023), and the score of the
        open interval.

        `nll_published` skips the first event and scores the last gap by its log-survival (`released_log_survival`).
        `squared_sum_error` adds the errors of all gaps except the first before squaring; the RMSE in the paper is the
        square root of its mean. Both are later divided by the number of all events. `nll_open` is minus the
        log-survival of the censored point, NaN for sequences that have none.
        """
        gap = y[..., GAP]
        # NaN is reserved for sequences without an open interval.
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
        """Expected gap and most likely mark."""
        return torch.stack([self.mean(), self.mark_probabilities().argmax(-1).to(self.mean().dtype)], -1)

    def interval(self, level: float = 0.9) -> tuple[Tensor, Tensor]:
        """The ends of the central interval of the gap, `(*shape, 1)` each."""
        if checked_level(level) == 1:  # bisection cannot reach infinity
            median = self.quantile(0.5).unsqueeze(-1)
            return torch.zeros_like(median), torch.full_like(median, math.inf)
        low, high = (self.quantile(p).unsqueeze(-1) for p in (0.5 - level / 2, 0.5 + level / 2))
        return low, high

    def sample(self, n: int, generator: torch.Generator) -> Float[Tensor, "n *shape 2"]:
        """Draw gaps and marks, each mark given its gap."""
        gaps = self.sample_gaps(n, generator)
        marks = [_draw_index(self.log_marks(gap).exp(), generator) for gap in gaps]
        return torch.stack([gaps, torch.stack(marks).to(gaps) if n else gaps], -1)

    def columns(self) -> dict[str, Tensor]:
        """Mean, median and central 90 % interval of the gap, most likely mark, and probabilities of all marks."""
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
    """A log-normal mixture of gaps, with marks independent of the gap given the history (Shchur et al. 2020).

    Attributes:
        logits: logits of the components.
        locs: means of the logarithm of the gap.
        scales: standard deviations of the logarithm of the gap: softplus(raw) + floor + 1e-4. The released code of Meta
            TPP has softplus(raw), which underflows to 0; 1e-4 keeps densities of exactly repeated gaps finite.
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
        # At least single precision, because a rounding error of the logarithm is a relative error of the gap.
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
        """Log-survival with the distribution function of each component clipped to [1e-5, 1 - 1e-5], as in Meta TPP:
        the last gap contributes at most 11.5 nats."""
        z = (_logarithm(gap).unsqueeze(-1) - self.locs) / self.scales
        below = torch.special.ndtr(z).clamp(_RELEASED_CLIP, 1 - _RELEASED_CLIP)
        return torch.logsumexp(self.logits.log_softmax(-1) + torch.log1p(-below), -1)

    def log_marks(self, gap: Tensor) -> Tensor:
        return self.marks.log_softmax(-1)

    def mark_probabilities(self) -> Tensor:
        return self.marks.softmax(-1)

    def mean(self) -> Tensor:
        """The mean, in double precision, because heavy tails overflow single precision."""
        locs, scales = self.locs.double(), self.scales.double()
        log_means = self.logits.double().log_softmax(-1) + locs + scales.square() / 2
        return torch.logsumexp(log_means, -1).exp()

    def quantile(self, level: float) -> Tensor:
        """The quantile, by bisection of the logarithm to a few bits of the float's precision."""
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
    """Events of mark k with the rate base_k + excited_k exp(-decay s) at time s after the last event.

    Processes with such a rate have closed forms: homogeneous Poisson processes (excited = 0), exponential Hawkes
    processes with one decay, and self-correcting processes (base = 0, negative decay). The total rate must stay
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
        """Rates of the marks at this time after the last event."""
        return self.base + self.excited * torch.exp(-self.decay * gap).unsqueeze(-1)

    def compensator(self, gap: Float[Tensor, "*#shape"]) -> Float[Tensor, "*#shape"]:
        """Integral of the total rate over a gap. Over the next gap, it is exponentially distributed with mean 1 (time
        rescaling)."""
        u = self.decay * gap
        # (1 - exp(-u)) / u, whose limit at 0 is 1
        share = torch.where(u == 0, 1.0, -torch.expm1(-u) / torch.where(u == 0, 1.0, u))
        return gap * (self.base.sum(-1) + self.excited.sum(-1) * share)

    def log_rates(self, gap: Float[Tensor, "*#shape"]) -> Float[Tensor, "*#shape K"]:
        """Logarithms of the rates, finite even if a growing rate overflows."""
        decayed = self.excited.log() - (self.decay * gap).unsqueeze(-1)
        return torch.logaddexp(self.base.log(), decayed)

    def log_density(self, gap: Tensor) -> Tensor:
        return self.log_rates(gap).logsumexp(-1) - self.compensator(gap)

    def log_survival(self, gap: Tensor) -> Tensor:
        return -self.compensator(gap)

    def log_marks(self, gap: Tensor) -> Tensor:
        return self.log_rates(gap).log_softmax(-1)

    def mark_probabilities(self) -> Tensor:
        """Probabilities of the marks, averaged over the time of the event."""
        return self._integrals[1]

    def mean(self) -> Tensor:
        """The mean gap, the integral of the survival function."""
        return self._integrals[0]

    @cached_property
    def _integrals(self) -> tuple[Float[Tensor, "*shape"], Float[Tensor, "*shape K"]]:
        """Mean gap and probabilities of the marks, from one quadrature."""
        mean, marks = torch.zeros_like(self.decay), torch.zeros_like(self.base)
        for gap, width in self._panels():
            weighted_survival = width * self.log_survival(gap).exp()
            mean = mean + weighted_survival
            marks = marks + weighted_survival.unsqueeze(-1) * self.rates(gap)
        return mean, marks / marks.sum(-1, keepdim=True)

    def _panels(self) -> Iterator[tuple[Float[Tensor, "*shape"], Float[Tensor, "*shape"]]]:
        """Gaps and weights of Gauss-Legendre quadrature. The width of panels doubles up to the gap whose log-survival
        is -30, so that some panels resolve a rate that changes on any scale."""
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
        """The gap over which the total rate integrates to `target`, by bisection to a few bits of the float's
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
    """A log-normal prediction at some positions and a hazard at the others, the answer of an oracle of mixed processes.

    Attributes:
        lognormal, hazard: the two predictions; each is an arbitrary proper distribution where the other one is used.
        is_renewal: the positions of the log-normal prediction.
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
    """The logarithm, finite for the gap 0 of padding, so that masked values do not make gradients infinite."""
    return gap.clamp_min(torch.finfo(gap.dtype).tiny).log()


def _draw_index(probabilities: Float[Tensor, "*shape K"], generator: torch.Generator) -> Tensor:
    """One draw from each row."""
    return draw_indices(probabilities.reshape(-1, probabilities.shape[-1]), 1, generator).reshape(
        probabilities.shape[:-1]
    )
