"""`icl.task`: seeds of episodes, shifts, and invalid arguments."""

import doctest

import pytest
import torch

import iclbench as icl
from iclbench.api import tasks
from tests.refusals import refused


def test_equal_seeds_give_equal_episodes() -> None:
    task = icl.task("skewed-linear", preset="smoke", dim=5, head="gaussian")
    first, repeated, other = (task.sample(4, seed=seed) for seed in (0, 0, 1))
    assert torch.equal(first.context.x, repeated.context.x) and not torch.equal(first.context.x, other.context.x)
    assert first.context.x.shape == (4, task.config.points + 1, 5), "the last of the points + 1 points is only a target"
    assert task.sample(2, points=3).context.count == 4
    assert task.config.head == "gaussian" and task.shape.x_dim == 5


def test_a_shift_of_inputs_does_not_change_functions() -> None:
    task = icl.task("linear", preset="smoke", dim=3)
    plain, shifted = task.sample(2, seed=3), task.sample(2, seed=3, shift="orthants")
    assert all(torch.equal(plain.truth[key], shifted.truth[key]) for key in plain.truth)
    assert ((shifted.context.x > 0) == (shifted.context.x[:, :1] > 0)).all(), (
        "the inputs of an episode are in one orthant"
    )
    with refused("not-applicable", "shift", "'sideways'"):
        task.sample(2, shift="sideways")


@pytest.mark.parametrize(
    ("name", "preset", "changes", "code", "names"),
    [
        ("linaer", "smoke", {}, "unknown-name", ["'linaer'", "'linear'"]),
        ("linear", "tiny", {}, "unknown-name", ["preset", "'tiny'"]),
        ("linear", "smoke", {"dims": 3}, "unknown-name", ["'dims'", "'dim'"]),
        ("linear", "smoke", {"dim": "three"}, "bad-value", ["dim", "'three'"]),
        ("linear", "smoke", {"head": "categorical"}, "not-applicable", ["head", "'categorical'"]),
    ],
)
def test_invalid_arguments_are_refused_when_the_task_is_created(
    name: str, preset: str, changes: dict, code: str, names: list[str]
) -> None:
    with refused(code, *names):
        icl.task(name, preset, **changes)


def test_the_repr_of_a_task_is_the_call_that_creates_it() -> None:
    assert repr(icl.task("linear", "smoke", dim=2)) == "task('linear', preset='smoke', dim=2)"


def test_examples_in_docstrings_are_correct() -> None:
    assert doctest.testmod(tasks).failed == 0
    assert doctest.testmod(icl).failed == 0


def test_the_number_of_examples_can_be_set_by_a_shift_or_by_points() -> None:
    task = icl.task("linear", preset="smoke", dim=3)
    assert task.sample(2, shift="points-7").context.count == 7 + 1
    assert task.sample(2, shift="noisy-1+points-7").context.count == 7 + 1
    with refused("conflict", "'points-7'", 3):
        task.sample(2, shift="points-7", points=3)
