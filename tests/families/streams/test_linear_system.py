"""Sequences of linear systems against closed-form moments and distributions in SciPy."""

import math

import numpy as np
import pytest
import torch
from scipy import stats

from iclbench.config.resolution import resolve_task
from iclbench.core.episodes import Episodes
from iclbench.core.settings import validate
from iclbench.evaluation import contestants
from iclbench.evaluation.prompts import PromptSet
from iclbench.families.request import Request
from iclbench.families.streams.linear_system import NORMALISED_ELEMENTS, LinearSystemParameters, LinearSystems
from tests.families.streams.linear_gaussian import joint_covariance, rotation
from tests.refusals import refused

# Seeds are fixed, and correct code has no p-value below this level.
SMALLEST_P = 1e-3


def build_family(**parameters: object) -> LinearSystems:
    return LinearSystems(LinearSystemParameters(**parameters))  # type: ignore[arg-type]


def draw(
    family: LinearSystems | None = None, episodes: int = 50, points: int = 12, seed: int = 0, shift: str = "none"
) -> Episodes:
    request = Request(episodes, points, torch.Generator().manual_seed(seed), shift=shift)
    return (family or build_family()).sample(request)


def elements(episodes: Episodes) -> np.ndarray:
    return episodes.context.y[..., 0].double().numpy()


def test_radius_and_angle_are_uniform_and_independent() -> None:
    truth = draw(build_family(radius=(0.5, 0.9), angle=(0.2, 1.2)), episodes=4000, points=2, shift="switch").truth
    for name, low, high in (("radius", 0.5, 0.9), ("angle", 0.2, 1.2)):
        for system in (name, f"later_{name}"):
            assert stats.kstest(truth[system].numpy(), stats.uniform(low, high - low).cdf).pvalue > SMALLEST_P
    names = ("radius", "angle", "later_radius", "later_angle")
    correlations = np.corrcoef([truth[name].numpy() for name in names])
    assert np.abs(correlations - np.eye(4)).max() < 4 / math.sqrt(4000)


@pytest.mark.parametrize("shift", ["none", "noisy-0.9", "process-noise-0.7"])
def test_elements_of_one_system_have_the_expected_joint_covariance(shift: str) -> None:
    family = build_family(radius=(0.9, 0.9), angle=(0.7, 0.7), process_noise=0.4, observation_noise=0.5)
    count, points = 20_000, 8
    y = elements(draw(family, count, points, shift=shift))
    process_noise, observation_noise = {"none": (0.4, 0.5), "noisy-0.9": (0.4, 0.9), "process-noise-0.7": (0.7, 0.5)}[
        shift
    ]
    expected = joint_covariance([rotation(0.9, 0.7)] * (points - 1), process_noise, observation_noise)
    variances = expected.diagonal()
    # The standard errors of a sample covariance of Gaussian vectors.
    errors = np.sqrt((np.outer(variances, variances) + expected**2) / count)
    assert (np.abs(y.T @ y / count - expected) / errors).max() < 4
    assert (np.abs(y.mean(0)) < 4 * np.sqrt(variances / count)).all()
    assert stats.kstest(y[:, -1], stats.norm(0, math.sqrt(variances[-1])).cdf).pvalue > SMALLEST_P


@pytest.mark.parametrize(
    "parameters",
    [{}, {"radius": (0.95, 0.95)}, {"radius": (0.3, 0.6), "process_noise": 0.0}, {"radius": (0.0, 0.0)}],
)
def test_the_normaliser_is_the_mean_variance_of_the_first_noiseless_elements(parameters: dict[str, object]) -> None:
    family = build_family(**parameters, observation_noise=1e-6)
    squares = np.square(elements(draw(family, 4000, NORMALISED_ELEMENTS))).mean(1)
    assert abs(squares.mean() - family.normaliser) < 4 * squares.std() / math.sqrt(len(squares))


def test_the_normaliser_depends_on_neither_the_angles_nor_the_observation_noise() -> None:
    expected = build_family().normaliser
    assert expected == pytest.approx(0.446, abs=5e-4), "the card of the task has this number"
    assert build_family(angle=(0.5, 0.5), observation_noise=2.0).normaliser == expected
    narrow = build_family(radius=(0.9, 0.9 + 1e-13)).normaliser
    assert narrow == pytest.approx(build_family(radius=(0.9, 0.9)).normaliser, rel=1e-9)


