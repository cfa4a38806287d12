"""Event lines: gaps, times and errors."""

import pytest
import torch

from iclbench.backbones.base import TaskShape
from iclbench.streaming.clock import Clock
from iclbench.streaming.event_lines import EventFormat
from iclbench.streaming.lines import Line
from tests.refusals import refused

SHAPE = TaskShape(x_dim=0, points=9, y_dim=3, marks=3, head="event")


def event(number: int, gap: float, mark: float, since: float, time: float) -> Line:
    return Line(number, [], [float(gap), float(mark), float(since)], float(time))


def read(*lines: str, clock: Clock | None = None, dtype: torch.dtype = torch.float32) -> list[Line]:
    numbers = torch.finfo(dtype)
    columns = EventFormat.of_events(SHAPE, numbers.tiny, numbers.max, clock or Clock())
    return list(columns.read((f"{text}\n" for text in lines), "log.csv"))


@pytest.mark.parametrize("header", [[], ["time,mark"], ["when, what"], ["Time,MARK"]])
def test_lines_are_read_as_events_and_queries(header: list[str]) -> None:
    offset = len(header)
    assert read(*header, "0.5,2", "?,?", "", "2,0", " , ", '"2.25","1"') == [
        event(offset + 1, 0.5, 2, 0.5, 0.5),
        Line(offset + 2, [], None),
        event(offset + 4, 1.5, 0, 2.0, 2.0),
        Line(offset + 5, [], None),
        event(offset + 6, 0.25, 1, 2.25, 2.25),
    ]


def test_a_query_may_be_the_first_line() -> None:
    assert read(",") == read("?,?") == [Line(1, [], None)]


def test_gaps_between_large_times_are_computed_in_double_precision() -> None:
    """In single precision, current Unix times are rounded to multiples of 128 seconds."""
    events = read("1700000000.25,0", "1700000000.75,0", clock=Clock(1.7e9))
    assert [event.y for event in events] == [[0.25, 0, 0.25], [0.5, 0, 0.75]]
    assert [event.time for event in events] == [1700000000.25, 1700000000.75]


def test_times_are_converted_to_the_unit_of_the_model() -> None:
    events = read("130,0", "160,1", clock=Clock(start=100.0, unit=60.0))
    assert [event.y for event in events] == [[0.5, 0, 0.5], [0.5, 1, 1]]


def test_a_first_line_that_sets_the_start_is_not_an_event() -> None:
    clock = Clock(start=None)
    assert read("time,mark", "5,0", "7,1", clock=clock) == [event(3, 2, 1, 2, 7.0)]
    assert (clock.start, clock.last_time) == (5.0, 5.0), "the next event is not learned yet"


@pytest.mark.parametrize(
    ("lines", "names"),
    [
        (["3,0", "2.5,0"], ("line 2", 2.5, 3, "line 1")),
        (["3,0", "?,?", "3,1"], ("line 3", 3, "line 1")),
        (["0,0"], ("line 1", "start", 0, "--start")),
        (["-1,0"], ("line 1", -1, 0, "start", "--start")),
        (["1,3"], ("line 1", "mark", 3, "0 to 2")),
        (["1,-1"], ("line 1", "mark", -1, "0 to 2")),
        (["1,0.5"], ("line 1", "mark", 0.5, "0 to 2")),
        (["1,?"], ("line 1", "mark", "'?'", "?,?")),
        (["?,1"], ("line 1", "time", "'?'", "?,?")),
        (["1,0", "nan,1"], ("line 2", "time", "nan")),
        (["1"], ("line 1", "1 column", 2, "time,mark", "?,?")),
        (["Mark,Time"], ("line 1", "time,mark")),
        (["mark,time"], ("line 1", "time,mark")),
        (["1e-50,0"], ("line 1", "1e-50", "start", "--float64")),
    ],
)
def test_invalid_lines_are_refused(lines: list[str], names: tuple[object, ...]) -> None:
    with refused("bad-data", "log.csv", *names):
        read(*lines)


def test_a_resumed_stream_continues_after_its_last_event() -> None:
    assert read("12.5,1", clock=Clock(last_time=12.0)) == [event(1, 0.5, 1, 12.5, 12.5)]
    with refused("bad-data", "line 1", 11, 12, "state"):
        read("11,1", clock=Clock(last_time=12.0))


def test_double_precision_supports_gaps_that_are_0_in_single_precision() -> None:
    assert len(read("1e-50,0", dtype=torch.float64)) == 1
