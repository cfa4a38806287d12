"""Joint and sampled predictions against torch.distributions, and by what draws do on average."""

import math

import pytest
import torch
from torch.distributions import Categorical as TorchCategorical
from torch.distributions import MultivariateNormal, Normal

from iclbench.core.errors import UsageError
from iclbench.core.events import LogNormalEvent
from iclbench.core.joint import JointGaussian, Paths, SampledEvent, Samples, over_samples
from iclbench.core.predictions import Categorical, Gaussian, Mixture, Point, Prediction
from iclbench.core.predictor import join_positions

DRAW = torch.Generator().manual_seed(0)
Y = torch.randn(3, 4, 2, generator=DRAW)
MASK = torch.tensor([[True, True, True, True], [True, False, True, False], [False, False, False, True]])
ALL = torch.ones_like(MASK)


def random(*shape):
    return torch.randn(*shape, generator=DRAW)


def joint_gaussian(rank=3):
    return JointGaussian(random(3, 4, 2), random(3, 4, 2, rank), random(3, 4, 2).exp())


def gaussians(samples=5):
    return Gaussian(random(3, 4, samples, 2), random(3, 4, samples, 2).exp())


def test_density_of_a_joint_gaussian_is_that_of_torch():
    found = joint_gaussian()
    exact = MultivariateNormal(found.mean.flatten(1).double(), found.to(dtype=torch.float64).covariance())
    torch.testing.assert_close(found.joint_log_likelihood(Y, ALL), exact.log_prob(Y.flatten(1).double()))


def test_a_covariance_without_a_cholesky_factor_has_no_density_and_takes_no_other_episode_along():
    found = joint_gaussian()
    found.factor[1] *= 1e15
    score = found.joint_log_likelihood(Y, ALL)
    assert score.isnan().tolist() == [False, True, False]


def test_positions_outside_of_the_mask_are_marginalised():
    found, wild = joint_gaussian(), torch.where(MASK.unsqueeze(-1), Y, torch.nan)
    score = found.joint_log_likelihood(wild, MASK)
    for b in range(3):
        kept = found[b : b + 1].at(MASK[b].nonzero().squeeze(1))
        alone = kept.joint_log_likelihood(Y[b : b + 1, MASK[b]], ALL[b : b + 1, : kept.mean.shape[1]])
        torch.testing.assert_close(score[b : b + 1], alone)


def test_a_triangular_factor_gives_its_gaussian_and_marginals():
    tril = random(3, 8, 8).tril()
    tril.diagonal(dim1=1, dim2=2).exp_()
    found = JointGaussian.from_tril(random(3, 4, 2), tril)
    exact = MultivariateNormal(found.mean.flatten(1), scale_tril=tril)
    torch.testing.assert_close(found.covariance(), exact.covariance_matrix)
    torch.testing.assert_close(found.marginals.std.flatten(1), exact.variance.sqrt())
    torch.testing.assert_close(found.joint_log_likelihood(Y, ALL).float(), exact.log_prob(Y.flatten(1)))


def test_of_independent_positions_the_joint_score_is_the_sum_of_the_marginal_ones():
    independent = JointGaussian(random(3, 4, 2), torch.zeros(3, 4, 2, 1), random(3, 4, 2).exp())
    expected = (independent.scores(Y)["log_likelihood"] * MASK).sum(1)
    torch.testing.assert_close(independent.joint_log_likelihood(Y, MASK).float(), expected)
    torch.testing.assert_close(independent.marginals.joint_log_likelihood(Y, MASK), expected)
    mixture = Mixture(random(3, 4, 6), random(3, 4, 6, 2), random(3, 4, 6, 2).exp())
    torch.testing.assert_close(mixture.joint_log_likelihood(Y, MASK), (mixture.log_likelihood(Y) * MASK).sum(1))
    assert Point(Y).joint_log_likelihood(Y, MASK) is None


def test_draws_of_a_joint_gaussian_have_its_moments():
    found = joint_gaussian()
    draws = found.sample(20_000, torch.Generator().manual_seed(1)).flatten(2)
    torch.testing.assert_close(draws.mean(0), found.mean.flatten(1), atol=0.15, rtol=0)
    covariance = torch.einsum("nbi,nbj->bij", draws - draws.mean(0), draws - draws.mean(0)) / len(draws)
    assert (covariance - found.covariance()).abs().max() < 0.04 * found.covariance().abs().max()


def test_marginal_scores_of_samples_are_log_mean_exp_at_every_point_joint_ones_of_the_sums():
    each = gaussians()
    found = over_samples(each)
    log = Normal(each.mean, each.std).log_prob(Y.unsqueeze(2)).sum(-1)
    torch.testing.assert_close(found.scores(Y)["log_likelihood"], log.logsumexp(2) - math.log(5))
    summed = (log * MASK.unsqueeze(2)).sum(1)
    torch.testing.assert_close(found.joint_log_likelihood(Y, MASK), summed.logsumexp(1) - math.log(5))


