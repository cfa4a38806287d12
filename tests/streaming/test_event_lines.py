"""Lines of events: gaps and times of each, and what is refused in which words."""

import pytest
import torch

from iclbench.backbones.base import TaskShape
from iclbench.core.errors import DataError
from iclbench.streaming.clock import Clock
from iclbench.streaming.event_lines import EventFormat
from iclbench.streaming.lines import Line

SHAPE = TaskShape(x_dim=0, points=9, y_dim=3, marks=3, head="event")


def event(number: int, gap: float, mark: float, since: float, time: float) -> Line:
    return Line(number, [], [float(gap), float(mark), float(since)], float(time))


def read(*lines: str, clock: Clock | None = None, dtype: torch.dtype = torch.float32) -> list[Line]:
    numbers = torch.finfo(dtype)
    columns = EventFormat.of_events(SHAPE, numbers.tiny, numbers.max, clock or Clock())
    return list(columns.read((f"{text}\n" for text in lines), "log.csv"))


@pytest.mark.parametrize("header", [[], ["time,mark"], ["when, what"], ["Time,MARK"]])
def test_events_and_queries(header: list[str]) -> None:
    n = len(header)
    assert read(*header, "0.5,2", "?,?", "", "2,0", " , ", '"2.25","1"') == [
        event(n + 1, 0.5, 2, 0.5, 0.5),
        Line(n + 2, [], None),
        event(n + 4, 1.5, 0, 2.0, 2.0),
        Line(n + 5, [], None),
        event(n + 6, 0.25, 1, 2.25, 2.25),
    ]


def test_a_query_may_be_the_first_line() -> None:
    assert read(",") == read("?,?") == [Line(1, [], None)]


def test_gaps_of_late_times_are_taken_in_double_precision() -> None:
    """Seconds since 1970 are 128 apart in single precision."""
    events = read("1700000000.25,0", "1700000000.75,0", clock=Clock(1.7e9))
    assert [event.y for event in events] == [[0.25, 0, 0.25], [0.5, 0, 0.75]]
    assert [event.time for event in events] == [1700000000.25, 1700000000.75]


def test_the_model_reads_its_own_unit_of_time_from_the_start_on() -> None:
    events = read("130,0", "160,1", clock=Clock(start=100.0, unit=60.0))
    assert [event.y for event in events] == [[0.5, 0, 0.5], [0.5, 1, 1]]


def test_where_the_first_line_is_the_start_it_is_no_event() -> None:
    clock = Clock(start=None)
    assert read("time,mark", "5,0", "7,1", clock=clock) == [event(3, 2, 1, 2, 7.0)]
    assert (clock.start, clock.last) == (5.0, 5.0), "the event after it is not learned yet"


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["3,0", "2.5,0"], "line 2: time is 2.5, before the 3 of the event of line 1; times must increase"),
        (["3,0", "?,?", "3,1"], "line 3: time is 3, the same as that of the event of line 1; times must increase"),
        (
            ["0,0"],
            "line 1: time is 0, the same as that of the start of the observation; times must increase; say when it "
            "started with --start",
        ),
        (
            ["-1,0"],
            "line 1: time is -1, before the 0 of the start of the observation; times must increase; say when it "
            "started with --start",
        ),
        (["1,3"], "line 1: mark is 3; write an integer from 0 to 2"),
        (["1,-1"], "line 1: mark is -1; write an integer from 0 to 2"),
        (["1,0.5"], "line 1: mark is 0.5; write an integer from 0 to 2"),
        (["1,?"], "line 1: mark is '?', not a number; write one like 0.5, or ?,? for a query"),
        (["?,1"], "line 1: time is '?', not a number; write one like 0.5, or ?,? for a query"),
        (["1,0", "nan,1"], "line 2: time is nan; write finite numbers only"),
        (["1"], "line 1: 1 column instead of 2; write time,mark, with ?,? for a query"),
        (["Mark,Time"], "line 1: the columns are in another order; write them as time,mark"),
        (["mark,time"], "line 1: the columns are in another order; write them as time,mark"),
        (
            ["1e-50,0"],
            "line 1: time is 1e-50, and the gap of 1e-50 to the start of the observation is beyond what the model "
            "computes with; try --float64",
        ),
    ],
)
def test_what_is_refused_names_its_line(lines: list[str], message: str) -> None:
    with pytest.raises(DataError) as raised:
        read(*lines)
    assert str(raised.value) == f"log.csv, {message}"


def test_a_stream_that_goes_on_goes_on_after_its_last_event() -> None:
    assert read("12.5,1", clock=Clock(last=12.0)) == [event(1, 0.5, 1, 12.5, 12.5)]
    with pytest.raises(DataError, match=r"time is 11, before the 12 of the last event of the state"):
        read("11,1", clock=Clock(last=12.0))


def test_single_precision_takes_no_gap_that_is_nothing_in_it() -> None:
    assert len(read("1e-50,0", dtype=torch.float64)) == 1
