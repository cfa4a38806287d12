"""Episodes of the family `point-process` against closed forms and distributions in SciPy."""

import math

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from scipy import stats

from iclbench.config.resolution import TaskConfig
from iclbench.core.episodes import Episodes
from iclbench.core.events import GAP, MARK, TIME
from iclbench.evaluation.prompts import PromptSet
from iclbench.families.events.point_process import PointProcess, PointProcessParameters
from iclbench.families.events.processes import HAWKES, KINDS, SHORTEST_GAP
from iclbench.families.request import Request
from tests.families.sampling import is_stratified
from tests.refusals import refused

SMALLEST_P = 1e-3


def build_family(*kinds: str, **parameters: object) -> PointProcess:
    values = {"kinds": kinds, **parameters} if kinds else parameters
    return PointProcess(PointProcessParameters.model_validate(values))


def draw(family: PointProcess, episodes: int, points: int, seed: int = 0, **options: object) -> Episodes:
    return family.sample(Request(episodes, points, torch.Generator().manual_seed(seed), **options))


def gaps_marks_times(episodes: Episodes) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return gaps, marks and times, `(episodes, points)`."""
    y = episodes.context.y.double().numpy()
    return y[..., GAP], y[..., MARK].astype(int), y[..., TIME]


def truth_of(episodes: Episodes) -> dict[str, np.ndarray]:
    return {name: tensor.numpy() for name, tensor in episodes.truth.items()}


def assert_mean(values: np.ndarray, expected: float = 0.0) -> None:
    """Assert that the mean equals `expected` within four standard errors."""
    assert abs(values.mean() - expected) < 4 * values.std() / math.sqrt(len(values))


def test_mean_rates_of_stationary_hawkes_processes_equal_the_closed_form() -> None:
    """The rates are (I - A)^-1 base. Deviations are weighted by the rates, because unweighted deviations could average
    to 0 if the matrix were transposed or taken from another episode."""
    window = 10
    episodes = draw(build_family("hawkes", burn_in=True), 3000, 250)
    truth, (_, marks, times) = truth_of(episodes), gaps_marks_times(episodes)
    assert (times[:, -1] > window).all(), "sequences are longer than the window"
    rates = np.linalg.solve(np.eye(3) - truth["branching"], truth["base"][..., None])[..., 0]
    for mark in range(3):
        counts = ((times < window) & (marks == mark)).sum(1)
        assert_mean(counts / window - rates[:, mark])
        assert_mean((counts / window - rates[:, mark]) * rates[:, mark])


@pytest.mark.slow
def test_hawkes_processes_without_burn_in_have_fewer_events_at_first() -> None:
    """A linear differential equation gives
    E N(T) = rate (T - rho / ((1 - rho) decay) (1 - exp(-(1 - rho) decay T))).
    """
    rho, decay, base, window = 0.5, 0.5, 0.3, 20
    family = build_family("hawkes", marks=1, radius=(rho, rho), decay=(decay, decay), base=(base, base))
    times = gaps_marks_times(draw(family, 20_000, 80))[2]
    assert (times[:, -1] > window).all()
    deficit = rho / ((1 - rho) * decay * window) * (1 - math.exp(-(1 - rho) * decay * window))
    assert 0.09 < deficit < 0.12
    assert_mean((times < window).sum(1), base / (1 - rho) * window * (1 - deficit))


def test_burn_in_gives_hawkes_processes_the_stationary_mean_excitation() -> None:
    """The mean excitation is A (I - A)^-1 base, whatever the decay."""
    truth = truth_of(draw(build_family("hawkes", burn_in=True), 4000, 1))
    rates = np.linalg.solve(np.eye(3) - truth["branching"], truth["base"][..., None])
    expected = (truth["branching"] @ rates)[..., 0]
    for mark in range(3):
        assert_mean(truth["excitation"][:, mark] - expected[:, mark])
        assert_mean((truth["excitation"][:, mark] - expected[:, mark]) * expected[:, mark])
    assert not truth_of(draw(build_family("hawkes"), 5, 1))["excitation"].any()


def test_burn_in_gives_hawkes_processes_the_stationary_variance() -> None:
    """The excitation X follows dX = -decay X dt + rho decay dN. With d E X² / dt = 0, its variance is
    rho² decay rate / (2 (1 - rho)).
    """
    rho, decay, base = 0.6, 3.0, 0.4
    family = build_family("hawkes", marks=1, radius=(rho, rho), decay=(decay, decay), base=(base, base), burn_in=True)
    excitation, rate = truth_of(draw(family, 20_000, 1))["excitation"][:, 0], base / (1 - rho)
    assert_mean(excitation, rho * rate)
    assert_mean((excitation - rho * rate) ** 2, rho**2 * decay * rate / (2 * (1 - rho)))


def test_gaps_are_exponential_in_poisson_and_lognormal_in_renewal_processes() -> None:
    gaps = gaps_marks_times(draw(build_family("poisson", rate=(1.7, 1.7)), 300, 50))[0]
    assert stats.kstest(gaps.ravel(), stats.expon(scale=1 / 1.7).cdf).pvalue > SMALLEST_P
    gaps = gaps_marks_times(draw(build_family("renewal", sigma=(0.8, 0.8)), 300, 50))[0]
    expected_gaps = stats.lognorm(0.8, scale=math.exp(-(0.8**2) / 2))
    assert expected_gaps.mean() == pytest.approx(1)
    assert stats.kstest(gaps.ravel(), expected_gaps.cdf).pvalue > SMALLEST_P
    assert abs(np.corrcoef(gaps[:, 0], gaps[:, 1])[0, 1]) < 0.25, "gaps are independent"


def test_gaps_of_a_self_correcting_process_have_a_gompertz_distribution() -> None:
    """A rate of u exp(trend s) gives a Gompertz distribution with shape u / trend, where u depends on the number of
    events and the time."""
    trend, alpha = 0.7, 1.2
    gaps, _, times = gaps_marks_times(
        draw(build_family("self-correcting", trend=(trend, trend), alpha=(alpha, alpha)), 400, 30)
    )
    rate = np.exp(trend * (times - gaps) - alpha * np.arange(30))
    quantiles = stats.gompertz(rate / trend, scale=1 / trend).cdf(gaps)
    for n in (0, 1, 29):
        assert stats.kstest(quantiles[:, n], "uniform").pvalue > SMALLEST_P
    assert stats.kstest(quantiles.ravel(), "uniform").pvalue > SMALLEST_P


def test_the_first_two_gaps_of_a_hawkes_process_agree_with_its_rate() -> None:
    """The first gap is exponential. The rate during the second gap includes the excitation by the first event."""
    episodes = draw(build_family("hawkes", radius=(0.8, 0.8)), 4000, 2)
    truth, (gaps, marks, _) = truth_of(episodes), gaps_marks_times(episodes)
    total = truth["base"].sum(1)
    assert stats.kstest(gaps[:, 0] * total, "expon").pvalue > SMALLEST_P
    children = truth["branching"][np.arange(4000), :, marks[:, 0]].sum(1)
    integrated = total * gaps[:, 1] + children * (1 - np.exp(-truth["decay"] * gaps[:, 1]))
    assert stats.kstest(integrated, "expon").pvalue > SMALLEST_P
    assert_mean((integrated - 1) * children)
    kernel = truth["decay"] * np.exp(-truth["decay"] * gaps[:, 1])
    rates = truth["base"] + truth["branching"][np.arange(4000), :, marks[:, 0]] * kernel[:, None]
    for n, expected in enumerate((truth["base"], rates)):
        expected = expected / expected.sum(1, keepdims=True)
        for mark in range(3):
            assert_mean(((marks[:, n] == mark) - expected[:, mark]) * expected[:, mark])


@pytest.mark.parametrize("kind", KINDS[:3])
def test_marks_follow_the_true_markov_chain(kind: str) -> None:
    episodes = draw(build_family(kind), 2000, 12)
    chain, marks = truth_of(episodes)["chain"], gaps_marks_times(episodes)[1]
    assert stats.chisquare(np.bincount(marks[:, 0], minlength=3)).pvalue > SMALLEST_P
    for row in range(3):
        assert_mean(((marks[:, 0] == 1) - 1 / 3) * chain[:, row, 1])
    rows = np.arange(2000)[:, None]
    expected = chain[rows, marks[:, :-1]]
    indicators = np.eye(3)[marks[:, 1:]]
    # Deviations are weighted by the probabilities, since a wrong row or column could give a mean deviation of 0.
    for mark in range(3):
        assert_mean(((indicators - expected) * expected[..., [mark]]).mean(1)[:, mark])
    np.testing.assert_allclose(chain.sum(-1), 1)
    assert stats.kstest(chain[:, 1, 2], stats.beta(1, 2).cdf).pvalue > SMALLEST_P


def test_kinds_and_parameters_have_the_documented_distributions() -> None:
    truth = truth_of(draw(build_family(), 4000, 1))
    assert stats.chisquare(np.bincount(truth["kind"], minlength=4)).pvalue > SMALLEST_P
    for name, low, high in (("sigma", 0.3, 1.5), ("trend", 0.5, 1.5), ("alpha", 0.5, 1.5)):
        assert stats.kstest(truth[name], stats.uniform(low, high - low).cdf).pvalue > SMALLEST_P
    for name, low, high in (("rate", 0.5, 2), ("base", 0.1, 0.5), ("decay", 0.5, 4)):
        assert stats.kstest(truth[name].ravel(), stats.loguniform(low, high).cdf).pvalue > SMALLEST_P
    radius = np.abs(np.linalg.eigvals(truth["branching"])).max(-1)
    assert stats.kstest(radius, stats.uniform(0.2, 0.6).cdf).pvalue > SMALLEST_P
    correlations = np.corrcoef([truth[name] for name in ("kind", "rate", "sigma", "trend", "alpha", "decay")])
    assert np.abs(correlations - np.eye(6)).max() < 0.08


def frozen_episodes(episodes: int) -> Episodes:
    config = TaskConfig(name="test", card="", family="point-process", code=1, head="event", points=8, episodes=episodes)
    return PromptSet(config, "smoke").episodes


def test_frozen_prompts_are_stratified_by_kind_and_parameters() -> None:
    episodes = frozen_episodes(64)
    truth = truth_of(episodes)
    assert (np.bincount(truth["kind"]) == 16).all() and not (np.diff(truth["kind"]) >= 0).all()
    for kind in range(4):
        has_kind = truth["kind"] == kind
        assert is_stratified(np.log(truth["rate"][has_kind] / 0.5) / np.log(4))
        assert is_stratified(truth["sigma"][has_kind] / 1.2 - 0.25)
    assert abs(np.corrcoef(truth["trend"], truth["alpha"])[0, 1]) < 0.4, "strata are paired independently"
    strata = PointProcess(PointProcessParameters()).strata(episodes)
    assert list(strata) == list(KINDS) and all(members.sum() == 16 for members in strata.values())


@pytest.mark.slow
def test_stratified_episodes_have_the_distribution_of_independent_episodes() -> None:
    draws = [build_family().sample_prompts(Request(6, 1, torch.Generator().manual_seed(seed))) for seed in range(200)]
    for position in (0, 5):  # all positions of a block have the same distribution
        kinds = [int(d.truth["kind"][position]) for d in draws]
        rates = [float(d.truth["rate"][position]) for d in draws]
        assert stats.chisquare(np.bincount(kinds, minlength=4)).pvalue > SMALLEST_P
        assert stats.kstest(rates, stats.loguniform(0.5, 2).cdf).pvalue > SMALLEST_P


def test_a_larger_prompt_set_begins_with_the_smaller_one() -> None:
    larger, repeated, smaller = frozen_episodes(130), frozen_episodes(130), frozen_episodes(64)
    for name, tensor in larger.tensors().items():
        assert torch.equal(tensor, repeated.tensors()[name])
        assert torch.equal(tensor[:64], smaller.tensors()[name])


def test_processes_do_not_depend_on_the_length_of_the_sequences() -> None:
    short, long = (draw(build_family(), 20, points, shift=f"points-{points}").truth for points in (5, 30))
    assert all(torch.equal(short[name], long[name]) for name in short)


def test_gaps_are_positive_and_finite_and_times_are_their_sums() -> None:
    extreme = build_family(
        sigma=(5.0, 5.0), rate=(1e3, 1e3), alpha=(10.0, 10.0), trend=(0.01, 100.0), radius=(0.0, 0.0)
    )
    for family, scale in ((build_family(), 1), (extreme, 1), (extreme, 1e6), (extreme, 1e-6)):
        y = draw(family, 200, 64, shift=f"time-scale-{scale:f}").context.y
        assert y.dtype == torch.float32 and y.isfinite().all() and y[..., GAP].log().isfinite().all()
        assert (y[..., GAP] >= 0.999 * scale * SHORTEST_GAP).all()
        np.testing.assert_allclose(y[..., TIME], y[..., GAP].double().cumsum(1), rtol=1e-5)
        assert (y[..., TIME].diff(dim=1) >= 0).all()


def test_tasks_can_have_one_mark() -> None:
    episodes = draw(build_family(marks=1), 40, 5)
    assert not gaps_marks_times(episodes)[1].any() and (episodes.truth["chain"] == 1).all()


def test_the_shift_time_scale_multiplies_times() -> None:
    plain, slow = (draw(build_family(burn_in=True), 64, 9, shift=shift) for shift in ("none", "time-scale-4"))
    for values, scaled, factor in zip(gaps_marks_times(plain), gaps_marks_times(slow), (4, 1, 4), strict=True):
        np.testing.assert_allclose(scaled, factor * values, rtol=1e-6)
    for name in ("rate", "trend", "initial", "base", "decay", "excitation"):
        assert torch.equal(slow.truth[name], plain.truth[name] / 4)
    for name in ("alpha", "sigma", "branching", "chain", "kind"):
        assert torch.equal(slow.truth[name], plain.truth[name])


def test_shifts_set_the_kind() -> None:
    for index, kind in enumerate(KINDS):
        assert (draw(build_family("poisson", "hawkes"), 20, 2, shift=f"only-{kind}").truth["kind"] == index).all()
    truth = truth_of(draw(build_family(), 20, 2, shift="branching-1.5+time-scale-2"))
    assert (truth["kind"] == HAWKES).all()
    np.testing.assert_allclose(np.abs(np.linalg.eigvals(truth["branching"])).max(-1), 1.5)


@pytest.mark.parametrize(
    ("parameters", "name"),
    [
        ({"rate": (2.0, 0.5)}, "rate: "),
        ({"radius": (0.2, 1.0)}, "radius"),
        ({"rate": (0.0, 1.0)}, "rate"),
        ({"kinds": ("weibull",)}, "kinds"),
        ({"kinds": ()}, "kinds"),
        ({"kinds": ("poisson", "poisson")}, "kinds: "),
        ({"marks": 0}, "marks"),
    ],
)
def test_invalid_parameters_are_refused(parameters: dict, name: str) -> None:
    with pytest.raises(ValidationError, match=name):
        build_family(**parameters)


@pytest.mark.parametrize(
    ("shift", "code", "names"),
    [
        ("time-scale", "missing-value", ["'time-scale'"]),
        ("time-scale-10000000", "bad-value", ["'time-scale-10000000'", "1e-06", "1e+06"]),
        ("branching-11", "bad-value", ["'branching-11'", 10]),
        ("only-hawkes+branching-0.9", "conflict", ["'only-hawkes'", "'branching-0.9'", "the kinds"]),
        ("only-poisson+only-hawkes", "conflict", ["'only-poisson'", "'only-hawkes'", "the kinds"]),
        ("orthants", "not-applicable", ["'orthants'"]),
    ],
)
def test_invalid_shifts_are_refused(shift: str, code: str, names: list) -> None:
    with refused(code, *names):
        draw(build_family(), 2, 3, shift=shift)


def test_explosive_processes_are_refused_with_burn_in() -> None:
    with refused("bad-value", "'branching-1.5'", 0.95, "task.burn_in"):
        draw(build_family(burn_in=True), 2, 3, shift="branching-1.5")