def test_samples_of_mixtures_score_as_written_out():
    each = Mixture(random(3, 4, 5, 2), random(3, 4, 5, 2, 2), random(3, 4, 5, 2, 2).exp())
    found = over_samples(each)
    log = each.log_likelihood(Y.unsqueeze(2))
    torch.testing.assert_close(found.scores(Y)["log_likelihood"], log.logsumexp(2) - math.log(5))
    torch.testing.assert_close(found.joint_log_likelihood(Y, ALL), log.sum(1).logsumexp(1) - math.log(5))
    assert found.interval(0.9)[0].shape == Y.shape
    assert found.sample(3, torch.Generator().manual_seed(0)).shape == (3, *Y.shape)


def test_a_draw_of_samples_is_one_function_at_all_positions():
    levels = torch.tensor([-10.0, 0.0, 10.0]).view(1, 1, 3, 1).expand(2, 6, 3, 1)
    draws = over_samples(Gaussian(levels, torch.full_like(levels, 0.1))).sample(300, torch.Generator().manual_seed(1))
    level = (draws / 10).round()
    assert (level == level[:, :, :1]).all()
    shares = torch.stack([(level[:, :, 0] == value).float().mean() for value in (-1, 0, 1)])
    torch.testing.assert_close(shares, torch.full((3,), 1 / 3), atol=0.08, rtol=0)


def test_one_sample_is_the_prediction_itself():
    one = gaussians(samples=1)
    alone = Gaussian(one.mean[:, :, 0], one.std[:, :, 0])
    found = over_samples(one)
    for name, expected in alone.scores(Y).items():
        torch.testing.assert_close(found.scores(Y)[name], expected)
    torch.testing.assert_close(found.joint_log_likelihood(Y, MASK), alone.joint_log_likelihood(Y, MASK))


def test_points_are_averaged_and_probabilities_mixed():
    mean = random(3, 4, 5, 2)
    torch.testing.assert_close(over_samples(Point(mean)).mean, mean.mean(2))
    logits = random(3, 4, 5, 6)
    found = over_samples(Categorical(logits)).logits.softmax(-1)
    torch.testing.assert_close(found, TorchCategorical(logits=logits).probs.mean(2))


def test_events_of_samples_are_their_mixture():
    parts = [random(3, 4, 5, k) for k in (2, 2, 2, 3)]
    each = LogNormalEvent(parts[0], parts[1], parts[2].exp(), parts[3])
    found = over_samples(each)
    assert isinstance(found, SampledEvent)
    gap, mark = Y[..., 0].exp(), torch.ones(3, 4)
    y = torch.stack([gap, mark, gap], -1)
    joint = each.log_density(gap.unsqueeze(-1)) + each.marks.log_softmax(-1)[..., 1]
    torch.testing.assert_close(found.log_likelihood(y), joint.logsumexp(-1) - math.log(5))
    torch.testing.assert_close(found.log_marks(gap).exp().sum(-1), torch.ones(3, 4))
    median = found.quantile(0.5)
    torch.testing.assert_close(found.log_survival(median).exp(), torch.full((3, 4), 0.5))
    draws = found.sample(4000, torch.Generator().manual_seed(1))[..., 0]
    torch.testing.assert_close((draws <= median).float().mean(0), torch.full((3, 4), 0.5), atol=0.04, rtol=0)


def test_a_kind_without_a_rule_is_refused_in_a_line():
    with pytest.raises(UsageError, match="cannot be one answer of the kind Prediction"):
        over_samples(object.__new__(Prediction))


def test_paths_give_what_was_drawn_and_no_joint_density():
    each, drawn = gaussians(), random(3, 4, 5, 2)
    found = Paths(*(getattr(over_samples(each), name) for name in ("logits", "means", "stds")), drawn)
    assert found.joint_log_likelihood(Y, ALL) is None
    draws = found.sample(7, torch.Generator().manual_seed(1))
    assert {tuple(path.flatten().tolist()) for path in draws} == {
        tuple(path.flatten().tolist()) for path in drawn.unbind(2)
    }
    torch.testing.assert_close(found.scores(Y)["log_likelihood"], over_samples(each).scores(Y)["log_likelihood"])


def test_what_was_asked_apart_has_no_joint_distribution():
    first, second = over_samples(gaussians()), over_samples(gaussians())
    joined = join_positions([first, second])
    assert isinstance(joined, Mixture) and not isinstance(joined, Samples)
    torch.testing.assert_close(joined.means[:, :4], first.marginals.means)
