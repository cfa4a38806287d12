"""Boosted trees on all prefixes of all episodes, bitwise equal to XGBoost's `hist` with squared error.

Bitwise equality requires these details of XGBoost:

- Each distinct value in the prefix has its own bin. Cuts are values of the prefix, and points below a cut go to the
  left. The cut of a split is the next larger value in the prefix, not in the node.
- Sums of gradients are in float64. Their squares, the gains (quotients), the sum of the gains of both children and the
  difference between this sum and the gain of the parent are each rounded to float32.
- A split replaces the best split only if its gain is larger, so the lower coordinate and the lower cut win ties.
- The sum of a right child is the sum of the parent minus the sum of the left child.
- Predictions are float32 sums over trees, starting from the mean of the outputs.

Points are sorted by each coordinate and partitioned by node. For speed, the quotients of a split are computed only if
its gain may exceed the best gain so far.
"""

from __future__ import annotations

from typing import no_type_check

import numpy as np

from iclbench.estimators.compiling import compiled

# Defaults of XGBoost: the regularisation `reg_lambda`, and the smallest gain of a split (kRtEps).
_LAMBDA = 1.0
_MIN_GAIN = np.float32(1e-6)
# Gains estimated with reciprocals are compared with the best gain times this factor, to allow for float32 rounding.
_SCREEN_MARGIN = 1 - 1e-6


# `no_type_check`: the tests' shape checks would wrap these functions, and wrappers are not compiled.
@compiled
@no_type_check
def answer_all(x, y, order, lengths, queries, trees, depth, rate, out):
    """Fit boosted trees to the first `lengths[b, p]` points of each episode (0: no fit), and write the answers to
    `queries` `(B, P, Q, Dx)` to `out` `(B, P, Q)`.

    x `(B, N, Dx)`, y `(B, N)`, queries, rate and out are float32; order `(B, N, Dx)` contains the indices of the points
    sorted by each coordinate. Answers are NaN if sums of gradients are not exact, because XGBoost adds the gradients in
    a different order.
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
                total += y[b, i] / n  # XGBoost divides before it adds, which affects rounding
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
    """Bin the first n points by one coordinate.

    Write the indices of the sorted points to `by_value`, the bin of each point to `ranks`, and the upper end of each
    bin to `cuts`.
    """
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

    The columns of nodes `(2N, 3)` are the coordinate (-1 in a leaf), the left child and the right child.
    """
    dim = len(rows)
    total = 0.0
    for i in range(n):
        total += gradient[i]
    # An entry of the stack contains the start and end of the node's points, the depth and the node; `sums` contains the
    # sums of gradients.
    stack[0, 0], stack[0, 1], stack[0, 2], stack[0, 3] = 0, n, 0, 0
    sums[0] = total
    top, node_count = 1, 1
    while top > 0:
        top -= 1
        start, end, level, node = stack[top, 0], stack[top, 1], stack[top, 2], stack[top, 3]
        total = sums[top]
        count = end - start
        best, best_feature, best_at, best_sum = _MIN_GAIN, -1, 0, 0.0
        if level < depth and count > 1:
            parent = _gain(total, count)
            screen = parent * _SCREEN_MARGIN
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
                    left_square, right_square = on_left * on_left, on_right * on_right
                    if left_square * reciprocal[k - start] + right_square * reciprocal[end - k] < screen:
                        continue
                    split_gain = _gain(on_left, k - start) + _gain(on_right, end - k)
                    gain = split_gain - parent
                    if best < gain < np.inf:
                        best, best_feature, best_at, best_sum = gain, f, k, on_left
                        screen = split_gain * _SCREEN_MARGIN
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
        # Leaves need the points sorted by only one coordinate.
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
    """Return the optimal weight of a node, in float32."""
    return np.float32(-total / (count + _LAMBDA))


@compiled
@no_type_check
def _gain(total, count):
    """Return the reduction of the loss by a node.

    It is rounded to float32 after the square and after the quotient, as in XGBoost, because rounding decides ties.
    """
    return np.float32(total * total) / np.float32(count + _LAMBDA)


@compiled
@no_type_check
def _sums_are_exact(gradient, n):
    """Return whether float64 represents all sums of gradients exactly.

    This is the case if all gradients are multiples of 2^-52 times an upper bound on the sums.
    """
    largest = 0.0
    for i in range(n):
        largest = max(largest, abs(np.float64(gradient[i])))
    if largest == 0:
        return True
    bound = 2.0 ** np.ceil(np.log2(largest * n))
    # Adding a number to 1.5 times the bound rounds it to a multiple of 2^-52 times the bound.
    offset = 1.5 * bound
    for i in range(n):
        g = np.float64(gradient[i])
        if (offset + g) - offset != g:
            return False
    return True
