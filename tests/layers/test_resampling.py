"""Resampling: canonical order, fixed random numbers, indices and residuals."""

import numpy as np
import torch

from iclbench.core.episodes import Points
from iclbench.layers.resampling import (
    draw_indices,
    fixed_uniforms,
    resample_residuals,
    select_points,
    sort_canonically,
)

GENERATOR = torch.Generator().manual_seed(0)


def points(*shape: int) -> Points:
    return Points.full(torch.randn(*shape, 2, generator=GENERATOR), torch.randn(*shape, 1, generator=GENERATOR))


def test_the_canonical_order_depends_only_on_the_points() -> None:
    original = points(3, 6)
    expected = sort_canonically(original)
    assert not torch.equal(expected.x, original.x)
    padded = original.append(points(3, 4).map(lambda t: torch.zeros_like(t) if t.dtype == torch.bool else 9 * t))
    order = torch.randperm(10, generator=GENERATOR)
    actual = sort_canonically(padded.map(lambda t: t[:, order]))
    assert torch.equal(actual.x[:, :6], expected.x) and torch.equal(actual.y[:, :6], expected.y)
    assert actual.mask.tolist() == [[True] * 6 + [False] * 4] * 3


def test_the_canonical_order_depends_on_inputs_outputs_and_labels() -> None:
    for column in range(3):
        values = torch.zeros(1, 9, 3)
        values[..., column] = torch.randn(9, generator=GENERATOR)
        actual = sort_canonically(Points.full(values[..., :2], values[..., 2:]))
        sequence = torch.cat([actual.x, actual.y], -1)[0, :, column]
        steps = sequence.diff()
        assert bool((steps > 0).all() or (steps < 0).all())
    labels = sort_canonically(Points.full(torch.zeros(1, 4, 2), torch.tensor([[2, 0, 3, 1]]))).y[0].tolist()
    assert labels in ([0, 1, 2, 3], [3, 2, 1, 0])


def test_random_numbers_are_uncorrelated_and_do_not_depend_on_the_number_of_points() -> None:
    numbers = fixed_uniforms(3, 600, torch.zeros(1))
    for count in (0, 1, 255, 256, 257):
        assert torch.equal(fixed_uniforms(3, count, torch.zeros(1)), numbers[..., :count])
    flat = numbers.flatten(0, 1)
    assert torch.corrcoef(flat).fill_diagonal_(0).abs().max() < 4 / np.sqrt(600)
    assert not torch.equal(numbers[..., :256], numbers[..., 256:512])


def test_indices_are_uniform_and_at_most_the_last_point() -> None:
    numbers = torch.rand(1, 5000, 4, generator=GENERATOR)
    actual = draw_indices(numbers, torch.tensor([4, 3]))
    assert actual.shape == (2, 5000, 4)
    for b, count in enumerate((4, 3)):
        counts = torch.bincount(actual[b].flatten(), minlength=count).numpy()
        assert len(counts) == count
        expected = 20_000 / count
        assert (
            np.square(counts - expected).sum() / expected < 16
        )  # a chi-square statistic with at most 3 degrees of freedom
    nearly_one = torch.tensor(1 - 2**-24).expand(1, 1, 4)
    assert draw_indices(nearly_one, torch.tensor([2**24 + 1])).max() <= 2**24
    assert draw_indices(numbers, torch.tensor([0])).max() == 0


def test_inputs_are_resampled_with_their_outputs() -> None:
    original, indices = points(2, 5), torch.randint(5, (2, 7, 5), generator=GENERATOR)
    actual = select_points(original, indices)
    for b in range(2):
        for s in range(7):
            for i, index in enumerate(indices[b, s].tolist()):
                assert torch.equal(actual.x[b, s, i], original.x[b, index]) and torch.equal(
                    actual.y[b, s, i], original.y[b, index]
                )


def test_resampled_residuals_keep_outputs_together_and_have_mean_zero() -> None:
    residuals = torch.randn(2, 3, 5, 2, generator=GENERATOR)
    mask = torch.tensor([[True] * 5, [True, True, True, False, False]])
    indices = draw_indices(torch.rand(2, 3, 5, generator=GENERATOR), mask.sum(1))
    actual = resample_residuals(residuals, indices, mask).numpy()
    for b, count in enumerate((5, 3)):
        for s in range(3):
            sample = residuals[b, s].numpy()[indices[b, s].numpy()][:count]
            np.testing.assert_allclose(actual[b, s, :count], sample - sample.mean(0), atol=1e-6)
