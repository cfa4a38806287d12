"""Frozen probe sets: the same for everyone, in blocks, under shifts whose queries are their own."""

import pytest
import torch

from iclbench.config.resolution import resolve_task
from iclbench.core.errors import UsageError
from iclbench.evaluation.prompts import PromptSet
from iclbench.probing.probe_set import ProbeSet

TASK, _ = resolve_task("linear", "smoke", {"dim": 3})


def probe_set(**changes: object) -> ProbeSet:
    return ProbeSet(TASK, "smoke", **{"context": 6, "fit": 2, "test": 3, "tasks": 80} | changes)  # type: ignore[arg-type]


def test_contexts_and_queries_have_the_asked_sizes_and_belong_to_one_function() -> None:
    episodes = probe_set().episodes
    assert episodes.context.x.shape == (80, 6, 3)
    assert episodes.asked.x.shape == (80, 5, 3)
    weights = torch.linalg.lstsq(episodes.context.x, episodes.context.y).solution
    torch.testing.assert_close(episodes.asked.x @ weights, episodes.asked.y, atol=1e-3, rtol=1e-3)


def test_fewer_tasks_are_the_first_of_more() -> None:
    few, many = probe_set(tasks=64).episodes, probe_set(tasks=80).episodes
    assert torch.equal(few.context.x, many.context.x[:64])


def test_everything_that_changes_the_episodes_changes_the_name() -> None:
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


def test_names_on_disk_stay() -> None:
    task, _ = resolve_task("linear", "small")
    assert PromptSet(task, "small").id == "linear-small-none-828df7ff"
    assert ProbeSet(task, "small", context=20).id == "linear-small-none-probe20-ebc69b63"


def test_probing_evaluating_and_tuning_draw_different_episodes() -> None:
    own, tuning = probe_set().episodes, probe_set().tuning
    prompts = PromptSet(TASK, "smoke").episodes
    assert tuning.asked.x.shape == own.asked.x.shape
    assert not torch.equal(own.context.x, tuning.context.x)
    assert not torch.equal(own.context.x[:10, 0], prompts.context.x[:10, 0])


def test_queries_of_a_shift_are_its_own() -> None:
    episodes = probe_set(shift="orthants").episodes
    signs = episodes.context.x.sign()
    assert (signs == signs[:, :1]).all(), "the context lies in one orthant"
    assert not (episodes.asked.x.sign() == signs[:, :1]).all(-1).all(), "the queries do not"


@pytest.mark.parametrize(
    ("shift", "message"),
    [
        ("orthogonal-query", "orthogonal to one prefix"),
        ("repeated-query", "repeat points of one prefix"),
        ("points-40", "write --context N"),
        ("orthants+points-160", "'orthants.points-160' cannot be probed: .*write --context N"),
        ("orthant", "did you mean 'orthants'"),
    ],
)
def test_shifts_that_cannot_be_probed_say_why(shift: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        probe_set(shift=shift)


def test_a_family_of_targets_gives_exactly_so_many_context_points_and_its_first_targets() -> None:
    task, _ = resolve_task("gp-mixture", "smoke", {"targets": 30})
    chosen = ProbeSet(task, "smoke", context=7, fit=4, test=6, tasks=5)
    assert chosen.episodes.context.counts.tolist() == [7] * 5
    assert chosen.episodes.asked.counts.tolist() == [10] * 5
    assert not torch.equal(chosen.episodes.asked.y, chosen.tuning.asked.y)
    with pytest.raises(UsageError, match=r"has 30 targets.*smaller --fit and --test"):
        ProbeSet(task, "smoke", context=7, fit=10, test=40, tasks=5).episodes  # noqa: B018
