"""NP and ANP: samples compared with NumPy loops, the loss compared with its definition, and the number of samples."""

import itertools

import numpy as np
import pytest
import torch
from scipy.integrate import quad
from scipy.special import logsumexp
from scipy.stats import norm

from iclbench.backbones.latent_np import LatentNP
from iclbench.core.episodes import Episodes
from tests.backbones.naive_two_path import NaiveModel
from tests.backbones.two_path_models import SIZES, batch, build, rows


def likelihoods(raw: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return the log densities of points, summed over outputs."""
    return norm.logpdf(y, raw[:, :2], np.sqrt(np.logaddexp(0, raw[:, 2:]))).sum(1)


def all_points(context: tuple, targets: tuple) -> tuple:
    return tuple(np.concatenate(pair) for pair in zip(context, targets, strict=True))


@pytest.mark.parametrize("name", ["np", "anp"])
@torch.no_grad()
def test_every_sample_equals_numpy_loops(name: str) -> None:
    model, episodes = build(name, samples=3, latent=5), batch()
    actual, naive = model.predict_targets(episodes.context, episodes.targets.x), NaiveModel(model)
    for b in range(len(SIZES)):
        context, x = rows(episodes.context, b), episodes.targets.x[b].numpy()
        mean, std = naive.latent(context)
        for s, noise in enumerate(model.normals.numpy()):
            raw = naive.raw_outputs_of_sample(context, x, mean + std * noise)
            np.testing.assert_allclose(actual.means[b, :, s, 0].numpy(), raw[:, :2], rtol=1e-9, atol=1e-9)
            np.testing.assert_allclose(actual.stds[b, :, s, 0].numpy() ** 2, np.logaddexp(0, raw[:, 2:]), rtol=1e-9)


@torch.no_grad()
def test_np_with_one_sample_and_zero_variance_equals_the_two_path_cnp_with_the_same_weights() -> None:
    latent, plain, episodes = build("np", samples=1), build("two-path-cnp"), batch()
    latent.normals.zero_()
    weights = latent.state_dict()
    for name in ("weight", "bias"):  # the context determines only the mean of z
        weights[f"encoders.second.post.2.{name}"] = weights[f"encoders.second.post.2.{name}"][:8]
    plain.load_state_dict(weights)
    actual = latent.predict_targets(episodes.context, episodes.targets.x)
    expected = plain.predict_targets(episodes.context, episodes.targets.x)
    torch.testing.assert_close(actual.means[:, :, 0, 0], expected.mean, rtol=0, atol=1e-12)
    torch.testing.assert_close(actual.stds[:, :, 0, 0], expected.std, rtol=0, atol=1e-12)


def loss(model: LatentNP, episodes: Episodes, seed: int = 0) -> float:
    with torch.no_grad():
        return model.loss(episodes, 0.0, torch.Generator().manual_seed(seed))[0].item()


@pytest.mark.parametrize("name", ["np", "anp"])
@pytest.mark.parametrize("reconstruct", ["targets", "all"])
def test_the_loss_is_the_importance_weighted_bound(name: str, reconstruct: str) -> None:
    model, episodes = build(name, train_samples=3, latent=2, reconstruct=reconstruct), batch()
    noise = torch.randn(len(SIZES), 3, 2, generator=torch.Generator().manual_seed(0)).numpy()
    naive, bounds = NaiveModel(model), []
    for b in range(len(SIZES)):
        context, targets = rows(episodes.context, b), rows(episodes.targets, b)
        points = all_points(context, targets)
        scored = targets if reconstruct == "targets" else points
        (mean_p, std_p), (mean_q, std_q) = naive.latent(context), naive.latent(points)
        weights = []
        for z in mean_q + std_q * noise[b]:
            likelihood = likelihoods(naive.raw_outputs_of_sample(context, scored[0], z), scored[1]).sum()
            weights.append(likelihood + norm.logpdf(z, mean_p, std_p).sum() - norm.logpdf(z, mean_q, std_q).sum())
        bounds.append((logsumexp(weights) - np.log(3)) / len(scored[0]))
    assert loss(model, episodes) == pytest.approx(-np.mean(bounds), rel=1e-9)


def test_with_one_sample_the_loss_is_the_evidence_lower_bound() -> None:
    """The reference computes the Kullback-Leibler divergence by numerical integration."""
    model, episodes = build("np", train_samples=1, latent=1), batch((4,))
    with torch.no_grad():
        model.encoders.second.post[-1].weight.mul_(4)  # so that posterior and prior differ
    noise = torch.randn(1, 1, 1, generator=torch.Generator().manual_seed(0)).numpy()[0, 0]
    naive, context, targets = NaiveModel(model), rows(episodes.context, 0), rows(episodes.targets, 0)
    p, q = (norm(*(float(t[0]) for t in naive.latent(points))) for points in (context, all_points(context, targets)))
    divergence, _ = quad(
        lambda z: q.pdf(z) * (q.logpdf(z) - p.logpdf(z)), q.mean() - 12, q.mean() + 12, points=[q.mean()]
    )
    likelihood = likelihoods(
        naive.raw_outputs_of_sample(context, targets[0], q.mean() + q.std() * noise), targets[1]
    ).sum()
    assert divergence > 0.01
    assert loss(model, episodes) == pytest.approx(-(likelihood - divergence) / 4, rel=1e-8)


def test_many_samples_of_the_posterior_and_of_the_prior_give_the_same_likelihood() -> None:
    """Training uses importance-weighted samples of q, and predictions use samples of p."""
    episodes = batch((4, 2))
    model = build("np", samples=4000, train_samples=4000, latent=1)
    with torch.no_grad():
        answer = model.predict_targets(episodes.context, episodes.targets.x)
        joint = answer.joint_log_likelihood(episodes.targets.y, episodes.scored) / 4
    assert loss(model, episodes) == pytest.approx(-joint.mean().item(), abs=0.02)


def test_more_samples_raise_the_bound_and_the_joint_score_in_expectation() -> None:
    """Theorem 1 of Burda et al. 2016. The differences exceed four standard errors over independent samples of z."""
    episode = batch((4,))
    counts = (1, 4, 32)
    models = {samples: build("np", samples=9600, train_samples=samples, latent=2) for samples in counts}
    for model in models.values():
        with torch.no_grad():
            model.decoder[0].weight[:, 8:10] *= 3  # so that predictions depend on z
    # Copies of one episode, each with different samples.
    copies = episode.map(lambda t: t.expand(200, *t.shape[1:]))
    bounds = [np.array([-loss(model, copies, seed) for seed in range(8)]) for model in models.values()]
    with torch.no_grad():
        answer = models[1].predict_targets(episode.context, episode.targets.x)
    joints = []
    for samples in counts:
        groups = answer.map(lambda t, samples=samples: t[0].unflatten(1, (-1, samples)).transpose(0, 1))
        y, scored = (t.expand(len(groups.means), *t.shape[1:]) for t in (episode.targets.y, episode.scored))
        joints.append(groups.joint_log_likelihood(y, scored).numpy())
    for scores in (bounds, joints):
        for fewer, more in itertools.pairwise(scores):
            error = np.sqrt(fewer.var(ddof=1) / len(fewer) + more.var(ddof=1) / len(more))
            assert more.mean() - fewer.mean() > 4 * error


def test_masked_targets_do_not_change_the_loss() -> None:
    model, episodes = build("np"), batch((4, 3), targets=3)
    longer = batch((4, 3), targets=5)
    x, y = longer.targets.x.clone(), longer.targets.y.clone()
    x[:, :3], y[:, :3] = episodes.targets.x, episodes.targets.y
    scored = torch.arange(5).expand(2, 5) < 3
    padded = Episodes(episodes.context, scored, type(longer.targets)(x, y, longer.targets.mask))
    assert loss(model, padded) == pytest.approx(loss(model, episodes), abs=1e-12)
