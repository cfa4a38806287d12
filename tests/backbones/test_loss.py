"""The training loss is a mean in which every episode has the same weight, whatever its number of scored points."""

import numpy as np
import pytest
import torch
from torch import Tensor

from iclbench.backbones.base import mean_by_episode
from iclbench.families.images.image_completion import ImageCompletion, ImageParameters
from iclbench.families.request import Request


def mean_by_point(point_losses: Tensor, scored: Tensor) -> Tensor:
    """Return the mean with the same weight for every scored point."""
    return (point_losses * scored).sum() / scored.sum().clamp(min=1)


def test_mean_by_episode_is_the_mean_over_episodes_of_means_over_scored_positions() -> None:
    rng = np.random.default_rng(0)
    point_losses, scored = rng.normal(size=(6, 9)), rng.random((6, 9)) < np.linspace(0, 1, 6)[:, None]
    expected = np.mean([values[mask].mean() for values, mask in zip(point_losses, scored, strict=True) if mask.any()])
    actual = mean_by_episode(torch.from_numpy(point_losses), torch.from_numpy(scored))
    assert actual.item() == pytest.approx(expected)
    assert not scored.any(1).all() and actual.item() != pytest.approx(
        mean_by_point(torch.from_numpy(point_losses), torch.from_numpy(scored)).item()
    )
    assert mean_by_episode(torch.ones(2, 3), torch.zeros(2, 3, dtype=torch.bool)).item() == 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_both_means_are_equal_if_all_episodes_have_the_same_number_of_scored_positions(dtype: torch.dtype) -> None:
    for episodes, positions, count in ((16, 64, 64), (7, 13, 5), (64, 41, 11), (3, 129, 127)):
        scored = (torch.arange(positions) < count).expand(episodes, -1)
        point_losses = torch.randn(episodes, positions, generator=torch.Generator().manual_seed(count)).to(dtype)
        values = [point_losses.clone().requires_grad_() for _ in range(2)]
        losses = [mean(leaf, scored) for mean, leaf in zip((mean_by_point, mean_by_episode), values, strict=True)]
        gradients = [torch.autograd.grad(loss, leaf)[0] for loss, leaf in zip(losses, values, strict=True)]
        assert torch.equal(*losses) and torch.equal(*gradients)


def test_mean_by_episode_does_not_change_the_distribution_of_context_sizes() -> None:
    """N ~ U{3, ..., 196} has mean 99.5. Weighted by the number of targets, M ~ U{3, ..., 199 - N}, its mean is 68.9."""
    family = ImageCompletion(ImageParameters(sampling="cmab", max_related=0, classes=2, drawings=20))
    episodes = family.sample(Request(4000, 196, torch.Generator().manual_seed(0)))
    counts = episodes.context.counts.unsqueeze(1).double().expand(episodes.scored.shape)
    error = 56 / 4000**0.5
    assert abs(mean_by_episode(counts, episodes.scored).item() - 99.5) < 4 * error
    assert abs(mean_by_point(counts, episodes.scored).item() - 68.9) < 4 * error
