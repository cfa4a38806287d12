"""Boosted trees as XGBoost's `hist` grows them for squared error, on every prefix of every episode, bit for bit.

What equality takes: a bin per distinct value of the prefix, and so cuts that are values: what is below one goes left.
The cut of a split is the next larger value in the prefix, not in the node. Sums of gradients are float64; their
squares, the quotients that are gains, the sum of both sides' and its difference to the parent's are float32 each, and
only a larger gain replaces the best one, so that the lower coordinate and the lower cut win ties. A right child's sum
is the parent's less the left one's. Predictions are float32 sums over trees, from the mean of the outputs on.

Points stay sorted by every coordinate, partitioned by node. Quotients are taken only where the gain may be the best.
"""

from __future__ import annotations

from typing import no_type_check

import numpy as np

from iclbench.estimators.compiling import compiled

# XGBoost's defaults, which the cards pin: reg_lambda, and the gain that a split has to exceed (kRtEps).
_LAMBDA = 1.0
_LEAST = np.float32(1e-6)
# Screening by reciprocals errs by what float32 rounds off.
_SCREEN = 1 - 1e-6


# `no_type_check`: the tests' shape checks would wrap these functions, and wrappers are not compiled.
@compiled
@no_type_check
def answer_all(x, y, order, lengths, queries, trees, depth, rate, out):
    """Boost on the first `lengths[b, p]` points of each episode, none for 0, and answer `queries` `(B, P, Q, Dx)` into
    `out` `(B, P, Q)`.

    x `(B, N, Dx)`, y `(B, N)`, queries, rate and out in float32, order `(B, N, Dx)` the points sorted by each
    coordinate. NaN where sums of gradients are not exact: XGBoost adds them in an order that is not followed here.
    """
    episodes, points, dim = x.shape
    ranks = np.empty((dim, points), np.int64)
    cuts = np.empty((dim, points), np.float32)
    by_value = np.empty((dim, points), np.int64)
    rows = np.empty((dim, points), np.int64)
    reciprocal = 1 / (np.arange(points + 1) + _LAMBDA)
    nodes = np.empty((2 * points, 3), np.int64)
    thresholds, weights = np.empty(2 * points, np.float32), np.empty(2 * points, np.float32)
    predicted, gradient = np.empty(points, np.float32), np.empty(points, np.float32)
    goes_left = np.empty(points, np.bool_)
    spare = np.empty(points, np.int64)
    stack, sums = np.empty((points + 1, 4), np.int64), np.empty(points + 1)
    for b in range(episodes):
        for p in range(lengths.shape[1]):
            n = lengths[b, p]
            if n == 0:
                continue
            for f in range(dim):
                _bin(x, order, b, f, n, by_value, ranks, cuts)
            total = 0.0
            for i in range(n):
                total += y[b, i] / n  # not the sum over n, which rounds differently
            base = np.float32(total)
            for i in range(n):
                predicted[i] = base
            for q in range(queries.shape[2]):
                out[b, p, q] = base
            for _ in range(trees):
                for i in range(n):
                    gradient[i] = predicted[i] - y[b, i]
                if not _sums_are_exact(gradient, n):
                    for q in range(queries.shape[2]):
                        out[b, p, q] = np.nan
                    break
                for f in range(dim):
                    for k in range(n):
                        rows[f, k] = by_value[f, k]
                _grow(
                    rows,
                    ranks,
                    cuts,
                    gradient,
                    n,
                    depth,
                    rate,
                    reciprocal,
                    predicted,
                    nodes,
                    thresholds,
                    weights,
                    goes_left,
                    spare,
                    stack,
                    sums,
                )
                for q in range(queries.shape[2]):
                    node = 0
                    while nodes[node, 0] >= 0:
                        left = queries[b, p, q, nodes[node, 0]] < thresholds[node]
                        node = nodes[node, 1] if left else nodes[node, 2]
                    out[b, p, q] += weights[node]


@compiled
@no_type_check
def _bin(x, order, b, f, n, by_value, ranks, cuts):
    """Of one coordinate of the first n points: `by_value` the points sorted, `ranks` each point's bin, `cuts` where
    each bin ends."""
    points = x.shape[1]
    k, rank = 0, 0
    for j in range(points):
        r = order[b, j, f]
        if r < n:
            if k > 0 and x[b, r, f] != x[b, by_value[f, k - 1], f]:
                cuts[f, rank] = x[b, r, f]
                rank += 1
            by_value[f, k] = r
            ranks[f, r] = rank
            k += 1
    cuts[f, rank] = np.inf


