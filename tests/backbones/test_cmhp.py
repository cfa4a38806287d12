"""CMHP: sizes, the whole model against attention to each prefix, gradients, the stream, a constant state, learning."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from iclbench.backbones.base import mean_by_event
from iclbench.backbones.cmhp import CMHP
from iclbench.config.cards import TOLERANCE
from iclbench.config.sizes import budget_settings
from iclbench.core.episodes import Episodes, Points
from iclbench.core.errors import UsageError
from iclbench.core.events import GAP, MARK, TIME
from iclbench.core.predictions import Prediction
from iclbench.core.task import TaskShape
from iclbench.evaluation.costs.live_bytes import LiveBytes
from tests.backbones.event_models import (
    COUNT,
    MARKS,
    SHAPE,
    assert_same,
    events,
    model,
    nothing_asked,
    share_learned_in_context,
)

SMALL = {"layers": 2, "width": 8, "heads": 2, "hidden": 6, "latents": 3}


def shape(marks: int) -> TaskShape:
    return TaskShape(x_dim=0, points=64, y_dim=3, marks=marks, head="event")


@pytest.mark.parametrize("marks", [1, 97, 984])
def test_parameter_counts_are_those_of_the_documented_sizes(marks: int) -> None:
    """Blocks as CMANP's at width 64 (`test_cmanp`), 16 latents, gaps from 1,024 -> 64 -> 24, marks from 1,024 -> K."""
    layer = 4 * 64 * 64 + 64 + (64 * 256 + 256) + (128 * 64 + 64) + 2 * 2 * 64
    block = 16 * 64 + 4 * layer + 2 * 2 * 64
    read_out = (1024 * 64 + 64) + (64 * 24 + 24) + (1024 * marks + marks)
    own = CMHP(CMHP.Settings(), shape(marks))
    assert own.parameter_count == marks * 64 + 16 * 64 + 2 * block + read_out == 403_544 + 1_089 * marks


def naive(own: CMHP, points: Points) -> list[Prediction]:
    """Every prefix as a context of its own, in blocks that attend to all of its events."""
    column = TIME if own.settings.encode == "time" else GAP
    index = np.arange(8)
    angles = points.y[..., column].numpy()[..., None] / 10_000 ** ((index - index % 2) / 8)
    encoding = torch.from_numpy(np.where(index % 2, np.cos(angles), np.sin(angles)))
    tokens = own.embed.marks.weight[points.y[..., MARK].long()] + encoding
    answers = []
    for n in range(points.count):
        latents = own.latents.expand(len(points), -1, -1)
        for block in own.blocks:
            data = block.read(block.latents.expand(len(points), -1, -1), tokens[:, :n], points.mask[:, :n])
            latents = block.mix_passed(block.pass_on(latents, block.mix_read(data)))
        answers.append(own.read(own.read_out(latents.flatten(1)).unsqueeze(1)))
    return answers


@pytest.mark.parametrize("encode", ["time", "gap"])
@pytest.mark.parametrize("chunk", [4, 128])
@torch.no_grad()
def test_all_prefixes_at_once_are_each_prefix_on_its_own(encode: str, chunk: int) -> None:
    """One episode has nothing before its third event: there the learned latents pass unread."""
    own, context = model(CMHP, **SMALL, encode=encode, chunk=chunk), events()
    context.mask[1, :3] = False
    found = own.predict_next(context)
    for n, expected in enumerate(naive(own, context)):
        assert_same(found.at(slice(n, n + 1)), expected, 1e-10)
    for asked in ([0], [2, 3, 7], [], [COUNT - 1]):
        assert_same(own.predict_next(context, prefixes=asked), found.at(torch.tensor(asked, dtype=torch.long)), 1e-12)


@pytest.mark.parametrize("chunk", [4, 128])
def test_gradients_of_all_prefixes_at_once_are_those_of_a_loop_over_them(chunk: int) -> None:
    """With blocks that are computed again in the backward pass, and without."""
    own, context = model(CMHP, **SMALL, chunk=chunk), events()
    context.mask[1, :3] = False
    loss, _ = own.loss(Episodes(context=context, scored=context.mask), 0.5, torch.Generator())
    found = torch.autograd.grad(loss, list(own.parameters()))
    each = torch.cat([answer.loss(context.y[:, n : n + 1]) for n, answer in enumerate(naive(own, context))], 1)
    expected = mean_by_event(each, context.mask, context)
    torch.testing.assert_close(loss, expected, rtol=1e-10, atol=1e-10)
    names = [name for name, _ in own.named_parameters()]
    for name, a, b in zip(names, found, torch.autograd.grad(expected, list(own.parameters())), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-11, msg=lambda m, name=name: f"{name}: {m}")


@torch.no_grad()
def test_a_stream_equals_the_answers_to_all_prefixes() -> None:
    own, context = model(CMHP, **SMALL), events()
    expected, state = own.predict_next(context), own.condition(context.span(0, 0))
    for n in range(COUNT):
        assert_same(own.query(state, nothing_asked()), expected.at(slice(n, n + 1)), 1e-10)
        state = own.update(state, context.span(n, n + 1))
    assert_same(own.query(state, nothing_asked()), own.predict_targets(context, nothing_asked()), 1e-10)


