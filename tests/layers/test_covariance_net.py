"""The Gaussian over all targets: its density against SciPy's and PyTorch's, what bounds it, what is masked."""

from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import multivariate_normal
from torch import Tensor

from iclbench.core.predictions import HeadSettings
from iclbench.layers.covariance_net import CovarianceNet
from tests.backbones.released_tnp import torch_layer

BATCH, TARGETS, OUTPUTS, WIDTH = 2, 5, 2, 8


def net(form: str = "tril", scale: float = 1.0, **head: Any) -> CovarianceNet:
    torch.manual_seed(0)
    own = CovarianceNet(WIDTH, 2, 6, OUTPUTS, form, HeadSettings(**head)).double()  # type: ignore[arg-type]
    with torch.no_grad():
        for p in own.parameters():
            p.add_(0.3 * torch.randn_like(p))
        own.projector[-1].weight.mul_(scale)
        own.projector[-1].bias.mul_(scale)
    return own


def vectors() -> tuple[Tensor, Tensor, Tensor]:
    """Hidden vectors, means, outputs."""
    draw = torch.Generator().manual_seed(1)
    sizes = (WIDTH, OUTPUTS, OUTPUTS)
    hidden, mean, y = (torch.randn(BATCH, TARGETS, n, generator=draw, dtype=torch.float64) for n in sizes)
    return hidden, mean, y


def columns(own: CovarianceNet, hidden: Tensor) -> Tensor:
    """The rows P of all targets and outputs, by PyTorch's own layers, `(B, Q dy, 20)`."""
    for layer in own.layers:
        hidden = torch_layer(layer)(hidden)
    return own.projector(hidden).reshape(BATCH, TARGETS * OUTPUTS, 20)


@pytest.mark.parametrize(
    ("head", "bound"),
    [
        ({"spread": "exp"}, lambda d: d),
        ({"floor": 0.3}, lambda d: (d**2 + 0.3**2) ** 0.5),
        ({"spread": "bounded-0.05", "floor": 0.3}, lambda d: 0.05 + 0.95 * np.tanh(d)),
        ({"spread": "bounded-0.1"}, lambda d: 0.1 + 0.9 * np.tanh(d)),
    ],
)
@torch.no_grad()
def test_a_triangle_of_products_is_the_cholesky_factor(head: dict[str, Any], bound: Any) -> None:
    own, (hidden, mean, y) = net(**head), vectors()
    answer = own(hidden, mean)
    found = own.log_likelihood(answer, y, torch.ones(BATCH, TARGETS, dtype=torch.bool))
    for b, p in enumerate(columns(own, hidden).numpy()):
        factor = np.tril(p @ p.T)
        factor[np.diag_indices(len(factor))] = bound(np.diag(factor))
        covariance = factor @ factor.T
        np.testing.assert_allclose(answer.covariance()[b].numpy(), covariance, rtol=1e-9)
        expected = multivariate_normal.logpdf(y[b].flatten().numpy(), mean[b].flatten().numpy(), covariance)
        assert found[b].item() == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize(
    ("head", "variance"),
    [
        ({"spread": "exp"}, np.exp),  # of a variance, not of a standard deviation: as released
        ({"floor": 0.3}, lambda raw: np.log1p(np.exp(raw)) + 0.3**2),
        ({"spread": "bounded-0.05"}, lambda raw: (0.05 + 0.95 * np.log1p(np.exp(raw))) ** 2),
    ],
)
@torch.no_grad()
def test_low_rank_is_products_and_a_diagonal(head: dict[str, Any], variance: Any) -> None:
    own, (hidden, mean, y) = net("low-rank", **head), vectors()
    assert own.diagonal is not None
    found = own.log_likelihood(own(hidden, mean), y, torch.ones(BATCH, TARGETS, dtype=torch.bool))
    for b, p in enumerate(columns(own, hidden).numpy()):
        covariance = p @ p.T + np.diag(variance(own.diagonal(hidden[b]).flatten().numpy()))
        expected = multivariate_normal.logpdf(y[b].flatten().numpy(), mean[b].flatten().numpy(), covariance)
        assert found[b].item() == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("form", ["tril", "low-rank"])
@torch.no_grad()
def test_targets_that_do_not_count_are_as_if_they_were_not_there(form: str) -> None:
    own, (hidden, mean, y) = net(form), vectors()
    there = [1, 2, 4]
    mask = torch.tensor([[False, True, True, False, True], [False] * 5])
    found = own.log_likelihood(own(hidden, mean, mask), y, mask)
    alone = own(hidden[:1, there], mean[:1, there])
    expected = own.log_likelihood(alone, y[:1, there], mask[:1, there])
    torch.testing.assert_close(found, torch.cat([expected, expected.new_zeros(1)]), rtol=1e-9, atol=1e-9)


@torch.no_grad()
def test_without_products_low_rank_is_independent_gaussians() -> None:
    own, (hidden, mean, y) = net("low-rank", scale=0.0), vectors()
    answer, mask = own(hidden, mean), torch.arange(TARGETS) < torch.tensor([[5], [3]])
    found = own.log_likelihood(answer, y, mask)
    each = torch.distributions.Normal(mean, answer.std).log_prob(y).sum(-1)
    torch.testing.assert_close(found, (each * mask).sum(1), rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(found, answer.marginals.joint_log_likelihood(y, mask), rtol=1e-9, atol=1e-9)


def test_where_the_diagonal_vanishes_loss_and_gradients_stay_finite() -> None:
    own, (hidden, mean, y) = net(scale=0.0), vectors()
    found = own.log_likelihood(own(hidden, mean), y, torch.ones(BATCH, TARGETS, dtype=torch.bool))
    error = (y - mean).square().sum((1, 2))  # every standard deviation is the least there is
    torch.testing.assert_close(found, -0.5e12 * error, rtol=1e-6, atol=0)
    found.sum().backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in own.parameters())
