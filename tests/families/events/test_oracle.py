"""The oracle of point-process: against naive sums over all earlier events, numerical integration and time rescaling."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import integrate, stats

from iclbench.core.episodes import Episodes, Points
from iclbench.core.errors import UsageError
from iclbench.core.events import CENSORED, GAP, MARK, TIME, MixedEvent
from iclbench.core.task import TaskFacts
from iclbench.families.events.oracle import EventOracle
from iclbench.families.events.processes import HAWKES, KINDS, POISSON, RENEWAL, SELF_CORRECTING
from iclbench.families.linear import Linear
from tests.families.events.test_point_process import SMALLEST_P, draw, family, truth_of


def oracle(episodes: Episodes) -> EventOracle:
    return EventOracle(facts=TaskFacts(family=family())).informed(episodes.truth)


def doubled(episodes: Episodes) -> Episodes:
    """Events in float64, which the oracle then answers in."""
    return replace(episodes, context=episodes.context.to(dtype=torch.float64))


def ask(episodes: Episodes) -> MixedEvent:
    return oracle(episodes).ask(episodes.without_truth(), "next")


def naive_rates(truth: dict[str, np.ndarray], y: np.ndarray, at: float) -> np.ndarray:
    """Intensity of every mark `at` so long after the last of the events, by a sum over all of them."""
    marks, times = y[:, MARK].astype(int), np.cumsum(y[:, GAP])
    now = (times[-1] if len(times) else 0.0) + at
    k = truth["base"].shape[0]
    after = truth["chain"][marks[-1]] if len(marks) else np.full(k, 1 / k)
    match truth["kind"]:
        case kind if kind == POISSON:
            return truth["rate"] * after
        case kind if kind == RENEWAL:
            law = stats.lognorm(truth["sigma"], scale=math.exp(truth["location"]))
            return law.pdf(at) / law.sf(at) * after
        case kind if kind == SELF_CORRECTING:
            return truth["initial"] * math.exp(truth["trend"] * now - truth["alpha"] * len(marks)) * after
    rates = truth["base"] + truth["excitation"] * math.exp(-truth["decay"] * now)
    for time, mark in zip(times, marks, strict=True):
        rates = rates + truth["branching"][:, mark] * truth["decay"] * math.exp(-truth["decay"] * (now - time))
    return rates


@pytest.mark.parametrize("shift", ["none", "time-scale-3", "branching-0.9", "only-renewal"])
def test_rates_are_the_naive_sum_over_all_earlier_events(shift: str) -> None:
    """Density of the time over its survival, times the probability of the mark; each to 1e-9."""
    episodes = doubled(draw(family(burn_in=True), 24, 20, shift=shift))
    answer, y, truth = ask(episodes), episodes.context.y, truth_of(episodes)
    for at in (0.3, 1.4):
        gap = torch.full(y.shape[:2], at, dtype=torch.float64)
        hazard = answer.log_density(gap) - answer.log_survival(gap)
        found = (hazard.unsqueeze(-1) + answer.log_marks(gap)).exp().numpy()
        for b in range(len(y)):
            own = {name: values[b] for name, values in truth.items()}
            for n in (0, 1, 2, 7, 19):
                np.testing.assert_allclose(found[b, n], naive_rates(own, y[b, :n].numpy(), at), rtol=1e-9)


@pytest.mark.slow
def test_survival_is_that_of_the_integrated_naive_rate() -> None:
    episodes = doubled(draw(family(burn_in=True), 12, 9))
    y, truth, gap = episodes.context.y, truth_of(episodes), 0.9
    found = ask(episodes).log_survival(torch.full(y.shape[:2], gap, dtype=torch.float64)).numpy()
    for b in range(len(y)):
        own = {name: values[b] for name, values in truth.items()}
        for n in (0, 5, 8):
            integral, _ = integrate.quad(
                lambda s, b=b, n=n, own=own: naive_rates(own, y[b, :n].numpy(), s).sum(), 0, gap
            )
            assert found[b, n] == pytest.approx(-integral, rel=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_densities_integrate_to_one_and_have_their_means_and_quantiles(kind: str) -> None:
    """By the trapezoidal rule in the logarithm of the gap, which ends where nothing is left."""
    answer = ask(doubled(draw(family(kind), 6, 12))).at(torch.tensor([0, 3, 11]))
    logs = np.linspace(math.log(1e-9), math.log(200 if kind == "self-correcting" else 1e5), 1000)
    nodes = [torch.full((6, 3), float(gap), dtype=torch.float64) for gap in np.exp(logs)]
    density = np.stack([(answer.log_density(gap).exp() * gap).numpy() for gap in nodes])

    def integral(of: np.ndarray) -> np.ndarray:
        return np.trapezoid(of * density, logs, axis=0)

    gaps, one = np.exp(logs)[:, None, None], np.ones((1000, 1, 1))
    np.testing.assert_allclose(integral(one), 1, atol=1e-6)
    np.testing.assert_allclose(answer.mean(), integral(gaps), rtol=5e-3)
    for level in (0.05, 0.5, 0.95):
        np.testing.assert_allclose(integral(gaps < answer.quantile(level).numpy()), level, atol=0.02)
    marks = np.stack([answer.log_marks(gap).exp().numpy() for gap in nodes])
    for mark in range(3):
        np.testing.assert_allclose(answer.mark_probabilities()[..., mark], integral(marks[..., mark]), atol=3e-3)


@pytest.mark.parametrize(
    ("kind", "parameters", "shift"),
    [(kind, {}, "none") for kind in KINDS]
    + [("hawkes", {"burn_in": True}, "time-scale-0.1"), ("hawkes", {}, "branching-1.2")],
)
def test_integrated_intensities_between_events_are_unit_exponentials(kind: str, parameters: dict, shift: str) -> None:
    """Time rescaling (Papangelou 1972), over 10^5 events."""
    episodes = draw(family(kind, **parameters), 1600, 64, shift=shift)
    integrated = -ask(episodes).log_survival(episodes.context.y[..., GAP]).double().numpy()
    assert integrated.size > 100_000
    assert stats.kstest(integrated.ravel(), "expon").pvalue > SMALLEST_P
    for n in (0, 1, 63):
        assert stats.kstest(integrated[:, n], "expon").pvalue > SMALLEST_P


@pytest.mark.parametrize("kind", KINDS)
def test_marks_come_as_often_as_is_said(kind: str) -> None:
    episodes = draw(family(kind), 1600, 32)
    y = episodes.context.y
    said = ask(episodes).log_marks(y[..., GAP]).exp().double()
    off = torch.eye(3).double()[y[..., MARK].long()] - said
    for mark in range(3):
        each = (off[..., mark] * said[..., mark]).mean(1)
        assert abs(each.mean()) < 4 * each.std() / math.sqrt(len(each))


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        ("poisson", {"rate": 1.3}),
        ("poisson", {"chain": None}),
        ("renewal", {"sigma": 1.3}),
        ("renewal", {"location": 0.5}),
        ("self-correcting", {"trend": 1.2}),
        ("self-correcting", {"alpha": 1.2}),
        ("hawkes", {"decay": 1.5}),
        ("hawkes", {"base": 1.4}),
        ("hawkes", {"branching": None}),
    ],
)
def test_what_is_told_other_parameters_scores_worse(kind: str, changes: dict) -> None:
    """Paired by episode, beyond four standard errors; None: rows and columns exchanged."""
    episodes = draw(family(kind), 400, 32)
    told = dict(episodes.truth)
    for name, factor in changes.items():
        told[name] = told[name].mT if factor is None else told[name] * factor
    if "chain" in changes:
        told["chain"] = told["chain"] / told["chain"].sum(-1, keepdim=True)
    y = episodes.context.y
    right, wrong = (ask(replace(episodes, truth=t)).loss(y).double().mean(1) for t in (episodes.truth, told))
    behind = wrong - right
    assert behind.mean() > 4 * behind.std() / math.sqrt(len(behind))


def predictive(kind: str, name: str, nodes: np.ndarray, y: torch.Tensor, derived=lambda value: {}) -> np.ndarray:
    """Density of every gap given those before it, by averaging oracles that are told the parameter's nodes: each weighs
    as much as it said of the gaps before."""
    like = draw(family(kind), 1, 1).truth
    told = {key: tensor.expand(len(nodes), *tensor.shape[1:]) for key, tensor in like.items()}
    told[name] = torch.as_tensor(nodes)
    told |= derived(told[name])
    points = Points.full(y.new_empty(len(nodes), len(y), 0), y.expand(len(nodes), *y.shape))
    each = ask(Episodes(points, points.mask, truth=told)).log_density(points.y[..., GAP]).numpy()
    before = np.cumsum(each, 1) - each
    weights = np.exp(before - before.max(0))
    return (weights * np.exp(each)).sum(0) / weights.sum(0)


def ratio_of_integrals(likelihood, gaps: np.ndarray, low: float, high: float) -> np.ndarray:
    """The same by adaptive quadrature over the parameter, one prefix after the other."""
    evidence = [
        integrate.quad(lambda v, n=n: math.exp(likelihood(v, gaps[:n]).sum()), low, high, epsrel=1e-11, epsabs=0)[0]
        for n in range(len(gaps) + 1)
    ]
    return np.array(evidence[1:]) / np.array(evidence[:-1])


def test_averaged_over_the_prior_of_the_rate_it_is_the_bayes_answer_to_a_poisson_process() -> None:
    """The rate is log-uniform in [0.5, 2]: midpoints in its logarithm against quadrature over the logarithm."""
    y = doubled(draw(family("poisson"), 1, 10, seed=3)).context.y[0]
    gaps = y[:, GAP].numpy()
    edges = np.linspace(math.log(0.5), math.log(2), 2001)
    found = predictive("poisson", "rate", np.exp((edges[1:] + edges[:-1]) / 2), y)
    exact = ratio_of_integrals(lambda log, g: log - math.exp(log) * g, gaps, math.log(0.5), math.log(2))
    np.testing.assert_allclose(found, exact, rtol=1e-6)


@pytest.mark.slow
def test_averaged_over_the_prior_of_sigma_it_is_the_bayes_answer_to_a_renewal_process() -> None:
    y = doubled(draw(family("renewal"), 1, 10, seed=3)).context.y[0]
    edges = np.linspace(0.3, 1.5, 2001)
    found = predictive(
        "renewal", "sigma", (edges[1:] + edges[:-1]) / 2, y, lambda sigma: {"location": -sigma.square() / 2}
    )
    exact = ratio_of_integrals(
        lambda sigma, g: stats.lognorm(sigma, scale=math.exp(-(sigma**2) / 2)).logpdf(g), y[:, GAP].numpy(), 0.3, 1.5
    )
    np.testing.assert_allclose(found, exact, rtol=1e-5)


def same(one: MixedEvent, other: MixedEvent, **tolerance: float) -> None:
    for name, tensor in one.tensors().items():
        torch.testing.assert_close(tensor, other.tensors()[name], **tolerance, msg=lambda m, name=name: f"{name}: {m}")


def test_phases_give_the_answers_of_all_prefixes_at_once() -> None:
    episodes = doubled(draw(family(burn_in=True), 32, 12))
    told, points = oracle(episodes), episodes.context
    whole = told.predict_next(points)
    x = points.x[:, :2]
    for n in (0, 1, 5, 11):
        answer = told.predict_targets(points.span(0, n), x)
        same(answer.at(slice(0, 1)), whole.at(slice(n, n + 1)))
        same(answer.at(slice(1, 2)), whole.at(slice(n, n + 1)))
    state = told.update(told.update(told.condition(points.span(0, 0)), points.span(0, 4)), points.span(4, 11))
    same(told.query(state, x[:, :1]), whole.at(slice(11, 12)))
    same(told.predict_next(points, prefixes=[2, 7]), whole.at(torch.tensor([2, 7])))


def test_masked_events_are_as_if_they_were_not_there() -> None:
    episodes = doubled(draw(family(), 32, 12))
    told, points = oracle(episodes), episodes.context
    mask = torch.rand(32, 12, generator=torch.Generator().manual_seed(0)) < 0.6
    holes = replace(points, y=points.y.masked_fill(~mask.unsqueeze(-1), 7.0), mask=mask)
    packed = told.predict_next(holes.compact()[0])
    order = mask.cumsum(1) - mask.long()
    found = told.predict_next(holes)
    for name, tensor in found.tensors().items():
        for b in range(32):
            torch.testing.assert_close(tensor[b][mask[b]], packed.tensors()[name][b][order[b][mask[b]]])


def test_a_censored_point_is_asked_and_never_read() -> None:
    episodes = doubled(draw(family(), 32, 6))
    points = episodes.context
    last = points.y[:, -1:, TIME]
    censored = torch.stack([torch.full_like(last, 0.4), torch.full_like(last, CENSORED), last + 0.4], -1)
    longer = points.append(Points.full(points.x[:, :1], censored))
    told = oracle(episodes)
    open_interval = told.predict_next(longer)
    same(open_interval.at(slice(0, 6)), told.predict_next(points))
    same(open_interval.at(slice(6, 7)), told.predict_targets(points, points.x[:, :1]))
    same(told.predict_targets(longer, points.x[:, :1]), told.predict_targets(points, points.x[:, :1]))
    assert open_interval.log_survival(longer.y[..., GAP])[:, -1].lt(0).all()


def test_long_histories_stay_finite_and_exact() -> None:
    """A thousand events: no power of a decay over- or underflows, and nothing adds up."""
    episodes = doubled(draw(family("hawkes"), 3, 1000))
    answer, y, truth = ask(episodes), episodes.context.y, truth_of(episodes)
    gap = torch.full(y.shape[:2], 0.2, dtype=torch.float64)
    found = (answer.log_density(gap) - answer.log_survival(gap)).exp().numpy()
    for b in range(3):
        own = {name: values[b] for name, values in truth.items()}
        for n in (500, 999):
            assert found[b, n] == pytest.approx(naive_rates(own, y[b, :n].numpy(), 0.2).sum(), rel=1e-9)
    assert (truth["kind"] == HAWKES).all()


def test_it_answers_its_own_family_and_needs_the_truth() -> None:
    with pytest.raises(UsageError, match="family point-process only"):
        EventOracle(facts=TaskFacts(family=Linear(Linear.Parameters())))
    episodes = draw(family(), 2, 3)
    with pytest.raises(UsageError, match="needs the processes"):
        EventOracle(facts=TaskFacts(family=family())).predict_next(episodes.context)
