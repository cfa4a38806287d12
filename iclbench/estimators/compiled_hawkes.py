"""Maximum-likelihood fits of exponential Hawkes processes to all prefixes of all episodes, in compiled loops.

For a fixed decay beta, the log-likelihood is concave in the base rates and the branching matrix. It separates into one
problem per mark: maximise over x >= 0

    sum over the events of the mark of log(phi_n · x)  +  a log x_0  -  c · x,

where phi_n = (1, beta S_1(n), ..., beta S_D(n)), S_j(n) is the decayed number of events of mark j before event n, a
is the weight of the prior on the base rate, and c contains the integral plus the penalty of each term of the rate. An
active-set method (Lawson and Hanson 1974, for least squares) solves each problem up to rounding errors. It takes Newton
steps in the nonzero coordinates and in at most one coordinate that is 0 and has a positive gradient.

As a function of log beta, the maximum may have several peaks. They are located on a grid that is finer than their
width, and each is refined by golden-section search. The answer is the highest peak, so it does not depend on a starting
point or on other prefixes.

Time is in units of the mean gap of the prefix, so the scale of the gaps does not matter.
"""

from __future__ import annotations

from typing import no_type_check

import numpy as np

from iclbench.estimators.compiling import compiled

# Loops replace functions and assignments of arrays, which take numba seconds to compile.

# Newton's method stops after a step with an expected gain below _MIN_GAIN nats.
_MIN_GAIN = 1e-11
# A coordinate joins the active set if its gradient exceeds its cost times _MIN_SLOPE.
_MIN_SLOPE = 1e-9
# Relative rounding error of the maximised value.
_ROUNDING = 1e-14
_MAX_STEPS = 100
# Largest spacing of the grid over log beta. Kernels are similar if their decays differ by less than a factor of about
# e, so peaks over log beta are not much narrower than 1.
_STRIDE = 0.35
_MAX_GRID_POINTS = 100
_GOLDEN = (np.sqrt(5) - 1) / 2
# Number of evaluations per golden-section search.
_SECTIONS = 32


# `no_type_check`: the tests' shape checks would wrap these functions, and wrappers are not compiled.
@compiled
@no_type_check
def answer_all(gaps, marks, lengths, min_events, mark_count, smoothing, penalty, fastest, base, excited, decay):
    """Fit a process to the first `lengths[b, p]` events of each episode if there are at least `min_events` of them, and
    write the rates of the next event to base `(B, P, K)`, excited `(B, P, K)` and decay `(B, P)`.

    gaps `(B, N)` is float64, and marks `(B, N)` are from 0 to mark_count - 1; the other arguments are as in `fit`.
    """
    for b in range(lengths.shape[0]):
        for p in range(lengths.shape[1]):
            n = lengths[b, p]
            if n < min_events:
                continue
            fitted = fit(gaps[b, :n], marks[b, :n], mark_count, smoothing, penalty, fastest, 0.0)
            present, mu, alpha, beta, mu_absent, _ = fitted
            decay[b, p] = beta
            decayed = np.empty(mark_count)
            for j in range(mark_count):
                base[b, p, j], decayed[j] = mu_absent, 0.0
            for i in range(n):
                fade = np.exp(-beta * gaps[b, i])
                for j in present:
                    decayed[j] *= fade
                decayed[marks[b, i]] += 1
            for i in range(len(present)):
                base[b, p, present[i]] = mu[i]
                rate = 0.0
                for j in range(len(present)):
                    rate += alpha[i, j] * decayed[present[j]]
                excited[b, p, present[i]] = beta * rate