def test_systems_depend_on_neither_the_sequence_length_nor_the_noise() -> None:
    plain = draw(points=5).truth
    for points, shift in ((5, "noisy-2"), (5, "process-noise-2"), (5, "switch"), (30, "points-29")):
        truth = draw(points=points, shift=shift).truth
        assert all(torch.equal(truth[name], plain[name]) for name in ("radius", "angle"))


@pytest.mark.parametrize("kind", ["noisy", "process-noise"])
def test_elements_are_linear_in_the_standard_deviation_of_the_noise(kind: str) -> None:
    first, second, third = (elements(draw(shift=f"{kind}-{scale}")) for scale in (0.5, 1, 1.5))
    np.testing.assert_allclose(third - second, second - first, atol=1e-5)
    assert np.abs(second - first).max() > 0.5


def test_shifts_set_the_radius_or_the_angle_of_all_systems() -> None:
    plain = draw().truth
    for kind, value, other in (("radius", 0.7, "angle"), ("angle", 2.5, "radius")):
        truth = draw(shift=f"{kind}-{value}").truth
        assert (truth[kind] == value).all() and torch.equal(truth[other], plain[other])


def test_a_switch_replaces_the_system_in_the_middle_of_the_sequence() -> None:
    plain, switched = draw(points=13), draw(points=13, shift="switch")
    assert (switched.truth["switch"] == 6).all()
    assert torch.equal(plain.context.y[:, :6], switched.context.y[:, :6])
    assert (plain.context.y[:, 6] != switched.context.y[:, 6]).all()
    assert (switched.truth["later_radius"] != switched.truth["radius"]).all()
    assert torch.equal(plain.truth["later_angle"], plain.truth["angle"]), "without the shift, both are the same"


def test_the_bayes_predictor_is_an_oracle_except_under_a_switch() -> None:
    task = resolve_task("linear-system", "smoke")[0]
    names = ["oracle-kalman", "oracle-bayes-kalman"]
    for shift, expected in (
        ("none", ["oracle", "oracle"]),
        ("radius-1+noisy-0.6", ["oracle", "oracle"]),
        ("noisy-0.6+switch", ["oracle", "baseline"]),
    ):
        kinds = [contestant.kind for contestant in contestants.baselines(PromptSet(task, "smoke", shift), names)]
        assert kinds == expected, shift


@pytest.mark.parametrize(
    ("parameters", "key"),
    [
        ({"radius": [0.9, 0.8]}, "radius"),
        ({"angle": [2.0, 1.0]}, "angle"),
        ({"radius": [0.9, 2.1]}, "radius"),
        ({"angle": [0.0, 3.2]}, "angle"),
        ({"observation_noise": 0.0}, "observation_noise"),
        ({"process_noise": -0.1}, "process_noise"),
    ],
)
def test_bad_parameters_are_refused(parameters: dict[str, object], key: str) -> None:
    with refused("bad-value", "task", key):
        validate(LinearSystemParameters, parameters, "task")


@pytest.mark.parametrize(
    ("shift", "code", "names"),
    [
        ("radius-2.5", "bad-value", ["'radius-2.5'", "2.5"]),
        ("angle-3.2", "bad-value", ["'angle-3.2'", "3.14"]),
        ("noisy-1001", "bad-value", ["'noisy-1001'", "1000"]),
        ("radius", "missing-value", ["'radius'"]),
        ("switch-3", "bad-syntax", ["'switch'"]),
        ("radius-1+radius-0.9", "conflict", ["'radius-1'", "the radius"]),
        ("time-scale-2", "not-applicable", ["'time-scale'", "switch"]),
    ],
)
def test_bad_shifts_are_refused(shift: str, code: str, names: list[str]) -> None:
    with refused(code, *names):
        build_family().parse_shift(shift)


def test_systems_that_overflow_float32_are_refused() -> None:
    assert draw(points=90, shift="radius-2").context.y.isfinite().all()
    with refused("bad-value", "radius of 2", "130 points"):
        draw(points=130, shift="radius-2")
