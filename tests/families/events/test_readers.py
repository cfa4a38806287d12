"""Files of sequences: right values in every format, and one clear line for everything else."""

import gzip
import io
import json
import os
import zipfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from iclbench.core.errors import DataError
from iclbench.core.limits import VARIABLE
from iclbench.families.events.readers import read_events
from tests.families.events import made


def listed(data):
    """Gaps and marks of every sequence, as lists."""
    parts = np.split(np.arange(len(data.gaps)), np.cumsum(data.counts)[:-1])
    return [data.gaps[p].tolist() for p in parts], [data.marks[p].tolist() for p in parts]


def expected(times, marks):
    gaps = [[b - a for a, b in zip([0.0, *when[:-1]], when, strict=True)] for when in (t.tolist() for t in times)]
    return gaps, [what.tolist() for what in marks]


def refused(path, message, **options):
    with pytest.raises(DataError, match=message) as error:
        read_events(path, **options)
    assert "\n" not in str(error.value) and str(path) in str(error.value)


@pytest.mark.parametrize("suffix", [".npz", ".jsonl", ".ndjson"])
def test_a_format_gives_the_sequences_that_were_written(tmp_path, suffix):
    times, marks = made.sequences()
    write = made.write_npz if suffix == ".npz" else made.write_jsonl
    data = read_events(write(tmp_path / f"made{suffix}", times, marks))
    assert listed(data) == expected(times, marks)
    assert data.kinds == 4 and data.sequences.tolist() == list(range(12)) and np.isnan(data.open).all()


def test_jodie_gives_a_sequence_per_user_in_the_order_in_which_they_appear(tmp_path):
    times, marks = made.sequences()
    data = read_events(made.write_jodie(tmp_path / "made.csv", times, marks))
    order = np.argsort([(t[0]) for t in times], kind="stable")
    assert listed(data) == expected([times[i] for i in order], [marks[i] for i in order])
    assert data.kinds == 4


def test_items_that_are_no_numbers_from_0_on_are_marks_in_the_order_in_which_they_appear(tmp_path):
    path = tmp_path / "made.csv"
    rows = ["user,item,timestamp", "7,cats,1.5", "a,9,2", "7,dogs,2.5", "7,cats,4"]
    path.write_text("\r\n".join(rows))
    assert listed(read_events(path)) == ([[1.5, 1.0, 1.5], [2.0]], [[0, 2, 0], [1]])
    path.write_text("\n".join([made.HEADER, "0,2,1,0,0.1,0.2", "0,0,2,0,0.1,0.2", "0,1,3,0,0.1,0.2"]))
    assert listed(read_events(path)) == ([[1.0, 1.0, 1.0]], [[2, 0, 1]]), "0, 1 and 2 are marks as they stand"


def test_the_end_of_an_observation_gives_the_open_interval(tmp_path):
    path = made.write_jsonl(tmp_path / "made.jsonl", [[1.0, 2.5], [4.0], [2.0]], ends=[3.0, None, 2.0])
    assert [None if np.isnan(v) else v for v in read_events(path).open] == [0.5, None, None]


def test_arrays_that_the_released_code_does_not_need_may_be_left_out(tmp_path):
    arrays = made.npz_arrays(*made.sequences())
    whole = tmp_path / "whole.npz"
    np.savez(whole, **arrays)
    without_masks, only_times = tmp_path / "a.npz", tmp_path / "b.npz"
    np.savez_compressed(without_masks, times=np.asfortranarray(arrays["times"]), marks=arrays["marks"].astype(">i8"))
    assert listed(read_events(without_masks)) == listed(read_events(whole))
    np.savez(only_times, times=np.full((3, 2), 0.5))
    assert listed(read_events(only_times)) == ([[0.5, 0.5]] * 3, [[0, 0]] * 3)
    np.savez(only_times, times=arrays["times"], masks=arrays["masks"].astype(bool))
    assert listed(read_events(only_times))[0] == listed(read_events(whole))[0]


