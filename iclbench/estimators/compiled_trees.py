"""Regression trees on all prefixes of all episodes, equal to `DecisionTreeRegressor` of scikit-learn 1.9.

Each step follows scikit-learn (squared error, best splits), so that ties and rounding errors have the same effect:
coordinates are tried in the order of scikit-learn's xorshift generator, the first split wins among splits with equal
gains, and sums run over the points in sorted order. For speed, scikit-learn's sorting algorithm is used only for
coordinates with tied values, and the quotients of a split are computed only if its gain may exceed the best gain so
far.
"""

from __future__ import annotations

from typing import no_type_check

import numpy as np

from iclbench.estimators.compiling import compiled

# Values that differ by at most this much count as equal (scikit-learn's FEATURE_THRESHOLD).
_MAX_TIE_DIFFERENCE = np.float32(1e-7)
# A node with at most this impurity is not split (scikit-learn's EPSILON).
_MAX_LEAF_IMPURITY = float(np.finfo(np.float64).eps)
# Largest number of values for which insertion sort is used.
_MAX_INSERTION_SORT = 15
# Gains estimated with reciprocals are compared with the best gain times this factor, to allow for rounding errors.
_SCREEN_MARGIN = 1 - 1e-14


def seed_of(random_state: int) -> int:
    """Return the seed that scikit-learn's splitter draws from `random_state`."""
    return int(np.random.RandomState(random_state).randint(0, 2**31 - 1))


# `no_type_check`: the tests' shape checks would wrap these functions, and wrappers are not compiled.
@compiled
@no_type_check
def answer_all(x, y, order, lengths, queries, depth, seed, out):
    """Fit a tree to the first `lengths[b, p]` points of each episode (no tree if it is 0), and write the predictions at
    `queries` `(B, P, Q, Dx)` to `out` `(B, P, Q)`.

    x `(B, N, Dx)` and queries are float32, y `(B, N)` is float64; order `(B, N, Dx)` contains the indices of the points
    sorted by each coordinate, depth is the maximum depth of a tree, and seed is the initial state of the generator.
    """
    episodes, points, dim = x.shape
    columns = np.empty((dim, points), np.float32)
    rows = np.empty((dim, points), np.int64)
    tied = np.empty(dim, np.bool_)
    state = np.empty(1, np.uint32)
    reciprocal = np.empty(points + 1)
    for k in range(points + 1):
        reciprocal[k] = 1 / k
    nodes = np.empty((2 * points, 3), np.int64)
    thresholds, values = np.empty(2 * points), np.empty(2 * points)
    for b in range(episodes):
        for f in range(dim):
            for k in range(points):
                columns[f, k] = x[b, k, f]
        for p in range(lengths.shape[1]):
            n = lengths[b, p]
            if n == 0:
                continue
            for f in range(dim):
                k = 0
                tied[f] = False
                for j in range(points):
                    r = order[b, j, f]
                    if r < n:
                        rows[f, k] = r
                        if k > 0 and columns[f, rows[f, k - 1]] == columns[f, r]:
                            tied[f] = True
                        k += 1
            state[0] = seed
            _grow(columns, y[b], n, rows, tied, depth, state, reciprocal, nodes, thresholds, values)
            for q in range(queries.shape[2]):
                node = 0
                while nodes[node, 0] >= 0:
                    left = queries[b, p, q, nodes[node, 0]] <= thresholds[node]
                    node = nodes[node, 1] if left else nodes[node, 2]
                out[b, p, q] = values[node]


