"""Predictions, compared with torch.distributions and SciPy."""

import math

import numpy as np
import pytest
import torch
from scipy import stats
from scipy.optimize import brentq
from torch.distributions import Categorical as TorchCategorical
from torch.distributions import Independent, MixtureSameFamily, Normal

from iclbench.core.heads import HEADS
from iclbench.core.predictions import Categorical, Gaussian, HeadSettings, Mixture, Point, Prediction

Y = torch.randn(3, 4, 2, generator=torch.Generator().manual_seed(0))


def raw_outputs(head, outputs):
    generator = torch.Generator().manual_seed(1)
    return torch.randn(3, 4, head.raw_dim(outputs), generator=generator)


@pytest.mark.parametrize("name", sorted(HEADS))
def test_every_head_gives_one_finite_loss_and_score_per_position(name):
    head = HEADS[name]
    prediction = head.from_raw(raw_outputs(head, 2).requires_grad_(), 2)
    events = torch.cat([Y[..., :1].exp(), torch.ones(3, 4, 1), Y[..., :1].exp()], -1)
    y = {"categorical": torch.randint(2, (3, 4)), "event": events}.get(name, Y)
    assert prediction.loss(y).shape == (3, 4)
    assert prediction.loss(y).isfinite().all()
    scores = prediction.scores(y)
    assert tuple(scores) == head.metrics
    assert all(value.shape == (3, 4) for value in scores.values())
    prediction.loss(y).sum().backward()


@pytest.mark.parametrize("name", sorted(HEADS))
def test_positions_can_be_selected(name):
    prediction = HEADS[name].from_raw(raw_outputs(HEADS[name], 2), 2)
    selection = prediction.at(slice(1, 3)).tensors()
    assert all(torch.equal(selection[key], tensor[:, 1:3]) for key, tensor in prediction.tensors().items())


def test_points_are_scored_by_the_squared_error_summed_over_outputs():
    torch.testing.assert_close(Point(torch.zeros(3, 4, 2)).loss(Y), Y[..., 0] ** 2 + Y[..., 1] ** 2)
    torch.testing.assert_close(Point(Y).loss(Y), torch.zeros(3, 4))


def test_gaussian_log_likelihood_equals_torch():
    prediction = Gaussian.from_raw(raw_outputs(Gaussian, 2), 2)
    expected = Independent(Normal(prediction.mean, prediction.std), 1).log_prob(Y)
    torch.testing.assert_close(prediction.log_likelihood(Y), expected)
    torch.testing.assert_close(prediction.loss(Y), -expected)


def test_gaussian_variance_is_softplus_plus_squared_floor():
    prediction = Gaussian.from_raw(torch.tensor([[0.5, -30.0]]), 1, HeadSettings(floor=0.1))
    assert prediction.std.item() == pytest.approx(0.1, rel=1e-5)
    wide = Gaussian.from_raw(torch.tensor([[0.5, 2.0]]), 1)
    assert wide.std.item() ** 2 == pytest.approx(math.log1p(math.exp(2.0)), rel=1e-5)


def test_coverage_is_the_fraction_of_targets_in_the_central_intervals():
    prediction = Gaussian(torch.zeros(1, 4, 1), torch.full((1, 4, 1), 2.0))
    targets = torch.tensor([stats.norm.ppf(q) * 2 for q in (0.74, 0.76, 0.94, 0.96)], dtype=torch.float32).reshape(
        1, 4, 1
    )
    scores = prediction.scores(targets)
    assert scores["covered_50"].tolist() == [[1, 0, 0, 0]]
    assert scores["covered_90"].tolist() == [[1, 1, 1, 0]]


def test_mixture_log_likelihood_and_mean_equal_torch():
    prediction = Mixture.from_raw(raw_outputs(Mixture, 2), 2)
    components = Independent(Normal(prediction.means, prediction.stds), 1)
    expected = MixtureSameFamily(TorchCategorical(logits=prediction.logits), components)
    torch.testing.assert_close(prediction.log_likelihood(Y), expected.log_prob(Y))
    torch.testing.assert_close(prediction.mean, expected.mean)
    torch.testing.assert_close(prediction.std, expected.stddev)
    moments = Independent(Normal(expected.mean, expected.stddev), 1).log_prob(Y)
    torch.testing.assert_close(prediction.scores(Y)["log_likelihood_gaussian"], moments)


