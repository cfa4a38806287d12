"""What training sums up: every episode weighs the same, however many of its points are scored."""

import numpy as np
import pytest
import torch
from torch import Tensor

from iclbench.backbones.base import mean_by_episode
from iclbench.families.images.image_completion import ImageCompletion, ImageParameters
from iclbench.families.request import Request


def plain(each: Tensor, scored: Tensor) -> Tensor:
    """The mean over points: every scored point weighs the same."""
    return (each * scored).sum() / scored.sum().clamp(min=1)


def test_it_is_the_mean_over_episodes_of_the_mean_over_their_scored_positions() -> None:
    rng = np.random.default_rng(0)
    each, scored = rng.normal(size=(6, 9)), rng.random((6, 9)) < np.linspace(0, 1, 6)[:, None]
    expected = np.mean([values[there].mean() for values, there in zip(each, scored, strict=True) if there.any()])
    found = mean_by_episode(torch.from_numpy(each), torch.from_numpy(scored))
    assert found.item() == pytest.approx(expected)
    assert not scored.any(1).all() and found.item() != pytest.approx(
        plain(torch.from_numpy(each), torch.from_numpy(scored)).item()
    )
    assert mean_by_episode(torch.ones(2, 3), torch.zeros(2, 3, dtype=torch.bool)).item() == 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_it_is_the_plain_mean_to_the_last_digit_where_all_have_equally_many(dtype: torch.dtype) -> None:
    for episodes, positions, count in ((16, 64, 64), (7, 13, 5), (64, 41, 11), (3, 129, 127)):
        scored = (torch.arange(positions) < count).expand(episodes, -1)
        each = torch.randn(episodes, positions, generator=torch.Generator().manual_seed(count)).to(dtype)
        values = [each.clone().requires_grad_() for _ in range(2)]
        losses = [of(leaf, scored) for of, leaf in zip((plain, mean_by_episode), values, strict=True)]
        gradients = [torch.autograd.grad(loss, leaf)[0] for loss, leaf in zip(losses, values, strict=True)]
        assert torch.equal(*losses) and torch.equal(*gradients)


def test_the_context_that_cmab_images_train_on_is_as_large_as_it_is_drawn() -> None:
    """N ~ U{3, ..., 196} has the mean 99.5; weighted by the number of targets, M ~ U{3, ..., 199 - N}, it is 68.9."""
    family = ImageCompletion(ImageParameters(sampling="cmab", max_related=0, classes=2, drawings=20))
    episodes = family.sample(Request(4000, 196, torch.Generator().manual_seed(0)))
    counts = episodes.context.counts.unsqueeze(1).double().expand(episodes.scored.shape)
    error = 56 / 4000**0.5
    assert abs(mean_by_episode(counts, episodes.scored).item() - 99.5) < 4 * error
    assert abs(plain(counts, episodes.scored).item() - 68.9) < 4 * error