@compiled
@no_type_check
def fit(gaps, marks, mark_count, smoothing, penalty, fastest, open_interval):
    """Fit a process to one sequence by maximum penalised likelihood.

    The sequence is observed until time T, which is `open_interval` after its last event. The penalised log-likelihood
    adds (smoothing / K) log mu_k - (smoothing · T / n) mu_k for each of the K marks, which corresponds to `smoothing`
    further events at the mean rate, spread evenly over the marks. It subtracts `penalty` times each entry of the
    branching matrix. The decay is at least 1 / T, and at most the larger of 1 / T and fastest / (geometric mean of the
    gaps).

    Returns:
        The marks that occur, `(D,)`, in order of appearance; their base rates `(D,)` and branching matrix `(D, D)` with
        the mark of the child in rows; the decay; the base rate of each mark that does not occur, whose other parameters
        are unknown; and the maximum of the penalised log-likelihood of the D marks, with time in units of the mean gap.
    """
    n = len(gaps)
    total = 0.0
    for i in range(n):
        total += gaps[i]
    unit = total / n
    tail = open_interval / unit
    duration = n + tail
    event_share = n / duration
    unit_gaps, positions, mark_index, ends, present = _by_mark(gaps, marks, mark_count, unit)
    d = len(present)
    phi, cost = np.empty((n, d + 1)), np.empty(d + 1)
    for i in range(n):
        phi[i, 0] = 1.0
    weight = smoothing / mark_count
    x = np.zeros((d, d + 1))
    for i in range(d):
        x[i, 0] = (ends[i + 1] - ends[i] + weight) / (n + smoothing) * event_share

    low, high = -np.log(duration), np.log(fastest)
    for i in range(n):
        high -= np.log(unit_gaps[i]) / n
    high = max(high, low)
    points = min(_MAX_GRID_POINTS, int((high - low) / _STRIDE) + 2)
    stride = (high - low) / (points - 1)
    values, solutions = np.empty(points), np.empty((points, d, d + 1))
    highest, best_log_beta, best = -np.inf, low, x.copy()
    for g in range(points):
        values[g] = _profile(
            low + g * stride, unit_gaps, tail, mark_index, positions, ends, weight, smoothing, penalty, phi, cost, x
        )
        for i in range(d):
            for j in range(d + 1):
                solutions[g, i, j] = x[i, j]
        if values[g] > highest:
            highest, best_log_beta, best = values[g], low + g * stride, solutions[g]
    for g in range(points):
        if (g > 0 and values[g] <= values[g - 1]) or (g < points - 1 and values[g] < values[g + 1]):
            continue
        x = solutions[g].copy()
        left, right = low + max(g - 1, 0) * stride, low + min(g + 1, points - 1) * stride
        a, b = right - _GOLDEN * (right - left), left + _GOLDEN * (right - left)
        value_a, value_b = 0.0, 0.0
        for section in range(_SECTIONS):
            in_lower = section == 0
            if section > 1:
                in_lower = value_a >= value_b
                if in_lower:
                    right, b, value_b = b, a, value_a
                    a = right - _GOLDEN * (right - left)
                else:
                    left, a, value_a = a, b, value_b
                    b = left + _GOLDEN * (right - left)
            log_beta = a if in_lower else b
            value = _profile(
                log_beta, unit_gaps, tail, mark_index, positions, ends, weight, smoothing, penalty, phi, cost, x
            )
            if in_lower:
                value_a = value
            else:
                value_b = value
            if value > highest:
                highest, best_log_beta, best = value, log_beta, x.copy()
    mu, alpha = np.empty(d), np.empty((d, d))
    for i in range(d):
        mu[i] = best[i, 0] / unit
        for j in range(d):
            alpha[i, j] = best[i, 1 + j]
    mu_absent = weight / (n + smoothing) / unit * event_share
    return present, mu, alpha, np.exp(best_log_beta) / unit, mu_absent, highest


@compiled
@no_type_check
def _by_mark(gaps, marks, mark_count, unit):
    """Sort the events by mark.

    Returns:
        The gaps in units of `unit`; the position of each event in the sorted order; the index of its mark in `present`;
        0, followed by the end of the range of positions of each mark; and `present`, the marks that occur, in order of
        appearance.
    """
    n = len(gaps)
    index_in_present, mark_index, counts = np.empty(mark_count, np.int64), np.empty(n, np.int64), np.zeros(n, np.int64)
    present, d = np.empty(n, np.int64), 0
    for j in range(mark_count):
        index_in_present[j] = -1
    for i in range(n):
        if index_in_present[marks[i]] < 0:
            index_in_present[marks[i]] = d
            present[d] = marks[i]
            d += 1
        mark_index[i] = index_in_present[marks[i]]
        counts[mark_index[i]] += 1
    ends = np.zeros(d + 1, np.int64)
    for j in range(d):
        ends[j + 1] = ends[j] + counts[j]
    next_position, positions, unit_gaps = ends.copy(), np.empty(n, np.int64), np.empty(n)
    for i in range(n):
        positions[i] = next_position[mark_index[i]]
        next_position[mark_index[i]] += 1
        unit_gaps[i] = gaps[i] / unit
    return unit_gaps, positions, mark_index, ends, present[:d].copy()


@compiled
@no_type_check
def _profile(log_beta, unit_gaps, tail, mark_index, positions, ends, weight, smoothing, penalty, phi, cost, x):
    """Return the maximum over base rates and branching matrix at one decay.

    The search starts from x `(D, D + 1)`, which is updated to the solution.
    """
    n, d = len(unit_gaps), len(ends) - 1
    beta = np.exp(log_beta)
    state = np.zeros(d)
    remaining = 0.0
    for i in range(n):
        remaining += unit_gaps[i]
    remaining += tail
    cost[0] = n + smoothing + tail * (1 + smoothing / n)
    for j in range(d):
        cost[1 + j] = penalty
    for i in range(n):
        fade = np.exp(-beta * unit_gaps[i])
        row = phi[positions[i]]
        for j in range(d):
            state[j] *= fade
            row[1 + j] = beta * state[j]
        state[mark_index[i]] += 1
        remaining -= unit_gaps[i]
        cost[1 + mark_index[i]] -= np.expm1(-beta * max(remaining, 0.0))
    total = 0.0
    for i in range(d):
        total += _solve(phi[ends[i] : ends[i + 1]], cost, weight, x[i])
    return total


