"""Distributions of the next event, compared with SciPy, numerical integration and explicit sums."""

import numpy as np
import pytest
import torch
from scipy import integrate, stats

from iclbench.core.events import CENSORED, HazardEvent, LogNormalEvent, MixedEvent
from iclbench.core.predictions import HeadSettings

GAPS = torch.tensor([0.01, 0.3, 1.0, 4.0], dtype=torch.float64)


def lognormal(shape=(4,), components=3, marks=3, seed=0):
    draw = torch.Generator().manual_seed(seed)
    normal = [torch.randn(*shape, n, generator=draw, dtype=torch.float64) for n in (components, components, marks)]
    scales = 0.3 + torch.rand(*shape, components, generator=draw, dtype=torch.float64)
    return LogNormalEvent(normal[0], normal[1], scales, normal[2])


def hazard(decay, base=(0.2, 0.5, 0.1), excited=(1.0, 0.3, 0.0), count=4):
    rows = [torch.tensor(values, dtype=torch.float64).expand(count, -1) for values in (base, excited)]
    return HazardEvent(*rows, torch.full((count,), decay, dtype=torch.float64))


# Rates that decay, that are constant with excitation, that are constant without excitation (Poisson), and that grow
# from a base of 0.
HAZARDS = [hazard(2.0), hazard(0.0), hazard(2.0, excited=(0.0, 0.0, 0.0)), hazard(-0.7, base=(0.0,) * 3)]
HAZARD_NAMES = ["excited", "flat", "poisson", "growing"]


def test_the_lognormal_mixture_equals_scipy():
    prediction = lognormal()
    weights = prediction.logits.softmax(-1).numpy()
    frozen = stats.lognorm(s=prediction.scales.numpy(), scale=np.exp(prediction.locs.numpy()))
    gaps = GAPS.numpy()[:, None]
    np.testing.assert_allclose(prediction.log_density(GAPS), np.log((weights * frozen.pdf(gaps)).sum(-1)), rtol=1e-10)
    np.testing.assert_allclose(prediction.log_survival(GAPS), np.log((weights * frozen.sf(gaps)).sum(-1)), rtol=1e-10)
    np.testing.assert_allclose(prediction.mean(), (weights * frozen.mean()).sum(-1), rtol=1e-10)


@pytest.mark.parametrize("level", [0.05, 0.5, 0.95])
@pytest.mark.parametrize("prediction", [lognormal(), *HAZARDS], ids=["lognormal", *HAZARD_NAMES])
def test_quantiles_invert_the_survival_function(prediction, level):
    below = -torch.expm1(prediction.log_survival(prediction.quantile(level)))
    torch.testing.assert_close(below, torch.full_like(below, level), rtol=0, atol=1e-9)


@pytest.mark.parametrize("prediction", [lognormal(), HAZARDS[0]], ids=["lognormal", "excited"])
def test_the_interval_with_probability_1_extends_from_0_to_infinity(prediction):
    low, high = prediction.interval(1.0)
    assert low.shape == high.shape == (4, 1)
    assert bool((low == 0).all()) and bool(high.isposinf().all())
    assert bool((prediction.interval(0.999)[1] < high).all())


@pytest.mark.parametrize("prediction", HAZARDS, ids=HAZARD_NAMES)
def test_hazard_distributions_equal_the_numerical_integrals_of_their_rates(prediction):
    def rate(s):
        decayed = np.exp(-float(prediction.decay[0]) * s)
        return prediction.base[0].numpy() + prediction.excited[0].numpy() * decayed

    for index, gap in enumerate(GAPS.tolist()):
        total = integrate.quad(lambda s: rate(s).sum(), 0, gap)[0]
        assert prediction.compensator(GAPS)[index] == pytest.approx(total, rel=1e-9)
        assert prediction.log_density(GAPS)[index] == pytest.approx(np.log(rate(gap).sum()) - total, rel=1e-9)
        np.testing.assert_allclose(prediction.log_marks(GAPS)[index].exp(), rate(gap) / rate(gap).sum(), rtol=1e-9)

    def survival(s):
        return float(prediction.log_survival(torch.full((4,), s, dtype=torch.float64))[0].exp())

    mean = integrate.quad(survival, 0, 60, limit=400)[0]
    assert prediction.mean()[0] == pytest.approx(mean, rel=1e-6)
    marks = [integrate.quad(lambda s, k=k: survival(s) * rate(s)[k], 0, 60, limit=400)[0] for k in range(3)]
    np.testing.assert_allclose(prediction.mark_probabilities()[0], marks, rtol=1e-6)