def test_mixture_coverage_uses_quantiles_of_the_mixture():
    mixture = Mixture(torch.zeros(1, 1, 2), torch.tensor([[[[-5.0], [5.0]]]]), torch.ones(1, 1, 2, 1))
    # Half of the probability is near -5 and half near 5, so the central half lies between the two means.
    scores_at = {y: mixture.scores(torch.tensor([[[y]]])) for y in (-6.0, -4.9, 0.0, 4.9, 6.0, 6.3)}
    assert [float(s["covered_50"]) for s in scores_at.values()] == [0, 1, 1, 1, 0, 0]
    assert [float(s["covered_90"]) for s in scores_at.values()] == [1, 1, 1, 1, 1, 0]


def test_a_component_without_weight_does_not_change_scores():
    prediction = Mixture.from_raw(raw_outputs(Mixture, 2), 2)
    empty = prediction.logits.new_full((3, 4, 1), -math.inf)
    wider = Mixture(
        torch.cat([prediction.logits, empty], -1),
        torch.cat([prediction.means, torch.zeros(3, 4, 1, 2)], -2),
        torch.cat([prediction.stds, torch.ones(3, 4, 1, 2)], -2),
    )
    for name, score in wider.scores(Y).items():
        torch.testing.assert_close(score, prediction.scores(Y)[name])


def test_the_minimum_std_bounds_the_log_likelihood():
    settings = HeadSettings(floor=0.1, components=3)
    for head in (Gaussian, Mixture):
        prediction = head.from_raw(torch.full((1, 1, head.raw_dim(1, settings)), -30.0), 1, settings)
        assert prediction.log_likelihood(prediction.mean).item() == pytest.approx(1.3836, abs=1e-3)


def test_categorical_loss_is_cross_entropy():
    prediction = Categorical(raw_outputs(Categorical, 5))
    y = torch.randint(5, (3, 4))
    expected = torch.nn.functional.cross_entropy(prediction.logits.flatten(0, 1), y.flatten(), reduction="none")
    torch.testing.assert_close(prediction.loss(y).flatten(), expected)


def test_labels_outside_the_choices_have_no_effect_on_scores():
    logits = torch.tensor([[[9.0, 1.0, 2.0]], [[9.0, 3.0, 2.0]]])
    choices = torch.tensor([[False, True, True], [True, True, False]])
    restricted = Categorical(logits).within(choices)
    assert restricted.scores(torch.tensor([[2], [0]]))["accuracy"].tolist() == [[1.0], [1.0]]
    assert restricted.logits.softmax(-1)[0, 0, 0] == 0


def test_intervals_are_centred_on_means_far_from_0():
    prediction = Gaussian(Y + 100, torch.full_like(Y, 0.1))
    assert [float(prediction.scores(y)["covered_90"].mean()) for y in (Y + 100, -Y - 100)] == [1.0, 0.0]


def new_generator(seed=0):
    return torch.Generator().manual_seed(seed)


def mixture_of(*shape, k=3, dy=1, seed=0):
    logits, means, stds = (torch.randn(*shape, *s, generator=new_generator(seed)) for s in [(k,), (k, dy), (k, dy)])
    return Mixture(logits.double(), 3 * means.double(), stds.double().abs() + 0.01)


@pytest.mark.parametrize("level", [0.5, 0.9, 0.99])
def test_the_interval_of_a_gaussian_equals_scipy(level):
    prediction = Gaussian(Y.double(), Y.double().abs() + 0.1)
    expected = stats.norm.interval(level, prediction.mean.numpy(), prediction.std.numpy())
    for end, expected_end in zip(prediction.interval(level), expected, strict=True):
        np.testing.assert_allclose(end.numpy(), expected_end, rtol=1e-12)


@pytest.mark.parametrize("level", [0.0, 0.5, 0.9])
def test_the_ends_of_the_interval_of_a_mixture_are_roots_of_its_distribution_function(level):
    mixture = mixture_of(2, 3)
    for end, mass in zip(mixture.interval(level), (0.5 - level / 2, 0.5 + level / 2), strict=True):
        for at in np.ndindex(2, 3):
            w, m, s = (t[at].flatten().numpy() for t in (mixture.logits.softmax(-1), mixture.means, mixture.stds))
            root = brentq(lambda y, w=w, m=m, s=s, mass=mass: w @ stats.norm.cdf(y, m, s) - mass, -100, 100, xtol=1e-13)
            assert end[at].item() == pytest.approx(root, rel=1e-9, abs=1e-9)


