"""The predictor that infers point processes: against quadrature over their parameters, the oracle that is told them
where nothing is left to infer, and time rescaling."""

import math
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from scipy import integrate, stats

from iclbench.core.episodes import Episodes
from iclbench.core.errors import UsageError
from iclbench.core.events import GAP, MARK, EventPrediction
from iclbench.core.limits import TooLargeError
from iclbench.core.task import TaskFacts
from iclbench.estimators.poisson import MarkovMarks, Poisson
from iclbench.estimators.renewal import Renewal
from iclbench.families.events.bayes import BayesEvents, BayesEventsSettings
from iclbench.families.events.oracle import EventOracle
from iclbench.families.events.point_process import PointProcess
from iclbench.families.linear import Linear
from tests.families.events.test_point_process import SMALLEST_P, draw, family

POINTS = 9


def doubled(episodes: Episodes) -> Episodes:
    """Events in float64, which it then answers in."""
    return replace(episodes, context=episodes.context.to(dtype=torch.float64))


def bayes(of: PointProcess, shift: str = "none", **settings: int) -> BayesEvents:
    return BayesEvents(BayesEventsSettings(**settings), TaskFacts(family=of, shift=shift))


def rates(answer: EventPrediction, gap: float, episodes: int) -> np.ndarray:
    """Density of an event of every mark after this gap."""
    gaps = torch.full((episodes, POINTS), gap, dtype=torch.float64)
    return (answer.log_density(gaps).unsqueeze(-1) + answer.log_marks(gaps)).exp().numpy()


def chance_of_marks(marks: np.ndarray) -> np.ndarray:
    """What followed the last mark so far, and one of each, counted one by one."""
    counts = np.ones(3)
    for before, after in pairwise(marks.astype(int)):
        counts[after] += before == marks[-1]
    return counts / counts.sum()


def expected(kind: str, of: PointProcess, gaps: np.ndarray, next_gap: float) -> float:
    """Density of the next gap by quadrature over the parameters of the kind."""
    given, everything = of.parameters, np.append(gaps, next_gap)
    if kind == "poisson":  # in the logarithm of the rate, which is uniform

        def likelihood(log_rate: float, own: np.ndarray) -> float:
            return math.exp(len(own) * log_rate - math.exp(log_rate) * own.sum())

        low, high = np.log(given.rate)
        above, below = (
            integrate.quad(likelihood, low, high, args=(own,), epsrel=1e-9)[0] for own in (everything, gaps)
        )
    elif kind == "renewal":

        def likelihood(sigma: float, own: np.ndarray) -> float:
            return stats.lognorm.pdf(own, sigma, scale=math.exp(-(sigma**2) / 2)).prod()

        above, below = (
            integrate.quad(likelihood, *given.sigma, args=(own,), epsrel=1e-9)[0] for own in (everything, gaps)
        )
    else:

        def likelihood(alpha: float, trend: float, own: np.ndarray) -> float:
            log, time = 0.0, 0.0
            for n, gap in enumerate(own):
                start = math.exp(trend * time - alpha * n)
                log += math.log(start) + trend * gap - start * math.expm1(trend * gap) / trend
                time += gap
            return math.exp(log)

        above, below = (
            integrate.dblquad(likelihood, *given.trend, *given.alpha, args=(own,), epsrel=1e-6)[0]
            for own in (everything, gaps)
        )
    return above / below


@pytest.mark.parametrize(("kind", "tolerance"), [("poisson", 0.01), ("renewal", 0.02), ("self-correcting", 0.05)])
def test_densities_are_those_of_quadrature_over_the_parameters(kind: str, tolerance: float) -> None:
    of = family(kind)
    episodes = doubled(draw(of, 4, POINTS))
    answer, y = bayes(of, components=1024).predict_next(episodes.context), episodes.context.y.numpy()
    found = rates(answer, 0.7, 4)
    for b in range(4):
        for n in (0, 1, 4, 8):
            gaps, marks = y[b, :n, GAP], y[b, :n, MARK].astype(int)
            of_marks = chance_of_marks(marks) if n else np.full(3, 1 / 3)
            density = expected(kind, of, gaps, 0.7)
            np.testing.assert_allclose(found[b, n], density * of_marks, rtol=tolerance)


