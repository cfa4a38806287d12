"""The state of attention over a growing set against SciPy's softmax over the whole set, in float64."""

import numpy as np
import pytest
import torch
from scipy.special import logsumexp, softmax
from torch import Tensor

from iclbench.core.episodes import Points
from iclbench.core.errors import UsageError
from iclbench.layers.running_softmax import RunningSoftmax, attend, fold

B, L, H, M, C, N = 2, 2, 3, 4, 5, 23


def draw(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def data(dtype: torch.dtype = torch.float64, count: int = N) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Queries, keys, values and a mask with holes."""
    mask = draw(B, count, seed=3) > -1
    keys, values = (draw(B, L, H, count, C, seed=seed, dtype=dtype) for seed in (1, 2))
    return draw(L, H, M, C, dtype=dtype), keys, values, mask


def whole(queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor) -> tuple[np.ndarray, np.ndarray]:
    """log C and e of all points, by SciPy in float64."""
    q, k, v = (t.double().numpy() for t in (queries, keys, values))
    scores = np.einsum("lhmc,blhnc->blhmn", q, k)
    scores = np.where(mask.numpy()[:, None, None, None], scores, -np.inf)
    return logsumexp(scores, -1), np.einsum("blhmn,blhnc->blhmc", softmax(scores, -1), v)


def part(of: tuple[Tensor, Tensor, Tensor, Tensor], index: Tensor | slice) -> RunningSoftmax:
    queries, keys, values, mask = of
    return attend(queries, keys[..., index, :], values[..., index, :], mask[:, index])


def assert_is(state: RunningSoftmax, expected: tuple[np.ndarray, np.ndarray], tolerance: float) -> None:
    for found, wanted in zip((state.log_c, state.e), expected, strict=True):
        np.testing.assert_allclose(found.double().numpy(), wanted, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-10), (torch.float32, 1e-5)])
@pytest.mark.parametrize("chunk", [1, 2, 7, N])
def test_any_chunks_in_any_order_equal_the_batch(chunk: int, dtype: torch.dtype, tolerance: float) -> None:
    given = data(dtype)
    state = RunningSoftmax.empty(B, given[0])
    for index in torch.randperm(N, generator=torch.Generator().manual_seed(chunk)).split(chunk):
        state = state.merge(part(given, index))
    assert_is(state, whole(*given), tolerance)


def test_merging_is_associative() -> None:
    given = data()
    a, b, c = (part(given, slice(start, stop)) for start, stop in ((0, 4), (4, 5), (5, N)))
    left, right = a.merge(b).merge(c), a.merge(b.merge(c))
    torch.testing.assert_close(left.log_c, right.log_c, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(left.e, right.e, rtol=1e-12, atol=1e-12)


def test_nothing_changes_nothing() -> None:
    queries, keys, values, mask = given = data()
    state, start = part(given, slice(0, N)), RunningSoftmax.empty(B, queries)
    masked = attend(queries, keys, values, torch.zeros_like(mask))
    for nothing in (start, part(given, slice(0, 0)), masked):
        for merged in (state.merge(nothing), nothing.merge(state), state.without(nothing)):
            assert torch.equal(merged.log_c, state.log_c) and torch.equal(merged.e, state.e)
        both = nothing.merge(start)
        assert bool(both.log_c.isneginf().all()) and bool((both.e == 0).all()) and bool(both.is_empty.all())
        again = start.without(nothing)
        assert bool(again.log_c.isneginf().all()) and bool((again.e == 0).all())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("size", [1e4, -1e4])
def test_huge_scores_stay_finite(size: float, dtype: torch.dtype) -> None:
    queries, keys, values, mask = data(dtype)
    queries[..., 0], keys[..., 0] = 1, size
    keys[..., 1::2, 0] = -size
    given = queries, keys, values, mask
    state = RunningSoftmax.empty(B, queries)
    for n in range(N):
        state = state.merge(part(given, slice(n, n + 1)))
    assert bool(state.e.isfinite().all())
    assert_is(state, whole(*given), 1e-10 if dtype == torch.float64 else 2e-3)  # scores of 1e4 have steps of 1e-3


def test_removal_undoes_an_update_down_to_the_stated_share() -> None:
    given = data()
    stay, go = part(given, slice(0, 15)), part(given, slice(15, N))
    back = stay.merge(go).without(go)
    torch.testing.assert_close(back.log_c, stay.log_c, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(back.e, stay.e, rtol=1e-12, atol=1e-12)
    for heavier, tolerance in ((1e3, 1e-12), (1e6, 1e-9)):  # by so much what goes outweighs what stays
        heavy = RunningSoftmax(stay.log_c + np.log(heavier), go.e)
        back = stay.merge(heavy).without(heavy)
        torch.testing.assert_close(back.e, stay.e, rtol=tolerance, atol=tolerance)
        torch.testing.assert_close(back.log_c, stay.log_c, rtol=tolerance, atol=tolerance)


def test_removal_of_nearly_everything_or_of_strangers_is_refused() -> None:
    given = data()
    stay, go = part(given, slice(0, 15)), part(given, slice(15, N))
    heavy = RunningSoftmax(stay.log_c + np.log(1e9), go.e)
    for state, gone in ((stay.merge(heavy), heavy), (go, go), (stay, heavy), (RunningSoftmax.empty(B, given[0]), go)):
        with pytest.raises(UsageError, match=r"would leave .* of some latent's attention") as raised:
            state.without(gone)
        assert "\n" not in str(raised.value)


@pytest.mark.parametrize("chunk", [3, 8])
def test_gradients_by_portions_equal_those_of_the_whole(chunk: int) -> None:
    """Also where an episode has no point at all."""
    points = Points(draw(B, N, 2, seed=4), draw(B, N, 1, seed=5), draw(B, N, seed=6) > -1)
    points.mask[1] = False
    weights = [draw(L * H * C * 2, 3, seed=7).requires_grad_(), draw(L * H * C * 2, seed=8).requires_grad_()]
    queries = draw(L, H, M, C).requires_grad_()

    def keys_values(weights, points):
        both = torch.tanh(torch.cat([points.x, points.y], -1) @ weights[0].T + weights[1])
        return tuple(both.unflatten(-1, (2, L, H, C)).permute(2, 0, 3, 4, 1, 5))

    def gradients(state: RunningSoftmax) -> tuple[Tensor, ...]:
        log_c = state.log_c[0]  # of the episode that has points
        return torch.autograd.grad((log_c.sin().sum() + state.e.cos().sum()), [queries, *weights])

    keys, values = keys_values(weights, points)
    scores = torch.einsum("lhmc,blhnc->blhmn", queries, keys)[:1, ..., points.mask[0]]
    e = torch.einsum("blhmn,blhnc->blhmc", scores.softmax(-1), values[:1, ..., points.mask[0], :])
    expected = gradients(RunningSoftmax(scores.logsumexp(-1), e))
    for count in (chunk, N):
        found = gradients(fold(queries, weights, keys_values, points, count))
        for a, b in zip(found, expected, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-10)