def test_marks_that_are_given_are_their_number_and_a_larger_one_is_refused_with_its_place(tmp_path):
    times, marks = [np.array([1.0, 2.0]), np.array([0.5])], [np.array([0, 4]), np.array([1])]
    npz = made.write_npz(tmp_path / "made.npz", times, marks)
    jsonl = made.write_jsonl(tmp_path / "made.jsonl", times, marks)
    jodie = made.write_jodie(tmp_path / "made.csv", times, marks)
    for path in (npz, jsonl, jodie):
        assert read_events(path, marks=7).kinds == 7
    refused(npz, r"made\.npz, marks\[0, 1\] is 5\.0, more than the 4 marks of -o task\.marks; raise it", marks=4)
    refused(jsonl, r"line 1, event 2: mark 4 is none of 0 to 3; raise -o task\.marks", marks=4)
    refused(jodie, r"line 4: item '4' is more than the 2 marks; raise -o task\.marks", marks=2)


BIG = made.npz_arrays(*made.sequences(count=60))
BIG_LISTED = expected(*made.sequences(count=60))
TWO = {
    "times": np.array([[0.5, 1.0, 0.0], [2.0, 0.0, 0.0]]),
    "marks": np.array([[1, 2, 0], [3, 0, 0]]),
    "masks": np.array([[1, 1, 0], [1, 0, 0]]),
}


def changed(name, place, value):
    array = TWO[name].astype(float)
    array[place] = value
    return {**TWO, name: array}


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"data": TWO["times"]}, "no array 'times'.*known: data"),
        ({"times": np.array([[1.0], [None]], dtype=object)}, "array 'times' holds Python objects.*padded arrays"),
        ({**TWO, "marks": TWO["marks"].astype(object)}, "the array 'marks' holds Python objects"),
        ({**TWO, "marks": TWO["marks"].astype(str)}, "the array 'marks' holds <U21, not numbers"),
        ({**TWO, "times": TWO["times"].astype(complex)}, "the array 'times' holds complex128, not numbers"),
        ({"times": np.ones(4)}, r"'times' has the shape \(4,\); expected \(sequences, longest\)"),
        ({"times": np.ones((0, 4))}, r"'times' has the shape \(0, 4\)"),
        ({"times": np.ones((4, 0))}, r"'times' has the shape \(4, 0\)"),
        ({**TWO, "masks": np.ones((2, 2))}, r"'masks' has the shape \(2, 2\), and 'times' \(2, 3\)"),
        (changed("times", (0, 1), np.nan), r"times\[0, 1\]: a time that is not finite"),
        (changed("times", (0, 1), np.inf), r"times\[0, 1\]: a time that is not finite"),
        (changed("marks", (0, 1), 1.5), r"marks\[0, 1\] is 1\.5, no whole number"),
        (changed("marks", (0, 1), np.nan), r"marks\[0, 1\] is nan, no whole number"),
        (changed("marks", (0, 1), -1), r"marks\[0, 1\] is -1\.0, negative"),
        (changed("marks", (0, 1), 1e9), r"marks\[0, 1\] is 1000000000\.0, more than 100,000 marks"),
        (changed("marks", (0, 1), 0), r"masks\[0, 1\] is 1, but the mark there is 0"),
        (changed("marks", (1, 2), 3), r"masks\[1, 2\] is 0, but there is a mark"),
        (changed("masks", (1, 0), 0.5), r"masks\[1, 0\] is 0\.5, neither 0 nor 1"),
        (changed("masks", (1, 0), 0), r"masks\[1, 0\] is 0\.0, but there is a mark"),
        ({"times": np.ones((2, 2)), "masks": np.array([[1, 1], [0, 1]])}, r"masks\[1, 0\]: padding before an event"),
        ({"times": np.ones((2, 2)), "marks": np.array([[0, 1], [1, 1]])}, r"marks\[0, 0\]: padding before an event"),
        ({"times": np.ones((2, 2)), "masks": np.array([[1, 1], [0, 0]])}, r"times\[1\]: a sequence without events"),
    ],
)
def test_a_bad_npz_is_one_clear_line_with_array_and_place(tmp_path, arrays, message):
    path = tmp_path / "made.npz"
    np.savez(path, **arrays)
    refused(path, message)