def test_where_nothing_is_left_to_infer_it_is_the_oracle_that_is_told() -> None:
    """A Hawkes process of one mark whose parameters are all given."""
    of = family("hawkes", marks=1, base=(0.3, 0.3), radius=(0.6, 0.6), decay=(1.5, 1.5))
    episodes = doubled(draw(of, 6, POINTS, shift="time-scale-3"))
    told = EventOracle(facts=TaskFacts(family=of)).informed(episodes.truth).predict_next(episodes.context)
    found = bayes(of, "time-scale-3", processes=16, components=4).predict_next(episodes.context)
    for gap in (0.01, 0.8, 5.0):
        np.testing.assert_allclose(rates(found, gap, 6), rates(told, gap, 6), rtol=1e-9)
    np.testing.assert_allclose(found.mean(), told.mean(), rtol=1e-9)
    np.testing.assert_allclose(found.quantile(0.3), told.quantile(0.3), rtol=1e-6)


def test_kinds_are_told_apart_by_bayes_rule() -> None:
    """With 32 Hawkes processes and a few of the others, all of them weighed by hand."""
    of = family()
    episodes = doubled(draw(of, 5, POINTS))
    predictor = bayes(of, processes=32, components=8_000)
    processes, share = predictor._candidates
    assert share.exp().sum() == pytest.approx(1)
    y, found = episodes.context.y, rates(predictor.predict_next(episodes.context), 0.4, 5)
    of_marks = np.stack(
        [
            [chance_of_marks(marks[:i]) if i else np.full(3, 1 / 3) for i in range(POINTS)]
            for marks in y[..., MARK].numpy()
        ]
    )
    weighed = np.zeros((5, 3))
    total = np.zeros((5, 1))
    for s in range(len(share)):
        one = processes[s : s + 1].map(lambda t: t.expand(5, *t.shape[1:]))
        told = EventOracle(facts=TaskFacts(family=of)).informed(one.tensors()).predict_next(episodes.context)
        time, n = -told.log_density(y[..., GAP])[:, :-1].sum(1).numpy(), POINTS - 1
        hawkes = int(processes.kind[s]) == 3
        own = told.log_marks(y[..., GAP]).exp().numpy() if hawkes else of_marks
        right = np.take_along_axis(own[:, :n], y[:, :n, MARK].long().numpy()[..., None], 2)[..., 0]
        weight = (share[s].item() - time + np.log(right).sum(1))[:, None]
        weight = np.exp(weight)
        gap = torch.full(y.shape[:2], 0.4, dtype=torch.float64)
        density = told.log_density(gap).exp().numpy()[:, -1:]
        marks = told.log_marks(gap).exp().numpy()[:, -1] if hawkes else of_marks[:, -1]
        weighed, total = weighed + weight * density * marks, total + weight
    np.testing.assert_allclose(found[:, -1], weighed / total, rtol=2e-3)


@pytest.mark.parametrize("shift", ["none", "time-scale-0.5", "only-hawkes", "branching-0.9"])
def test_its_gaps_are_as_likely_as_it_says(shift: str) -> None:
    """Integrated intensities are unit exponentials, all kinds together: the episodes come from where it believes."""
    of = family(burn_in=shift == "only-hawkes")
    episodes = draw(of, 300, POINTS, seed=1, shift=shift)
    answer = bayes(of, shift, processes=1024, components=64).predict_next(episodes.context)
    integrated = -answer.log_survival(episodes.context.y[..., GAP]).double().numpy()
    for n in (0, 3, POINTS - 1):
        assert stats.kstest(integrated[:, n], "expon").pvalue > SMALLEST_P