def test_a_poisson_process_has_exponential_gaps():
    frozen = stats.expon(scale=1 / 0.8)
    prediction = hazard(2.0, excited=(0.0, 0.0, 0.0))
    np.testing.assert_allclose(prediction.log_density(GAPS), frozen.logpdf(GAPS.numpy()), rtol=1e-12)
    np.testing.assert_allclose(prediction.mean(), frozen.mean(), rtol=1e-12)
    np.testing.assert_allclose(prediction.quantile(0.9), frozen.ppf(0.9), rtol=1e-9)


@pytest.mark.parametrize("prediction", [lognormal(), *HAZARDS[:1]], ids=["lognormal", "hazard"])
def test_samples_have_the_predicted_distributions_of_gap_and_mark(prediction):
    draws = prediction.sample(4000, torch.Generator().manual_seed(1))
    assert draws.shape == (4000, 4, 2)
    for position in range(2):
        repeated = prediction[torch.full((4000,), position)]
        below = -torch.expm1(repeated.log_survival(draws[:, position, 0]))
        assert stats.kstest(below.numpy(), "uniform").pvalue > 1e-3
        counts = np.bincount(draws[:, position, 1].long().numpy(), minlength=3)
        expected = prediction.mark_probabilities()[position].numpy() * 4000
        assert stats.chisquare(counts, expected).pvalue > 1e-3


def test_scores_equal_their_definitions():
    prediction = lognormal()
    y = torch.stack([GAPS, torch.tensor([0.0, 1.0, 2.0, 1.0], dtype=torch.float64), GAPS.cumsum(0)], -1)
    scores = prediction.scores(y)
    mark = -prediction.marks.log_softmax(-1)[range(4), [0, 1, 2, 1]]
    torch.testing.assert_close(scores["nll_mark"], mark)
    torch.testing.assert_close(scores["nll"], -prediction.log_density(GAPS) + mark)
    torch.testing.assert_close(scores["squared_error"], (prediction.mean() - GAPS).square())
    torch.testing.assert_close(scores["absolute_error"], (prediction.quantile(0.5) - GAPS).abs())
    low, high = prediction.interval(0.9)
    inside = (low.squeeze(-1) < GAPS) & (high.squeeze(-1) > GAPS)
    assert scores["covered_90"].tolist() == inside.double().tolist()
    assert scores["accuracy"].tolist() == (prediction.marks.argmax(-1) == torch.tensor([0, 1, 2, 1])).double().tolist()
    assert set(scores) == set(prediction.metrics)


def test_changing_the_unit_of_time_shifts_the_log_likelihood_by_the_logarithm_of_the_factor():
    prediction = lognormal()
    slower = LogNormalEvent(prediction.logits, prediction.locs + np.log(60.0), prediction.scales, prediction.marks)
    y = torch.stack([GAPS, torch.zeros(4, dtype=torch.float64), GAPS], -1)
    in_seconds = torch.stack([60 * GAPS, torch.zeros(4, dtype=torch.float64), 60 * GAPS], -1)
    torch.testing.assert_close(prediction.log_likelihood(y) - np.log(60.0), slower.log_likelihood(in_seconds))


def test_scores_of_sequences_equal_loops_that_follow_the_released_code():
    prediction = lognormal((2, 5))
    gaps = torch.rand(2, 5, dtype=torch.float64) + 0.1
    marks = torch.randint(3, (2, 5)).double()
    marks[0, 4] = CENSORED
    y = torch.stack([gaps, marks, gaps.cumsum(1)], -1)
    mask = torch.ones(2, 5, dtype=torch.bool)
    mask[1, 3:] = False
    scored = mask & (marks != CENSORED)
    scores = prediction.sequence_scores(y, scored, mask)
    nll, survival, mean = -prediction.log_likelihood(y), -prediction.log_survival(gaps), prediction.mean()
    cdf = stats.lognorm(s=prediction.scales.numpy(), scale=np.exp(prediction.locs.numpy())).cdf(gaps.numpy()[..., None])
    released = -np.log((prediction.logits.softmax(-1).numpy() * (1 - cdf.clip(1e-5, 1 - 1e-5))).sum(-1))
    for row, events in enumerate([4, 3]):
        last = events - 1
        published = sum(nll[row, i] for i in range(1, last)) + released[row, last]
        published -= prediction.marks.log_softmax(-1)[row, last, int(marks[row, last])]
        assert scores["nll_published"][row] == pytest.approx(float(published))
        assert scores["squared_sum_error"][row] == pytest.approx(float((mean - gaps)[row, 1:events].sum() ** 2))
    assert scores["nll_open"][0] == pytest.approx(float(survival[0, 4]))
    assert torch.isnan(scores["nll_open"][1])