@compiled
@no_type_check
def _solve(phi, cost, weight, x):
    """Return the maximum over x >= 0 of the sum of log(phi · x) + weight log x_0 - cost · x.

    The search starts from a feasible x, which is updated to the solution.
    """
    n, d = phi.shape
    rates, slope, next_rates = np.empty(n), np.empty(d), np.empty(n)
    free = np.empty(d, np.int64)
    value = _value(phi, cost, weight, x, rates)
    for _ in range(_MAX_STEPS):
        for j in range(d):
            slope[j] = -cost[j]
        slope[0] += weight / x[0] if weight > 0 else 0.0
        for i in range(n):
            inverse_rate = 1 / rates[i]
            for j in range(d):
                slope[j] += phi[i, j] * inverse_rate
        size, new_coordinate, max_slope = 0, -1, _MIN_SLOPE
        for j in range(d):
            if x[j] > 0:
                free[size] = j
                size += 1
            elif slope[j] > max_slope * cost[j]:
                new_coordinate, max_slope = j, slope[j] / cost[j]
        if new_coordinate >= 0:
            free[size] = new_coordinate
            size += 1
        while True:
            step = _newton(phi, rates, slope, weight, x, free[:size])
            if new_coordinate < 0 or step[size - 1] > 0:
                break
            size, new_coordinate = size - 1, -1  # the new coordinate would immediately return to 0
        expected_gain, step_size, zero_coordinate = 0.0, 1.0, -1
        for k in range(size):
            j = free[k]
            expected_gain += slope[j] * step[k]
            if step[k] < 0 and x[j] < -step[k] * step_size:
                step_size, zero_coordinate = -x[j] / step[k], j
        old_x = x.copy()
        while True:
            for k in range(size):
                x[free[k]] = max(old_x[free[k]] + step_size * step[k], 0.0)
            if zero_coordinate >= 0:
                x[zero_coordinate] = 0.0
            next_value = _value(phi, cost, weight, x, next_rates)
            if next_value >= value + 1e-4 * step_size * expected_gain - _ROUNDING * (n + abs(value)):
                break
            step_size, zero_coordinate = step_size / 2, -1
        value = next_value
        rates, next_rates = next_rates, rates
        if not expected_gain > _MIN_GAIN:
            break
    return value


@compiled
@no_type_check
def _value(phi, cost, weight, x, rates):
    """Return the value that `_solve` maximises, and write phi · x to `rates`.

    The value is -inf if an event has rate 0, or if the base rate is 0 and has a prior.
    """
    value = 0.0
    if weight > 0:
        if x[0] <= 0:
            return -np.inf
        value += weight * np.log(x[0])
    for j in range(len(x)):
        value -= cost[j] * x[j]
    for i in range(len(phi)):
        rate = 0.0
        for j in range(len(x)):
            rate += phi[i, j] * x[j]
        if rate <= 0:
            return -np.inf
        rates[i] = rate
        value += np.log(rate)
    return value


@compiled
@no_type_check
def _newton(phi, rates, slope, weight, x, free):
    """Return the Newton step in the free coordinates, computed with a Cholesky factorisation.

    A small addition to the diagonal keeps the factorisation stable if columns of phi are nearly equal.
    """
    size = len(free)
    root = np.zeros((size, size))
    for i in range(len(phi)):
        curvature = 1 / (rates[i] * rates[i])
        for k in range(size):
            scaled = phi[i, free[k]] * curvature
            for m in range(k + 1):
                root[k, m] += scaled * phi[i, free[m]]
    step = np.empty(size)
    for k in range(size):
        if free[k] == 0 and weight > 0:
            root[k, k] += weight / (x[0] * x[0])
        root[k, k] *= 1 + 1e-10
        step[k] = slope[free[k]]
    for k in range(size):
        for m in range(k + 1):
            total = root[k, m]
            for q in range(m):
                total -= root[k, q] * root[m, q]
            if m < k:
                root[k, m] = total / root[m, m]
            else:
                root[k, k] = np.sqrt(max(total, 1e-12 * root[k, k]))
        for q in range(k):
            step[k] -= root[k, q] * step[q]
        step[k] /= root[k, k]
    for k in range(size - 1, -1, -1):
        for q in range(k + 1, size):
            step[k] -= root[q, k] * step[q]
        step[k] /= root[k, k]
    return step
