"""The likelihood of a multivariate exponential Hawkes process, its gradient and its observed information.

The rate of events of mark k at time t is mu_k plus the sum of A_kj beta exp(-beta (t - s)) over the previous events,
where s is the time and j the mark of an event. A_kj is the expected number of children of mark k per event of mark j.
The sums of exponentials are updated with each event (Ogata 1981), so all computations are linear in the number of
events. The observation starts at time 0 and ends at the last event, or `open_interval` after the last event.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Hawkes:
    """The parameters of a process, or the derivatives or standard errors of these parameters.

    Attributes:
        base: base rates mu, `(K,)`, per unit of time.
        branching: branching matrix A, `(K, K)`, with the mark of the child in rows.
        decay: decay beta, per unit of time.
    """

    base: np.ndarray
    branching: np.ndarray
    decay: float

    def vector(self) -> np.ndarray:
        """Return all parameters as a vector, `(K + K² + 1,)`."""
        return np.concatenate([self.base, self.branching.ravel(), [self.decay]])

    @classmethod
    def of_vector(cls, values: np.ndarray) -> Hawkes:
        """Return the parameters from a vector; the inverse of `vector`."""
        mark_count = int(np.sqrt(len(values) - 1))
        return cls(values[:mark_count], values[mark_count:-1].reshape(mark_count, mark_count), float(values[-1]))


def log_likelihood(gaps: np.ndarray, marks: np.ndarray, process: Hawkes, open_interval: float = 0.0) -> float:
    """Return the log-density of a sequence in nats.

    Args:
        gaps: times between events, `(n,)`; the first gap is the time of the first event.
        marks: marks of the events, `(n,)`, integers from 0.
        process: the parameters.
        open_interval: observed time after the last event.
    """
    states = _States.of(gaps, marks, process, open_interval)
    integral = process.base.sum() * (gaps.sum() + open_interval) + process.branching.sum(0) @ states.kernel_integrals
    return float(np.log(states.rates).sum() - integral)


def gradient(gaps: np.ndarray, marks: np.ndarray, process: Hawkes, open_interval: float = 0.0) -> Hawkes:
    """Return the derivatives of `log_likelihood` with respect to all parameters."""
    states = _States.of(gaps, marks, process, open_interval)
    observed_time = float(gaps.sum()) + open_interval
    return Hawkes.of_vector(states.log_slopes(marks, process).sum(0) - states.total_rate_slopes(observed_time, process))


def observed_information(
    gaps: np.ndarray, marks: np.ndarray, process: Hawkes, open_interval: float = 0.0
) -> np.ndarray:
    """Return the negative Hessian of `log_likelihood`, with the parameters in the order of `Hawkes.vector`."""
    states, mark_count = _States.of(gaps, marks, process, open_interval), len(process.base)
    slopes = states.log_slopes(marks, process)
    information = slopes.T @ slopes
    # Rates are linear in mu and A, so only their second derivatives that involve beta are not 0.
    inverse = 1 / states.rates
    mixed = np.zeros((mark_count, mark_count))
    np.add.at(mixed, marks, (states.counts - process.decay * states.ages) * inverse[:, None])
    mixed = (mixed - states.integral_slopes).ravel()
    information[mark_count:-1, -1] -= mixed
    information[-1, mark_count:-1] -= mixed
    curvatures = process.branching[marks] * (process.decay * states.squared_ages - 2 * states.ages)
    information[-1, -1] -= (curvatures.sum(1) * inverse).sum() - process.branching.sum(0) @ states.integral_curvatures
    return information


def standard_errors(
    gaps: np.ndarray, marks: np.ndarray, process: Hawkes, fastest: float = 10.0, open_interval: float = 0.0
) -> Hawkes:
    """Return the standard errors of the parameters of a fitted process, from the inverse observed information.

    A parameter that is 0 is at the end of its range: its standard error is NaN, and it is treated as known for the
    other parameters. The same applies to the decay if the branching matrix is 0, or if the decay is at an end of its
    range, whose upper end is set by `fastest` as in the fit. All standard errors are NaN if the information is not
    positive definite, because the parameters do not maximise the likelihood or because the sequence is too short.
    """
    values = process.vector()
    is_free = values > 0
    ends = np.array([1 / (gaps.sum() + open_interval), fastest / np.exp(np.log(gaps).mean())])
    is_free[-1] &= process.branching.any() and not np.isclose(process.decay, ends, rtol=1e-6, atol=0).any()
    information = observed_information(gaps, marks, process, open_interval)[np.ix_(is_free, is_free)]
    # The information is scaled, so that rounding errors do not depend on the unit of time.
    scale = values[is_free]
    errors = np.full(len(values), np.nan)
    try:
        root = np.linalg.inv(np.linalg.cholesky(information * np.outer(scale, scale)))
    except np.linalg.LinAlgError:
        return Hawkes.of_vector(errors)
    errors[is_free] = scale * np.sqrt((root**2).sum(0))
    return Hawkes.of_vector(errors)


@dataclass(frozen=True)
class _States:
    """Sums over previous events, for n events and K marks.

    Attributes:
        counts, ages, squared_ages: for each event, `(n, K)`, the sums of exp(-beta a), a exp(-beta a) and
            a² exp(-beta a) over the previous events of each mark, where a is the age of a previous event.
        rates: rate of the mark of each event, `(n,)`.
        kernel_integrals, integral_slopes, integral_curvatures: for each mark, `(K,)`, the sums over its events of
            1 - exp(-beta a), where a is the time from the event to the end, and of the first and second derivatives of
            this term with respect to beta.
    """

    counts: np.ndarray
    ages: np.ndarray
    squared_ages: np.ndarray
    rates: np.ndarray
    kernel_integrals: np.ndarray
    integral_slopes: np.ndarray
    integral_curvatures: np.ndarray

    @classmethod
    def of(cls, gaps: np.ndarray, marks: np.ndarray, process: Hawkes, open_interval: float) -> _States:
        mark_count, beta = len(process.base), process.decay
        counts, ages, squares = np.zeros((3, len(gaps), mark_count))
        count, age, square = np.zeros((3, mark_count))
        for i, (gap, factor) in enumerate(zip(gaps, np.exp(-beta * gaps), strict=True)):
            square = factor * (square + 2 * gap * age + gap * gap * count)
            age = factor * (age + gap * count)
            count = factor * count
            counts[i], ages[i], squares[i] = count, age, square
            count[marks[i]] += 1
        to_end = gaps[::-1].cumsum()[::-1] - gaps + open_interval
        decays = np.exp(-beta * to_end)
        weights = (-np.expm1(-beta * to_end), to_end * decays, -to_end * to_end * decays)
        sums = [np.bincount(marks, w, mark_count) for w in weights]
        rates = process.base[marks] + beta * (process.branching[marks] * counts).sum(1)
        return cls(counts, ages, squares, rates, *sums)

    def log_slopes(self, marks: np.ndarray, process: Hawkes) -> np.ndarray:
        """Return the derivatives of the log-rate of each event with respect to the parameters, `(n, K + K² + 1)`."""
        n, mark_count = self.counts.shape
        slopes = np.zeros((n, mark_count + mark_count * mark_count + 1))
        slopes[np.arange(n), marks] = 1
        slopes[:, mark_count:-1].reshape(n, mark_count, mark_count)[np.arange(n), marks] = process.decay * self.counts
        slopes[:, -1] = (process.branching[marks] * (self.counts - process.decay * self.ages)).sum(1)
        return slopes / self.rates[:, None]

    def total_rate_slopes(self, observed_time: float, process: Hawkes) -> np.ndarray:
        """Return the derivatives of the integral of the total rate over the observed time, `(K + K² + 1,)`."""
        mark_count = len(process.base)
        decay_slope = process.branching.sum(0) @ self.integral_slopes
        return np.concatenate(
            [np.full(mark_count, observed_time), np.tile(self.kernel_integrals, mark_count), [decay_slope]]
        )
