"""The joint Gaussian density of all targets against SciPy and PyTorch, with bounded variances and masked targets."""

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
    model = CovarianceNet(WIDTH, 2, 6, OUTPUTS, form, HeadSettings(**head)).double()  # type: ignore[arg-type]
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.3 * torch.randn_like(p))
        model.projector[-1].weight.mul_(scale)
        model.projector[-1].bias.mul_(scale)
    return model


def vectors() -> tuple[Tensor, Tensor, Tensor]:
    """Return random hidden vectors, means and outputs."""
    generator = torch.Generator().manual_seed(1)
    sizes = (WIDTH, OUTPUTS, OUTPUTS)
    hidden, mean, y = (torch.randn(BATCH, TARGETS, n, generator=generator, dtype=torch.float64) for n in sizes)
    return hidden, mean, y


def factor_rows(model: CovarianceNet, hidden: Tensor) -> Tensor:
    """Compute the factor P, `(B, Q dy, 20)`, with PyTorch's layers. It has a row per target and output."""
    for layer in model.layers:
        hidden = torch_layer(layer)(hidden)
    return model.projector(hidden).reshape(BATCH, TARGETS * OUTPUTS, 20)


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
def test_the_form_tril_gives_the_cholesky_factor(head: dict[str, Any], bound: Any) -> None:
    model, (hidden, mean, y) = net(**head), vectors()
    answer = model(hidden, mean)
    actual = model.log_likelihood(answer, y, torch.ones(BATCH, TARGETS, dtype=torch.bool))
    for b, p in enumerate(factor_rows(model, hidden).numpy()):
        factor = np.tril(p @ p.T)
        factor[np.diag_indices(len(factor))] = bound(np.diag(factor))
        covariance = factor @ factor.T
        np.testing.assert_allclose(answer.covariance()[b].numpy(), covariance, rtol=1e-9)
        expected = multivariate_normal.logpdf(y[b].flatten().numpy(), mean[b].flatten().numpy(), covariance)
        assert actual[b].item() == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize(
    ("head", "variance"),
    [
        ({"spread": "exp"}, np.exp),  # exp(r) is a variance, not a standard deviation, as in the released code
        ({"floor": 0.3}, lambda raw: np.log1p(np.exp(raw)) + 0.3**2),
        ({"spread": "bounded-0.05"}, lambda raw: (0.05 + 0.95 * np.log1p(np.exp(raw))) ** 2),
    ],
)
@torch.no_grad()
def test_the_low_rank_covariance_is_the_product_of_the_factors_plus_a_diagonal(
    head: dict[str, Any], variance: Any
) -> None:
    model, (hidden, mean, y) = net("low-rank", **head), vectors()
    assert model.diagonal is not None
    actual = model.log_likelihood(model(hidden, mean), y, torch.ones(BATCH, TARGETS, dtype=torch.bool))
    for b, p in enumerate(factor_rows(model, hidden).numpy()):
        covariance = p @ p.T + np.diag(variance(model.diagonal(hidden[b]).flatten().numpy()))
        expected = multivariate_normal.logpdf(y[b].flatten().numpy(), mean[b].flatten().numpy(), covariance)
        assert actual[b].item() == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("form", ["tril", "low-rank"])
@torch.no_grad()
def test_masked_targets_do_not_change_the_density(form: str) -> None:
    model, (hidden, mean, y) = net(form), vectors()
    valid = [1, 2, 4]
    mask = torch.tensor([[False, True, True, False, True], [False] * 5])
    actual = model.log_likelihood(model(hidden, mean, mask), y, mask)
    unmasked_answer = model(hidden[:1, valid], mean[:1, valid])
    expected = model.log_likelihood(unmasked_answer, y[:1, valid], mask[:1, valid])
    torch.testing.assert_close(actual, torch.cat([expected, expected.new_zeros(1)]), rtol=1e-9, atol=1e-9)


@torch.no_grad()
def test_a_low_rank_covariance_with_zero_factors_gives_independent_gaussians() -> None:
    model, (hidden, mean, y) = net("low-rank", scale=0.0), vectors()
    answer, mask = model(hidden, mean), torch.arange(TARGETS) < torch.tensor([[5], [3]])
    actual = model.log_likelihood(answer, y, mask)
    densities = torch.distributions.Normal(mean, answer.std).log_prob(y).sum(-1)
    torch.testing.assert_close(actual, (densities * mask).sum(1), rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(actual, answer.marginals.joint_log_likelihood(y, mask), rtol=1e-9, atol=1e-9)


def test_the_density_and_its_gradients_are_finite_for_a_zero_diagonal() -> None:
    model, (hidden, mean, y) = net(scale=0.0), vectors()
    actual = model.log_likelihood(model(hidden, mean), y, torch.ones(BATCH, TARGETS, dtype=torch.bool))
    error = (y - mean).square().sum((1, 2))  # all standard deviations are at the lower bound
    torch.testing.assert_close(actual, -0.5e12 * error, rtol=1e-6, atol=0)
    actual.sum().backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())