@compiled
@no_type_check
def _grow(columns, y, n, rows, tied, depth, state, reciprocal, nodes, thresholds, values):
    """Grow one tree on the first n points, depth first and left child first.

    columns `(Dx, N)` contains the inputs; rows `(Dx, N)` contains the indices of the points sorted by each coordinate,
    which are partitioned by node; the columns of nodes `(2N, 3)` are the coordinate (-1 in a leaf), the left child and
    the right child.
    """
    dim = len(columns)
    features, constant, samples = np.empty(dim, np.int64), np.empty(dim, np.int64), np.empty(n, np.int64)
    for f in range(dim):
        features[f] = f
    for k in range(n):
        samples[k] = k
    sorted_values = np.empty(n, np.float32)
    goes_left = np.empty(n, np.bool_)
    spare = np.empty(n, np.int64)
    # An entry of the stack contains the start and end of the node's points, the depth, the parent, the side (left or
    # right child) and the number of constant coordinates; `impurities` contains the impurities.
    stack = np.empty((n + 1, 6), np.int64)
    impurities = np.empty(n + 1)
    _push(stack, 0, 0, n, 0, -1, 0, 0)
    top, node_count = 1, 0
    while top > 0:
        top -= 1
        start, end, level = stack[top, 0], stack[top, 1], stack[top, 2]
        parent, side, n_known = stack[top, 3], stack[top, 4], stack[top, 5]
        impurity = impurities[top]
        count = end - start
        total, squares = 0.0, 0.0
        for k in range(start, end):
            v = y[samples[k]]
            total += v
            squares += v * v
        node = node_count
        node_count += 1
        if parent < 0:
            mean = total / count
            impurity = squares / count - mean * mean
        else:
            nodes[parent, side] = node
        nodes[node, 0] = -1
        values[node] = total / count
        if level >= depth or count < 2 or impurity <= _MAX_LEAF_IMPURITY:
            continue

        # Coordinates are drawn without replacement. In `features`, the coordinates at [0, n_drawn) have been drawn and
        # are known to be constant, those at [n_known, n_known + n_new) were found to be constant in this node, and
        # those from n_known + n_new to untried_end have not been tried yet.
        best, best_at, best_feature, threshold = -np.inf, end, 0, 0.0
        screen = -np.inf
        untried_end, n_drawn, n_new, visited = dim, 0, 0, 0
        sorted_by = -1  # the coordinate by which the points are currently sorted
        while untried_end > n_known + n_new and (visited < dim or visited <= n_new + n_drawn):
            visited += 1
            choice = n_drawn + np.int64(_random(state) % np.uint32(untried_end - n_new - n_drawn))
            if choice < n_known:
                features[n_drawn], features[choice] = features[choice], features[n_drawn]
                n_drawn += 1
                continue
            choice += n_new
            f = features[choice]
            if tied[f]:
                if sorted_by >= 0:
                    for k in range(start, end):
                        samples[k] = rows[sorted_by, k]
                for k in range(start, end):
                    sorted_values[k] = columns[f, samples[k]]
                if count > _MAX_INSERTION_SORT:
                    _sort(sorted_values, samples, start, end, stack[top:])
                else:
                    _insertion_sort(sorted_values, samples, start, end)
                for k in range(start, end):
                    rows[f, k] = samples[k]
            sorted_by = f
            if columns[f, rows[f, end - 1]] <= columns[f, rows[f, start]] + _MAX_TIE_DIFFERENCE:
                features[choice], features[n_known + n_new] = features[n_known + n_new], features[choice]
                n_new += 1
                continue
            untried_end -= 1
            features[untried_end], features[choice] = features[choice], features[untried_end]

            summed_to, on_left = start, 0.0
            value = columns[f, rows[f, start]]
            for k in range(start + 1, end):
                previous_value = value
                value = columns[f, rows[f, k]]
                if value <= previous_value + _MAX_TIE_DIFFERENCE:
                    continue
                # As in scikit-learn, the sum continues from the last split or restarts at the right end, whichever is
                # nearer, which determines the rounding errors.
                if k - summed_to == 1:
                    on_left += y[rows[f, summed_to]]
                elif k - summed_to <= end - k:
                    for j in range(summed_to, k):
                        on_left += y[rows[f, j]]
                else:
                    on_left = total
                    for j in range(end - 1, k - 1, -1):
                        on_left -= y[rows[f, j]]
                summed_to = k
                on_right = total - on_left
                left_square, right_square = on_left * on_left, on_right * on_right
                if left_square * reciprocal[k - start] + right_square * reciprocal[end - k] >= screen:
                    gain = left_square / (k - start) + right_square / (end - k)
                    if gain > best:
                        best, best_at, best_feature = gain, k, f
                        screen = gain * _SCREEN_MARGIN
                        threshold = previous_value / 2.0 + value / 2.0

        if sorted_by >= 0:
            for k in range(start, end):
                samples[k] = rows[sorted_by, k]
        n_constant = n_known + n_new
        if best_at < end:
            low, high = start, end
            while low < high:
                if columns[best_feature, samples[low]] <= threshold:
                    low += 1
                else:
                    high -= 1
                    samples[low], samples[high] = samples[high], samples[low]
            on_left, left_squares = 0.0, 0.0
            if best_at - start <= end - best_at:
                for k in range(start, best_at):
                    on_left += y[samples[k]]
            else:
                on_left = total
                for k in range(end - 1, best_at - 1, -1):
                    on_left -= y[samples[k]]
            for k in range(start, best_at):
                left_squares += y[samples[k]] * y[samples[k]]
            n_left, n_right = float(best_at - start), float(end - best_at)
            left_mean, right_mean = on_left / n_left, (total - on_left) / n_right
            left_impurity = left_squares / n_left - left_mean * left_mean
            right_impurity = (squares - left_squares) / n_right - right_mean * right_mean
            right_share, left_share = n_right / count * right_impurity, n_left / count * left_impurity
            improvement = (count / n) * (impurity - right_share - left_share)
        for k in range(n_known):
            features[k] = constant[k]
        for k in range(n_known, n_constant):
            constant[k] = features[k]
        if best_at >= end or improvement + _MAX_LEAF_IMPURITY < 0:
            continue
        nodes[node, 0] = best_feature
        thresholds[node] = threshold
        _push(stack, top, best_at, end, level + 1, node, 2, n_constant)
        impurities[top] = right_impurity
        _push(stack, top + 1, start, best_at, level + 1, node, 1, n_constant)
        impurities[top + 1] = left_impurity
        top += 2
        if level + 1 < depth and count > 2:  # otherwise both children are leaves
            for k in range(start, end):
                goes_left[samples[k]] = k < best_at
            for f in range(dim):
                if not tied[f]:
                    _partition(rows, f, start, end, goes_left, spare)


