"""Streams of events, against the model's own answers to the whole sequence."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from iclbench.backbones.base import Backbone, TaskShape
from iclbench.core.episodes import Points
from iclbench.core.errors import DataError, UsageError
from iclbench.core.events import TIME
from iclbench.core.predictor import State
from iclbench.core.records import read_about
from iclbench.evaluation.costs.live_bytes import LiveBytes
from iclbench.registry import BACKBONES
from iclbench.streaming.answers import heading
from iclbench.streaming.clock import Clock
from iclbench.streaming.event_lines import EventFormat
from iclbench.streaming.stream import BATCH, Answer, Stream

SHAPE = TaskShape(x_dim=0, points=9, y_dim=3, marks=3, head="event", question="next")
SIZES = {
    "mamba": {"layers": 1, "width": 8, "state": 4},
    "s4d": {"layers": 1, "width": 8, "state": 4},
    "gpt2": {"layers": 1, "width": 8, "heads": 2, "init_std": 0.3},
    "cmanp": {"layers": 1, "width": 8, "heads": 2, "hidden": 8, "latents": 3},
    "cmhp": {"layers": 1, "width": 8, "heads": 2, "hidden": 8, "latents": 3},
}
CONSTANT = {"mamba", "s4d", "cmanp", "cmhp"}


def model(name: str = "mamba") -> Backbone:
    torch.manual_seed(0)
    cls = BACKBONES.get(name)
    return cls(cls.Settings(**SIZES[name]), SHAPE).eval().double()


def log(pattern: str, seed: int = 1, after: float = 0.0) -> list[str]:
    """An event for every e, a query for every q."""
    torch.manual_seed(seed)
    lines, time = [], after
    for kind in pattern:
        time += torch.rand(()).item() + 0.01 if kind == "e" else 0
        lines.append(f"{time!r},{torch.randint(3, ()).item()}\n" if kind == "e" else "?,?\n")
    return lines


def answers(own: Backbone, lines: list[str], stream: Stream | None = None, clock: Clock | None = None) -> list[Answer]:
    stream = stream or Stream(own, clock=clock or Clock())
    columns = EventFormat.of_events(SHAPE, 1e-300, 1e300, stream.clock)
    return list(stream.run(columns.read(lines, "log.csv")))


def expected(own: Backbone, lines: list[str], start: float = 0.0, unit: float = 1.0) -> list[tuple[float, ...]]:
    """At every query the answer of the whole sequence before it: its columns, behind the time."""
    found, times, marks = [], [], []
    for line in lines:
        if not line.startswith("?"):
            time, mark = map(float, line.split(","))
            times, marks = [*times, time], [*marks, mark]
            continue
        edges = [start, *times]
        y = [[(b - a) / unit, m, (b - start) / unit] for a, b, m in zip(edges, times, marks, strict=False)]
        points = Points.full(torch.empty(1, len(y), 0).double(), torch.tensor(y, dtype=torch.float64).reshape(1, -1, 3))
        with torch.no_grad():
            prediction = own.predict_targets(points, torch.empty(1, 1, 0).double())
        gap, median = unit * prediction.mean().item(), unit * prediction.quantile(0.5).item()
        low, high = (unit * prediction.quantile(p).item() for p in (0.05, 0.95))
        p = prediction.mark_probabilities().flatten().tolist()
        found.append((edges[-1] + gap, gap, median, low, high, p.index(max(p)), *p))
    return found


def assert_as_expected(found: list[Answer], wanted: list[tuple[float, ...]]) -> None:
    rows = [(a.time, *(value for values in a.columns.values() for value in values)) for a in found]
    assert len(rows) == len(wanted)
    for row, want in zip(rows, wanted, strict=True):
        assert row == pytest.approx(want, rel=1e-8)


def test_names_of_the_columns() -> None:
    assert ",".join(heading(SHAPE)) == "time,gap,median,low,high,mark,p0,p1,p2"


@pytest.mark.slow
@pytest.mark.parametrize("name", SIZES)
def test_a_query_sees_all_events_before_it(name: str) -> None:
    """Also before the first event, when the observation has begun, and after more than are learned at once."""
    own, lines = model(name), log("qeqqeeeqe" + "e" * (BATCH + 5) + "qeq")
    assert_as_expected(answers(own, lines), expected(own, lines))


def test_answers_are_in_the_unit_and_from_the_start_of_the_user() -> None:
    own, lines = model(), log("qeqeeq", after=1000.0)
    found = answers(own, lines, clock=Clock(start=1000.0, unit=60.0))
    assert_as_expected(found, expected(own, lines, 1000.0, 60.0))


def test_a_query_before_the_line_with_which_the_observation_starts_is_refused() -> None:
    own, lines = model(), log("eeq")
    assert_as_expected(
        answers(own, lines, clock=Clock(start=None)), expected(own, lines[1:], float(lines[0].split(",")[0]))
    )
    with pytest.raises(DataError, match=r"line 1: a query before the first event, with which the observation starts"):
        answers(own, log("qee"), clock=Clock(start=None))


@pytest.mark.parametrize("name", SIZES)
def test_a_saved_stream_goes_on_with_the_last_gap(name: str, tmp_path: Path) -> None:
    own, lines = model(name), log("eeqeeqeq")
    first = Stream(own, clock=Clock(unit=0.1))
    found = answers(own, lines[:4], first)
    own.save_state(first.state, tmp_path / "state", first.clock.about())
    clock = Clock.of_state(read_about(tmp_path / "state"))
    assert clock.last == first.clock.last == float(lines[3].split(",")[0])
    second = Stream(own, own.load_state(tmp_path / "state"), clock=clock)
    assert_as_expected(found + answers(own, lines[4:], second), expected(own, lines, unit=0.1))


def test_the_clock_stands_at_the_last_event_that_was_learned(monkeypatch: pytest.MonkeyPatch) -> None:
    own = model()
    for bad in ("0.1,0\n", "9,7\n", "nonsense\n"):
        stream = Stream(own, clock=Clock())
        with pytest.raises(DataError, match="line 4"):
            answers(own, [*log("eee"), bad], stream)
        assert stream.points == 3 and stream.clock.last == float(log("eee")[-1].split(",")[0])
    lines, update = log("e" * 6), own.update
    third, fourth = (float(line.split(",")[0]) for line in lines[2:4])

    def picky(state: State, points: Points) -> State:
        if bool((points.y[..., TIME] == fourth).any()):
            raise UsageError("not this one")
        return update(state, points)

    monkeypatch.setattr(own, "update", picky)
    stream = Stream(own, clock=Clock())
    with pytest.raises(DataError, match=r"line 4: not this one"):
        answers(own, lines, stream)
    assert (stream.points, stream.clock.last) == (3, third)
    with pytest.raises(DataError, match="does not say when its last event came"):
        Clock.of_state({"class": "Mamba"})


@pytest.mark.parametrize("name", SIZES)
def test_the_state_grows_only_where_it_is_said(name: str, caplog: pytest.LogCaptureFixture) -> None:
    own = model(name)
    stream = Stream(own, clock=Clock())
    with caplog.at_level("INFO"):
        answers(own, log("e" * 5 + "q"), stream)
        before = stream.state.nbytes
        answers(own, log("e" * 40, after=10.0), stream)
    grows = stream.state.nbytes > before
    assert grows == (name not in CONSTANT)
    assert len([record for record in caplog.records if "grows" in record.message]) == grows


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mamba", "s4d", "cmhp"])
@pytest.mark.parametrize("count", [800, pytest.param(20_000, marks=pytest.mark.slow)])
def test_memory_does_not_grow_with_the_events(count: int, name: str) -> None:
    """Live tensor bytes of the second half of a stream are those of the first."""
    own, peaks, after = model(name).float(), [], 0.0
    stream = Stream(own, at_once=False, clock=Clock())
    for seed in (1, 2):
        lines = log("e" * (count // 2) + "q", seed, after)
        after = float(lines[-2].split(",")[0])
        with LiveBytes() as live:
            answers(own, lines, stream)
        peaks.append(live.peak)
    assert stream.points == count
    assert peaks[1] <= 1.01 * peaks[0]


@pytest.mark.parametrize("name", ["cmanp", "cmhp"])
def test_a_window_of_events(name: str) -> None:
    """The gap of the oldest one that counts is still that to the one before it."""
    own, lines = model(name), log("e" * 12 + "q")
    stream = Stream(own, window=5, clock=Clock())
    (answer,) = answers(own, lines, stream)
    times = [0.0, *(float(line.split(",")[0]) for line in lines[:-1])]
    y = [[b - a, float(line.split(",")[1]), b] for a, b, line in zip(times, times[1:], lines, strict=False)][-5:]
    points = Points.full(torch.empty(1, 5, 0).double(), torch.tensor([y], dtype=torch.float64))
    with torch.no_grad():
        wanted = own.predict_targets(points, torch.empty(1, 1, 0).double()).mean().item()
    assert answer.columns["gap"] == pytest.approx([wanted], rel=1e-8)
    assert math.isclose(answer.time, times[-1] + wanted, rel_tol=1e-8)
