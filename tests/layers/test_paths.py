"""Sampled paths: samples have the predicted distribution, and a path attends to the context and to itself."""

import pytest
import torch
from scipy.special import ndtri
from torch.nn import functional as F

from iclbench.core.predictions import Categorical, Gaussian, Mixture, Point
from iclbench.layers.attention import KeysAndValues
from iclbench.layers.paths import PathMemory, draw

COUNT = 4000


def equidistant_numbers() -> tuple[torch.Tensor, torch.Tensor]:
    """Return equidistant levels from 0 to 1, and the standard normal quantiles at these levels in random order."""
    levels = (torch.arange(COUNT, dtype=torch.float64) + 0.5) / COUNT
    order = torch.randperm(COUNT, generator=torch.Generator().manual_seed(0))
    return levels, torch.from_numpy(ndtri(levels.numpy()))[order].unsqueeze(1)


def test_samples_have_the_moments_and_frequencies_of_the_prediction() -> None:
    uniform, normal = equidistant_numbers()
    ones = torch.ones(1, COUNT, 1, dtype=torch.float64)
    assert torch.equal(draw(Point(3 * ones), uniform, normal), 3 * ones)
    gaussian = draw(Gaussian(3 * ones, 0.5 * ones), uniform, normal)
    assert (gaussian.mean().item(), gaussian.std().item()) == pytest.approx((3, 0.5), rel=1e-2)
    logits = torch.tensor([0.1, 0.7, 0.2], dtype=torch.float64).log().expand(1, COUNT, 3)
    labels = draw(Categorical(logits), uniform, normal)
    assert torch.bincount(labels.flatten()).div(COUNT).tolist() == pytest.approx([0.1, 0.7, 0.2], abs=1e-3)
    means, stds = (
        torch.tensor(t, dtype=torch.float64).expand(1, COUNT, 3).unsqueeze(-1) for t in ([-5, 0, 5], [1, 2, 3])
    )
    mixture = Mixture(logits, means, stds)
    samples = draw(mixture, uniform, normal)
    assert samples.shape == (1, COUNT, 1)
    assert samples.mean().item() == pytest.approx(mixture.mean[0, 0, 0].item(), abs=0.1)
    assert samples.std().item() == pytest.approx(mixture.std[0, 0, 0].item(), rel=0.03)


def test_the_last_class_is_sampled_if_the_cumulative_sum_rounds_to_less_than_one() -> None:
    logits = torch.full((1, 1, 7), 0.1)
    assert draw(Categorical(logits), torch.ones(1), torch.zeros(1, 1)).item() == 6


def test_a_path_attends_only_to_the_context_and_itself() -> None:
    """The reference is attention over one sequence without the masked tokens."""
    generator = torch.Generator().manual_seed(0)
    batch, heads, paths, rows, size, length, width = 2, 3, 4, 2, 5, 3, 6

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    q = random(batch, heads, paths * rows, width)
    keys, values = (random(batch, heads, paths, length, width) for _ in range(2))
    mask = torch.tensor([[True, False, True, True, False], [False] * 5])
    context = KeysAndValues(random(batch, heads, size, width), random(batch, heads, size, width), mask)
    memory = PathMemory(context, paths, length + 1)
    for token in range(length):
        memory.add(KeysAndValues(keys[:, :, :, token], values[:, :, :, token]))
    actual = memory.read(q).unflatten(2, (paths, rows))
    for b in range(batch):
        for s in range(paths):
            k, v = (
                torch.cat([context_tokens[b][:, mask[b]], path_tokens[b, :, s]], 1)
                for context_tokens, path_tokens in ((context.keys, keys), (context.values, values))
            )
            expected = F.scaled_dot_product_attention(q.unflatten(2, (paths, rows))[b, :, s], k, v)
            torch.testing.assert_close(actual[b, :, s], expected, rtol=1e-10, atol=1e-10)
