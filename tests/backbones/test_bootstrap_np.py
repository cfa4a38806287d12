"""BNP and BANP: comparison with NumPy loops, properties of bootstraps, and the loss."""

import numpy as np
import pytest
import torch
from scipy.special import logsumexp
from scipy.stats import norm

from iclbench.backbones.bootstrap_np import BootstrapNP
from iclbench.core.episodes import Points
from iclbench.layers.resampling import fixed_uniforms, sort_canonically
from tests.backbones.naive_two_path import NaiveModel
from tests.backbones.two_path_models import SIZES, batch, build, reordered_and_padded, rows


def sample_indices(uniforms: np.ndarray, count: int) -> np.ndarray:
    """Return the indices that uniform numbers select among `count` points."""
    return np.floor(uniforms[..., :count] * count).astype(int)


@pytest.mark.parametrize("head", ["gaussian", "point"])
@pytest.mark.parametrize("name", ["bnp", "banp"])
@torch.no_grad()
def test_bootstraps_and_their_predictions_equal_numpy_loops(name: str, head: str) -> None:
    model, episodes = build(name, head, samples=3), batch()
    actual, naive = model.predict_targets(episodes.context, episodes.targets.x), NaiveModel(model)
    ordered, uniforms = sort_canonically(episodes.context), fixed_uniforms(3, 8, episodes.context.x).numpy()
    for b in range(len(SIZES)):
        context, x = rows(ordered, b), episodes.targets.x[b].numpy()
        raws = []
        for s in range(3):
            pairs, residuals = sample_indices(uniforms[:, s], len(context[0]))
            bootstrap = naive.bootstrap(context, pairs, residuals, head == "gaussian")
            raws.append(naive.raw_outputs_of_bootstrap(context, bootstrap, x))
        raw = np.stack(raws, 1)
        if head == "point":
            np.testing.assert_allclose(actual.mean[b].numpy(), raw.mean(1), rtol=1e-9, atol=1e-9)
        else:
            np.testing.assert_allclose(actual.means[b, :, :, 0].numpy(), raw[..., :2], rtol=1e-9, atol=1e-9)
            np.testing.assert_allclose(actual.stds[b, :, :, 0].numpy() ** 2, np.logaddexp(0, raw[..., 2:]), rtol=1e-9)


def bootstraps(model: BootstrapNP, points: Points, samples: int) -> Points:
    uniforms = torch.rand(2, len(points), samples, points.count, generator=torch.Generator().manual_seed(0))
    return model.bootstraps(points, uniforms.double())


def test_residuals_of_bootstraps_are_resampled_standardised_residuals_with_mean_0() -> None:
    """The indices of the pairs select every pair once, so that the model is fitted to the original context."""
    model, points, samples = build("bnp"), sort_canonically(batch((6,)).context.span(0, 6)), 3000
    identity = (torch.arange(6) + 0.5) / 6
    uniforms = torch.rand(1, samples, 6, generator=torch.Generator().manual_seed(0)).double()
    actual = model.bootstraps(points, torch.stack([identity.expand_as(uniforms).double(), uniforms]))
    assert not actual.y.requires_grad
    with torch.no_grad():
        fit = model.answer_at(model.summarise(points), points.x)
    residuals = (points.y - fit.mean) / fit.std
    bootstrap_residuals = (actual.y[0] - fit.mean) / fit.std
    torch.testing.assert_close(bootstrap_residuals.mean(1), torch.zeros(samples, 2).double(), rtol=0, atol=1e-12)
    # Centring subtracts one number from all residuals of a sample, so their differences do not change.
    indices = (uniforms * 6).long()[0]
    expected = residuals[0][indices]
    torch.testing.assert_close(
        bootstrap_residuals - bootstrap_residuals[:, :1], expected - expected[:, :1], rtol=0, atol=1e-12
    )
    counts = torch.bincount(indices.flatten(), minlength=6)
    assert (counts - samples).abs().max() < 4 * np.sqrt(6 * samples * (1 / 6) * (5 / 6))
    assert torch.equal(actual.x, points.x.unsqueeze(1).expand_as(actual.x))


def test_bootstraps_for_classification_are_resampled_pairs() -> None:
    model, points = build("bnp", "categorical"), batch((5, 3)).context
    points = sort_canonically(Points(points.x, torch.randint(4, points.mask.shape), points.mask))
    actual = bootstraps(model, points, 50)
    for b, count in enumerate((5, 3)):
        pairs = {(*x.tolist(), int(y)) for x, y in zip(points.x[b, :count], points.y[b, :count], strict=True)}
        resampled = actual.map(lambda t, b=b, count=count: t[b, :, :count].flatten(0, 1))
        assert actual.mask[b].sum(1).tolist() == [count] * 50
        assert {(*x.tolist(), int(y)) for x, y in zip(resampled.x, resampled.y, strict=True)} == pairs


@pytest.mark.parametrize("name", ["bnp", "banp"])
@torch.no_grad()
def test_order_and_padding_of_the_context_do_not_change_predictions(name: str) -> None:
    model, episodes = build(name, samples=4), batch()
    expected = model.predict_targets(episodes.context, episodes.targets.x).means
    actual = model.predict_targets(reordered_and_padded(episodes.context), episodes.targets.x).means
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-10)


@torch.no_grad()
def test_the_loss_is_the_sum_of_the_losses_for_the_context_and_for_its_bootstraps() -> None:
    model, episodes = build("bnp", train_samples=3), batch()
    actual = model.loss(episodes, 0.0, torch.Generator().manual_seed(0))[0].item()
    uniforms = torch.rand(2, len(SIZES), 3, 8, generator=torch.Generator().manual_seed(0)).double().numpy()
    naive, ordered, losses = NaiveModel(model), sort_canonically(episodes.context), []
    for b in range(len(SIZES)):
        context, (x, y) = rows(ordered, b), rows(episodes.targets, b)

        def likelihoods(raw: np.ndarray, y: np.ndarray = y) -> np.ndarray:
            return norm.logpdf(y, raw[:, :2], np.sqrt(np.logaddexp(0, raw[:, 2:]))).sum(1)

        bootstrap_likelihoods = []
        for s in range(3):
            bootstrap = naive.bootstrap(context, *sample_indices(uniforms[:, b, s], len(context[0])), spread=True)
            bootstrap_likelihoods.append(likelihoods(naive.raw_outputs_of_bootstrap(context, bootstrap, x)))
        context_likelihood = likelihoods(naive.raw_outputs(context, x))
        losses.append(-(context_likelihood + logsumexp(bootstrap_likelihoods, 0) - np.log(3)).mean())
    assert actual == pytest.approx(np.mean(losses), rel=1e-9)


def test_gradients_do_not_flow_through_bootstraps() -> None:
    """Bootstraps depend on the weights, but the gradient of the loss equals the gradient with fixed bootstraps."""
    model, episodes = build("bnp", train_samples=2), batch((5,))
    points, weight = sort_canonically(episodes.context), model.decoder[0].weight

    def gradient() -> torch.Tensor:
        loss = model.loss(episodes, 0.0, torch.Generator().manual_seed(0))[0]
        return torch.autograd.grad(loss, weight)[0]

    before = bootstraps(model, points, 2)
    actual = gradient()
    model.bootstraps = lambda points, uniforms, fixed=before: fixed  # type: ignore[method-assign]
    torch.testing.assert_close(gradient(), actual, rtol=1e-10, atol=1e-12)
    del model.bootstraps
    with torch.no_grad():
        weight.mul_(1.1)
    assert not torch.allclose(bootstraps(model, points, 2).y, before.y)