def test_what_is_no_npz_or_was_cut_off_is_one_clear_line(tmp_path):
    path = tmp_path / "made.npz"
    np.savez_compressed(path, **BIG)
    whole = path.read_bytes()
    for content in (b"", b"not a zip file", whole[:-30], whole[:200]):
        path.write_bytes(content)
        refused(path, "not a complete .npz file")
    for at in range(0, len(whole), 97):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0xFF]) + whole[at + 1 :])
        try:
            found = read_events(path)
        except DataError as error:
            assert len(str(error).splitlines()) == 1
        else:
            assert listed(found) == BIG_LISTED, "a checksum tells numbers that are others"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("times.npy", b"\x93NUMPY\x01\x00")
    refused(path, "not a complete .npz file")
    content = io.BytesIO()
    np.save(content, np.ones((2, 2)))
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("times.npy", content.getvalue() + b"more")
    refused(path, "'times' is longer than it says")
    refused(tmp_path, "cannot read .*directory", form="npz")
    refused(tmp_path / "nothing.npz", "cannot read .*No such file")


def test_an_array_larger_than_the_limit_is_never_unpacked(tmp_path, monkeypatch):
    path = tmp_path / "made.npz"
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "<f4", "fortran_order": False, "shape": (1 << 20, 1 << 20)})
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("times.npy", header.getvalue() + bytes(64))
    refused(path, "the array 'times' takes 8.00 TiB, more than the 1.00 GiB")
    monkeypatch.setenv(VARIABLE, "4k")
    np.savez(path, **BIG)
    refused(path, "the array 'times' takes .* more than the 4.00 KiB")
    times, marks = made.sequences(1800, seed=1)
    monkeypatch.setenv(VARIABLE, "1M")
    long = made.write_jsonl(tmp_path / "a.jsonl", [[1.0], [float(i) for i in range(1, 300)]])
    refused(long, r"line 2: more than 1\.00 KiB, which is too long")
    refused(made.write_jsonl(tmp_path / "a.jsonl", times, marks), "the events take: more than 1.00 MiB")
    refused(made.write_jodie(tmp_path / "a.csv", times, marks), "the events take: more than 1.00 MiB")


