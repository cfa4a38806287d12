"""Joint and sampled predictions, compared with torch.distributions and with moments of samples."""

import math

import torch
from torch.distributions import Categorical as TorchCategorical
from torch.distributions import MultivariateNormal, Normal

from iclbench.core.events import LogNormalEvent
from iclbench.core.joint import JointGaussian, Paths, SampledEvent, Samples, mix_samples
from iclbench.core.predictions import Categorical, Gaussian, Mixture, Point, Prediction
from iclbench.core.predictor import join_positions
from tests.refusals import refused

GENERATOR = torch.Generator().manual_seed(0)
Y = torch.randn(3, 4, 2, generator=GENERATOR)
MASK = torch.tensor([[True, True, True, True], [True, False, True, False], [False, False, False, True]])
FULL_MASK = torch.ones_like(MASK)


def random(*shape):
    return torch.randn(*shape, generator=GENERATOR)


def joint_gaussian(rank=3):
    return JointGaussian(random(3, 4, 2), random(3, 4, 2, rank), random(3, 4, 2).exp())


def gaussians(samples=5):
    return Gaussian(random(3, 4, samples, 2), random(3, 4, samples, 2).exp())


def test_the_density_of_a_joint_gaussian_equals_that_of_torch():
    prediction = joint_gaussian()
    exact = MultivariateNormal(prediction.mean.flatten(1).double(), prediction.to(dtype=torch.float64).covariance())
    torch.testing.assert_close(prediction.joint_log_likelihood(Y, FULL_MASK), exact.log_prob(Y.flatten(1).double()))


def test_the_joint_density_is_nan_if_the_covariance_has_no_cholesky_factor():
    prediction = joint_gaussian()
    prediction.factor[1] *= 1e15
    score = prediction.joint_log_likelihood(Y, FULL_MASK)
    assert score.isnan().tolist() == [False, True, False]


def test_masked_positions_are_marginalised():
    prediction, masked_y = joint_gaussian(), torch.where(MASK.unsqueeze(-1), Y, torch.nan)
    score = prediction.joint_log_likelihood(masked_y, MASK)
    for b in range(3):
        marginal = prediction[b : b + 1].at(MASK[b].nonzero().squeeze(1))
        expected = marginal.joint_log_likelihood(Y[b : b + 1, MASK[b]], FULL_MASK[b : b + 1, : marginal.mean.shape[1]])
        torch.testing.assert_close(score[b : b + 1], expected)


def test_a_gaussian_from_a_triangular_factor_has_the_same_covariance_and_marginals_as_in_torch():
    tril = random(3, 8, 8).tril()
    tril.diagonal(dim1=1, dim2=2).exp_()
    prediction = JointGaussian.from_tril(random(3, 4, 2), tril)
    exact = MultivariateNormal(prediction.mean.flatten(1), scale_tril=tril)
    torch.testing.assert_close(prediction.covariance(), exact.covariance_matrix)
    torch.testing.assert_close(prediction.marginals.std.flatten(1), exact.variance.sqrt())
    torch.testing.assert_close(prediction.joint_log_likelihood(Y, FULL_MASK).float(), exact.log_prob(Y.flatten(1)))


def test_the_joint_score_of_independent_positions_is_the_sum_of_marginal_scores():
    independent = JointGaussian(random(3, 4, 2), torch.zeros(3, 4, 2, 1), random(3, 4, 2).exp())
    expected = (independent.scores(Y)["log_likelihood"] * MASK).sum(1)
    torch.testing.assert_close(independent.joint_log_likelihood(Y, MASK).float(), expected)
    torch.testing.assert_close(independent.marginals.joint_log_likelihood(Y, MASK), expected)
    mixture = Mixture(random(3, 4, 6), random(3, 4, 6, 2), random(3, 4, 6, 2).exp())
    torch.testing.assert_close(mixture.joint_log_likelihood(Y, MASK), (mixture.log_likelihood(Y) * MASK).sum(1))
    assert Point(Y).joint_log_likelihood(Y, MASK) is None


def test_samples_of_a_joint_gaussian_have_its_moments():
    prediction = joint_gaussian()
    draws = prediction.sample(20_000, torch.Generator().manual_seed(1)).flatten(2)
    torch.testing.assert_close(draws.mean(0), prediction.mean.flatten(1), atol=0.15, rtol=0)
    covariance = torch.einsum("nbi,nbj->bij", draws - draws.mean(0), draws - draws.mean(0)) / len(draws)
    assert (covariance - prediction.covariance()).abs().max() < 0.04 * prediction.covariance().abs().max()


def test_marginal_and_joint_scores_of_samples_are_log_means_of_densities():
    by_sample = gaussians()
    prediction = mix_samples(by_sample)
    log = Normal(by_sample.mean, by_sample.std).log_prob(Y.unsqueeze(2)).sum(-1)
    torch.testing.assert_close(prediction.scores(Y)["log_likelihood"], log.logsumexp(2) - math.log(5))
    summed = (log * MASK.unsqueeze(2)).sum(1)
    torch.testing.assert_close(prediction.joint_log_likelihood(Y, MASK), summed.logsumexp(1) - math.log(5))