@torch.no_grad()
def test_events_are_a_set_with_times_and_can_be_forgotten() -> None:
    """`remove` leaves what conditioning on the others gives; order is nothing, times are."""
    own, context = model(CMHP, **SMALL), events(holes=False)
    shuffled = context.map(lambda t: t[:, torch.randperm(COUNT, generator=torch.Generator().manual_seed(3))])
    expected = own.predict_targets(context, nothing_asked())
    assert_same(own.predict_targets(shuffled, nothing_asked()), expected, 1e-12)
    later = context.y.clone()
    later[..., TIME] += 1
    moved = own.predict_targets(replace(context, y=later), nothing_asked())
    assert (moved.locs - expected.locs).abs().max() > 1e-4
    state = own.remove(own.condition(context), context.span(2, 5))
    others = context.span(0, 2).append(context.span(5))
    assert_same(own.query(state, nothing_asked()), own.predict_targets(others, nothing_asked()), 1e-9)


@torch.no_grad()
def test_answers_do_not_move_with_the_event_they_are_about_nor_with_later_ones() -> None:
    own, context = model(CMHP, **SMALL), events(holes=False)
    expected = own.predict_next(context)
    for n in range(COUNT):
        y = context.y.clone()
        y[:, n:, TIME] *= 3
        y[:, n:, MARK] = (y[:, n:, MARK] + 1) % MARKS
        found = own.predict_next(replace(context, y=y))
        assert_same(found.at(slice(0, n + 1)), expected.at(slice(0, n + 1)), 1e-14)
        if n + 1 < COUNT:
            assert (found.locs[:, n + 1] - expected.locs[:, n + 1]).abs().amax() > 1e-6


@torch.no_grad()
def test_before_any_event_the_learned_latents_are_decoded_unread() -> None:
    """Every attention of every block but the first, which has nothing to read."""
    own = model(CMHP, **SMALL)
    own.embed.marks.weight.fill_(torch.nan)
    latents = own.latents.unsqueeze(0)
    for block in own.blocks:
        latents = block.mix_passed(block.pass_on(latents, block.mix_read(block.latents.unsqueeze(0))))
    expected = own.read(own.read_out(latents.flatten(1)).unsqueeze(1))
    assert_same(own.predict_targets(events(0, batch=1), nothing_asked(1)), expected, 1e-12)


@torch.no_grad()
def test_the_state_is_constant_and_holds_no_events() -> None:
    own = model(CMHP, **SMALL)
    sizes = {count: own.condition(events(count)).nbytes for count in (0, 1, 500)}
    assert set(sizes.values()) == {2 * 2 * 2 * 3 * (4 + 1) * 8}  # episodes, layers, heads, latents, (e, log C), bytes


def peak(count: int, chunk: int, train: bool) -> int:
    """Bytes alive at once beyond the events themselves."""
    own, context = model(CMHP, torch.float32, **SMALL | {"latents": 16}, chunk=chunk), events(count)
    context = context.to(dtype=torch.float32)
    with LiveBytes() as live:
        if train:
            own.loss(Episodes(context=context, scored=context.mask), 0.5, torch.Generator())[0].backward()
        else:
            with torch.no_grad():
                own.condition(context)
    return live.peak


@pytest.mark.slow
def test_memory_of_a_stream_does_not_grow_and_that_of_training_hardly_beyond_the_states() -> None:
    assert peak(4096, 32, train=False) < 1.05 * peak(128, 32, train=False)
    assert peak(128, 16, train=True) < 0.35 * peak(128, 10**6, train=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@torch.no_grad()
def test_a_float64_state_is_kept_so_beside_weights_in_single_precision(dtype: torch.dtype) -> None:
    own, context = model(CMHP, torch.float32, **SMALL, state_dtype=str(dtype).removeprefix("torch.")), events()
    context = context.to(dtype=torch.float32)
    assert own.condition(context).e.dtype == dtype
    expected = model(CMHP, **SMALL).predict_next(events())
    found = own.predict_next(context)
    torch.testing.assert_close(found.locs.double(), expected.locs, rtol=1e-4, atol=1e-4)


@torch.no_grad()
def test_a_saved_state_answers_and_goes_on_byte_for_byte(tmp_path: Path) -> None:
    own, context, more = model(CMHP, **SMALL), events(), events(3)
    state = own.condition(context)
    own.save_state(state, tmp_path / "state")
    again = model(CMHP, **SMALL)
    loaded = again.load_state(tmp_path / "state")
    for a, b in ((loaded, state), (again.update(loaded, more), own.update(state, more))):
        assert_same(again.query(a, nothing_asked()), own.query(b, nothing_asked()), 0.0)


@pytest.mark.parametrize(("budget", "marks"), [(25_000, 3), (25_000, 984), (200_000, 97), (1_000_000, 984)])
def test_budgets_are_met_however_many_marks_the_latents_are_mapped_to(budget: int, marks: int) -> None:
    settings = budget_settings("cmhp", CMHP, budget, shape(marks), {})
    own: CMHP = CMHP(CMHP.Settings(**settings), shape(marks))
    assert abs(own.parameter_count / budget - 1) <= TOLERANCE
    marks_from_latents = own.read_out.mark.weight.numel()
    assert marks_from_latents <= 0.75 * budget


@pytest.mark.slow
def test_rates_of_poisson_processes_are_learned_in_context() -> None:
    small = {"width": 32, "layers": 1, "heads": 2, "hidden": 16, "latents": 2}
    assert share_learned_in_context(CMHP, 110, 3e-3, **small, encode="gap") > 0.5


def test_other_tasks_are_refused_in_one_line() -> None:
    with pytest.raises(UsageError, match="CMHP reads event sequences and nothing else"):
        CMHP(CMHP.Settings(), TaskShape(x_dim=3, points=8))
    with pytest.raises(UsageError, match=r"backbone\.width=8 is not a multiple of backbone\.heads=3"):
        CMHP(CMHP.Settings(**SMALL | {"heads": 3}), SHAPE)