def test_times_that_only_grow_are_no_gaps_until_someone_says_so(tmp_path):
    """Released files were like this once: they are neither differenced nor taken as gaps silently."""
    times, marks = made.sequences(count=80)
    arrays = made.npz_arrays(times, marks)
    absolute = np.cumsum(arrays["times"].astype(float), axis=1) * arrays["masks"]
    path = tmp_path / "made.npz"
    np.savez(path, **{**arrays, "times": absolute})
    refused(path, r"'times' only grow in every sequence.*task\.times=absolute takes differences, -o task\.times=gaps")
    assert listed(read_events(path, times="absolute")) == expected(times, marks)
    assert read_events(path, times="gaps").gaps.tolist() == np.concatenate(times).tolist()
    np.savez(path, **arrays)
    assert listed(read_events(path)) == expected(times, marks)
    refused(made.write_jsonl(tmp_path / "a.jsonl", times), "task.times is for .npz files", times="gaps")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty"),
        ("\n \n", "is empty"),
        ("{", r"line 1: not valid JSON \("),
        ('{"times": [1]}\n\n{"times": [1', r"line 3: not valid JSON \("),
        ("[" * 20_000, "line 1: not valid JSON \\(nested too deeply\\)"),
        ("[1, 2]", "line 1: expected a JSON object like"),
        ('{"marks": [1]}', 'line 1: no "times"'),
        ('{"times": [1], "mark": [0]}', "line 1: unknown key 'mark'; did you mean 'marks'"),
        ('{"times": 3}', '"times" is not a list of numbers'),
        ('{"times": []}', "line 1: a sequence without events; remove the line"),
        ('{"times": [1, "2"]}', 'line 1, event 2: "2" is not a number'),
        ('{"times": [1, true]}', "line 1, event 2: true is not a number"),
        ('{"times": [1, null]}', "line 1, event 2: null is not a number"),
        ('{"times": [1, NaN]}', "line 1, event 2: a time that is not finite"),
        ('{"times": [1, 1e999]}', "line 1, event 2: a time that is not finite"),
        ('{"times": [1' + "0" * 400 + "]}", "line 1, event 1: a time that is not finite"),
        ('{"times": [1' + "0" * 5000 + "]}", "line 1: not valid JSON"),
        ('{"times": [-1e308, 1e308]}', "line 1, event 2: a time that is not finite"),
        ('{"times": [1], "marks": 0}', '"marks" must be a list of 1, one for each time, got no list'),
        ('{"times": [1, 2], "marks": [0]}', '"marks" must be a list of 2, one for each time, got 1 of them'),
        ('{"times": [1], "marks": [0.5]}', "line 1, event 1: mark 0.5 is none of 0 to 99999"),
        ('{"times": [1], "marks": [1.0]}', "line 1, event 1: mark 1.0 is none of"),
        ('{"times": [1], "marks": [true]}', "line 1, event 1: mark true is none of"),
        ('{"times": [1], "marks": [-1]}', "line 1, event 1: mark -1 is none of"),
        ('{"times": [1], "marks": [100000]}', "line 1, event 1: mark 100000 is none of"),
        ('{"times": [1], "marks": [0]}\n{"times": [1]}', 'line 2: has no "marks" where the first sequence has them'),
        ('{"times": [1]}\n{"times": [1], "marks": [0]}', 'line 2: has "marks" where the first sequence has none'),
        ('{"times": [1, 2.5], "end": 2}', 'line 1: "end" is 2, before the last event at 2.5'),
        ('{"times": [1], "end": null}', 'line 1, "end": null is not a number'),
        ('{"times": [1], "end": Infinity}', 'line 1, "end": a time that is not finite'),
    ],
)
def test_bad_json_lines_are_one_clear_line_with_line_and_event(tmp_path, text, message):
    path = tmp_path / "made.jsonl"
    path.write_text(text)
    refused(path, message)


def test_a_key_that_is_there_twice_is_refused(tmp_path):
    path = tmp_path / "made.jsonl"
    path.write_text('{"times": [1]}\n{"times": [1], "times": [2]}\n')
    refused(path, "line 2: .*'times' twice")


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_an_array_that_is_there_twice_in_an_npz_is_refused(tmp_path):
    path, content = tmp_path / "made.npz", io.BytesIO()
    np.save(content, np.ones((2, 2)))
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("times.npy", content.getvalue())
        archive.writestr("times.npy", content.getvalue())
    refused(path, "two arrays are named 'times'")
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("times", content.getvalue())
    refused(path, "no array 'times'")


@pytest.mark.parametrize("name", ["made.jsonl", "made.npz", "made.csv"])
def test_a_pipe_is_refused_instead_of_waited_for(tmp_path, name):
    os.mkfifo(tmp_path / name)
    refused(tmp_path / name, "pipe")


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (None, "is empty"),
        ([], "has a header and no rows"),
        (["0,1"], "line 2: 2 fields, expected user, item, time"),
        (["0,0,1,0,1", "0,0,soon,0,1"], "line 3: the time 'soon' is not a number"),
        (["0,0,1_000,0,1"], "line 2: the time '1_000' is not a number"),
        (["0,0,nan,0,1"], "line 2: a time that is not finite"),
        (["0,0,1,0,1", "0,0,inf,0,1"], "line 3: a time that is not finite"),
        (["0,0,1,0,1", ",0,2,0,1"], "line 3: no plain name of the user"),
        (['0,"a,b",1,0,1'], "line 2: no plain name of the item"),
    ],
)
def test_a_bad_csv_of_users_and_items_is_one_clear_line_with_the_line(tmp_path, rows, message):
    path = tmp_path / "made.csv"
    path.write_text("" if rows is None else "\n".join([made.HEADER, *rows]))
    refused(path, message)


