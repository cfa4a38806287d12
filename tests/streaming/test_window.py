"""A sliding window against conditioning on its points, whatever comes and goes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from iclbench.backbones.base import Backbone
from iclbench.core.episodes import Points
from iclbench.core.errors import DataError, UsageError
from iclbench.core.predictions import Prediction
from iclbench.core.predictor import State
from iclbench.evaluation.costs.live_bytes import LiveBytes
from iclbench.streaming import window as window_module
from iclbench.streaming.lines import Line
from iclbench.streaming.stream import BATCH, Stream
from iclbench.streaming.window import Window, WindowState, check_state
from tests.refusals import refused
from tests.streaming.test_stream import lines, model

NEVER = 10**9


def peaked(dtype: torch.dtype = torch.float64) -> Backbone:
    """Single points take nearly all of some latent's attention, and answers depend on it, as in trained models."""
    own = model("cmanp")
    with torch.no_grad():
        for block in own.blocks:
            block.read.k.weight *= 200
            for weight in (block.read.out.weight, block.pass_on.out.weight):
                weight *= 5
        for weight in (*(reader.out.weight for reader in own.readers), own.decoder[-1].weight):
            weight *= 5
    return own.to(dtype)


def stream_of(count: int, dtype: torch.dtype = torch.float64) -> Points:
    x, y = (torch.randn(1, count, dim, generator=torch.Generator().manual_seed(dim)).to(dtype) for dim in (2, 1))
    return Points.full(x, y)


def slid(window: Window, points: Points, sizes: tuple[int, ...] = (1,), related: Points | None = None) -> Any:
    """The states after every portion, and what has come by then."""
    state, done, turn = window.condition(points.span(0, 0), related), 0, 0
    while done < points.count:
        portion = points.span(done, done + sizes[turn % len(sizes)])
        state, done, turn = window.update(state, portion), done + portion.count, turn + 1
        yield state, points.span(0, done)


def last(points: Points, size: int) -> Points:
    return points.span(max(0, points.count - size))


def distance(a: Prediction | State, b: Prediction | State) -> float:
    pairs = zip(a.tensors().values(), b.tensors().values(), strict=True)
    return max((x.double() - y.double()).abs().max().item() for x, y in pairs if x.numel())


def assert_equal(a: State, b: State) -> None:
    for x, y in zip(a.tensors().values(), b.tensors().values(), strict=True):
        assert torch.equal(x, y)


@pytest.mark.parametrize(
    ("name", "size", "afresh"),
    [
        # Sizes do nothing to latents that they do not to sums, which take a tenth of the time.
        pytest.param(name, size, afresh, marks=pytest.mark.slow if name == "cmanp" and size != 3 else [])
        for name in ("cmanp", "cnp", "icicl-cnp")
        for size in (1, 3, 100)
        for afresh in (0, window_module.AFRESH)
    ],
)
@torch.no_grad()
def test_at_every_step_only_the_last_points_count(name: str, size: int, afresh: int) -> None:
    """Against a naive loop; the largest window holds more than there is. Related datasets are not forgotten."""
    own, points, x = model(name, related=2), stream_of(25), torch.randn(1, 3, 2).double()
    related = Points.full(torch.randn(1, 2, 5, 2).double(), torch.randn(1, 2, 5, 1).double())
    window = Window(own, size, afresh=afresh)
    for sizes in ((1,), (1, 4, 2, 9)):
        for state, come in slid(window, points, sizes, related):
            assert torch.equal(state.points.x, last(come, size).x) and torch.equal(state.points.y, last(come, size).y)
            assert distance(window.query(state, x), own.predict_targets(last(come, size), x, related)) < 1e-10


@pytest.mark.parametrize("at_once", [True, False])
@pytest.mark.parametrize("size", [1, 3, 150])
def test_queries_between_points_see_the_last_ones_before_them(size: int, at_once: bool) -> None:
    own, given = model(), lines("pqqpppqpp" + "q" * 3 + "p" * (BATCH + 30) + "qppq")
    stream = Stream(own, at_once=at_once, window=size)
    answers = list(stream.run(given))
    assert [answer.number for answer in answers] == [line.number for line in given if line.y is None]
    assert stream.points == len(given) - len(answers)
    for answer in answers:
        before = [line for line in given[: answer.number] if line.y is not None][-size:]
        x, y = (torch.tensor([[getattr(line, part) for line in before]]).double() for part in "xy")
        with torch.no_grad():
            expected = own.predict_targets(Points.full(x, y), torch.tensor([[answer.x]]).double())
        assert answer.columns["mean"] == pytest.approx(expected.mean.flatten().tolist(), rel=1e-8, abs=1e-8)
        assert answer.columns["std"] == pytest.approx(expected.std.flatten().tolist(), rel=1e-8, abs=1e-8)


