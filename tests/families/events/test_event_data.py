"""Preprocessing of event sequences: ties, starts, windows and selection."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from iclbench.families.events.event_data import EventData
from tests.refusals import refused


def event_data(*times, ends=None, marks=None):
    """Build sequences from absolute times. Without `marks`, the mark of an event is its number."""
    gaps = [np.diff(np.array(sequence, dtype=float), prepend=0.0) for sequence in times]
    counts = np.array([len(sequence) for sequence in times])
    ends = ends or [None] * len(times)
    open_intervals = [
        np.nan if end is None else end - max(sequence, default=0) for end, sequence in zip(ends, times, strict=True)
    ]
    marks = np.arange(counts.sum()) if marks is None else np.array(marks)
    return EventData.of(
        np.concatenate(gaps),
        marks,
        counts,
        int(marks.max()) + 1,
        lambda index: f"event {index}",
        np.array(open_intervals, float),
    )


def absolute_times(data):
    return [times.tolist() for times in np.split(data.times(), np.cumsum(data.counts)[:-1])]


def test_the_error_for_ties_names_the_first_tied_event_and_the_number_of_ties():
    data = event_data([1, 2, 2, 3], [1, 5, 5, 5])
    with refused("bad-data", "event 2", "2 more", "task.ties=keep-first"):
        data.resolve_ties("refuse")
    with refused("bad-data", "event 1", "task.start=first"):
        event_data([1], [0, 3]).resolve_ties("refuse")
    plain = event_data([1, 2], [0.5])
    assert plain.resolve_ties("refuse") is plain


@pytest.mark.parametrize("ties", ["refuse", "keep-first", "spread"])
def test_decreasing_times_are_refused(ties):
    with refused("bad-data", "event 3", -0.5):
        event_data([1, 1], [2, 1.5]).resolve_ties(ties)
    with refused("bad-data", "event 2", -3, "time 0"):
        event_data([1, 2], [-3, 1.5]).resolve_ties(ties)


def test_keep_first_keeps_one_event_per_time_and_removes_events_at_time_0():
    data = event_data([1, 2, 2, 3], [0, 0, 4, 4, 4], [0, 0], ends=[3.5, 9, 9]).resolve_ties("keep-first")
    assert absolute_times(data) == [[1, 2, 3], [4], []]
    assert data.marks.tolist() == [0, 1, 3, 6] and data.event_numbers.tolist() == [0, 1, 3, 6]
    assert data.open_intervals.tolist() == [0.5, 5.0, 9.0] and data.sequence_numbers.tolist() == [0, 1, 2]
    assert absolute_times(event_data([1], [0, 0]).resolve_ties("keep-first")) == [[1]], "the second sequence is removed"


def test_spread_distributes_tied_events_evenly_over_a_step_of_the_clock():
    data = event_data([4, 8, 8, 8, 8, 10], [0, 0, 3, 6], [5, 5], ends=[11, None, 5]).resolve_ties("spread")
    expected = [4, 8, 8.5, 9, 9.5, 10], [2 / 3, 4 / 3, 3, 6], [5, 6]
    np.testing.assert_allclose(data.times(), np.concatenate(expected), rtol=1e-12)
    assert data.open_intervals[0] == 1 and np.isnan(data.open_intervals[1:]).all(), (
        "the third sequence has no open interval left"
    )
    assert data.marks.tolist() == list(range(12))
    with refused("bad-data", "event 0", "task.ties=keep-first"):
        event_data([0, 0], [0]).resolve_ties("spread")


GAPS = st.lists(st.lists(st.integers(0, 4), min_size=1, max_size=12), min_size=1, max_size=5)


@settings(max_examples=100, deadline=None)
@given(GAPS.filter(lambda gaps: any(map(any, gaps))), st.integers(-20, 20))
def test_spread_preserves_the_order_and_resolves_all_ties(gaps, exponent):
    """The unit of time and the number of tied events are arbitrary."""
    times = [2.0**exponent * np.cumsum(sequence) for sequence in gaps]
    step = 2.0**exponent * min(gap for sequence in gaps for gap in sequence if gap)
    data = event_data(*times).resolve_ties("spread")
    assert (data.gaps > 0).all()
    for old, new in zip(times, absolute_times(data), strict=True):
        delay = np.array(new) - old
        assert (delay > -1e-9 * step).all() and (delay < step * (1 - 1e-9)).all()
        is_unique = np.isin(old, [t for t in old if (old == t).sum() == 1]) & (old > 0)
        np.testing.assert_allclose(delay[is_unique], 0, atol=1e-9 * step)


def test_from_first_event_measures_times_from_the_first_event_and_removes_it():
    data = event_data([1e9, 1e9 + 1, 1e9 + 4], [7], [-3, -1], ends=[1e9 + 5, 9, None]).from_first_event()
    assert absolute_times(data) == [[1, 4], [], [2]]
    assert data.marks.tolist() == [1, 2, 5] and data.sequence_numbers.tolist() == [0, 1, 2]
    assert data.open_intervals[:2].tolist() == [1, 2] and np.isnan(data.open_intervals[2])


def test_windows_are_consecutive_and_contain_every_event_once():
    data = event_data([1, 2, 4, 7, 11], [3, 5], [1, 2, 3, 4], ends=[20, None, 5])
    windows = data.windows(2)
    assert absolute_times(windows) == [[1, 2], [2, 5], [4], [3, 5], [1, 2], [1, 2], []]
    assert windows.marks.tolist() == data.marks.tolist()
    assert windows.sequence_numbers.tolist() == [0, 0, 0, 1, 2, 2, 2]
    assert np.nan_to_num(windows.open_intervals).tolist() == [0, 0, 9, 0, 0, 0, 1]
    assert absolute_times(data.windows(6)) == absolute_times(data)


def test_select_returns_sequences_in_the_given_order():
    data = event_data([1, 2], [3], [4, 5, 6], ends=[None, 8, None]).select(np.array([2, 1]))
    assert absolute_times(data) == [[4, 5, 6], [3]] and data.marks.tolist() == [3, 4, 5, 2]
    assert data.sequence_numbers.tolist() == [2, 1] and np.nan_to_num(data.open_intervals).tolist() == [0, 5]
    assert data.location_of(int(data.event_numbers[-1])) == "event 2", "event numbers refer to the file"


def test_the_fingerprint_depends_on_all_data():
    def fingerprint(times=([1, 2], [3]), **options):
        return event_data(*times, **options).fingerprint

    assert fingerprint() == fingerprint() and len(fingerprint()) == 12
    changed = [
        fingerprint(times=([1, 2.5], [3])),
        fingerprint(times=([1], [1, 4])),
        fingerprint(marks=[0, 2, 2]),
        fingerprint(ends=[None, 4]),
    ]
    assert len({fingerprint(), *changed}) == 5


def test_windows_without_events_are_preserved():
    data = event_data([], [1, 2], [], [3], [], ends=[7, 4, 8, None, 9])
    assert data.counts.tolist() == [0, 2, 0, 1, 0] and data.is_first.tolist() == [True, False, True]
    assert (
        absolute_times(data)
        == absolute_times(data.resolve_ties("refuse"))
        == absolute_times(data.windows(3))
        == [[], [1, 2], [], [3], []]
    )
    assert data.select(np.array([4, 3, 0])).counts.tolist() == [0, 1, 0]
    assert absolute_times(data.from_first_event()) == [[1]], "windows without events are removed"
    tied = event_data([], [0, 0, 4], [], [0], ends=[7, 9, 8, 5])
    assert absolute_times(tied.resolve_ties("keep-first")) == [[], [4], [], []]
    spread = tied.resolve_ties("spread")
    assert spread.counts.tolist() == [0, 3, 0, 1] and (spread.gaps > 0).all()
    assert spread.open_intervals.tolist() == [7, 5, 8, 3], "a first event at time 0 is delayed by half a step of 4"


def test_the_mean_gap_is_the_observed_time_per_event():
    """Open intervals count as observed time, so the mean gap is the inverse of the maximum-likelihood rate."""
    data = event_data([1, 2], [], [3], ends=[5, 7, None])
    assert data.mean_gap == (5 + 7 + 3) / 3
    assert data.mean_first_gap == (1 + 7 + 3) / 2
