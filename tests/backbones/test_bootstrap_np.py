"""BNP and BANP: bootstraps and answers against plain loops, what a bootstrap is, the loss."""

import numpy as np
import pytest
import torch
from scipy.special import logsumexp
from scipy.stats import norm

from iclbench.backbones.bootstrap_np import BootstrapNP
from iclbench.core.episodes import Points
from iclbench.layers.resampling import canonical, fixed_uniforms
from tests.backbones.naive_two_path import Naive
from tests.backbones.two_path_models import SIZES, batch, build, rows, shown_again


def drawn(uniforms: np.ndarray, count: int) -> np.ndarray:
    """Indices, from the numbers of a sample."""
    return np.floor(uniforms[..., :count] * count).astype(int)


@pytest.mark.parametrize("head", ["gaussian", "point"])
@pytest.mark.parametrize("name", ["bnp", "banp"])
@torch.no_grad()
def test_every_bootstrap_equals_plain_loops(name: str, head: str) -> None:
    model, episodes = build(name, head, samples=3), batch()
    found, naive = model.predict_targets(episodes.context, episodes.targets.x), Naive(model)
    ordered, numbers = canonical(episodes.context), fixed_uniforms(3, 8, episodes.context.x).numpy()
    for b in range(len(SIZES)):
        context, x = rows(ordered, b), episodes.targets.x[b].numpy()
        raws = []
        for s in range(3):
            pairs, residuals = drawn(numbers[:, s], len(context[0]))
            told = naive.bootstrap(context, pairs, residuals, head == "gaussian")
            raws.append(naive.bootstrapped(context, told, x))
        raw = np.stack(raws, 1)
        if head == "point":
            np.testing.assert_allclose(found.mean[b].numpy(), raw.mean(1), rtol=1e-9, atol=1e-9)
        else:
            np.testing.assert_allclose(found.means[b, :, :, 0].numpy(), raw[..., :2], rtol=1e-9, atol=1e-9)
            np.testing.assert_allclose(found.stds[b, :, :, 0].numpy() ** 2, np.logaddexp(0, raw[..., 2:]), rtol=1e-9)


def bootstraps(model: BootstrapNP, points: Points, samples: int) -> Points:
    uniforms = torch.rand(2, len(points), samples, points.count, generator=torch.Generator().manual_seed(0))
    return model.bootstraps(points, uniforms.double())


def test_residuals_have_mean_zero_and_before_that_the_law_of_the_standardised_residuals() -> None:
    """All pairs are resampled to themselves, so that the fit is that of the context itself."""
    model, points, samples = build("bnp"), canonical(batch((6,)).context.span(0, 6)), 3000
    own = (torch.arange(6) + 0.5) / 6
    numbers = torch.rand(1, samples, 6, generator=torch.Generator().manual_seed(0)).double()
    found = model.bootstraps(points, torch.stack([own.expand_as(numbers).double(), numbers]))
    assert not found.y.requires_grad
    with torch.no_grad():
        fit = model.answer_at(model.summarise(points), points.x)
    residuals = (points.y - fit.mean) / fit.std
    drawn = (found.y[0] - fit.mean) / fit.std
    torch.testing.assert_close(drawn.mean(1), torch.zeros(samples, 2).double(), rtol=0, atol=1e-12)
    # Centring takes one number off all of a sample: differences within it are those of residuals.
    indices = (numbers * 6).long()[0]
    expected = residuals[0][indices]
    torch.testing.assert_close(drawn - drawn[:, :1], expected - expected[:, :1], rtol=0, atol=1e-12)
    counts = torch.bincount(indices.flatten(), minlength=6)
    assert (counts - samples).abs().max() < 4 * np.sqrt(6 * samples * (1 / 6) * (5 / 6))
    assert torch.equal(found.x, points.x.unsqueeze(1).expand_as(found.x))


def test_bootstraps_of_labels_are_resampled_pairs() -> None:
    model, points = build("bnp", "categorical"), batch((5, 3)).context
    points = canonical(Points(points.x, torch.randint(4, points.mask.shape), points.mask))
    found = bootstraps(model, points, 50)
    for b, count in enumerate((5, 3)):
        known = {(*x.tolist(), int(y)) for x, y in zip(points.x[b, :count], points.y[b, :count], strict=True)}
        told = found.map(lambda t, b=b, count=count: t[b, :, :count].flatten(0, 1))
        assert found.mask[b].sum(1).tolist() == [count] * 50
        assert {(*x.tolist(), int(y)) for x, y in zip(told.x, told.y, strict=True)} == known


@pytest.mark.parametrize("name", ["bnp", "banp"])
@torch.no_grad()
def test_order_and_padding_of_the_context_change_nothing(name: str) -> None:
    model, episodes = build(name, samples=4), batch()
    expected = model.predict_targets(episodes.context, episodes.targets.x).means
    found = model.predict_targets(shown_again(episodes.context), episodes.targets.x).means
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-10)


@torch.no_grad()
def test_the_loss_is_that_of_the_context_and_that_of_its_bootstraps() -> None:
    model, episodes = build("bnp", train_samples=3), batch()
    found = model.loss(episodes, 0.0, torch.Generator().manual_seed(0))[0].item()
    numbers = torch.rand(2, len(SIZES), 3, 8, generator=torch.Generator().manual_seed(0)).double().numpy()
    naive, ordered, losses = Naive(model), canonical(episodes.context), []
    for b in range(len(SIZES)):
        context, (x, y) = rows(ordered, b), rows(episodes.targets, b)

        def likelihoods(raw: np.ndarray, y: np.ndarray = y) -> np.ndarray:
            return norm.logpdf(y, raw[:, :2], np.sqrt(np.logaddexp(0, raw[:, 2:]))).sum(1)

        each = []
        for s in range(3):
            told = naive.bootstrap(context, *drawn(numbers[:, b, s], len(context[0])), spread=True)
            each.append(likelihoods(naive.bootstrapped(context, told, x)))
        alone = likelihoods(naive.conditional(context, x))
        losses.append(-(alone + logsumexp(each, 0) - np.log(3)).mean())
    assert found == pytest.approx(np.mean(losses), rel=1e-9)


def test_no_gradient_goes_through_a_bootstrap() -> None:
    """The gradient of the loss is that with the bootstraps held fixed, though they change with the weights."""
    model, episodes = build("bnp", train_samples=2), batch((5,))
    points, weight = canonical(episodes.context), model.decoder[0].weight

    def gradient() -> torch.Tensor:
        loss = model.loss(episodes, 0.0, torch.Generator().manual_seed(0))[0]
        return torch.autograd.grad(loss, weight)[0]

    before = bootstraps(model, points, 2)
    found = gradient()
    model.bootstraps = lambda points, uniforms, fixed=before: fixed  # type: ignore[method-assign]
    torch.testing.assert_close(gradient(), found, rtol=1e-10, atol=1e-12)
    del model.bootstraps
    with torch.no_grad():
        weight.mul_(1.1)
    assert not torch.allclose(bootstraps(model, points, 2).y, before.y)
