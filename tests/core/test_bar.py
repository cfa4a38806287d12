"""The bar head, compared with SciPy: a histogram with borders at normal quantiles, and half-normal tails."""

import math

import numpy as np
import pytest
import torch
from scipy import stats

from iclbench.core.bar import Bar
from iclbench.core.joint import mix_samples
from iclbench.core.predictions import HeadSettings
from iclbench.layers.paths import draw

SCALE = 1.7


def bar(*shape: int, buckets: int = 9, dy: int = 1, seed: int = 0) -> Bar:
    raw = 2 * torch.randn(*shape, buckets * dy, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return Bar.from_raw(raw, dy, HeadSettings(buckets=buckets, scale=SCALE))


def borders(buckets: int) -> np.ndarray:
    """Return the borders: quantiles of a normal distribution with three times the variance of the outputs, `SCALE²`."""
    return stats.norm.ppf(np.arange(1, buckets) / buckets, scale=SCALE * math.sqrt(3))


class Reference:
    """The distribution of one output in SciPy: a histogram, and two half-normal tails with the scale of the outputs."""

    def __init__(self, prediction: Bar, at: tuple[int, ...]) -> None:
        self.masses = prediction.bars[at].softmax(-1).numpy()
        self.borders = borders(len(self.masses))
        self.histogram = stats.rv_histogram((self.masses[1:-1], self.borders), density=False)
        self.inner = self.masses[1:-1].sum()
        self.tail = stats.halfnorm(scale=SCALE)

    def pdf(self, y: np.ndarray) -> np.ndarray:
        low, high = self.borders[[0, -1]]
        tails = self.masses[0] * self.tail.pdf(low - y) + self.masses[-1] * self.tail.pdf(y - high)
        return tails + self.inner * self.histogram.pdf(y)

    def cdf(self, y: np.ndarray) -> np.ndarray:
        low, high = self.borders[[0, -1]]
        lower, upper = self.masses[0] * self.tail.sf(low - y), self.masses[-1] * self.tail.cdf(y - high)
        return lower + self.inner * self.histogram.cdf(y) + upper

    def moments(self) -> tuple[float, float]:
        low, high = self.borders[[0, -1]]
        parts = [
            (self.masses[0], low - self.tail.mean(), self.tail.var()),
            (self.inner, self.histogram.mean(), self.histogram.var()),
            (self.masses[-1], high + self.tail.mean(), self.tail.var()),
        ]
        mean = sum(mass * part_mean for mass, part_mean, _ in parts)
        return mean, sum(mass * (variance + (part_mean - mean) ** 2) for mass, part_mean, variance in parts)


@pytest.mark.parametrize("buckets", [4, 9, 100])
def test_density_distribution_function_and_moments_equal_scipy(buckets: int) -> None:
    prediction = bar(2, 3, buckets=buckets)
    y = np.linspace(-9, 9, 181) + 0.01  # no value lies on a border
    for at in np.ndindex(2, 3):
        one, expected = (
            prediction.map(lambda t, at=at: t[at].expand(len(y), *t.shape[2:])),
            Reference(prediction, (*at, 0)),
        )
        values = torch.tensor(y).unsqueeze(-1)
        np.testing.assert_allclose(one.log_likelihood(values), np.log(expected.pdf(y)), rtol=1e-9)
        np.testing.assert_allclose(one.loss(values), -np.log(expected.pdf(y)), rtol=1e-9)
        np.testing.assert_allclose(one.cumulative(values)[:, 0], expected.cdf(y), rtol=1e-9, atol=1e-12)
        mean, variance = expected.moments()
        np.testing.assert_allclose([one.mean[0, 0], one.std[0, 0]], [mean, math.sqrt(variance)], rtol=1e-9)


def test_the_distribution_function_at_the_borders_is_the_cumulative_probability() -> None:
    prediction = bar(1, buckets=9)
    edges = torch.tensor(borders(9)).unsqueeze(-1)
    cumulative = prediction.map(lambda t: t.expand(8, *t.shape[1:])).cumulative(edges)[:, 0]
    torch.testing.assert_close(cumulative, prediction.bars[0, 0].softmax(-1).cumsum(-1)[:-1])


@pytest.mark.parametrize("buckets", [2, 3, 9, 100])
def test_the_density_integrates_to_1(buckets: int) -> None:
    """The density is constant in each bucket, and the tails are integrated by the trapezoidal rule."""
    prediction, edges = bar(1, buckets=buckets), borders(buckets)

    def density(y: np.ndarray) -> np.ndarray:
        values = torch.tensor(y).unsqueeze(-1)
        return prediction.map(lambda t: t.expand(len(y), *t.shape[1:])).log_likelihood(values).exp().numpy()

    inner = (density((edges[1:] + edges[:-1]) / 2) * np.diff(edges)).sum()
    beyond = np.linspace(1e-9, 12 * SCALE, 20_001)
    tails = [np.trapezoid(density(y), beyond) for y in (edges[0] - beyond, edges[-1] + beyond)]
    assert inner + sum(tails) == pytest.approx(1, abs=1e-6)


@pytest.mark.parametrize("level", [1e-4, 0.05, 0.5, 0.95, 0.9999])
def test_quantiles_invert_the_distribution_function(level: float) -> None:
    prediction = bar(20, 5, dy=2)
    torch.testing.assert_close(
        prediction.cumulative(prediction.quantile(level)), torch.full((20, 5, 2), level, dtype=torch.float64)
    )
    low, high = prediction.interval(0.9)
    torch.testing.assert_close(prediction.cumulative(high) - prediction.cumulative(low), torch.full_like(low, 0.9))


def test_samples_have_the_predicted_distribution() -> None:
    prediction = bar(2, 3, dy=2)
    samples = prediction.sample(3000, torch.Generator().manual_seed(1))
    assert samples.shape == (3000, 2, 3, 2)
    for at in np.ndindex(2, 3, 2):
        assert stats.kstest(samples[:, *at].numpy(), Reference(prediction, at).cdf).pvalue > 1e-3
    z = torch.randn(3, 2, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    torch.testing.assert_close(
        torch.special.ndtr(z).expand(2, 3, 2), prediction.cumulative(draw(prediction, z[:, 0], z))
    )


def test_outputs_are_independent_and_scaled() -> None:
    prediction = bar(4, 3, dy=2)
    y = torch.randn(4, 3, 2, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    single = [Bar(*(t[:, :, i : i + 1] for t in prediction.tensors().values())) for i in range(2)]
    expected = sum(one.log_likelihood(y[..., i : i + 1]) for i, one in enumerate(single))
    torch.testing.assert_close(prediction.log_likelihood(y), expected)
    moved = Bar(prediction.bars, prediction.centre + 3, prediction.scale * 5)
    torch.testing.assert_close(moved.log_likelihood(3 + 5 * y), prediction.log_likelihood(y) - 2 * math.log(5))
    torch.testing.assert_close(moved.mean, 3 + 5 * prediction.mean)
    torch.testing.assert_close(moved.quantile(0.9), 3 + 5 * prediction.quantile(0.9))


def test_the_mean_of_sampled_histograms_is_a_histogram() -> None:
    by_sample = bar(2, 3, 5)
    mixed = mix_samples(by_sample)
    y = torch.randn(2, 3, 1, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    expected = by_sample.log_likelihood(y.unsqueeze(2)).exp().mean(2)
    torch.testing.assert_close(mixed.log_likelihood(y).exp(), expected)


def test_gradients_can_be_computed_after_an_evaluation_in_inference_mode() -> None:
    y = torch.zeros(1, 1, 1, dtype=torch.float64)
    with torch.inference_mode():
        bar(1, 1, buckets=77).scores(y)
    raw = torch.zeros(1, 1, 77, dtype=torch.float64, requires_grad=True)
    prediction = Bar.from_raw(raw, 1, HeadSettings(buckets=77))
    (prediction.loss(y) + prediction.mean.sum() + prediction.cumulative(y + 0.1).sum()).sum().backward()
    assert raw.grad is not None and raw.grad.isfinite().all()


@pytest.mark.parametrize("y", [0.0, 50.0, -1e4])
@pytest.mark.parametrize("logit", [0.0, 1e4])
def test_gradients_are_finite_for_distant_outputs_and_extreme_logits(y: float, logit: float) -> None:
    raw = torch.full((1, 1, 100), -logit)
    raw[..., 40] = logit
    raw.requires_grad_()
    loss = Bar.from_raw(raw, 1).loss(torch.full((1, 1, 1), y))
    loss.sum().backward()
    assert loss.isfinite().all() and raw.grad is not None and raw.grad.isfinite().all()
    scores = Bar.from_raw(raw.detach(), 1).scores(torch.full((1, 1, 1), y))
    assert all(score.isfinite().all() for score in scores.values())


def test_the_loss_of_likelihood_by_discretisation_is_the_one_in_the_docstring_of_bar() -> None:
    """The predictions have the exact bucket masses of N(m, s²). The loss is averaged over quantiles of m, for outputs
    with variance 1."""
    s, k, count = 0.2, 100, 20_000
    mean = torch.tensor(stats.norm.ppf((np.arange(count) + 0.5) / count) * math.sqrt(1 - s**2)).unsqueeze(-1)
    edges = torch.tensor(stats.norm.ppf(np.arange(k + 1) / k) * math.sqrt(3))
    masses = torch.special.ndtr((edges - mean) / s).diff()
    prediction = Bar(masses.clamp_min(1e-300).log().unsqueeze(1), torch.zeros_like(mean), torch.ones_like(mean))
    middles = torch.cat([edges[1:2] - 0.1, (edges[1:-2] + edges[2:-1]) / 2, edges[-2:-1] + 0.1])
    log_densities = torch.stack([prediction.log_likelihood(y.expand_as(mean)) for y in middles], -1)
    loss = -0.5 * math.log(2 * math.pi * math.e * s**2) - (masses * log_densities).sum(-1).mean()
    assert loss.item() == pytest.approx(0.0036, abs=5e-5)