@torch.no_grad()
def test_a_window_that_is_never_full_is_the_stream_without_one() -> None:
    own, given = model().float(), lines("ppqpppqq")
    whole, windowed = Stream(own), Stream(own, window=6)
    assert list(whole.run(given)) == list(windowed.run(given))
    assert isinstance(windowed.state, WindowState)
    assert_equal(windowed.state.state, whole.state)


@torch.no_grad()
def worst(dtype: torch.dtype, slides: int, **rule: int) -> tuple[float, float]:
    """How far answers and states of a peaked model are from those of the points of the window, conditioned on in its
    own precision."""
    own, points, x = peaked(dtype), stream_of(slides + 20, dtype), torch.randn(1, 8, 2, dtype=dtype)
    window, found = Window(own, 20, afresh=0, **rule), [(0.0, 0.0)]
    for step, (state, come) in enumerate(slid(window, points)):
        if step % 20 == 0 or step == slides + 19:
            fresh = own.condition(last(come, 20))
            pairs = (window.query(state, x), own.query(fresh, x)), (state.state, fresh)
            found.append(tuple(distance(a, b) for a, b in pairs))
    return max(answer for answer, _ in found), max(state for _, state in found)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("slides", [100, pytest.param(100_000, marks=pytest.mark.slow)])
def test_rounding_errors_stay_small_however_far_it_slides(dtype: torch.dtype, slides: int) -> None:
    answers, states = worst(dtype, slides)
    assert answers < 1e-5
    assert states < (1e-3 if dtype == torch.float32 else 1e-5)


@pytest.mark.slow
def test_without_fresh_conditioning_they_would_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(window_module, "TOLERATED", {torch.float32: float("inf")})
    answers, states = worst(torch.float32, 400, every=NEVER)
    assert answers > 5e-5
    assert states > 5e-3


@torch.no_grad()
def test_sums_that_fall_little_by_little_are_noticed() -> None:
    """Values that halve from point to point: each removal is harmless, and together they leave errors of the first."""
    own, points = model("cnp").float(), stream_of(60, torch.float32)
    points.y.mul_(1e7 * 0.5 ** torch.arange(60).clamp(max=24).unsqueeze(-1))
    *_, (state, come) = slid(Window(own, 20, afresh=0), points)
    fresh = own.condition(last(come, 20))
    assert (state.state.total - fresh.total).norm() < 1e-5 * fresh.total.norm()
    assert 0 < state.steps < 40


def test_errors_grow_with_the_steps_and_with_the_fall_of_the_sums() -> None:
    now = torch.zeros(2, 3)
    before = now + torch.tensor([0.0, 0.0, 4.0])  # by a factor of 55
    for steps, highest, drifted in ((1, now, False), (1, before, False), (9, before, True), (8000, now, True)):
        assert window_module._drifted(steps, highest, now) is drifted
    assert not window_module._drifted(8000, before.double(), now.double())
    assert not window_module._drifted(8000, None, None), "a state that does not say"


@torch.no_grad()
def test_after_so_many_steps_the_state_is_conditioned_on_afresh() -> None:
    own, points = model().float(), stream_of(40, torch.float32)
    for state, come in slid(Window(own, 10, every=6, afresh=0), points):
        removed = max(0, come.count - 10)
        assert state.steps == removed % 6
        if removed and removed % 6 == 0:
            assert_equal(state.state, own.condition(last(come, 10)))


