"""What point-process draws, against closed forms and distributions of SciPy."""

import math

import numpy as np
import pytest
import torch
from scipy import stats

from iclbench.config.resolution import TaskConfig
from iclbench.core.episodes import Episodes
from iclbench.core.errors import UsageError
from iclbench.core.events import GAP, MARK, TIME
from iclbench.core.settings import validate
from iclbench.evaluation.prompts import PromptSet
from iclbench.families.events.point_process import PointProcess, PointProcessParameters
from iclbench.families.events.processes import HAWKES, KINDS, SHORTEST_GAP
from iclbench.families.request import Request

SMALLEST_P = 1e-3


def family(*kinds: str, **parameters: object) -> PointProcess:
    given = {"kinds": kinds, **parameters} if kinds else parameters
    return PointProcess(validate(PointProcessParameters, given, "test"))


def draw(of: PointProcess, episodes: int, points: int, seed: int = 0, **options: object) -> Episodes:
    return of.sample(Request(episodes, points, torch.Generator().manual_seed(seed), **options))


def columns(episodes: Episodes) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Gaps, marks and times, `(episodes, points)`."""
    y = episodes.context.y.double().numpy()
    return y[..., GAP], y[..., MARK].astype(int), y[..., TIME]


def truth_of(episodes: Episodes) -> dict[str, np.ndarray]:
    return {name: tensor.numpy() for name, tensor in episodes.truth.items()}


def assert_mean(values: np.ndarray, expected: float = 0.0) -> None:
    """To four standard errors."""
    assert abs(values.mean() - expected) < 4 * values.std() / math.sqrt(len(values))


def test_a_stationary_hawkes_process_has_the_mean_rates_of_its_closed_form() -> None:
    """(I - A)^-1 base, by mark. Weighted by the rates, so that the matrix of another episode, or its transpose, cannot
    average out."""
    window = 10
    episodes = draw(family("hawkes", burn_in=True), 3000, 250)
    truth, (_, marks, times) = truth_of(episodes), columns(episodes)
    assert (times[:, -1] > window).all(), "all events of the window are there"
    rates = np.linalg.solve(np.eye(3) - truth["branching"], truth["base"][..., None])[..., 0]
    for mark in range(3):
        counts = ((times < window) & (marks == mark)).sum(1)
        assert_mean(counts / window - rates[:, mark])
        assert_mean((counts / window - rates[:, mark]) * rates[:, mark])


@pytest.mark.slow
def test_from_an_empty_past_the_first_events_of_a_hawkes_process_come_more_slowly() -> None:
    """E N(T) = rate (T - rho / ((1 - rho) decay) (1 - exp(-(1 - rho) decay T))), the solution of a linear equation."""
    rho, decay, base, window = 0.5, 0.5, 0.3, 20
    of = family("hawkes", marks=1, radius=(rho, rho), decay=(decay, decay), base=(base, base))
    times = columns(draw(of, 20_000, 80))[2]
    assert (times[:, -1] > window).all()
    low = rho / ((1 - rho) * decay * window) * (1 - math.exp(-(1 - rho) * decay * window))
    assert 0.09 < low < 0.12
    assert_mean((times < window).sum(1), base / (1 - rho) * window * (1 - low))


def test_the_past_of_a_hawkes_process_leaves_its_stationary_excitation() -> None:
    """A (I - A)^-1 base, whatever the decay."""
    truth = truth_of(draw(family("hawkes", burn_in=True), 4000, 1))
    rates = np.linalg.solve(np.eye(3) - truth["branching"], truth["base"][..., None])
    expected = (truth["branching"] @ rates)[..., 0]
    for mark in range(3):
        assert_mean(truth["excitation"][:, mark] - expected[:, mark])
        assert_mean((truth["excitation"][:, mark] - expected[:, mark]) * expected[:, mark])
    assert not truth_of(draw(family("hawkes"), 5, 1))["excitation"].any()


def test_the_past_of_a_hawkes_process_has_the_clusters_of_its_decay() -> None:
    """The variance of X is rho² decay rate / (2 (1 - rho)): d E X² / dt = 0 with dX = -decay X dt + rho decay dN."""
    rho, decay, base = 0.6, 3.0, 0.4
    of = family("hawkes", marks=1, radius=(rho, rho), decay=(decay, decay), base=(base, base), burn_in=True)
    found, rate = truth_of(draw(of, 20_000, 1))["excitation"][:, 0], base / (1 - rho)
    assert_mean(found, rho * rate)
    assert_mean((found - rho * rate) ** 2, rho**2 * decay * rate / (2 * (1 - rho)))


def test_gaps_of_poisson_and_renewal_processes_have_their_distribution() -> None:
    gaps = columns(draw(family("poisson", rate=(1.7, 1.7)), 300, 50))[0]
    assert stats.kstest(gaps.ravel(), stats.expon(scale=1 / 1.7).cdf).pvalue > SMALLEST_P
    gaps = columns(draw(family("renewal", sigma=(0.8, 0.8)), 300, 50))[0]
    of_mean_one = stats.lognorm(0.8, scale=math.exp(-(0.8**2) / 2))
    assert of_mean_one.mean() == pytest.approx(1)
    assert stats.kstest(gaps.ravel(), of_mean_one.cdf).pvalue > SMALLEST_P
    assert abs(np.corrcoef(gaps[:, 0], gaps[:, 1])[0, 1]) < 0.25, "gaps are independent"


def test_gaps_of_a_self_correcting_process_have_a_gompertz_distribution() -> None:
    """A rate of u exp(trend s) is that of Gompertz's law with shape u / trend; u from the number of events and the
    time."""
    trend, alpha = 0.7, 1.2
    gaps, _, times = columns(draw(family("self-correcting", trend=(trend, trend), alpha=(alpha, alpha)), 400, 30))
    before = np.exp(trend * (times - gaps) - alpha * np.arange(30))
    below = stats.gompertz(before / trend, scale=1 / trend).cdf(gaps)
    for n in (0, 1, 29):
        assert stats.kstest(below[:, n], "uniform").pvalue > SMALLEST_P
    assert stats.kstest(below.ravel(), "uniform").pvalue > SMALLEST_P


def test_the_first_gaps_of_a_hawkes_process_have_their_distribution() -> None:
    """The first is exponential; the second has the rate of the bases and of the children of the first event."""
    episodes = draw(family("hawkes", radius=(0.8, 0.8)), 4000, 2)
    truth, (gaps, marks, _) = truth_of(episodes), columns(episodes)
    total = truth["base"].sum(1)
    assert stats.kstest(gaps[:, 0] * total, "expon").pvalue > SMALLEST_P
    children = truth["branching"][np.arange(4000), :, marks[:, 0]].sum(1)
    integrated = total * gaps[:, 1] + children * (1 - np.exp(-truth["decay"] * gaps[:, 1]))
    assert stats.kstest(integrated, "expon").pvalue > SMALLEST_P
    assert_mean((integrated - 1) * children)
    hot = truth["decay"] * np.exp(-truth["decay"] * gaps[:, 1])
    rates = truth["base"] + truth["branching"][np.arange(4000), :, marks[:, 0]] * hot[:, None]
    for n, expected in enumerate((truth["base"], rates)):
        expected = expected / expected.sum(1, keepdims=True)
        for mark in range(3):
            assert_mean(((marks[:, n] == mark) - expected[:, mark]) * expected[:, mark])


@pytest.mark.parametrize("kind", KINDS[:3])
def test_marks_are_the_markov_chain_of_the_truth_that_begins_uniformly(kind: str) -> None:
    episodes = draw(family(kind), 2000, 12)
    chain, marks = truth_of(episodes)["chain"], columns(episodes)[1]
    assert stats.chisquare(np.bincount(marks[:, 0], minlength=3)).pvalue > SMALLEST_P
    for row in range(3):
        assert_mean(((marks[:, 0] == 1) - 1 / 3) * chain[:, row, 1])
    rows = np.arange(2000)[:, None]
    expected = chain[rows, marks[:, :-1]]
    found = np.eye(3)[marks[:, 1:]]
    # Weighted by the probabilities, so that another row or column cannot average out.
    for mark in range(3):
        assert_mean(((found - expected) * expected[..., [mark]]).mean(1)[:, mark])
    np.testing.assert_allclose(chain.sum(-1), 1)
    assert stats.kstest(chain[:, 1, 2], stats.beta(1, 2).cdf).pvalue > SMALLEST_P


def test_kinds_and_parameters_have_their_distribution() -> None:
    truth = truth_of(draw(family(), 4000, 1))
    assert stats.chisquare(np.bincount(truth["kind"], minlength=4)).pvalue > SMALLEST_P
    for name, low, high in (("sigma", 0.3, 1.5), ("trend", 0.5, 1.5), ("alpha", 0.5, 1.5)):
        assert stats.kstest(truth[name], stats.uniform(low, high - low).cdf).pvalue > SMALLEST_P
    for name, low, high in (("rate", 0.5, 2), ("base", 0.1, 0.5), ("decay", 0.5, 4)):
        assert stats.kstest(truth[name].ravel(), stats.loguniform(low, high).cdf).pvalue > SMALLEST_P
    radius = np.abs(np.linalg.eigvals(truth["branching"])).max(-1)
    assert stats.kstest(radius, stats.uniform(0.2, 0.6).cdf).pvalue > SMALLEST_P
    independent = np.corrcoef([truth[name] for name in ("kind", "rate", "sigma", "trend", "alpha", "decay")])
    assert np.abs(independent - np.eye(6)).max() < 0.08


def prompts(episodes: int) -> Episodes:
    config = TaskConfig(name="test", card="", family="point-process", code=1, head="event", points=8, episodes=episodes)
    return PromptSet(config, "smoke").episodes


def in_every_part(u: np.ndarray) -> bool:
    """Whether n numbers in [0, 1) have one in each of n equal parts."""
    return bool((np.sort(np.floor(u * len(u))) == np.arange(len(u))).all())


def test_frozen_prompts_are_stratified_by_kind_and_parameters() -> None:
    episodes = prompts(64)
    truth = truth_of(episodes)
    assert (np.bincount(truth["kind"]) == 16).all() and not (np.diff(truth["kind"]) >= 0).all()
    for kind in range(4):
        own = truth["kind"] == kind
        assert in_every_part(np.log(truth["rate"][own] / 0.5) / np.log(4))
        assert in_every_part(truth["sigma"][own] / 1.2 - 0.25)
    assert abs(np.corrcoef(truth["trend"], truth["alpha"])[0, 1]) < 0.4, "strata are paired at random"
    strata = PointProcess(PointProcessParameters()).strata(episodes)
    assert list(strata) == list(KINDS) and all(within.sum() == 16 for within in strata.values())


@pytest.mark.slow
def test_stratified_draws_have_the_distribution_of_free_ones() -> None:
    draws = [family().sample_prompts(Request(6, 1, torch.Generator().manual_seed(seed))) for seed in range(200)]
    for place in (0, 5):  # every place of a block, not only all of them together
        kinds = [int(d.truth["kind"][place]) for d in draws]
        rates = [float(d.truth["rate"][place]) for d in draws]
        assert stats.chisquare(np.bincount(kinds, minlength=4)).pvalue > SMALLEST_P
        assert stats.kstest(rates, stats.loguniform(0.5, 2).cdf).pvalue > SMALLEST_P


def test_the_first_64_prompts_of_a_larger_set_are_the_smaller_set() -> None:
    larger, again, smaller = prompts(130), prompts(130), prompts(64)
    for name, tensor in larger.tensors().items():
        assert torch.equal(tensor, again.tensors()[name])
        assert torch.equal(tensor[:64], smaller.tensors()[name])


def test_sequences_of_another_length_are_of_the_same_processes() -> None:
    short, long = (draw(family(), 20, points, shift=f"points-{points}").truth for points in (5, 30))
    assert all(torch.equal(short[name], long[name]) for name in short)


def test_gaps_are_positive_and_finite_and_times_their_sums() -> None:
    hard = family(sigma=(5.0, 5.0), rate=(1e3, 1e3), alpha=(10.0, 10.0), trend=(0.01, 100.0), radius=(0.0, 0.0))
    for of, scale in ((family(), 1), (hard, 1), (hard, 1e6), (hard, 1e-6)):
        y = draw(of, 200, 64, shift=f"time-scale-{scale:f}").context.y
        assert y.dtype == torch.float32 and y.isfinite().all() and y[..., GAP].log().isfinite().all()
        assert (y[..., GAP] >= 0.999 * scale * SHORTEST_GAP).all()
        np.testing.assert_allclose(y[..., TIME], y[..., GAP].double().cumsum(1), rtol=1e-5)
        assert (y[..., TIME].diff(dim=1) >= 0).all()


def test_one_mark_alone() -> None:
    episodes = draw(family(marks=1), 40, 5)
    assert not columns(episodes)[1].any() and (episodes.truth["chain"] == 1).all()


def test_time_is_scaled_by_its_shift() -> None:
    plain, slow = (draw(family(burn_in=True), 64, 9, shift=shift) for shift in ("none", "time-scale-4"))
    for found, scaled, factor in zip(columns(plain), columns(slow), (4, 1, 4), strict=True):
        np.testing.assert_allclose(scaled, factor * found, rtol=1e-6)
    for name in ("rate", "trend", "initial", "base", "decay", "excitation"):
        assert torch.equal(slow.truth[name], plain.truth[name] / 4)
    for name in ("alpha", "sigma", "branching", "chain", "kind"):
        assert torch.equal(slow.truth[name], plain.truth[name])


def test_shifts_of_the_kind() -> None:
    for index, kind in enumerate(KINDS):
        assert (draw(family("poisson", "hawkes"), 20, 2, shift=f"only-{kind}").truth["kind"] == index).all()
    truth = truth_of(draw(family(), 20, 2, shift="branching-1.5+time-scale-2"))
    assert (truth["kind"] == HAWKES).all()
    np.testing.assert_allclose(np.abs(np.linalg.eigvals(truth["branching"])).max(-1), 1.5)


@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        ({"rate": (2.0, 0.5)}, "smaller number first"),
        ({"radius": (0.2, 1.0)}, "radius"),
        ({"rate": (0.0, 1.0)}, "rate"),
        ({"kinds": ("weibull",)}, "kinds"),
        ({"kinds": ()}, "kinds"),
        ({"kinds": ("poisson", "poisson")}, "every kind once"),
        ({"marks": 0}, "marks"),
    ],
)
def test_impossible_parameters_are_refused(parameters: dict, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        family(**parameters)


@pytest.mark.parametrize(
    ("shift", "words"),
    [
        ("time-scale", "needs a number"),
        ("time-scale-10000000", "time scale from"),
        ("branching-11", "at most 10"),
        ("only-hawkes+branching-0.9", "both set the kinds"),
        ("only-poisson+only-hawkes", "both set the kinds"),
        ("orthants", "does not apply"),
    ],
)
def test_impossible_shifts_are_refused(shift: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        draw(family(), 2, 3, shift=shift)


def test_an_explosive_process_has_no_stationary_past() -> None:
    with pytest.raises(UsageError, match="must be stationary"):
        draw(family(burn_in=True), 2, 3, shift="branching-1.5")
