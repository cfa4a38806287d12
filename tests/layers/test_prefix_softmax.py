"""The softmax over every prefix, computed by a scan, against attention to each prefix: states and gradients."""

import pytest
import torch
from torch import Tensor

from iclbench.layers.prefix_softmax import prefix_states
from iclbench.layers.running_softmax import RunningSoftmax, attend

BATCH, LAYERS, HEADS, ROWS, WIDTH, POINTS = 3, 2, 2, 4, 5, 11


def random_inputs(scale: float = 1.0) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Draw queries, keys, values, and a mask with gaps, also at both ends. One episode has no valid point."""
    generator = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    mask = torch.rand(BATCH, POINTS, generator=generator) > 0.3
    mask[0, 0], mask[0, -1], mask[1] = False, False, False
    queries = scale * normal(LAYERS, HEADS, ROWS, WIDTH)
    return queries, *(normal(BATCH, LAYERS, HEADS, POINTS, WIDTH) for _ in range(2)), mask


def naive(queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor) -> RunningSoftmax:
    """Compute the softmax over the points of every prefix from its definition."""
    logs, sums = [], []
    for b in range(BATCH):
        for n in range(POINTS):
            valid = mask[b, :n]
            scores = queries @ keys[b, :, :, :n][:, :, valid].mT
            logs.append(scores.logsumexp(-1))
            sums.append(scores.softmax(-1) @ values[b, :, :, :n][:, :, valid])
    return RunningSoftmax(torch.stack(logs), torch.stack(sums))


@pytest.mark.parametrize("block", [1, 3, 11, 64])
def test_the_state_after_every_prefix_is_the_softmax_over_its_points(block: int) -> None:
    queries, keys, values, mask = random_inputs()
    empty = RunningSoftmax.empty(BATCH, queries)
    states, last = prefix_states(empty, queries, keys, values, mask, block)
    expected = naive(queries, keys, values, mask)
    torch.testing.assert_close(states.log_c, expected.log_c, rtol=0, atol=1e-12)
    torch.testing.assert_close(states.e, expected.e, rtol=0, atol=1e-12)
    complete = attend(queries, keys, values, mask)
    torch.testing.assert_close(last.log_c, complete.log_c, rtol=0, atol=1e-12)
    torch.testing.assert_close(last.e, complete.e, rtol=0, atol=1e-12)


def test_a_scan_can_continue_from_a_state() -> None:
    queries, keys, values, mask = random_inputs()
    empty = RunningSoftmax.empty(BATCH, queries)
    states, last = prefix_states(empty, queries, keys, values, mask)
    first, middle = prefix_states(empty, queries, keys[..., :4, :], values[..., :4, :], mask[:, :4], 3)
    second, end = prefix_states(middle, queries, keys[..., 4:, :], values[..., 4:, :], mask[:, 4:], 3)
    for name in ("log_c", "e"):
        tensors = [getattr(prefixes, name).unflatten(0, (BATCH, -1)) for prefixes in (first, second)]
        torch.testing.assert_close(torch.cat(tensors, 1).flatten(0, 1), getattr(states, name), rtol=0, atol=1e-12)
        torch.testing.assert_close(getattr(end, name), getattr(last, name), rtol=0, atol=1e-12)


@pytest.mark.parametrize("block", [2, 64])
def test_gradients_equal_the_gradients_of_the_definition(block: int) -> None:
    """Before the first point of an episode, gradients are 0 rather than NaN."""

    def gradients(scan: bool) -> list[Tensor]:
        *leaves, mask = random_inputs()
        queries, keys, values = (t.requires_grad_() for t in leaves)
        if scan:
            states, _ = prefix_states(RunningSoftmax.empty(BATCH, queries), queries, keys, values, mask, block)
        else:
            states = naive(queries, keys, values, mask)
        weights = torch.linspace(-1, 1, states.e.numel(), dtype=torch.float64).view_as(states.e)
        loss = (states.e * weights).sum() + states.log_c.masked_fill(states.log_c.isneginf(), 0.0).square().sum()
        return list(torch.autograd.grad(loss, [queries, keys, values]))

    for actual, expected in zip(gradients(True), gradients(False), strict=True):
        torch.testing.assert_close(actual, expected.nan_to_num(), rtol=1e-10, atol=1e-12)


def test_results_are_finite_and_accurate_for_scores_of_ten_thousand() -> None:
    queries, keys, values, mask = random_inputs(scale=3e3)
    assert (queries @ keys.mT).abs().max() > 1e4
    states, _ = prefix_states(RunningSoftmax.empty(BATCH, queries), queries, keys, values, mask, 4)
    expected = naive(queries, keys, values, mask)
    torch.testing.assert_close(states.e, expected.e, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(states.log_c, expected.log_c, rtol=1e-10, atol=1e-10)


def test_an_empty_sequence_gives_no_prefixes_and_an_unchanged_state() -> None:
    queries, keys, values, mask = random_inputs()
    before = attend(queries, keys, values, mask)
    states, last = prefix_states(before, queries, keys[..., :0, :], values[..., :0, :], mask[:, :0])
    assert len(states.e) == 0 and torch.equal(last.e, before.e)
