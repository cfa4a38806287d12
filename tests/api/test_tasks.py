"""Tasks: episodes by seed, and what is refused."""

import doctest

import pytest
import torch

import iclbench as icl
from iclbench.api import tasks
from iclbench.core.errors import UsageError
from tests.refusals import refused


def test_equal_seeds_give_equal_episodes_in_the_shape_that_was_asked() -> None:
    task = icl.task("skewed-linear", preset="smoke", dim=5, head="gaussian")
    one, again, other = (task.sample(4, seed=seed) for seed in (0, 0, 1))
    assert torch.equal(one.context.x, again.context.x) and not torch.equal(one.context.x, other.context.x)
    assert one.context.x.shape == (4, task.config.points + 1, 5), "the last point is only ever asked"
    assert task.sample(2, points=3).context.count == 4
    assert task.config.head == "gaussian" and task.shape.x_dim == 5


def test_a_shift_changes_inputs_and_not_functions() -> None:
    task = icl.task("linear", preset="smoke", dim=3)
    plain, shifted = task.sample(2, seed=3), task.sample(2, seed=3, shift="orthants")
    assert all(torch.equal(plain.truth[key], shifted.truth[key]) for key in plain.truth)
    assert ((shifted.context.x > 0) == (shifted.context.x[:, :1] > 0)).all(), "one orthant for each episode's context"
    with pytest.raises(UsageError, match="shift"):
        task.sample(2, shift="sideways")


@pytest.mark.parametrize(
    ("name", "preset", "changes", "line"),
    [
        ("linaer", "smoke", {}, "linear"),
        ("linear", "tiny", {}, "preset"),
        ("linear", "smoke", {"dims": 3}, "dim"),
        ("linear", "smoke", {"dim": "three"}, "dim"),
        ("linear", "smoke", {"head": "categorical"}, "head 'categorical' does not fit"),
    ],
)
def test_what_does_not_fit_is_said_at_once(name: str, preset: str, changes: dict, line: str) -> None:
    with pytest.raises(UsageError, match=line):
        icl.task(name, preset, **changes)


def test_it_says_what_it_is() -> None:
    assert repr(icl.task("linear", "smoke", dim=2)) == "task('linear', preset='smoke', dim=2)"


def test_examples_of_the_documentation_hold() -> None:
    assert doctest.testmod(tasks).failed == 0
    assert doctest.testmod(icl).failed == 0


def test_a_shift_says_how_many_examples_there_are_unless_points_does() -> None:
    task = icl.task("linear", preset="smoke", dim=3)
    assert task.sample(2, shift="points-7").context.count == 7 + 1
    assert task.sample(2, shift="noisy-1+points-7").context.count == 7 + 1
    with refused("conflict", "'points-7'", 3):
        task.sample(2, shift="points-7", points=3)