@pytest.mark.slow
def test_it_loses_to_the_one_that_is_told_and_to_nobody_who_infers() -> None:
    of = family()
    episodes = draw(of, 400, 16, seed=2)
    facts = TaskFacts(family=of, marks=3)
    told = EventOracle(facts=facts).informed(episodes.truth)
    infers = [estimator(facts=facts) for estimator in (Poisson, MarkovMarks, Renewal)]
    found = [
        each.predict_next(episodes.context).loss(episodes.context.y).mean(1)
        for each in (bayes(of, processes=1024, components=64), told, *infers)
    ]
    for other, better in zip(found[1:], (True, False, False, False), strict=True):
        gap = (other - found[0]).double()
        assert (gap.mean() / gap.std() * math.sqrt(len(gap))) * (-1 if better else 1) > 4


def test_points_that_are_not_there_change_nothing() -> None:
    of = family()
    points = doubled(draw(of, 6, 7)).context
    mask = torch.rand(points.mask.shape, generator=torch.Generator().manual_seed(0)) > 0.3
    holes = replace(points, y=points.y.masked_fill(~mask.unsqueeze(-1), 7.0), mask=mask)
    predictor = bayes(of, processes=256, components=32)
    packed, found = (predictor.predict_next(each).mean() for each in (holes.compact()[0], holes))
    order = mask.cumsum(1) - mask.long()
    for b in range(6):
        torch.testing.assert_close(found[b][mask[b]], packed[b][order[b][mask[b]]])


def test_whatever_is_asked_is_answered_and_no_gap_is_too_short_or_too_long() -> None:
    of = family()
    points = doubled(draw(of, 3, 7)).context
    predictor = bayes(of, processes=128, components=16)
    every = predictor.predict_next(points).mean()
    asked = [5, 0, 5, 2]
    torch.testing.assert_close(predictor.predict_next(points, prefixes=asked).mean(), every[:, asked])
    assert predictor.predict_next(points, prefixes=[]).mean().shape == (3, 0)
    assert predictor.predict_next(points.span(0, 0)).mean().shape == (3, 0)
    y = points.y.clone()
    y[0, 2, GAP], y[1, 2, GAP] = 0.0, 1e9
    answer = predictor.predict_next(replace(points, y=y))
    assert answer.mean().isfinite().all() and answer.log_density(points.y[..., GAP]).isfinite().all()
    y[0, 2, GAP] = 1e-9
    torch.testing.assert_close(predictor.predict_next(replace(points, y=y)).mean(), answer.mean())


def test_it_answers_its_own_family_and_needs_memory_for_its_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="family point-process only"):
        BayesEvents(facts=TaskFacts(family=Linear(Linear.Parameters())))
    monkeypatch.delenv("ICLBENCH_MAX_BYTES", raising=False)
    of = family(marks=1000)
    with pytest.raises(TooLargeError, match="that a Bayes answer weighs: matrices of"):
        bayes(of).predict_next(draw(family(), 1, 2).context)


def test_a_shifted_unit_of_time_shifts_the_shortest_gap_with_it() -> None:
    """In a unit 1e-6 times as long a gap of 1e-10 is short and possible, not one that was cut off."""
    of = family()
    points = doubled(draw(of, 4, 6)).context
    y = points.y.clone()
    y[:, 2, GAP] = 1e-4
    scale = torch.tensor([1e-6, 1.0, 1e-6], dtype=torch.float64)
    settings = {"processes": 128, "components": 32}
    plain = bayes(of, **settings).predict_next(replace(points, y=y)).mean()
    found = bayes(of, "time-scale-0.000001", **settings).predict_next(replace(points, y=y * scale)).mean()
    torch.testing.assert_close(1e6 * found, plain, rtol=1e-6, atol=0)
