"""CMHP: sizes, comparison with attention to each prefix, gradients, streams, a constant state, and learning."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from iclbench.backbones.base import mean_by_event
from iclbench.backbones.cmhp import CMHP
from iclbench.config.cards import BUDGET_TOLERANCE
from iclbench.config.sizes import budget_settings
from iclbench.core.episodes import Episodes, Points
from iclbench.core.events import GAP, MARK, TIME
from iclbench.core.predictions import Prediction
from iclbench.core.task import TaskShape
from iclbench.evaluation.costs.live_bytes import LiveBytes
from tests.backbones.event_models import (
    COUNT,
    MARKS,
    SHAPE,
    assert_same,
    empty_queries,
    events,
    model,
    train_and_measure_skill,
)
from tests.refusals import refused

SMALL = {"layers": 2, "width": 8, "heads": 2, "hidden": 6, "latents": 3}


def shape(marks: int) -> TaskShape:
    return TaskShape(x_dim=0, points=64, y_dim=3, marks=marks, head="event")


@pytest.mark.parametrize("marks", [1, 97, 984])
def test_the_number_of_parameters_follows_from_the_documented_sizes(marks: int) -> None:
    """The blocks have the layers of CMANP (see `test_cmanp`) with width 64 and 16 latents. The gap network has widths
    1,024 -> 64 -> 24, and the mark network 1,024 -> K."""
    layer = 4 * 64 * 64 + 64 + (64 * 256 + 256) + (128 * 64 + 64) + 2 * 2 * 64
    block = 16 * 64 + 4 * layer + 2 * 2 * 64
    read_out = (1024 * 64 + 64) + (64 * 24 + 24) + (1024 * marks + marks)
    backbone = CMHP(CMHP.Settings(), shape(marks))
    assert backbone.parameter_count == marks * 64 + 16 * 64 + 2 * block + read_out == 403_544 + 1_089 * marks


def naive_predictions(backbone: CMHP, points: Points) -> list[Prediction]:
    """Return the predictions for every prefix, with blocks that attend to all events of the prefix at once."""
    column = TIME if backbone.settings.encode == "time" else GAP
    index = np.arange(8)
    angles = points.y[..., column].numpy()[..., None] / 10_000 ** ((index - index % 2) / 8)
    encoding = torch.from_numpy(np.where(index % 2, np.cos(angles), np.sin(angles)))
    tokens = backbone.embed.marks.weight[points.y[..., MARK].long()] + encoding
    answers = []
    for n in range(points.count):
        latents = backbone.latents.expand(len(points), -1, -1)
        for block in backbone.blocks:
            data = block.read(block.latents.expand(len(points), -1, -1), tokens[:, :n], points.mask[:, :n])
            latents = block.mix_passed(block.pass_on(latents, block.mix_read(data)))
        answers.append(backbone.read(backbone.read_out(latents.flatten(1)).unsqueeze(1)))
    return answers


@pytest.mark.parametrize("encode", ["time", "gap"])
@pytest.mark.parametrize("chunk", [4, 128])
@torch.no_grad()
def test_predictions_for_all_prefixes_in_one_pass_equal_those_for_separate_prefixes(encode: str, chunk: int) -> None:
    """In one episode, the first three events are masked, so that the latents have their learned values until the fourth
    event.
    """
    backbone, context = model(CMHP, **SMALL, encode=encode, chunk=chunk), events()
    context.mask[1, :3] = False
    actual = backbone.predict_next(context)
    for n, expected in enumerate(naive_predictions(backbone, context)):
        assert_same(actual.at(slice(n, n + 1)), expected, 1e-10)
    for prefixes in ([0], [2, 3, 7], [], [COUNT - 1]):
        expected = actual.at(torch.tensor(prefixes, dtype=torch.long))
        assert_same(backbone.predict_next(context, prefixes=prefixes), expected, 1e-12)


@pytest.mark.parametrize("chunk", [4, 128])
def test_gradients_of_one_pass_over_all_prefixes_equal_those_of_a_loop(chunk: int) -> None:
    """With chunks of 4 prefixes, the backward pass recomputes the blocks. With chunks of 128, it does not."""
    backbone, context = model(CMHP, **SMALL, chunk=chunk), events()
    context.mask[1, :3] = False
    loss, _ = backbone.loss(Episodes(context=context, scored=context.mask), 0.5, torch.Generator())
    actual = torch.autograd.grad(loss, list(backbone.parameters()))
    losses = torch.cat(
        [answer.loss(context.y[:, n : n + 1]) for n, answer in enumerate(naive_predictions(backbone, context))], 1
    )
    expected = mean_by_event(losses, context.mask, context)
    torch.testing.assert_close(loss, expected, rtol=1e-10, atol=1e-10)
    names = [name for name, _ in backbone.named_parameters()]
    for name, a, b in zip(names, actual, torch.autograd.grad(expected, list(backbone.parameters())), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-11, msg=lambda m, name=name: f"{name}: {m}")


@torch.no_grad()
def test_predictions_in_a_stream_equal_those_for_all_prefixes_in_one_pass() -> None:
    backbone, context = model(CMHP, **SMALL), events()
    expected, state = backbone.predict_next(context), backbone.condition(context.span(0, 0))
    for n in range(COUNT):
        assert_same(backbone.query(state, empty_queries()), expected.at(slice(n, n + 1)), 1e-10)
        state = backbone.update(state, context.span(n, n + 1))
    assert_same(backbone.query(state, empty_queries()), backbone.predict_targets(context, empty_queries()), 1e-10)


@torch.no_grad()
def test_predictions_do_not_depend_on_the_order_of_events_and_events_can_be_removed() -> None:
    """Times are part of the events. Removing events gives the state of the remaining events."""
    backbone, context = model(CMHP, **SMALL), events(masked=False)
    shuffled = context.map(lambda t: t[:, torch.randperm(COUNT, generator=torch.Generator().manual_seed(3))])
    expected = backbone.predict_targets(context, empty_queries())
    assert_same(backbone.predict_targets(shuffled, empty_queries()), expected, 1e-12)
    later = context.y.clone()
    later[..., TIME] += 1
    moved = backbone.predict_targets(replace(context, y=later), empty_queries())
    assert (moved.locs - expected.locs).abs().max() > 1e-4
    state = backbone.remove(backbone.condition(context), context.span(2, 5))
    others = context.span(0, 2).append(context.span(5))
    assert_same(backbone.query(state, empty_queries()), backbone.predict_targets(others, empty_queries()), 1e-9)


@torch.no_grad()
def test_predictions_do_not_depend_on_the_predicted_event_or_later_ones() -> None:
    backbone, context = model(CMHP, **SMALL), events(masked=False)
    expected = backbone.predict_next(context)
    for n in range(COUNT):
        y = context.y.clone()
        y[:, n:, TIME] *= 3
        y[:, n:, MARK] = (y[:, n:, MARK] + 1) % MARKS
        actual = backbone.predict_next(replace(context, y=y))
        assert_same(actual.at(slice(0, n + 1)), expected.at(slice(0, n + 1)), 1e-14)
        if n + 1 < COUNT:
            assert (actual.locs[:, n + 1] - expected.locs[:, n + 1]).abs().amax() > 1e-6


@torch.no_grad()
def test_the_first_event_is_predicted_from_the_learned_latents() -> None:
    """The reference omits the first attention layer of each block, because it has no events to attend to."""
    backbone = model(CMHP, **SMALL)
    backbone.embed.marks.weight.fill_(torch.nan)
    latents = backbone.latents.unsqueeze(0)
    for block in backbone.blocks:
        latents = block.mix_passed(block.pass_on(latents, block.mix_read(block.latents.unsqueeze(0))))
    expected = backbone.read(backbone.read_out(latents.flatten(1)).unsqueeze(1))
    assert_same(backbone.predict_targets(events(0, batch=1), empty_queries(1)), expected, 1e-12)


@torch.no_grad()
def test_the_size_of_the_state_does_not_depend_on_the_number_of_events() -> None:
    backbone = model(CMHP, **SMALL)
    sizes = {count: backbone.condition(events(count)).nbytes for count in (0, 1, 500)}
    assert set(sizes.values()) == {2 * 2 * 2 * 3 * (4 + 1) * 8}  # episodes, layers, heads, latents, (e, log C), bytes


def peak(count: int, chunk: int, train: bool) -> int:
    """Return the peak memory in bytes, excluding the events."""
    backbone, context = model(CMHP, torch.float32, **SMALL | {"latents": 16}, chunk=chunk), events(count)
    context = context.to(dtype=torch.float32)
    with LiveBytes() as live:
        if train:
            backbone.loss(Episodes(context=context, scored=context.mask), 0.5, torch.Generator())[0].backward()
        else:
            with torch.no_grad():
                backbone.condition(context)
    return live.peak


@pytest.mark.slow
def test_the_memory_of_a_stream_does_not_grow_and_chunks_reduce_the_memory_of_training() -> None:
    assert peak(4096, 32, train=False) < 1.05 * peak(128, 32, train=False)
    assert peak(128, 16, train=True) < 0.35 * peak(128, 10**6, train=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@torch.no_grad()
def test_states_can_be_in_float64_while_weights_are_in_float32(dtype: torch.dtype) -> None:
    backbone, context = model(CMHP, torch.float32, **SMALL, state_dtype=str(dtype).removeprefix("torch.")), events()
    context = context.to(dtype=torch.float32)
    assert backbone.condition(context).e.dtype == dtype
    expected = model(CMHP, **SMALL).predict_next(events())
    actual = backbone.predict_next(context)
    torch.testing.assert_close(actual.locs.double(), expected.locs, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("budget", "marks"), [(25_000, 3), (25_000, 984), (200_000, 97), (1_000_000, 984)])
def test_models_of_a_given_parameter_budget_can_be_built_for_any_number_of_marks(budget: int, marks: int) -> None:
    settings = budget_settings("cmhp", CMHP, budget, shape(marks), {})
    backbone: CMHP = CMHP(CMHP.Settings(**settings), shape(marks))
    assert abs(backbone.parameter_count / budget - 1) <= BUDGET_TOLERANCE
    mark_weights = backbone.read_out.mark.weight.numel()
    assert mark_weights <= 0.75 * budget


@pytest.mark.slow
def test_rates_of_poisson_processes_are_learned_in_context() -> None:
    small = {"width": 32, "layers": 1, "heads": 2, "hidden": 16, "latents": 2}
    assert train_and_measure_skill(CMHP, 110, 3e-3, **small, encode="gap") > 0.5


def test_unsuitable_tasks_and_widths_are_refused() -> None:
    with refused("not-applicable", "CMHP", "point-process"):
        CMHP(CMHP.Settings(), TaskShape(x_dim=3, points=8))
    with refused("bad-value", "backbone.width=8", "backbone.heads=3"):
        CMHP(CMHP.Settings(**SMALL | {"heads": 3}), SHAPE)
