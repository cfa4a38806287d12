"""Targets of probes against counts in plain Python, a textbook Kalman filter, the oracles and dictionaries."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
import torch

from iclbench.config.resolution import resolve_task
from iclbench.core.episodes import Episodes
from iclbench.core.task import TaskFacts
from iclbench.families.request import Request
from iclbench.families.streams.base import StreamFamily
from iclbench.families.streams.linear_system_oracles import OracleKalman
from iclbench.families.streams.markov_oracles import BayesChain

FAMILIES = (
    "markov",
    "markov-order-2",
    "markov-switching",
    "linear-system",
    "recall",
    "recall-fuzzy",
    "recall-vectors",
    "parity",
    "state-tracking-s5-adjacent",
)


def draw_episodes(task: str, points: int, episodes: int = 20, shift: str = "none") -> tuple[StreamFamily, Episodes]:
    family = resolve_task(task, "smoke", {})[0].build(None)
    assert isinstance(family, StreamFamily)
    return family, family.sample(Request(episodes, points, torch.Generator().manual_seed(0), shift=shift))


@pytest.mark.parametrize("task", FAMILIES)
def test_targets_have_a_value_and_a_flag_per_episode_after_any_number_of_elements(task: str) -> None:
    family, episodes = draw_episodes(task, 24)
    for elements in (1, 2, 23):
        targets = family.probe_targets(episodes, elements)
        assert 1 <= len(targets) <= 2
        for target in targets.values():
            assert target.is_defined.shape == (20,) and target.is_defined.dtype == torch.bool
            assert len(target.values) == 20
            assert target.values.dim() == (2 if target.values.is_floating_point() else 1)


@pytest.mark.parametrize("task", [name for name in FAMILIES if name != "linear-system"])
def test_the_previous_element_is_the_one_before_the_last(task: str) -> None:
    family, episodes = draw_episodes(task, 24)
    target = family.probe_targets(episodes, 9)["previous_element"]
    assert torch.equal(target.values, episodes.context.y[:, 7]) and target.is_defined.all()
    assert not family.probe_targets(episodes, 1)["previous_element"].is_defined.any()


def test_the_prediction_for_a_chain_is_the_centred_logarithm_of_counts_plus_one() -> None:
    family, episodes = draw_episodes("markov", 24)
    target = family.probe_targets(episodes, 20)["prediction"].values
    for y, values in zip(episodes.context.y.tolist(), target.tolist(), strict=True):
        tokens = y[:20]
        counts = [1 + sum(pair == (tokens[-1], token) for pair in pairwise(tokens)) for token in range(3)]
        logs = [math.log(count / sum(counts)) for count in counts]
        assert values == pytest.approx([log - sum(logs) / 3 for log in logs])


@pytest.mark.parametrize("shift", ["none", "switch-0.2"])
def test_the_prediction_for_a_switching_chain_agrees_with_the_oracle_of_the_shift(shift: str) -> None:
    family, episodes = draw_episodes("markov-switching", 24, shift=shift)
    answer = BayesChain(facts=family.facts(shift)).ask(episodes, "next").logits[:, 17].double()
    target = family.probe_targets(episodes, 17, shift)["prediction"].values
    torch.testing.assert_close(target, answer - answer.mean(1, keepdim=True), rtol=0, atol=1e-5)
    other = family.probe_targets(episodes, 17, "switch-0.5")["prediction"].values
    assert float((target - other).abs().max()) > 0.1


def kalman(y: np.ndarray, radius: float, angle: float) -> tuple[np.ndarray, float]:
    """Compute the means of the state and of the next element given all elements with the equations of Kalman (1960)."""
    turn = radius * np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    observe, mean, covariance = np.array([[1.0, 0.0]]), np.zeros(2), np.eye(2)
    for n, value in enumerate(y):
        if n:
            mean, covariance = turn @ mean, turn @ covariance @ turn.T + 0.2**2 * np.eye(2)
        gain = covariance @ observe.T @ np.linalg.inv(observe @ covariance @ observe.T + 0.3**2)
        mean = mean + gain @ (value - observe @ mean)
        covariance = (np.eye(2) - gain @ observe) @ covariance
    return mean, float((turn @ mean)[0])


@pytest.mark.parametrize("elements", [1, 2, 15])
def test_states_of_linear_systems_equal_a_textbook_filter_and_predictions_equal_the_oracle(
    elements: int,
) -> None:
    family, episodes = draw_episodes("linear-system", 24)
    targets = family.probe_targets(episodes, elements)
    for b in range(20):
        truth = {key: float(value[b]) for key, value in episodes.truth.items()}
        y = episodes.context.y[b, :elements, 0].double().numpy()
        state, prediction = kalman(y, truth["radius"], truth["angle"])
        np.testing.assert_allclose(targets["state"].values[b], state, atol=1e-9)
        assert float(targets["prediction"].values[b, 0]) == pytest.approx(prediction, abs=1e-9)
    oracle = OracleKalman(facts=TaskFacts(family=family)).informed(episodes.truth).ask(episodes, "next")
    torch.testing.assert_close(targets["prediction"].values.float(), oracle.mean[:, elements], rtol=1e-5, atol=1e-5)


def test_the_prediction_under_noise_and_a_switch_agrees_with_the_oracle() -> None:
    family, episodes = draw_episodes("linear-system", 24, shift="noisy-2+switch")
    targets = family.probe_targets(episodes, 20, "noisy-2+switch")
    oracle = OracleKalman(facts=family.facts("noisy-2+switch")).informed(episodes.truth).ask(episodes, "next")
    torch.testing.assert_close(targets["prediction"].values.float(), oracle.mean[:, 20], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("task", ["recall", "recall-overwrite"])
def test_the_target_value_belongs_to_the_queried_key_and_is_defined_only_after_it(task: str) -> None:
    family, episodes = draw_episodes(task, 32, episodes=50)
    for elements in (3, 17, 31):
        target = family.probe_targets(episodes, elements)["value"]
        for y, count, value, is_defined in zip(
            episodes.context.y.tolist(), episodes.truth["pairs"], target.values, target.is_defined, strict=True
        ):
            assert bool(is_defined) == (elements > 2 * int(count))
            values = dict(zip(y[: elements - 1 : 2], y[1:elements:2], strict=True))
            if is_defined:
                assert int(value) == values[y[elements - 1]]
    assert not family.probe_targets(episodes, 30)["value"].is_defined.any(), "the next element is a key"


def test_the_target_value_of_a_vector_key_is_the_vector_after_its_earlier_occurrence() -> None:
    family, episodes = draw_episodes("recall-vectors", 32)
    target = family.probe_targets(episodes, 31)["value"]
    assert target.is_defined.all()
    for y, value in zip(episodes.context.y, target.values, strict=True):
        (first, *_) = [n for n in range(0, 30, 2) if torch.equal(y[n], y[30])]
        assert torch.equal(value, y[first + 1])


def test_the_product_of_bits_is_the_parity_of_the_bits_that_were_read() -> None:
    family, episodes = draw_episodes("parity", 24)
    for elements in (1, 9, 23):
        target = family.probe_targets(episodes, elements)["product"]
        assert torch.equal(target.values, episodes.context.y[:, :elements].sum(1) % 2) and target.is_defined.all()