def test_the_published_likelihood_clamps_the_survival_as_in_the_released_code():
    zeros = torch.zeros(1, 2, 1)
    narrow = LogNormalEvent(zeros, zeros, zeros + 0.1, zeros)
    y, mask = torch.tensor([[[1.0, 0.0, 1.0], [1e6, 0.0, 1e6]]]), torch.ones(1, 2, dtype=torch.bool)
    scores = narrow.sequence_scores(y, mask, mask)
    assert scores["nll_published"].item() == pytest.approx(-np.log(1e-5), rel=1e-2)
    assert -narrow.log_survival(y[..., 0])[0, 1] > 1000


def test_a_censored_event_is_scored_by_the_survival_probability_of_its_interval():
    prediction = lognormal()
    y = torch.stack([GAPS, torch.full((4,), float(CENSORED), dtype=torch.float64), GAPS], -1)
    torch.testing.assert_close(prediction.loss(y), -prediction.log_survival(GAPS))


def test_a_mixed_prediction_uses_the_scores_and_samples_of_the_selected_prediction_at_each_position():
    renewal = torch.tensor([True, False, False, True])
    prediction = MixedEvent(lognormal(), HAZARDS[0], renewal)
    y = torch.stack([GAPS, torch.ones(4, dtype=torch.float64), GAPS], -1)
    for name, values in prediction.scores(y).items():
        first, second = prediction.lognormal.scores(y)[name], prediction.hazard.scores(y)[name]
        assert values.tolist() == torch.where(renewal, first, second).tolist()
    draws = prediction.sample(
        4, torch.Generator().manual_seed(0)
    )  # as many samples as positions, to detect swapped axes
    assert draws.shape == (4, 4, 2)
    renewals = prediction.lognormal.sample_gaps(4, torch.Generator().manual_seed(0))
    torch.testing.assert_close(draws[:, renewal, 0], renewals[:, renewal])


def test_a_long_gap_has_density_0_if_a_growing_rate_overflows():
    y = torch.tensor([[2000.0, 1.0, 2000.0]], dtype=torch.float64).expand(4, -1)
    scores = hazard(-0.7, base=(0.0,) * 3, excited=(1.0, 0.3, 0.1)).scores(y)
    assert torch.isposinf(scores["nll_time"]).all()
    assert scores["nll_mark"].isfinite().all()


def test_predictions_are_built_from_raw_outputs():
    raw = torch.linspace(-30, 30, 3 * 2 + 4).expand(2, 5, -1)
    settings = HeadSettings(components=2, floor=0.01)
    assert LogNormalEvent.raw_dim(4, settings) == raw.shape[-1]
    prediction = LogNormalEvent.from_raw(raw, 4, settings)
    assert prediction.locs.shape == (2, 5, 2)
    assert prediction.marks.shape == (2, 5, 4)
    assert (prediction.scales > 0.01).all()
    # With a clipped softplus, large scales would be impossible.
    assert LogNormalEvent.from_raw(torch.full((1, 10), 500.0), 4, settings).scales.max() > 499


def test_gradients_are_finite_if_padding_has_gap_0():
    raw = torch.randn(1, 2, LogNormalEvent.raw_dim(3), requires_grad=True)
    loss = LogNormalEvent.from_raw(raw, 3).loss(torch.tensor([[[0.5, 1.0, 0.5], [0.0, 0.0, 0.0]]]))
    (loss * torch.tensor([[1.0, 0.0]])).sum().backward()
    assert raw.grad.isfinite().all()


def test_scores_of_long_tails_are_finite():
    prediction = LogNormalEvent(torch.zeros(1, 1), torch.zeros(1, 1), torch.full((1, 1), 20.0), torch.zeros(1, 2))
    scores = prediction.scores(torch.tensor([[1e-6, 1.0, 1e-6]]))
    assert all(values.isfinite().all() for values in scores.values())
