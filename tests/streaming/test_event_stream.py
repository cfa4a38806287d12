"""Event streams, compared with predictions of the model for the complete sequence."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from iclbench.backbones.base import Backbone, TaskShape
from iclbench.core.episodes import Points
from iclbench.core.errors import UsageError
from iclbench.core.events import TIME
from iclbench.core.predictor import State
from iclbench.core.records import read_about
from iclbench.evaluation.costs.live_bytes import LiveBytes
from iclbench.registry import BACKBONES
from iclbench.streaming.answers import answer_column_names
from iclbench.streaming.clock import Clock
from iclbench.streaming.event_lines import EventFormat
from iclbench.streaming.stream import BATCH_SIZE, Answer, Stream
from tests.refusals import refused

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
    """Return lines with an event for each e and a query for each q."""
    torch.manual_seed(seed)
    lines, time = [], after
    for character in pattern:
        time += torch.rand(()).item() + 0.01 if character == "e" else 0
        lines.append(f"{time!r},{torch.randint(3, ()).item()}\n" if character == "e" else "?,?\n")
    return lines


def answers(
    backbone: Backbone, lines: list[str], stream: Stream | None = None, clock: Clock | None = None
) -> list[Answer]:
    stream = stream or Stream(backbone, clock=clock or Clock())
    columns = EventFormat.of_events(SHAPE, 1e-300, 1e300, stream.clock)
    return list(stream.run(columns.read(lines, "log.csv")))


def expected_answers(
    backbone: Backbone, lines: list[str], start: float = 0.0, unit: float = 1.0
) -> list[tuple[float, ...]]:
    """Return the expected time and the other columns for each query, given all events before the query."""
    rows, times, marks = [], [], []
    for line in lines:
        if not line.startswith("?"):
            time, mark = map(float, line.split(","))
            times, marks = [*times, time], [*marks, mark]
            continue
        edges = [start, *times]
        y = [[(b - a) / unit, m, (b - start) / unit] for a, b, m in zip(edges, times, marks, strict=False)]
        points = Points.full(torch.empty(1, len(y), 0).double(), torch.tensor(y, dtype=torch.float64).reshape(1, -1, 3))
        with torch.no_grad():
            prediction = backbone.predict_targets(points, torch.empty(1, 1, 0).double())
        gap, median = unit * prediction.mean().item(), unit * prediction.quantile(0.5).item()
        low, high = (unit * prediction.quantile(p).item() for p in (0.05, 0.95))
        p = prediction.mark_probabilities().flatten().tolist()
        rows.append((edges[-1] + gap, gap, median, low, high, p.index(max(p)), *p))
    return rows


def assert_as_expected(answer_list: list[Answer], expected_rows: list[tuple[float, ...]]) -> None:
    rows = [(a.time, *(value for values in a.columns.values() for value in values)) for a in answer_list]
    assert len(rows) == len(expected_rows)
    for row, expected_row in zip(rows, expected_rows, strict=True):
        assert row == pytest.approx(expected_row, rel=1e-8)


def test_an_event_stream_has_columns_for_times_gaps_and_marks() -> None:
    assert ",".join(answer_column_names(SHAPE)) == "time,gap,median,low,high,mark,p0,p1,p2"


@pytest.mark.slow
@pytest.mark.parametrize("name", SIZES)
def test_the_answer_to_a_query_depends_on_all_events_before_it(name: str) -> None:
    """Some queries precede the first event, and some follow more than a batch of events."""
    backbone, lines = model(name), log("qeqqeeeqe" + "e" * (BATCH_SIZE + 5) + "qeq")
    assert_as_expected(answers(backbone, lines), expected_answers(backbone, lines))


def test_answers_use_the_given_unit_and_start() -> None:
    backbone, lines = model(), log("qeqeeq", after=1000.0)
    user_answers = answers(backbone, lines, clock=Clock(start=1000.0, unit=60.0))
    assert_as_expected(user_answers, expected_answers(backbone, lines, 1000.0, 60.0))


def test_a_query_before_the_start_of_the_observation_is_refused() -> None:
    backbone, lines = model(), log("eeq")
    assert_as_expected(
        answers(backbone, lines, clock=Clock(start=None)),
        expected_answers(backbone, lines[1:], float(lines[0].split(",")[0])),
    )
    with refused("bad-data", "line 1"):
        answers(backbone, log("qee"), clock=Clock(start=None))


@pytest.mark.parametrize("name", SIZES)
def test_a_saved_stream_continues_after_its_last_event(name: str, tmp_path: Path) -> None:
    backbone, lines = model(name), log("eeqeeqeq")
    first = Stream(backbone, clock=Clock(unit=0.1))
    first_answers = answers(backbone, lines[:4], first)
    backbone.save_state(first.state, tmp_path / "state", first.clock.metadata())
    clock = Clock.of_state(read_about(tmp_path / "state"))
    assert clock.last_time == first.clock.last_time == float(lines[3].split(",")[0])
    second = Stream(backbone, backbone.load_state(tmp_path / "state"), clock=clock)
    assert_as_expected(
        first_answers + answers(backbone, lines[4:], second), expected_answers(backbone, lines, unit=0.1)
    )


def test_after_an_error_the_clock_has_the_time_of_the_last_learned_event(monkeypatch: pytest.MonkeyPatch) -> None:
    backbone = model()
    for bad_line in ("0.1,0\n", "9,7\n", "nonsense\n"):
        stream = Stream(backbone, clock=Clock())
        with refused("bad-data", "line 4"):
            answers(backbone, [*log("eee"), bad_line], stream)
        assert stream.points == 3 and stream.clock.last_time == float(log("eee")[-1].split(",")[0])
    lines, update = log("e" * 6), backbone.update
    third, fourth = (float(line.split(",")[0]) for line in lines[2:4])

    def refuse_fourth(state: State, points: Points) -> State:
        if bool((points.y[..., TIME] == fourth).any()):
            raise UsageError("event-4", code="not-applicable")
        return update(state, points)

    monkeypatch.setattr(backbone, "update", refuse_fourth)
    stream = Stream(backbone, clock=Clock())
    with refused("not-applicable", "line 4", "event-4"):
        answers(backbone, lines, stream)
    assert (stream.points, stream.clock.last_time) == (3, third)


def test_a_saved_state_without_a_time_is_refused() -> None:
    with refused("unreadable-file", "--save"):
        Clock.of_state({"class": "Mamba"})


@pytest.mark.parametrize("name", SIZES)
def test_a_growing_state_is_reported(name: str, caplog: pytest.LogCaptureFixture) -> None:
    backbone = model(name)
    stream = Stream(backbone, clock=Clock())
    with caplog.at_level("INFO"):
        answers(backbone, log("e" * 5 + "q"), stream)
        bytes_before = stream.state.nbytes
        answers(backbone, log("e" * 40, after=10.0), stream)
    has_grown = stream.state.nbytes > bytes_before
    assert has_grown == (name not in CONSTANT)
    assert len([record for record in caplog.records if "grows" in record.message]) == has_grown


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mamba", "s4d", "cmhp"])
@pytest.mark.parametrize("count", [800, pytest.param(20_000, marks=pytest.mark.slow)])
def test_memory_does_not_grow_with_the_number_of_events(count: int, name: str) -> None:
    """The peak of live tensor bytes is the same in both halves of a stream."""
    backbone, peaks, after = model(name).float(), [], 0.0
    stream = Stream(backbone, answer_immediately=False, clock=Clock())
    for seed in (1, 2):
        lines = log("e" * (count // 2) + "q", seed, after)
        after = float(lines[-2].split(",")[0])
        with LiveBytes() as live:
            answers(backbone, lines, stream)
        peaks.append(live.peak)
    assert stream.points == count
    assert peaks[1] <= 1.01 * peaks[0]


@pytest.mark.parametrize("name", ["cmanp", "cmhp"])
def test_a_window_of_events_keeps_the_gap_of_its_oldest_event(name: str) -> None:
    """This gap is measured from the preceding event, which is outside the window."""
    backbone, lines = model(name), log("e" * 12 + "q")
    stream = Stream(backbone, window=5, clock=Clock())
    (answer,) = answers(backbone, lines, stream)
    times = [0.0, *(float(line.split(",")[0]) for line in lines[:-1])]
    y = [[b - a, float(line.split(",")[1]), b] for a, b, line in zip(times, times[1:], lines, strict=False)][-5:]
    points = Points.full(torch.empty(1, 5, 0).double(), torch.tensor([y], dtype=torch.float64))
    with torch.no_grad():
        expected_gap = backbone.predict_targets(points, torch.empty(1, 1, 0).double()).mean().item()
    assert answer.columns["gap"] == pytest.approx([expected_gap], rel=1e-8)
    assert math.isclose(answer.time, times[-1] + expected_gap, rel_tol=1e-8)