def test_coverage_of_a_mixture_is_consistent_with_its_intervals():
    mixture = mixture_of(20, 10, dy=2)
    y = mixture.sample(1, new_generator(1))[0]
    for level in (0.5, 0.9):
        low, high = mixture.interval(level)
        inside = ((low <= y) & (y <= high)).double().mean(-1)
        assert torch.equal(mixture.scores(y)[f"covered_{100 * level:.0f}"], inside)


def test_samples_of_a_mixture_have_its_distribution():
    mixture = mixture_of(2, 3, dy=2)
    samples = mixture.sample(4000, new_generator())
    assert samples.shape == (4000, 2, 3, 2)
    for at in np.ndindex(2, 3, 2):
        cdf = lambda y, at=at: mixture.map(lambda t: t[at[:2]]).cumulative(torch.tensor(y)[:, None])[:, at[2]].numpy()  # noqa: E731
        assert stats.kstest(samples[:, *at].numpy(), cdf).pvalue > 1e-3
    # All outputs of a position come from the same component, so they are dependent.
    separated = Mixture(torch.zeros(1, 2), torch.tensor([[[-5.0, -5.0], [5.0, 5.0]]]), torch.ones(1, 2, 2))
    assert (separated.sample(200, new_generator()).sign().sum(-1).abs() == 2).float().mean() > 0.99


def test_samples_of_gaussians_points_and_classes_have_their_distributions():
    gaussian = Gaussian(Y, Y.abs() + 0.1)
    scaled = (gaussian.sample(5000, new_generator()) - gaussian.mean) / gaussian.std
    assert stats.kstest(scaled.flatten().numpy(), "norm").pvalue > 1e-3
    assert torch.equal(Point(Y).sample(2, new_generator()), torch.stack([Y, Y]))
    classes = Categorical(raw_outputs(Categorical, 5))
    samples = classes.sample(4000, new_generator())
    assert samples.shape == (4000, 3, 4)
    frequencies = torch.nn.functional.one_hot(samples, 5).float().mean(0)
    torch.testing.assert_close(frequencies, classes.logits.softmax(-1), atol=0.04, rtol=0)
    assert torch.equal(samples, classes.sample(4000, new_generator())), "samples depend only on the generator"


@pytest.mark.parametrize("name", sorted(HEADS))
def test_all_predictions_have_a_point_and_all_distributions_of_numbers_have_an_interval(name):
    prediction = HEADS[name].from_raw(raw_outputs(HEADS[name], 2), 2)
    assert prediction.point().shape == ((3, 4) if name == "categorical" else (3, 4, 2))
    ends = prediction.interval(0.9)
    assert (ends is None) == (name in ("point", "categorical"))
    if ends is not None:
        assert (ends[0] < prediction.point()[..., : ends[0].shape[-1]]).all() or name == "mixture"
        assert (ends[0] < ends[1]).all()


def _distributions() -> list[Prediction]:
    zeros = torch.zeros(2, 1)
    return [Gaussian(zeros, zeros + 1), Mixture(torch.zeros(2, 2), torch.zeros(2, 2, 1), torch.ones(2, 2, 1))]


@pytest.mark.parametrize("prediction", _distributions(), ids=lambda p: type(p).__name__)
def test_an_interval_level_that_is_not_a_probability_is_refused(prediction: Prediction) -> None:
    low, high = prediction.interval(1.0)
    assert (low == -math.inf).all() and (high == math.inf).all()
    for level in (-0.1, 1.5, math.nan):
        with pytest.raises(ValueError, match=str(level)):
            prediction.interval(level)


@pytest.mark.parametrize(
    "prediction",
    [*_distributions(), Categorical(torch.zeros(2, 3)), Point(torch.zeros(2, 1))],
    ids=lambda p: type(p).__name__,
)
def test_drawing_zero_samples_returns_an_empty_tensor(prediction: Prediction) -> None:
    samples = prediction.sample(0, torch.Generator().manual_seed(0))
    assert samples.shape == (0, *prediction.point().shape) and samples.dtype == prediction.point().dtype