def test_scores_of_sampled_mixtures_are_log_means_of_their_densities():
    by_sample = Mixture(random(3, 4, 5, 2), random(3, 4, 5, 2, 2), random(3, 4, 5, 2, 2).exp())
    prediction = mix_samples(by_sample)
    log = by_sample.log_likelihood(Y.unsqueeze(2))
    torch.testing.assert_close(prediction.scores(Y)["log_likelihood"], log.logsumexp(2) - math.log(5))
    torch.testing.assert_close(prediction.joint_log_likelihood(Y, FULL_MASK), log.sum(1).logsumexp(1) - math.log(5))
    assert prediction.interval(0.9)[0].shape == Y.shape
    assert prediction.sample(3, torch.Generator().manual_seed(0)).shape == (3, *Y.shape)


def test_a_sample_uses_the_same_function_at_all_positions():
    levels = torch.tensor([-10.0, 0.0, 10.0]).view(1, 1, 3, 1).expand(2, 6, 3, 1)
    draws = mix_samples(Gaussian(levels, torch.full_like(levels, 0.1))).sample(300, torch.Generator().manual_seed(1))
    level = (draws / 10).round()
    assert (level == level[:, :, :1]).all()
    shares = torch.stack([(level[:, :, 0] == value).float().mean() for value in (-1, 0, 1)])
    torch.testing.assert_close(shares, torch.full((3,), 1 / 3), atol=0.08, rtol=0)


def test_mixing_a_single_sample_returns_its_prediction():
    one = gaussians(samples=1)
    single = Gaussian(one.mean[:, :, 0], one.std[:, :, 0])
    prediction = mix_samples(one)
    for name, expected in single.scores(Y).items():
        torch.testing.assert_close(prediction.scores(Y)[name], expected)
    torch.testing.assert_close(prediction.joint_log_likelihood(Y, MASK), single.joint_log_likelihood(Y, MASK))


def test_mixing_samples_averages_points_and_probabilities():
    mean = random(3, 4, 5, 2)
    torch.testing.assert_close(mix_samples(Point(mean)).mean, mean.mean(2))
    logits = random(3, 4, 5, 6)
    prediction = mix_samples(Categorical(logits)).logits.softmax(-1)
    torch.testing.assert_close(prediction, TorchCategorical(logits=logits).probs.mean(2))


def test_mixing_sampled_event_predictions_gives_their_mixture():
    parts = [random(3, 4, 5, k) for k in (2, 2, 2, 3)]
    by_sample = LogNormalEvent(parts[0], parts[1], parts[2].exp(), parts[3])
    prediction = mix_samples(by_sample)
    assert isinstance(prediction, SampledEvent)
    gap, mark = Y[..., 0].exp(), torch.ones(3, 4)
    y = torch.stack([gap, mark, gap], -1)
    joint = by_sample.log_density(gap.unsqueeze(-1)) + by_sample.marks.log_softmax(-1)[..., 1]
    torch.testing.assert_close(prediction.log_likelihood(y), joint.logsumexp(-1) - math.log(5))
    torch.testing.assert_close(prediction.log_marks(gap).exp().sum(-1), torch.ones(3, 4))
    median = prediction.quantile(0.5)
    torch.testing.assert_close(prediction.log_survival(median).exp(), torch.full((3, 4), 0.5))
    draws = prediction.sample(4000, torch.Generator().manual_seed(1))[..., 0]
    torch.testing.assert_close((draws <= median).float().mean(0), torch.full((3, 4), 0.5), atol=0.04, rtol=0)


def test_predictions_that_cannot_be_averaged_are_refused():
    with refused("not-applicable", "Prediction"):
        mix_samples(object.__new__(Prediction))


def test_paths_are_sampled_from_the_stored_paths_and_have_no_joint_density():
    by_sample, drawn = gaussians(), random(3, 4, 5, 2)
    prediction = Paths(*(getattr(mix_samples(by_sample), name) for name in ("logits", "means", "stds")), drawn)
    assert prediction.joint_log_likelihood(Y, FULL_MASK) is None
    draws = prediction.sample(7, torch.Generator().manual_seed(1))
    assert {tuple(path.flatten().tolist()) for path in draws} == {
        tuple(path.flatten().tolist()) for path in drawn.unbind(2)
    }
    torch.testing.assert_close(
        prediction.scores(Y)["log_likelihood"], mix_samples(by_sample).scores(Y)["log_likelihood"]
    )


def test_joining_positions_keeps_only_marginal_distributions():
    first, second = mix_samples(gaussians()), mix_samples(gaussians())
    joined = join_positions([first, second])
    assert isinstance(joined, Mixture) and not isinstance(joined, Samples)
    torch.testing.assert_close(joined.means[:, :4], first.marginals.means)
