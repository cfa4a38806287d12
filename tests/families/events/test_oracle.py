"""The oracle of `point-process` against naive sums over earlier events, numerical integration and time rescaling."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import integrate, stats

from iclbench.core.episodes import Episodes, Points
from iclbench.core.events import CENSORED, GAP, MARK, TIME, MixedEvent
from iclbench.core.task import TaskFacts
from iclbench.families.events.oracle import EventOracle
from iclbench.families.events.processes import HAWKES, KINDS, POISSON, RENEWAL, SELF_CORRECTING
from iclbench.families.linear import Linear
from tests.families.events.test_point_process import SMALLEST_P, build_family, draw, truth_of
from tests.families.sampling import in_float64
from tests.refusals import refused


def oracle(episodes: Episodes) -> EventOracle:
    return EventOracle(facts=TaskFacts(family=build_family())).informed(episodes.truth)


def predict(episodes: Episodes) -> MixedEvent:
    return oracle(episodes).ask(episodes.without_truth(), "next")


def naive_rates(truth: dict[str, np.ndarray], y: np.ndarray, gap: float) -> np.ndarray:
    """Compute the intensity of every mark at a time `gap` after the last event as a sum over all events."""
    marks, times = y[:, MARK].astype(int), np.cumsum(y[:, GAP])
    now = (times[-1] if len(times) else 0.0) + gap
    k = truth["base"].shape[0]
    mark_probabilities = truth["chain"][marks[-1]] if len(marks) else np.full(k, 1 / k)
    match truth["kind"]:
        case kind if kind == POISSON:
            return truth["rate"] * mark_probabilities
        case kind if kind == RENEWAL:
            gaps = stats.lognorm(truth["sigma"], scale=math.exp(truth["location"]))
            return gaps.pdf(gap) / gaps.sf(gap) * mark_probabilities
        case kind if kind == SELF_CORRECTING:
            return truth["initial"] * math.exp(truth["trend"] * now - truth["alpha"] * len(marks)) * mark_probabilities
    rates = truth["base"] + truth["excitation"] * math.exp(-truth["decay"] * now)
    for time, mark in zip(times, marks, strict=True):
        rates = rates + truth["branching"][:, mark] * truth["decay"] * math.exp(-truth["decay"] * (now - time))
    return rates


@pytest.mark.parametrize("shift", ["none", "time-scale-3", "branching-0.9", "only-renewal"])
def test_rates_equal_naive_sums_over_earlier_events(shift: str) -> None:
    """The rate of a mark is the density of the gap over its survival, times the probability of the mark."""
    episodes = in_float64(draw(build_family(burn_in=True), 24, 20, shift=shift))
    answer, y, truth = predict(episodes), episodes.context.y, truth_of(episodes)
    for gap in (0.3, 1.4):
        gaps = torch.full(y.shape[:2], gap, dtype=torch.float64)
        hazard = answer.log_density(gaps) - answer.log_survival(gaps)
        rates = (hazard.unsqueeze(-1) + answer.log_marks(gaps)).exp().numpy()
        for b in range(len(y)):
            episode_truth = {name: values[b] for name, values in truth.items()}
            for n in (0, 1, 2, 7, 19):
                np.testing.assert_allclose(rates[b, n], naive_rates(episode_truth, y[b, :n].numpy(), gap), rtol=1e-9)


@pytest.mark.slow
def test_log_survival_is_the_negative_integral_of_the_rate() -> None:
    episodes = in_float64(draw(build_family(burn_in=True), 12, 9))
    y, truth, gap = episodes.context.y, truth_of(episodes), 0.9
    log_survival = predict(episodes).log_survival(torch.full(y.shape[:2], gap, dtype=torch.float64)).numpy()
    for b in range(len(y)):
        episode_truth = {name: values[b] for name, values in truth.items()}
        for n in (0, 5, 8):
            integral, _ = integrate.quad(
                lambda s, b=b, n=n, values=episode_truth: naive_rates(values, y[b, :n].numpy(), s).sum(), 0, gap
            )
            assert log_survival[b, n] == pytest.approx(-integral, rel=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_densities_integrate_to_one_and_agree_with_means_and_quantiles(kind: str) -> None:
    """The integrals use the trapezoidal rule in the logarithm of the gap."""
    answer = predict(in_float64(draw(build_family(kind), 6, 12))).at(torch.tensor([0, 3, 11]))
    logs = np.linspace(math.log(1e-9), math.log(200 if kind == "self-correcting" else 1e5), 1000)
    nodes = [torch.full((6, 3), float(gap), dtype=torch.float64) for gap in np.exp(logs)]
    density = np.stack([(answer.log_density(gap).exp() * gap).numpy() for gap in nodes])

    def integral(values: np.ndarray) -> np.ndarray:
        return np.trapezoid(values * density, logs, axis=0)

    gaps = np.exp(logs)[:, None, None]
    np.testing.assert_allclose(integral(np.ones((1000, 1, 1))), 1, atol=1e-6)
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
def test_integrated_intensities_between_events_are_unit_exponential(kind: str, parameters: dict, shift: str) -> None:
    """This is the time-rescaling theorem (Papangelou 1972), tested with 1e5 events."""
    episodes = draw(build_family(kind, **parameters), 1600, 64, shift=shift)
    integrated = -predict(episodes).log_survival(episodes.context.y[..., GAP]).double().numpy()
    assert integrated.size > 100_000
    assert stats.kstest(integrated.ravel(), "expon").pvalue > SMALLEST_P
    for n in (0, 1, 63):
        assert stats.kstest(integrated[:, n], "expon").pvalue > SMALLEST_P


@pytest.mark.parametrize("kind", KINDS)
def test_probabilities_of_marks_are_calibrated(kind: str) -> None:
    episodes = draw(build_family(kind), 1600, 32)
    y = episodes.context.y
    probabilities = predict(episodes).log_marks(y[..., GAP]).exp().double()
    errors = torch.eye(3).double()[y[..., MARK].long()] - probabilities
    for mark in range(3):
        covariances = (errors[..., mark] * probabilities[..., mark]).mean(1)
        assert abs(covariances.mean()) < 4 * covariances.std() / math.sqrt(len(covariances))


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
def test_wrong_parameters_have_a_higher_loss(kind: str, changes: dict) -> None:
    """The paired difference exceeds four standard errors. If a change is None, the parameter is transposed."""
    episodes = draw(build_family(kind), 400, 32)
    changed = dict(episodes.truth)
    for name, factor in changes.items():
        changed[name] = changed[name].mT if factor is None else changed[name] * factor
    if "chain" in changes:
        changed["chain"] = changed["chain"] / changed["chain"].sum(-1, keepdim=True)
    y = episodes.context.y
    true_loss, changed_loss = (
        predict(replace(episodes, truth=truth)).loss(y).double().mean(1) for truth in (episodes.truth, changed)
    )
    difference = changed_loss - true_loss
    assert difference.mean() > 4 * difference.std() / math.sqrt(len(difference))


def predictive_densities(
    kind: str, name: str, nodes: np.ndarray, y: torch.Tensor, derived=lambda value: {}
) -> np.ndarray:
    """Compute the density of every gap given the earlier gaps.

    The density is an average over oracles, in which the parameter `name` takes each value of `nodes`. The weight of an
    oracle is its density of the earlier gaps.
    """
    truth = {
        key: tensor.expand(len(nodes), *tensor.shape[1:])
        for key, tensor in draw(build_family(kind), 1, 1).truth.items()
    }
    truth[name] = torch.as_tensor(nodes)
    truth |= derived(truth[name])
    points = Points.full(y.new_empty(len(nodes), len(y), 0), y.expand(len(nodes), *y.shape))
    log_densities = predict(Episodes(points, points.mask, truth=truth)).log_density(points.y[..., GAP]).numpy()
    log_weights = np.cumsum(log_densities, 1) - log_densities
    weights = np.exp(log_weights - log_weights.max(0))
    return (weights * np.exp(log_densities)).sum(0) / weights.sum(0)


def predictive_densities_by_quadrature(likelihood, gaps: np.ndarray, low: float, high: float) -> np.ndarray:
    """Compute the density of every gap given the earlier gaps by adaptive quadrature over the parameter."""
    evidence = [
        integrate.quad(lambda v, n=n: math.exp(likelihood(v, gaps[:n]).sum()), low, high, epsrel=1e-11, epsabs=0)[0]
        for n in range(len(gaps) + 1)
    ]
    return np.array(evidence[1:]) / np.array(evidence[:-1])


def test_averaging_oracles_over_rates_gives_the_bayes_prediction_for_poisson_processes() -> None:
    """The rate is log-uniform in [0.5, 2], so the nodes are equally spaced in its logarithm."""
    y = in_float64(draw(build_family("poisson"), 1, 10, seed=3)).context.y[0]
    gaps = y[:, GAP].numpy()
    edges = np.linspace(math.log(0.5), math.log(2), 2001)
    densities = predictive_densities("poisson", "rate", np.exp((edges[1:] + edges[:-1]) / 2), y)
    exact = predictive_densities_by_quadrature(lambda log, g: log - math.exp(log) * g, gaps, math.log(0.5), math.log(2))
    np.testing.assert_allclose(densities, exact, rtol=1e-6)


@pytest.mark.slow
def test_averaging_oracles_over_sigma_gives_the_bayes_prediction_for_renewal_processes() -> None:
    y = in_float64(draw(build_family("renewal"), 1, 10, seed=3)).context.y[0]
    edges = np.linspace(0.3, 1.5, 2001)
    densities = predictive_densities(
        "renewal", "sigma", (edges[1:] + edges[:-1]) / 2, y, lambda sigma: {"location": -sigma.square() / 2}
    )
    exact = predictive_densities_by_quadrature(
        lambda sigma, g: stats.lognorm(sigma, scale=math.exp(-(sigma**2) / 2)).logpdf(g), y[:, GAP].numpy(), 0.3, 1.5
    )
    np.testing.assert_allclose(densities, exact, rtol=1e-5)


def assert_predictions_equal(prediction: MixedEvent, expected: MixedEvent, **tolerance: float) -> None:
    for name, tensor in prediction.tensors().items():
        torch.testing.assert_close(
            tensor, expected.tensors()[name], **tolerance, msg=lambda m, name=name: f"{name}: {m}"
        )


def test_condition_update_and_query_agree_with_predictions_for_all_prefixes() -> None:
    episodes = in_float64(draw(build_family(burn_in=True), 32, 12))
    event_oracle, points = oracle(episodes), episodes.context
    predictions = event_oracle.predict_next(points)
    x = points.x[:, :2]
    for n in (0, 1, 5, 11):
        answer = event_oracle.predict_targets(points.span(0, n), x)
        assert_predictions_equal(answer.at(slice(0, 1)), predictions.at(slice(n, n + 1)))
        assert_predictions_equal(answer.at(slice(1, 2)), predictions.at(slice(n, n + 1)))
    state = event_oracle.condition(points.span(0, 0))
    state = event_oracle.update(event_oracle.update(state, points.span(0, 4)), points.span(4, 11))
    assert_predictions_equal(event_oracle.query(state, x[:, :1]), predictions.at(slice(11, 12)))
    assert_predictions_equal(event_oracle.predict_next(points, prefixes=[2, 7]), predictions.at(torch.tensor([2, 7])))


def test_masked_events_are_ignored() -> None:
    episodes = in_float64(draw(build_family(), 32, 12))
    event_oracle, points = oracle(episodes), episodes.context
    mask = torch.rand(32, 12, generator=torch.Generator().manual_seed(0)) < 0.6
    masked = replace(points, y=points.y.masked_fill(~mask.unsqueeze(-1), 7.0), mask=mask)
    packed = event_oracle.predict_next(masked.compact()[0])
    order = mask.cumsum(1) - mask.long()
    for name, tensor in event_oracle.predict_next(masked).tensors().items():
        for b in range(32):
            torch.testing.assert_close(tensor[b][mask[b]], packed.tensors()[name][b][order[b][mask[b]]])


def test_censored_points_are_predicted_but_not_read() -> None:
    episodes = in_float64(draw(build_family(), 32, 6))
    points = episodes.context
    last = points.y[:, -1:, TIME]
    censored = torch.stack([torch.full_like(last, 0.4), torch.full_like(last, CENSORED), last + 0.4], -1)
    longer = points.append(Points.full(points.x[:, :1], censored))
    event_oracle = oracle(episodes)
    predictions, x = event_oracle.predict_next(longer), points.x[:, :1]
    assert_predictions_equal(predictions.at(slice(0, 6)), event_oracle.predict_next(points))
    assert_predictions_equal(predictions.at(slice(6, 7)), event_oracle.predict_targets(points, x))
    assert_predictions_equal(event_oracle.predict_targets(longer, x), event_oracle.predict_targets(points, x))
    assert predictions.log_survival(longer.y[..., GAP])[:, -1].lt(0).all()


def test_predictions_after_long_histories_are_finite_and_exact() -> None:
    """With 1,000 events, powers of the decay neither overflow nor underflow, and errors do not accumulate."""
    episodes = in_float64(draw(build_family("hawkes"), 3, 1000))
    answer, y, truth = predict(episodes), episodes.context.y, truth_of(episodes)
    gap = torch.full(y.shape[:2], 0.2, dtype=torch.float64)
    rates = (answer.log_density(gap) - answer.log_survival(gap)).exp().numpy()
    for b in range(3):
        episode_truth = {name: values[b] for name, values in truth.items()}
        for n in (500, 999):
            assert rates[b, n] == pytest.approx(naive_rates(episode_truth, y[b, :n].numpy(), 0.2).sum(), rel=1e-9)
    assert (truth["kind"] == HAWKES).all()


def test_an_oracle_of_another_family_or_without_the_truth_is_refused() -> None:
    with refused("not-applicable", "EventOracle", "point-process"):
        EventOracle(facts=TaskFacts(family=Linear(Linear.Parameters())))
    episodes = draw(build_family(), 2, 3)
    with refused("missing-value", "oracle-events", "informed"):
        EventOracle(facts=TaskFacts(family=build_family())).predict_next(episodes.context)