def test_a_csv_of_something_else_is_told_by_its_header(tmp_path):
    path = tmp_path / "made.csv"
    for header in ("time,mark", "0,0,0.0,0,0.1", "item_id,user_id,timestamp,state_label"):
        path.write_text(f"{header}\n0,0,1,0,1\n")
        refused(path, r"line 1: expected the header user_id,item_id,timestamp,.* or at least its first three")


@pytest.mark.parametrize(("name", "line"), [("made.jsonl", b'{"times": [1]}'), ("made.csv", b"user,item,timestamp")])
def test_text_that_is_not_utf_8_is_told_with_its_line_and_a_byte_order_mark_is_no_obstacle(tmp_path, name, line):
    path = tmp_path / name
    path.write_bytes(b"\n" + line + b"\nK\xf6ln,0,1\n")
    refused(path, "line 3: not UTF-8 text")
    path.write_bytes(gzip.compress(line))
    refused(path, "line 1: not UTF-8 text")
    path.write_bytes(b"\xef\xbb\xbf" + line + (b"\n0,0,1" if name.endswith("csv") else b""))
    assert read_events(path).gaps.tolist() == [1.0]


def test_a_format_is_known_by_the_suffix_or_named(tmp_path):
    times, marks = made.sequences()
    path = made.write_jsonl(tmp_path / "made.txt", times, marks)
    refused(path, "expected a file that ends in .npz, .jsonl or .csv, or -o task.format=jsonl")
    assert listed(read_events(path, form="jsonl")) == expected(times, marks)


FUZZ = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
GAPS = st.lists(st.integers(1, 2**20), min_size=1, max_size=12)
SEQUENCES = st.lists(
    GAPS.flatmap(
        lambda gaps: st.tuples(
            st.just(gaps), st.lists(st.integers(0, 30), min_size=len(gaps), max_size=len(gaps)), st.integers(0, 9)
        )
    ),
    min_size=1,
    max_size=8,
)


@FUZZ
@given(SEQUENCES)
def test_json_lines_come_back_as_they_were_written(tmp_path, drawn):
    times = [np.cumsum(gaps) / 1024 for gaps, _, _ in drawn]
    marks = [what for _, what, _ in drawn]
    ends = [when[-1] + more / 8 for when, (_, _, more) in zip(times, drawn, strict=True)]
    data = read_events(made.write_jsonl(tmp_path / "made.jsonl", times, marks, ends))
    assert listed(data) == ([[gap / 1024 for gap in gaps] for gaps, _, _ in drawn], marks)
    assert np.nan_to_num(data.open).tolist() == [more / 8 for _, _, more in drawn]
    assert data.kinds == max(map(max, marks)) + 1


JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["times", "marks", "end"]), inner),
    max_leaves=8,
)


@FUZZ
@given(st.lists(JSON.map(json.dumps) | st.text(max_size=20), max_size=3), st.sampled_from(["jsonl", "csv", "npz"]))
def test_any_text_is_read_or_refused_in_one_line(tmp_path, lines, form):
    path: Path = tmp_path / "made"
    path.write_bytes("\n".join(lines).encode("utf-8", "surrogatepass"))
    try:
        data = read_events(path, form=form)
    except DataError as error:
        assert len(str(error).splitlines()) == 1
    else:
        assert np.isfinite(data.gaps).all() and data.counts.min() > 0