@compiled
@no_type_check
def _push(stack, top, start, end, level, parent, side, n_constant):
    """Write one entry of the stack. Numba takes seconds to compile the assignment of a tuple to a row."""
    stack[top, 0], stack[top, 1], stack[top, 2] = start, end, level
    stack[top, 3], stack[top, 4], stack[top, 5] = parent, side, n_constant


@compiled
@no_type_check
def _partition(rows, f, start, end, goes_left, spare):
    """Move the points of the left child to the front of the list sorted by one coordinate.

    The order within each child does not change.
    """
    left_end, right_count = start, 0
    for k in range(start, end):
        r = rows[f, k]
        rows[f, left_end] = r
        spare[right_count] = r
        left_end += goes_left[r]
        right_count += not goes_left[r]
    for k in range(right_count):
        rows[f, left_end + k] = spare[k]


@compiled
@no_type_check
def _random(state):
    """Return the next number of the 32-bit xorshift generator, below 2^31."""
    s = state[0] if state[0] != 0 else np.uint32(1)
    s = np.uint32(s ^ np.uint32(s << np.uint32(13)))
    s = np.uint32(s ^ np.uint32(s >> np.uint32(17)))
    s = np.uint32(s ^ np.uint32(s << np.uint32(5)))
    state[0] = s
    return s & np.uint32(2**31 - 1)


@compiled
@no_type_check
def _sort(values, rows, start, end, stack):
    """Sort both arrays by value, with scikit-learn's algorithm, which determines the order of equal values.

    The algorithm is three-way quicksort, with heap sort if quicksort would become quadratic and with insertion sort for
    few values. `stack` is working memory.
    """
    stack[0, 0], stack[0, 1], stack[0, 2] = start, end, 2 * np.int64(np.log2(end - start))
    top = 1
    while top > 0:
        top -= 1
        start, end, budget = stack[top, 0], stack[top, 1], stack[top, 2]
        while end - start > _MAX_INSERTION_SORT:
            if budget <= 0:
                _heap_sort(values, rows, start, end)
                start = end
                break
            budget -= 1
            pivot = _median(values[start], values[start + (end - start) // 2], values[end - 1])
            i, low, high = start, start, end
            while i < high:
                if values[i] < pivot:
                    _swap(values, rows, i, low)
                    i += 1
                    low += 1
                elif values[i] > pivot:
                    high -= 1
                    _swap(values, rows, i, high)
                else:
                    i += 1
            stack[top, 0], stack[top, 1], stack[top, 2] = start, low, budget
            top += 1
            start = high
        _insertion_sort(values, rows, start, end)


@compiled
@no_type_check
def _insertion_sort(values, rows, start, end):
    for i in range(start + 1, end):
        v, r = values[i], rows[i]
        j = i
        while j > start and values[j - 1] > v:
            values[j] = values[j - 1]
            rows[j] = rows[j - 1]
            j -= 1
        values[j] = v
        rows[j] = r


@compiled
@no_type_check
def _median(a, b, c):
    return max(min(a, b), min(max(a, b), c))


@compiled
@no_type_check
def _swap(values, rows, i, j):
    values[i], values[j] = values[j], values[i]
    rows[i], rows[j] = rows[j], rows[i]


@compiled
@no_type_check
def _heap_sort(values, rows, start, end):
    for root in range((end - start - 2) // 2, -1, -1):
        _sift(values, rows, start, root, end - start)
    for size in range(end - start - 1, 0, -1):
        _swap(values, rows, start, start + size)
        _sift(values, rows, start, 0, size)


@compiled
@no_type_check
def _sift(values, rows, start, root, count):
    """Move the value at `root` down the heap until the heap is ordered. The heap has `count` values from `start` on."""
    while True:
        child, largest = 2 * root + 1, root
        if child < count and values[start + largest] < values[start + child]:
            largest = child
        if child + 1 < count and values[start + largest] < values[start + child + 1]:
            largest = child + 1
        if largest == root:
            return
        _swap(values, rows, start + root, start + largest)
        root = largest