@torch.no_grad()
def test_where_too_little_would_be_left_the_rest_is_conditioned_on() -> None:
    """The oldest point has nearly all the attention of some latent: `remove` refuses to take it away."""
    own, points = peaked(torch.float32), stream_of(30, torch.float32)
    for block in own.blocks:
        block.read.k.weight *= 20
    whole = own.condition(points).log_c
    share = [(own.condition(points.span(n, n + 1)).log_c - whole).max().item() for n in range(30)]
    heavy = share.index(max(share))
    points = points.span(heavy, heavy + 1).append(points.span(0, heavy)).append(points.span(heavy + 1))
    *_, (before, _), (state, _) = slid(Window(own, 29, afresh=0), points)
    with refused("not-applicable"):
        own.remove(own.update(before.state, points.span(29)), points.span(0, 1))
    assert state.steps == 0
    assert_equal(state.state, own.condition(points.span(1)))


@torch.no_grad()
def test_a_small_window_and_a_large_portion_are_conditioned_on_afresh() -> None:
    """It costs less than to add and to remove them."""
    own, points = model().float(), stream_of(200, torch.float32)
    *_, (small, _) = slid(Window(own, 64), points)
    assert_equal(small.state, own.condition(points.span(200 - 64)))
    *_, (large, _) = slid(Window(own, 90, afresh=0), points, (50,))
    assert_equal(large.state, own.condition(points.span(110)))


@torch.no_grad()
def test_memory_is_that_of_the_window() -> None:
    own, points = model().float(), stream_of(100, torch.float32)
    window = Window(own, 30, afresh=0)
    states = [state for state, _ in slid(window, points)]
    (size,) = {state.nbytes for state in states[30:]}
    assert size == states[0].state.nbytes + 30 * (3 * 4 + 1) + states[0].highest.nbytes

    def peak(state: WindowState) -> int:
        with LiveBytes() as live:
            window.update(state, points.span(0, 1))
        return live.peak

    assert peak(states[40]) == peak(states[99])


@pytest.mark.parametrize("name", ["cmanp", "cnp", "icicl-cnp"])
@torch.no_grad()
def test_a_saved_window_goes_on_byte_for_byte(name: str, tmp_path: Path) -> None:
    own, points = model(name, related=2), stream_of(60)
    related = Points.full(torch.randn(1, 2, 5, 2).double(), torch.randn(1, 2, 5, 1).double())
    window = Window(own, 10, every=12, afresh=0)
    state = window.condition(points.span(0, 0), related if name == "icicl-cnp" else None)
    for n in range(25):
        state = window.update(state, points.span(n, n + 1))
    own.save_state(state, tmp_path / "state")
    loaded = own.load_state(tmp_path / "state")
    check_state(loaded, 10)
    for n in range(25, 60):
        state, loaded = (window.update(each, points.span(n, n + 1)) for each in (state, loaded))
        assert_equal(state, loaded)
        assert state.steps == loaded.steps
    wanted = own.condition(points.span(50), related if name == "icicl-cnp" else None)
    assert distance(state.state, wanted) < 1e-10


def test_states_that_go_without_such_a_window_are_refused() -> None:
    own = model()
    plain, windowed = Stream(own).state, Stream(own, window=5).state
    for state, window, message in (
        (plain, 5, "saved without --window and holds no points to forget; leave --window out"),
        (windowed, None, "a window of 5 points; give --window 5"),
        (windowed, 6, "a window of 5 points; give --window 5"),
    ):
        with pytest.raises(DataError, match=message):
            Stream(own, state, window=window)


@pytest.mark.parametrize("name", ["lbanp", "gpt2", "mamba"])
def test_a_model_that_cannot_forget_points_is_refused_and_others_named(name: str) -> None:
    with pytest.raises(UsageError, match=r"this model cannot forget points, .*cmanp.*cnp.* can;") as raised:
        Stream(model(name), window=5)
    assert "\n" not in str(raised.value) and "gpt2" not in str(raised.value)


def test_a_point_the_model_cannot_compute_with_leaves_the_window_as_it_was() -> None:
    own, given = model().float(), lines("ppppp")
    given[3] = Line(4, [3e38, 3e38], [1.0])
    for size in (2, 9):
        stream = Stream(own, window=size)
        with pytest.raises(DataError, match="line 4: the model cannot compute with this point"):
            list(stream.run(given))
        assert stream.points == 3 and stream.state.points.count == min(size, 3)
        assert bool(stream.state.state.e.isfinite().all())


def test_a_window_says_nothing_of_growing_states(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO"):
        list(Stream(model(), window=50).run(lines("pqpqpq")))
    assert not [record for record in caplog.records if "grows" in record.message]
