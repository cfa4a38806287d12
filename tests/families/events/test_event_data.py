"""What is done with sequences before they are drawn: ties, starts, windows, parts."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from iclbench.core.errors import DataError
from iclbench.families.events.event_data import EventData


def made(*times, ends=None, marks=None):
    """Sequences of absolute times; without marks each event has its number as one."""
    gaps = [np.diff(np.array(when, dtype=float), prepend=0.0) for when in times]
    counts = np.array([len(when) for when in times])
    ends = ends or [None] * len(times)
    left = [np.nan if e is None else e - max(when, default=0) for e, when in zip(ends, times, strict=True)]
    flat = np.arange(counts.sum()) if marks is None else np.array(marks)
    return EventData.of(
        np.concatenate(gaps), flat, counts, int(flat.max()) + 1, lambda i: f"event {i}", np.array(left, float)
    )


def absolute(data):
    return [part.tolist() for part in np.split(data.times(), np.cumsum(data.counts)[:-1])]


def test_events_at_one_time_are_refused_with_the_first_of_them_and_their_number():
    data = made([1, 2, 2, 3], [1, 5, 5, 5])
    with pytest.raises(
        DataError, match=r"event 2: at the same time as the event before \(and 2 more events\); .*ties=k"
    ):
        data.settled("refuse")
    with pytest.raises(DataError, match=r"event 1: at the same time as the start of the observation.*start=first"):
        made([1], [0, 3]).settled("refuse")
    plain = made([1, 2], [0.5])
    assert plain.settled("refuse") is plain


@pytest.mark.parametrize("ties", ["refuse", "keep-first", "spread"])
def test_times_that_go_back_are_refused_whatever_becomes_of_ties(ties):
    with pytest.raises(DataError, match=r"event 3: a gap of -0\.5 to the event before; times must increase"):
        made([1, 1], [2, 1.5]).settled(ties)
    with pytest.raises(DataError, match="event 2: a gap of -3 to the start of the observation, which is time 0"):
        made([1, 2], [-3, 1.5]).settled(ties)


def test_keep_first_keeps_one_event_of_every_time_and_none_at_the_start():
    data = made([1, 2, 2, 3], [0, 0, 4, 4, 4], [0, 0], ends=[3.5, 9, 9]).settled("keep-first")
    assert absolute(data) == [[1, 2, 3], [4], []]
    assert data.marks.tolist() == [0, 1, 3, 6] and data.events.tolist() == [0, 1, 3, 6]
    assert data.open.tolist() == [0.5, 5.0, 9.0] and data.sequences.tolist() == [0, 1, 2]
    assert absolute(made([1], [0, 0]).settled("keep-first")) == [[1]], "nothing is known of the second"


def test_spread_puts_the_events_of_one_time_at_equal_distances_into_a_step_of_the_clock():
    data = made([4, 8, 8, 8, 8, 10], [0, 0, 3, 6], [5, 5], ends=[11, None, 5]).settled("spread")
    expected = [4, 8, 8.5, 9, 9.5, 10], [2 / 3, 4 / 3, 3, 6], [5, 6]
    np.testing.assert_allclose(data.times(), np.concatenate(expected), rtol=1e-12)
    assert data.open[0] == 1 and np.isnan(data.open[1:]).all(), "of the third nothing of the observation is left"
    assert data.marks.tolist() == list(range(12))
    with pytest.raises(DataError, match="no two events of the file are at different times"):
        made([0, 0], [0]).settled("spread")


WHOLE = st.lists(st.lists(st.integers(0, 4), min_size=1, max_size=12), min_size=1, max_size=5)


@settings(max_examples=100, deadline=None)
@given(WHOLE.filter(lambda gaps: any(map(any, gaps))), st.integers(-20, 20))
def test_spread_keeps_order_and_later_times_and_leaves_no_tie(gaps, exponent):
    """Whatever the unit of time, and however many share a time."""
    times = [2.0**exponent * np.cumsum(each) for each in gaps]
    step = 2.0**exponent * min(gap for each in gaps for gap in each if gap)
    data = made(*times).settled("spread")
    assert (data.gaps > 0).all()
    for old, new in zip(times, absolute(data), strict=True):
        late = np.array(new) - old
        assert (late > -1e-9 * step).all() and (late < step * (1 - 1e-9)).all()
        alone = np.isin(old, [t for t in old if (old == t).sum() == 1]) & (old > 0)
        np.testing.assert_allclose(late[alone], 0, atol=1e-9 * step)


def test_the_first_event_can_be_the_start_and_is_no_event_then():
    data = made([1e9, 1e9 + 1, 1e9 + 4], [7], [-3, -1], ends=[1e9 + 5, 9, None]).from_first_event()
    assert absolute(data) == [[1, 4], [], [2]]
    assert data.marks.tolist() == [1, 2, 5] and data.sequences.tolist() == [0, 1, 2]
    assert data.open[:2].tolist() == [1, 2] and np.isnan(data.open[2])


def test_windows_follow_each_other_without_a_gap_or_an_event_twice():
    data = made([1, 2, 4, 7, 11], [3, 5], [1, 2, 3, 4], ends=[20, None, 5])
    cut = data.windows(2)
    assert absolute(cut) == [[1, 2], [2, 5], [4], [3, 5], [1, 2], [1, 2], []]
    assert cut.marks.tolist() == data.marks.tolist()
    assert cut.sequences.tolist() == [0, 0, 0, 1, 2, 2, 2]
    assert np.nan_to_num(cut.open).tolist() == [0, 0, 9, 0, 0, 0, 1]
    assert absolute(data.windows(6)) == absolute(data)


def test_a_part_has_its_sequences_in_the_order_asked_for():
    data = made([1, 2], [3], [4, 5, 6], ends=[None, 8, None]).part(np.array([2, 1]))
    assert absolute(data) == [[4, 5, 6], [3]] and data.marks.tolist() == [3, 4, 5, 2]
    assert data.sequences.tolist() == [2, 1] and np.nan_to_num(data.open).tolist() == [0, 5]
    assert data.place(int(data.events[-1])) == "event 2", "places are those of the file"


def test_the_fingerprint_is_that_of_all_that_episodes_are_made_of():
    def of(**changes):
        return made(*changes.pop("times", ([1, 2], [3])), **changes).fingerprint

    plain = of()
    assert plain == of() and len(plain) == 12
    others = [of(times=([1, 2.5], [3])), of(times=([1], [1, 4])), of(marks=[0, 2, 2]), of(ends=[None, 4])]
    assert len({plain, *others}) == 5


def test_windows_without_events_are_kept_wherever_they_stand():
    data = made([], [1, 2], [], [3], [], ends=[7, 4, 8, None, 9])
    assert data.counts.tolist() == [0, 2, 0, 1, 0] and data.begins.tolist() == [True, False, True]
    assert absolute(data) == absolute(data.settled("refuse")) == absolute(data.windows(3)) == [[], [1, 2], [], [3], []]
    assert data.part(np.array([4, 3, 0])).counts.tolist() == [0, 1, 0]
    assert absolute(data.from_first_event()) == [[1]], "a window without events has no first one"
    tied = made([], [0, 0, 4], [], [0], ends=[7, 9, 8, 5])
    assert absolute(tied.settled("keep-first")) == [[], [4], [], []]
    spread = tied.settled("spread")
    assert spread.counts.tolist() == [0, 3, 0, 1] and (spread.gaps > 0).all()
    assert spread.open.tolist() == [7, 5, 8, 3], "a first event at time 0 comes half a step of 4 later"


def test_mean_gaps_are_observed_time_per_event():
    """The inverse of the most likely rate; only the first gap of a window that ends before it is open."""
    data = made([1, 2], [], [3], ends=[5, 7, None])
    assert data.mean_gap == (5 + 7 + 3) / 3
    assert data.mean_first_gap == (1 + 7 + 3) / 2
