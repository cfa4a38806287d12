"""Frozen probe sets: episodes, names and shifts."""

import pytest
import torch

from iclbench.config.resolution import resolve_task
from iclbench.core.errors import UsageError
from iclbench.evaluation.prompts import PromptSet
from iclbench.probing.probe_set import ProbeSet
from tests.refusals import refused

TASK, _ = resolve_task("linear", "smoke", {"dim": 3})


def probe_set(**changes: object) -> ProbeSet:
    return ProbeSet(TASK, "smoke", **{"context": 6, "fit": 2, "test": 3, "tasks": 80} | changes)  # type: ignore[arg-type]


def test_contexts_and_queries_have_the_given_sizes_and_come_from_the_same_function() -> None:
    episodes = probe_set().episodes
    assert episodes.context.x.shape == (80, 6, 3)
    assert episodes.queries.x.shape == (80, 5, 3)
    weights = torch.linalg.lstsq(episodes.context.x, episodes.context.y).solution
    torch.testing.assert_close(episodes.queries.x @ weights, episodes.queries.y, atol=1e-3, rtol=1e-3)


def test_a_smaller_probe_set_has_the_first_tasks_of_a_larger_one() -> None:
    smaller, larger = probe_set(tasks=64).episodes, probe_set(tasks=80).episodes
    assert torch.equal(smaller.context.x, larger.context.x[:64])


def test_the_name_depends_on_all_settings_that_change_the_episodes() -> None:
    changes: list[dict[str, object]] = [
        {},
        {"context": 7},
        {"fit": 3},
        {"test": 4},
        {"tasks": 64},
        {"seed": 1},
        {"shift": "orthants"},
    ]
    assert len({probe_set(**change).id for change in changes}) == len(changes)
    assert probe_set().id == probe_set().id
    assert probe_set().id.startswith("linear-smoke-none-probe6-")


def test_names_have_not_changed_since_earlier_versions() -> None:
    task, _ = resolve_task("linear", "small")
    assert PromptSet(task, "small").id == "linear-small-none-828df7ff"
    assert ProbeSet(task, "small", context=20).id == "linear-small-none-probe20-ebc69b63"


def test_probing_evaluation_and_tuning_use_different_episodes() -> None:
    probed, tuning = probe_set().episodes, probe_set().tuning_episodes
    prompts = PromptSet(TASK, "smoke").episodes
    assert tuning.queries.x.shape == probed.queries.x.shape
    assert not torch.equal(probed.context.x, tuning.context.x)
    assert not torch.equal(probed.context.x[:10, 0], prompts.context.x[:10, 0])


def test_a_shift_of_the_contexts_does_not_shift_the_queries() -> None:
    episodes = probe_set(shift="orthants").episodes
    signs = episodes.context.x.sign()
    assert (signs == signs[:, :1]).all(), "the context is in one orthant"
    assert not (episodes.queries.x.sign() == signs[:, :1]).all(-1).all(), "the queries are not"


@pytest.mark.parametrize(
    ("shift", "name"),
    [
        ("orthogonal-query", "orthogonal-query"),
        ("repeated-query", "repeated-query"),
        ("points-40", "--context"),
        ("orthants+points-160", "--context"),
    ],
)
def test_shifts_that_cannot_be_probed_are_refused(shift: str, name: str) -> None:
    with refused("not-applicable", f"'{shift}'", name):
        probe_set(shift=shift)


def test_an_unknown_shift_is_refused() -> None:
    with pytest.raises(UsageError, match="'orthants'"):
        probe_set(shift="orthant")


def test_probe_sets_of_target_tasks_have_the_given_numbers_of_context_points_and_queries() -> None:
    task, _ = resolve_task("gp-mixture", "smoke", {"targets": 30})
    prompts = ProbeSet(task, "smoke", context=7, fit=4, test=6, tasks=5)
    assert prompts.episodes.context.counts.tolist() == [7] * 5
    assert prompts.episodes.queries.counts.tolist() == [10] * 5
    assert not torch.equal(prompts.episodes.queries.y, prompts.tuning_episodes.queries.y)
    with refused("bad-value", 30, "--fit", "--test"):
        ProbeSet(task, "smoke", context=7, fit=10, test=40, tasks=5).episodes  # noqa: B018
