"""The running softmax over a growing set of points against SciPy's softmax over the complete set in float64."""

import numpy as np
import pytest
import torch
from scipy.special import logsumexp, softmax
from torch import Tensor

from iclbench.core.episodes import Points
from iclbench.layers.running_softmax import RunningSoftmax, attend, fold
from tests.refusals import refused

B, L, H, M, C, N = 2, 2, 3, 4, 5, 23


def draw(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def data(dtype: torch.dtype = torch.float64, count: int = N) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Draw queries, keys, values, and a mask with gaps."""
    mask = draw(B, count, seed=3) > -1
    keys, values = (draw(B, L, H, count, C, seed=seed, dtype=dtype) for seed in (1, 2))
    return draw(L, H, M, C, dtype=dtype), keys, values, mask


def scipy_state(queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor) -> tuple[np.ndarray, np.ndarray]:
    """Compute log C and e over all points with SciPy in float64."""
    q, k, v = (t.double().numpy() for t in (queries, keys, values))
    scores = np.einsum("lhmc,blhnc->blhmn", q, k)
    scores = np.where(mask.numpy()[:, None, None, None], scores, -np.inf)
    return logsumexp(scores, -1), np.einsum("blhmn,blhnc->blhmc", softmax(scores, -1), v)


def state_of_points(inputs: tuple[Tensor, Tensor, Tensor, Tensor], index: Tensor | slice) -> RunningSoftmax:
    queries, keys, values, mask = inputs
    return attend(queries, keys[..., index, :], values[..., index, :], mask[:, index])


def assert_state_equals(state: RunningSoftmax, expected: tuple[np.ndarray, np.ndarray], tolerance: float) -> None:
    for actual, desired in zip((state.log_c, state.e), expected, strict=True):
        np.testing.assert_allclose(actual.double().numpy(), desired, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-10), (torch.float32, 1e-5)])
@pytest.mark.parametrize("chunk", [1, 2, 7, N])
def test_merging_chunks_in_any_order_equals_the_complete_softmax(
    chunk: int, dtype: torch.dtype, tolerance: float
) -> None:
    inputs = data(dtype)
    state = RunningSoftmax.empty(B, inputs[0])
    for index in torch.randperm(N, generator=torch.Generator().manual_seed(chunk)).split(chunk):
        state = state.merge(state_of_points(inputs, index))
    assert_state_equals(state, scipy_state(*inputs), tolerance)


def test_merging_is_associative() -> None:
    inputs = data()
    a, b, c = (state_of_points(inputs, slice(start, stop)) for start, stop in ((0, 4), (4, 5), (5, N)))
    left, right = a.merge(b).merge(c), a.merge(b.merge(c))
    torch.testing.assert_close(left.log_c, right.log_c, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(left.e, right.e, rtol=1e-12, atol=1e-12)


def test_merging_or_removing_the_empty_state_does_not_change_the_state() -> None:
    queries, keys, values, mask = inputs = data()
    state, start = state_of_points(inputs, slice(0, N)), RunningSoftmax.empty(B, queries)
    masked = attend(queries, keys, values, torch.zeros_like(mask))
    for empty in (start, state_of_points(inputs, slice(0, 0)), masked):
        for merged in (state.merge(empty), empty.merge(state), state.remove(empty)):
            assert torch.equal(merged.log_c, state.log_c) and torch.equal(merged.e, state.e)
        merged = empty.merge(start)
        assert bool(merged.log_c.isneginf().all()) and bool((merged.e == 0).all()) and bool(merged.is_empty.all())
        difference = start.remove(empty)
        assert bool(difference.log_c.isneginf().all()) and bool((difference.e == 0).all())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("size", [1e4, -1e4])
def test_states_are_finite_for_huge_scores(size: float, dtype: torch.dtype) -> None:
    queries, keys, values, mask = data(dtype)
    queries[..., 0], keys[..., 0] = 1, size
    keys[..., 1::2, 0] = -size
    inputs = queries, keys, values, mask
    state = RunningSoftmax.empty(B, queries)
    for n in range(N):
        state = state.merge(state_of_points(inputs, slice(n, n + 1)))
    assert bool(state.e.isfinite().all())
    assert_state_equals(
        state, scipy_state(*inputs), 1e-10 if dtype == torch.float64 else 2e-3
    )  # near 1e4, float32 has a resolution of 1e-3


def test_removal_inverts_an_update_with_the_documented_accuracy() -> None:
    inputs = data()
    remaining, added = state_of_points(inputs, slice(0, 15)), state_of_points(inputs, slice(15, N))
    restored = remaining.merge(added).remove(added)
    torch.testing.assert_close(restored.log_c, remaining.log_c, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(restored.e, remaining.e, rtol=1e-12, atol=1e-12)
    for ratio, tolerance in ((1e3, 1e-12), (1e6, 1e-9)):  # ratio of removed to remaining weight
        heavy = RunningSoftmax(remaining.log_c + np.log(ratio), added.e)
        restored = remaining.merge(heavy).remove(heavy)
        torch.testing.assert_close(restored.e, remaining.e, rtol=tolerance, atol=tolerance)
        torch.testing.assert_close(restored.log_c, remaining.log_c, rtol=tolerance, atol=tolerance)


def test_removing_almost_all_or_more_than_the_total_weight_is_refused() -> None:
    inputs = data()
    remaining, added = state_of_points(inputs, slice(0, 15)), state_of_points(inputs, slice(15, N))
    heavy = RunningSoftmax(remaining.log_c + np.log(1e9), added.e)
    for state, removed in (
        (remaining.merge(heavy), heavy),
        (added, added),
        (remaining, heavy),
        (RunningSoftmax.empty(B, inputs[0]), added),
    ):
        with refused("not-applicable", "float64"):
            state.remove(removed)


@pytest.mark.parametrize("chunk", [3, 8])
def test_gradients_computed_in_chunks_equal_the_gradients_of_the_complete_softmax(chunk: int) -> None:
    """One episode has no points."""
    points = Points(draw(B, N, 2, seed=4), draw(B, N, 1, seed=5), draw(B, N, seed=6) > -1)
    points.mask[1] = False
    weights = [draw(L * H * C * 2, 3, seed=7).requires_grad_(), draw(L * H * C * 2, seed=8).requires_grad_()]
    queries = draw(L, H, M, C).requires_grad_()

    def keys_values(weights, points):
        projected = torch.tanh(torch.cat([points.x, points.y], -1) @ weights[0].T + weights[1])
        return tuple(projected.unflatten(-1, (2, L, H, C)).permute(2, 0, 3, 4, 1, 5))

    def gradients(state: RunningSoftmax) -> tuple[Tensor, ...]:
        log_c = state.log_c[0]  # the episode with points
        return torch.autograd.grad((log_c.sin().sum() + state.e.cos().sum()), [queries, *weights])

    keys, values = keys_values(weights, points)
    scores = torch.einsum("lhmc,blhnc->blhmn", queries, keys)[:1, ..., points.mask[0]]
    e = torch.einsum("blhmn,blhnc->blhmc", scores.softmax(-1), values[:1, ..., points.mask[0], :])
    expected = gradients(RunningSoftmax(scores.logsumexp(-1), e))
    for count in (chunk, N):
        actual = gradients(fold(queries, weights, keys_values, points, count))
        for a, b in zip(actual, expected, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-10)
