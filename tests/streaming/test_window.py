"""Sliding windows, compared with conditioning on the points in the window."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from iclbench.backbones.base import Backbone
from iclbench.core.episodes import Points
from iclbench.core.predictions import Prediction
from iclbench.core.predictor import State
from iclbench.evaluation.costs.live_bytes import LiveBytes
from iclbench.streaming import window as window_module
from iclbench.streaming.lines import Line
from iclbench.streaming.stream import BATCH_SIZE, Stream
from iclbench.streaming.window import Window, WindowState, check_state
from tests.refusals import refused
from tests.streaming.test_stream import lines, model

NEVER = 10**9


def peaked_model(dtype: torch.dtype = torch.float64) -> Backbone:
    """Return a model in which a single point may receive almost all attention of a latent, as after training, and
    answers depend on this latent."""
    backbone = model("cmanp")
    with torch.no_grad():
        for block in backbone.blocks:
            block.read.k.weight *= 200
            for weight in (block.read.out.weight, block.pass_on.out.weight):
                weight *= 5
        for weight in (*(reader.out.weight for reader in backbone.readers), backbone.decoder[-1].weight):
            weight *= 5
    return backbone.to(dtype)


def stream_of(count: int, dtype: torch.dtype = torch.float64) -> Points:
    x, y = (torch.randn(1, count, dim, generator=torch.Generator().manual_seed(dim)).to(dtype) for dim in (2, 1))
    return Points.full(x, y)


def slide(window: Window, points: Points, sizes: tuple[int, ...] = (1,), related: Points | None = None) -> Any:
    """Yield the state after each chunk of points, and all points so far."""
    state, count, index = window.condition(points.span(0, 0), related), 0, 0
    while count < points.count:
        chunk = points.span(count, count + sizes[index % len(sizes)])
        state, count, index = window.update(state, chunk), count + chunk.count, index + 1
        yield state, points.span(0, count)


def last_points(points: Points, size: int) -> Points:
    return points.span(max(0, points.count - size))


def distance(a: Prediction | State, b: Prediction | State) -> float:
    pairs = zip(a.tensors().values(), b.tensors().values(), strict=True)
    return max((x.double() - y.double()).abs().max().item() for x, y in pairs if x.numel())


def assert_equal(a: State, b: State) -> None:
    for x, y in zip(a.tensors().values(), b.tensors().values(), strict=True):
        assert torch.equal(x, y)


@pytest.mark.parametrize(
    ("name", "size", "cheap_size"),
    [
        # The other sizes are tested with `cnp`, which takes a tenth of the time.
        pytest.param(name, size, cheap_size, marks=pytest.mark.slow if name == "cmanp" and size != 3 else [])
        for name in ("cmanp", "cnp", "icicl-cnp")
        for size in (1, 3, 100)
        for cheap_size in (0, window_module.CHEAP_SIZE)
    ],
)
@torch.no_grad()
def test_every_state_predicts_like_a_model_conditioned_on_the_last_points(
    name: str, size: int, cheap_size: int
) -> None:
    """The largest window is never full. Related datasets stay in the state."""
    backbone, points, x = model(name, related=2), stream_of(25), torch.randn(1, 3, 2).double()
    related = Points.full(torch.randn(1, 2, 5, 2).double(), torch.randn(1, 2, 5, 1).double())
    window = Window(backbone, size, cheap_size=cheap_size)
    for sizes in ((1,), (1, 4, 2, 9)):
        for state, past in slide(window, points, sizes, related):
            assert torch.equal(state.points.x, last_points(past, size).x) and torch.equal(
                state.points.y, last_points(past, size).y
            )
            assert (
                distance(window.query(state, x), backbone.predict_targets(last_points(past, size), x, related)) < 1e-10
            )


@pytest.mark.parametrize("answer_immediately", [True, False])
@pytest.mark.parametrize("size", [1, 3, 150])
def test_answers_depend_only_on_the_last_points_before_the_query(size: int, answer_immediately: bool) -> None:
    backbone, stream_lines = model(), lines("pqqpppqpp" + "q" * 3 + "p" * (BATCH_SIZE + 30) + "qppq")
    stream = Stream(backbone, answer_immediately=answer_immediately, window=size)
    answers = list(stream.run(stream_lines))
    assert [answer.number for answer in answers] == [line.number for line in stream_lines if line.y is None]
    assert stream.points == len(stream_lines) - len(answers)
    for answer in answers:
        points_before = [line for line in stream_lines[: answer.number] if line.y is not None][-size:]
        x, y = (torch.tensor([[getattr(line, field) for line in points_before]]).double() for field in "xy")
        with torch.no_grad():
            expected = backbone.predict_targets(Points.full(x, y), torch.tensor([[answer.x]]).double())
        assert answer.columns["mean"] == pytest.approx(expected.mean.flatten().tolist(), rel=1e-8, abs=1e-8)
        assert answer.columns["std"] == pytest.approx(expected.std.flatten().tolist(), rel=1e-8, abs=1e-8)


@torch.no_grad()
def test_a_window_that_is_never_full_equals_no_window() -> None:
    backbone, stream_lines = model().float(), lines("ppqpppqq")
    without_window, windowed = Stream(backbone), Stream(backbone, window=6)
    assert list(without_window.run(stream_lines)) == list(windowed.run(stream_lines))
    assert isinstance(windowed.state, WindowState)
    assert_equal(windowed.state.state, without_window.state)


@torch.no_grad()
def largest_distances(dtype: torch.dtype, slides: int, **rule: int) -> tuple[float, float]:
    """Compare a sliding window of a peaked model with conditioning on the points in the window.

    Returns the largest difference between answers and the largest difference between states.
    """
    backbone, points, x = peaked_model(dtype), stream_of(slides + 20, dtype), torch.randn(1, 8, 2, dtype=dtype)
    window, distances = Window(backbone, 20, cheap_size=0, **rule), [(0.0, 0.0)]
    for step, (state, past) in enumerate(slide(window, points)):
        if step % 20 == 0 or step == slides + 19:
            recomputed = backbone.condition(last_points(past, 20))
            pairs = (window.query(state, x), backbone.query(recomputed, x)), (state.state, recomputed)
            distances.append(tuple(distance(a, b) for a, b in pairs))
    return max(answer for answer, _ in distances), max(state for _, state in distances)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("slides", [100, pytest.param(100_000, marks=pytest.mark.slow)])
def test_rounding_errors_are_small_after_many_steps(dtype: torch.dtype, slides: int) -> None:
    answers, states = largest_distances(dtype, slides)
    assert answers < 1e-5
    assert states < (1e-3 if dtype == torch.float32 else 1e-5)


@pytest.mark.slow
def test_rounding_errors_are_large_if_the_state_is_never_recomputed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(window_module, "TOLERANCES", {torch.float32: float("inf")})
    answers, states = largest_distances(torch.float32, 400, max_steps=NEVER)
    assert answers > 5e-5
    assert states > 5e-3


@torch.no_grad()
def test_the_state_is_recomputed_if_sums_decrease_slowly() -> None:
    """Outputs halve from point to point. Each removal is accurate, but the errors of the first values accumulate."""
    backbone, points = model("cnp").float(), stream_of(60, torch.float32)
    points.y.mul_(1e7 * 0.5 ** torch.arange(60).clamp(max=24).unsqueeze(-1))
    *_, (state, past) = slide(Window(backbone, 20, cheap_size=0), points)
    recomputed = backbone.condition(last_points(past, 20))
    assert (state.state.total - recomputed.total).norm() < 1e-5 * recomputed.total.norm()
    assert 0 < state.steps < 40


def test_estimated_errors_grow_with_the_number_of_steps_and_the_decrease_of_sums() -> None:
    current = torch.zeros(2, 3)
    earlier = current + torch.tensor([0.0, 0.0, 4.0])  # sums decrease by a factor of e^4 = 55
    for steps, highest, drifted in (
        (1, current, False),
        (1, earlier, False),
        (9, earlier, True),
        (8000, current, True),
    ):
        assert window_module._has_drifted(steps, highest, current) is drifted
    assert not window_module._has_drifted(8000, earlier.double(), current.double())
    assert not window_module._has_drifted(8000, None, None), "a state without weights has no drift"


@torch.no_grad()
def test_the_state_is_recomputed_after_the_maximum_number_of_steps() -> None:
    backbone, points = model().float(), stream_of(40, torch.float32)
    for state, past in slide(Window(backbone, 10, max_steps=6, cheap_size=0), points):
        removed = max(0, past.count - 10)
        assert state.steps == removed % 6
        if removed and removed % 6 == 0:
            assert_equal(state.state, backbone.condition(last_points(past, 10)))


@torch.no_grad()
def test_the_state_is_recomputed_if_a_removed_point_has_almost_all_weight() -> None:
    """The oldest point has almost all attention of a latent, so `remove` refuses it."""
    backbone, points = peaked_model(torch.float32), stream_of(30, torch.float32)
    for block in backbone.blocks:
        block.read.k.weight *= 20
    log_total = backbone.condition(points).log_c
    shares = [(backbone.condition(points.span(n, n + 1)).log_c - log_total).max().item() for n in range(30)]
    heaviest = shares.index(max(shares))
    points = points.span(heaviest, heaviest + 1).append(points.span(0, heaviest)).append(points.span(heaviest + 1))
    *_, (before, _), (state, _) = slide(Window(backbone, 29, cheap_size=0), points)
    with refused("not-applicable"):
        backbone.remove(backbone.update(before.state, points.span(29)), points.span(0, 1))
    assert state.steps == 0
    assert_equal(state.state, backbone.condition(points.span(1)))


@torch.no_grad()
def test_the_state_is_recomputed_for_a_small_window_and_for_a_large_chunk() -> None:
    """In both cases, recomputing is cheaper than adding and removing points."""
    backbone, points = model().float(), stream_of(200, torch.float32)
    *_, (small, _) = slide(Window(backbone, 64), points)
    assert_equal(small.state, backbone.condition(points.span(200 - 64)))
    *_, (large, _) = slide(Window(backbone, 90, cheap_size=0), points, (50,))
    assert_equal(large.state, backbone.condition(points.span(110)))


@torch.no_grad()
def test_memory_depends_only_on_the_size_of_the_window() -> None:
    backbone, points = model().float(), stream_of(100, torch.float32)
    window = Window(backbone, 30, cheap_size=0)
    states = [state for state, _ in slide(window, points)]
    (size,) = {state.nbytes for state in states[30:]}
    assert size == states[0].state.nbytes + 30 * (3 * 4 + 1) + states[0].highest.nbytes

    def peak(state: WindowState) -> int:
        with LiveBytes() as live:
            window.update(state, points.span(0, 1))
        return live.peak

    assert peak(states[40]) == peak(states[99])


@pytest.mark.parametrize("name", ["cmanp", "cnp", "icicl-cnp"])
@torch.no_grad()
def test_a_saved_window_continues_exactly(name: str, tmp_path: Path) -> None:
    backbone, points = model(name, related=2), stream_of(60)
    related = Points.full(torch.randn(1, 2, 5, 2).double(), torch.randn(1, 2, 5, 1).double())
    window = Window(backbone, 10, max_steps=12, cheap_size=0)
    state = window.condition(points.span(0, 0), related if name == "icicl-cnp" else None)
    for n in range(25):
        state = window.update(state, points.span(n, n + 1))
    backbone.save_state(state, tmp_path / "state")
    loaded = backbone.load_state(tmp_path / "state")
    check_state(loaded, 10)
    for n in range(25, 60):
        state, loaded = (window.update(window_state, points.span(n, n + 1)) for window_state in (state, loaded))
        assert_equal(state, loaded)
        assert state.steps == loaded.steps
    recomputed = backbone.condition(points.span(50), related if name == "icicl-cnp" else None)
    assert distance(state.state, recomputed) < 1e-10


def test_states_of_a_different_window_are_refused() -> None:
    backbone = model()
    plain, windowed = Stream(backbone).state, Stream(backbone, window=5).state
    for state, window, name in (
        (plain, 5, "--window"),
        (windowed, None, "--window 5"),
        (windowed, 6, "--window 5"),
    ):
        with refused("conflict", name):
            Stream(backbone, state, window=window)


@pytest.mark.parametrize("name", ["lbanp", "gpt2", "mamba"])
def test_the_error_for_a_model_that_cannot_forget_points_names_models_that_can(name: str) -> None:
    with refused("not-applicable", "--window", "cmanp", "cnp") as error:
        Stream(model(name), window=5)
    assert "gpt2" not in str(error.value)


def test_a_point_that_gives_a_nonfinite_state_does_not_change_the_window() -> None:
    backbone, stream_lines = model().float(), lines("ppppp")
    stream_lines[3] = Line(4, [3e38, 3e38], [1.0])
    for size in (2, 9):
        stream = Stream(backbone, window=size)
        with refused("not-finite", "line 4"):
            list(stream.run(stream_lines))
        assert stream.points == 3 and stream.state.points.count == min(size, 3)
        assert bool(stream.state.state.e.isfinite().all())


def test_a_stream_with_a_window_does_not_report_growing_states(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO"):
        list(Stream(model(), window=50).run(lines("pqpqpq")))
    assert not [record for record in caplog.records if "grows" in record.message]