@compiled
@no_type_check
def _grow(
    rows,
    ranks,
    cuts,
    gradient,
    n,
    depth,
    rate,
    reciprocal,
    predicted,
    nodes,
    thresholds,
    weights,
    goes_left,
    spare,
    stack,
    sums,
):
    """Grow one tree on the first n points and add its weights to `predicted`.

    nodes `(2N, 3)`: coordinate (-1 in a leaf), left and right child.
    """
    dim = len(rows)
    total = 0.0
    for i in range(n):
        total += gradient[i]
    # What waits: first and last point, depth, node; and its sum of gradients.
    stack[0, 0], stack[0, 1], stack[0, 2], stack[0, 3] = 0, n, 0, 0
    sums[0] = total
    top, node_count = 1, 1
    while top > 0:
        top -= 1
        start, end, level, node = stack[top, 0], stack[top, 1], stack[top, 2], stack[top, 3]
        total = sums[top]
        count = end - start
        best, best_feature, best_at, best_sum = _LEAST, -1, 0, 0.0
        if level < depth and count > 1:
            parent = _gain(total, count)
            screen = parent * _SCREEN
            for f in range(dim):
                on_left = 0.0
                r = rows[f, start]
                for k in range(start + 1, end):
                    on_left += gradient[r]
                    previous_rank = ranks[f, r]
                    r = rows[f, k]
                    if ranks[f, r] == previous_rank:
                        continue
                    on_right = total - on_left
                    a, c = on_left * on_left, on_right * on_right
                    if a * reciprocal[k - start] + c * reciprocal[end - k] < screen:
                        continue
                    split_gain = _gain(on_left, k - start) + _gain(on_right, end - k)
                    gain = split_gain - parent
                    if best < gain < np.inf:
                        best, best_feature, best_at, best_sum = gain, f, k, on_left
                        screen = split_gain * _SCREEN
        nodes[node, 0] = best_feature
        if best_feature < 0:
            weight = _weight(total, count) * rate
            weights[node] = weight
            for k in range(start, end):
                predicted[rows[0, k]] += weight
            continue
        thresholds[node] = cuts[best_feature, ranks[best_feature, rows[best_feature, best_at - 1]]]
        for k in range(start, end):
            goes_left[rows[best_feature, k]] = k < best_at
        # Leaves only need their points.
        for f in range(dim if level + 1 < depth else 1):
            left_end, right_count = start, 0
            for k in range(start, end):
                r = rows[f, k]
                rows[f, left_end] = r
                spare[right_count] = r
                left_end += goes_left[r]
                right_count += not goes_left[r]
            for k in range(right_count):
                rows[f, left_end + k] = spare[k]
        nodes[node, 1], nodes[node, 2] = node_count, node_count + 1
        stack[top, 0], stack[top, 1], stack[top, 2], stack[top, 3] = best_at, end, level + 1, node_count + 1
        sums[top] = total - best_sum
        top += 1
        stack[top, 0], stack[top, 1], stack[top, 2], stack[top, 3] = start, best_at, level + 1, node_count
        sums[top] = best_sum
        top += 1
        node_count += 2


@compiled
@no_type_check
def _weight(total, count):
    """The best weight of a node, in float32."""
    return np.float32(-total / (count + _LAMBDA))


@compiled
@no_type_check
def _gain(total, count):
    """What a node takes off the loss, with the roundings that tell ties apart there: the square, then the quotient."""
    return np.float32(total * total) / np.float32(count + _LAMBDA)


@compiled
@no_type_check
def _sums_are_exact(gradient, n):
    """Whether float64 holds every sum of any of the gradients: they are multiples of 2^-53 of a bound of the sums."""
    largest = 0.0
    for i in range(n):
        largest = max(largest, abs(np.float64(gradient[i])))
    if largest == 0:
        return True
    bound = 2.0 ** np.ceil(np.log2(largest * n))
    # What is added to 1.5 times the bound is rounded to 2^-52 of the bound.
    far = 1.5 * bound
    for i in range(n):
        g = np.float64(gradient[i])
        if (far + g) - far != g:
            return False
    return True
