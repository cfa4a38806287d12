"""Reading event sequences: correct values from all formats, and error codes for invalid files."""

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
from tests import refusals
from tests.families.events import sequence_files


def gaps_and_marks(data):
    """Return gaps and marks of every sequence as lists."""
    sequences = np.split(np.arange(len(data.gaps)), np.cumsum(data.counts)[:-1])
    return [data.gaps[events].tolist() for events in sequences], [data.marks[events].tolist() for events in sequences]


def expected_gaps_and_marks(times, marks):
    """Return the expected result of `gaps_and_marks` for these absolute times."""
    return [np.diff(sequence, prepend=0.0).tolist() for sequence in times], [sequence.tolist() for sequence in marks]


def assert_refused(path, code, *names, **options):
    with refusals.refused(code, path, *names):
        read_events(path, **options)


@pytest.mark.parametrize("suffix", [".npz", ".jsonl", ".ndjson"])
def test_sequences_are_read_from_all_formats(tmp_path, suffix):
    times, marks = sequence_files.sequences()
    write = sequence_files.write_npz if suffix == ".npz" else sequence_files.write_jsonl
    data = read_events(write(tmp_path / f"events{suffix}", times, marks))
    assert gaps_and_marks(data) == expected_gaps_and_marks(times, marks)
    assert (
        data.mark_count == 4
        and data.sequence_numbers.tolist() == list(range(12))
        and np.isnan(data.open_intervals).all()
    )


def test_jodie_files_have_one_sequence_per_user_in_order_of_appearance(tmp_path):
    times, marks = sequence_files.sequences()
    data = read_events(sequence_files.write_jodie(tmp_path / "events.csv", times, marks))
    order = np.argsort([t[0] for t in times], kind="stable")
    assert gaps_and_marks(data) == expected_gaps_and_marks([times[i] for i in order], [marks[i] for i in order])
    assert data.mark_count == 4


def test_items_are_numbered_in_order_of_appearance_unless_they_are_consecutive_integers_from_0(tmp_path):
    path = tmp_path / "events.csv"
    rows = ["user,item,timestamp", "7,cats,1.5", "a,9,2", "7,dogs,2.5", "7,cats,4"]
    path.write_text("\r\n".join(rows))
    assert gaps_and_marks(read_events(path)) == ([[1.5, 1.0, 1.5], [2.0]], [[0, 2, 0], [1]])
    path.write_text("\n".join([sequence_files.HEADER, "0,2,1,0,0.1,0.2", "0,0,2,0,0.1,0.2", "0,1,3,0,0.1,0.2"]))
    assert gaps_and_marks(read_events(path)) == ([[1.0, 1.0, 1.0]], [[2, 0, 1]]), "the numbers 0, 1 and 2 are the marks"


def test_the_end_of_the_observation_window_gives_the_open_interval(tmp_path):
    path = sequence_files.write_jsonl(tmp_path / "events.jsonl", [[1.0, 2.5], [4.0], [2.0]], ends=[3.0, None, 2.0])
    assert [None if np.isnan(v) else v for v in read_events(path).open_intervals] == [0.5, None, None]


def test_marks_and_masks_of_npz_files_are_optional(tmp_path):
    arrays = sequence_files.npz_arrays(*sequence_files.sequences())
    complete = tmp_path / "complete.npz"
    np.savez(complete, **arrays)
    without_masks, only_times = tmp_path / "a.npz", tmp_path / "b.npz"
    np.savez_compressed(without_masks, times=np.asfortranarray(arrays["times"]), marks=arrays["marks"].astype(">i8"))
    assert gaps_and_marks(read_events(without_masks)) == gaps_and_marks(read_events(complete))
    np.savez(only_times, times=np.full((3, 2), 0.5))
    assert gaps_and_marks(read_events(only_times)) == ([[0.5, 0.5]] * 3, [[0, 0]] * 3)
    np.savez(only_times, times=arrays["times"], masks=arrays["masks"].astype(bool))
    assert gaps_and_marks(read_events(only_times))[0] == gaps_and_marks(read_events(complete))[0]


def test_the_option_marks_sets_the_number_of_marks_and_larger_marks_are_refused(tmp_path):
    times, marks = [np.array([1.0, 2.0]), np.array([0.5])], [np.array([0, 4]), np.array([1])]
    npz = sequence_files.write_npz(tmp_path / "events.npz", times, marks)
    jsonl = sequence_files.write_jsonl(tmp_path / "events.jsonl", times, marks)
    jodie = sequence_files.write_jodie(tmp_path / "events.csv", times, marks)
    for path in (npz, jsonl, jodie):
        assert read_events(path, marks=7).mark_count == 7
    assert_refused(npz, "bad-data", "marks[0, 1]", "5.0", 4, "-o task.marks", marks=4)
    assert_refused(jsonl, "bad-data", "line 1, event 2", "mark 4", "0 to 3", "-o task.marks", marks=4)
    assert_refused(jodie, "too-large", "line 4", "'4'", 2, "-o task.marks", marks=2)


ARRAYS = sequence_files.npz_arrays(*sequence_files.sequences(count=60))
ARRAYS_EXPECTED = expected_gaps_and_marks(*sequence_files.sequences(count=60))
TWO_SEQUENCES = {
    "times": np.array([[0.5, 1.0, 0.0], [2.0, 0.0, 0.0]]),
    "marks": np.array([[1, 2, 0], [3, 0, 0]]),
    "masks": np.array([[1, 1, 0], [1, 0, 0]]),
}


def with_changed_value(name, index, value):
    array = TWO_SEQUENCES[name].astype(float)
    array[index] = value
    return {**TWO_SEQUENCES, name: array}


@pytest.mark.parametrize(
    ("arrays", "names"),
    [
        ({"data": TWO_SEQUENCES["times"]}, ["'times'", "data"]),
        ({"times": np.array([[1.0], [None]], dtype=object)}, ["'times'"]),
        ({**TWO_SEQUENCES, "marks": TWO_SEQUENCES["marks"].astype(object)}, ["'marks'"]),
        ({**TWO_SEQUENCES, "marks": TWO_SEQUENCES["marks"].astype(str)}, ["'marks'", "<U21"]),
        ({**TWO_SEQUENCES, "times": TWO_SEQUENCES["times"].astype(complex)}, ["'times'", "complex128"]),
        ({"times": np.ones(4)}, ["'times'", "(4,)", "(sequences, longest)"]),
        ({"times": np.ones((0, 4))}, ["'times'", "(0, 4)"]),
        ({"times": np.ones((4, 0))}, ["'times'", "(4, 0)"]),
        ({**TWO_SEQUENCES, "masks": np.ones((2, 2))}, ["'masks'", "(2, 2)", "'times'", "(2, 3)"]),
        (with_changed_value("times", (0, 1), np.nan), ["times[0, 1]"]),
        (with_changed_value("times", (0, 1), np.inf), ["times[0, 1]"]),
        (with_changed_value("marks", (0, 1), 1.5), ["marks[0, 1]", "1.5"]),
        (with_changed_value("marks", (0, 1), np.nan), ["marks[0, 1]", "nan"]),
        (with_changed_value("marks", (0, 1), -1), ["marks[0, 1]", "-1.0"]),
        (with_changed_value("marks", (0, 1), 1e9), ["marks[0, 1]", "1000000000.0", "100,000"]),
        (with_changed_value("marks", (0, 1), 0), ["masks[0, 1]", 1]),
        (with_changed_value("marks", (1, 2), 3), ["masks[1, 2]", 0]),
        (with_changed_value("masks", (1, 0), 0.5), ["masks[1, 0]", "0.5"]),
        (with_changed_value("masks", (1, 0), 0), ["masks[1, 0]", "0.0"]),
        ({"times": np.ones((2, 2)), "masks": np.array([[1, 1], [0, 1]])}, ["masks[1, 0]"]),
        ({"times": np.ones((2, 2)), "marks": np.array([[0, 1], [1, 1]])}, ["marks[0, 0]"]),
        ({"times": np.ones((2, 2)), "masks": np.array([[1, 1], [0, 0]])}, ["times[1]"]),
    ],
)
def test_bad_npz_files_are_refused(tmp_path, arrays, names):
    path = tmp_path / "events.npz"
    np.savez(path, **arrays)
    assert_refused(path, "bad-data", *names)


def test_damaged_npz_files_are_refused(tmp_path):
    path = tmp_path / "events.npz"
    np.savez_compressed(path, **ARRAYS)
    intact = path.read_bytes()
    for content in (b"", b"not a zip file", intact[:-30], intact[:200]):
        path.write_bytes(content)
        assert_refused(path, "unreadable-file")
    for position in range(0, len(intact), 97):
        path.write_bytes(intact[:position] + bytes([intact[position] ^ 0xFF]) + intact[position + 1 :])
        try:
            data = read_events(path)
        except DataError as error:
            assert len(str(error).splitlines()) == 1
        else:
            assert gaps_and_marks(data) == ARRAYS_EXPECTED, "checksums detect changed numbers"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("times.npy", b"\x93NUMPY\x01\x00")
    assert_refused(path, "unreadable-file")
    content = io.BytesIO()
    np.save(content, np.ones((2, 2)))
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("times.npy", content.getvalue() + b"more")
    assert_refused(path, "unreadable-file", "'times'")
    assert_refused(tmp_path, "unreadable-file", format_name="npz")
    assert_refused(tmp_path / "nothing.npz", "missing-file")


def test_arrays_larger_than_the_limit_are_not_unpacked(tmp_path, monkeypatch):
    path = tmp_path / "events.npz"
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "<f4", "fortran_order": False, "shape": (1 << 20, 1 << 20)})
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("times.npy", header.getvalue() + bytes(64))
    assert_refused(path, "too-large", "'times'", "8.00 TiB", "1.00 GiB")
    monkeypatch.setenv(VARIABLE, "4k")
    np.savez(path, **ARRAYS)
    assert_refused(path, "too-large", "'times'", "4.00 KiB")
    times, marks = sequence_files.sequences(1800, seed=1)
    monkeypatch.setenv(VARIABLE, "1M")
    long_line = sequence_files.write_jsonl(tmp_path / "a.jsonl", [[1.0], [float(i) for i in range(1, 300)]])
    assert_refused(long_line, "too-large", "line 2", "1.00 KiB")
    assert_refused(sequence_files.write_jsonl(tmp_path / "a.jsonl", times, marks), "too-large", "1.00 MiB")
    assert_refused(sequence_files.write_jodie(tmp_path / "a.csv", times, marks), "too-large", "1.00 MiB")


def test_increasing_times_are_refused_without_the_option_times(tmp_path):
    """Some published files have absolute times instead of gaps."""
    times, marks = sequence_files.sequences(count=80)
    arrays = sequence_files.npz_arrays(times, marks)
    absolute = np.cumsum(arrays["times"].astype(float), axis=1) * arrays["masks"]
    path = tmp_path / "events.npz"
    np.savez(path, **{**arrays, "times": absolute})
    assert_refused(path, "missing-value", "'times'", "-o task.times=absolute", "-o task.times=gaps")
    assert gaps_and_marks(read_events(path, times="absolute")) == expected_gaps_and_marks(times, marks)
    assert read_events(path, times="gaps").gaps.tolist() == np.concatenate(times).tolist()
    np.savez(path, **arrays)
    assert gaps_and_marks(read_events(path)) == expected_gaps_and_marks(times, marks)
    jsonl = sequence_files.write_jsonl(tmp_path / "a.jsonl", times)
    assert_refused(jsonl, "conflict", "task.times", ".npz", times="gaps")


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("{", 1),
        ('{"times": [1]}\n\n{"times": [1', 3),
        ("[" * 20_000, 1),
        ('{"times": [1' + "0" * 5000 + "]}", 1),
        ('{"times": [1]}\n{"times": [1], "times": [2]}\n', 2),
    ],
)
def test_lines_that_are_not_json_are_refused(tmp_path, text, line):
    """Only the position is checked, because the error codes come from `iclbench.core.json_text`."""
    path = tmp_path / "events.jsonl"
    path.write_text(text)
    with pytest.raises(DataError) as error:
        read_events(path)
    assert f"{path}, line {line}: " in str(error.value)


@pytest.mark.parametrize(
    ("text", "code", "names"),
    [
        ("", "bad-data", []),
        ("\n \n", "bad-data", []),
        ("[1, 2]", "bad-syntax", ["line 1", '"times"']),
        ('{"marks": [1]}', "bad-syntax", ["line 1", '"times"']),
        ('{"times": [1], "mark": [0]}', "unknown-name", ["line 1", "'mark'", "'marks'"]),
        ('{"times": 3}', "bad-syntax", ["line 1", '"times"']),
        ('{"times": []}', "bad-data", ["line 1", '"end"']),
        ('{"times": [1, "2"]}', "bad-data", ["line 1, event 2", '"2"']),
        ('{"times": [1, true]}', "bad-data", ["line 1, event 2", "true"]),
        ('{"times": [1, null]}', "bad-data", ["line 1, event 2", "null"]),
        ('{"times": [1, NaN]}', "bad-data", ["line 1, event 2"]),
        ('{"times": [1, 1e999]}', "bad-data", ["line 1, event 2"]),
        ('{"times": [1' + "0" * 400 + "]}", "bad-data", ["line 1, event 1"]),
        ('{"times": [-1e308, 1e308]}', "bad-data", ["line 1, event 2"]),
        ('{"times": [1], "marks": 0}', "bad-syntax", ["line 1", '"marks"', 1]),
        ('{"times": [1, 2], "marks": [0]}', "bad-syntax", ["line 1", '"marks"', 2, 1]),
        ('{"times": [1], "marks": [0.5]}', "bad-data", ["line 1, event 1", 0.5, "0 to 99999"]),
        ('{"times": [1], "marks": [1.0]}', "bad-data", ["line 1, event 1", "1.0"]),
        ('{"times": [1], "marks": [true]}', "bad-data", ["line 1, event 1", "true"]),
        ('{"times": [1], "marks": [-1]}', "bad-data", ["line 1, event 1", -1]),
        ('{"times": [1], "marks": [100000]}', "bad-data", ["line 1, event 1", 100000]),
        ('{"times": [1], "marks": [0]}\n{"times": [1]}', "bad-syntax", ["line 2", '"marks"']),
        ('{"times": [1]}\n{"times": [1], "marks": [0]}', "bad-syntax", ["line 2", '"marks"']),
        ('{"times": [1, 2.5], "end": 2}', "bad-data", ["line 1", '"end"', 2, 2.5]),
        ('{"times": [1], "end": null}', "bad-data", ['line 1, "end"', "null"]),
        ('{"times": [1], "end": Infinity}', "bad-data", ['line 1, "end"']),
    ],
)
def test_bad_json_lines_are_refused(tmp_path, text, code, names):
    path = tmp_path / "events.jsonl"
    path.write_text(text)
    assert_refused(path, code, *names)


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_duplicate_arrays_in_an_npz_are_refused(tmp_path):
    path, content = tmp_path / "events.npz", io.BytesIO()
    np.save(content, np.ones((2, 2)))
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("times.npy", content.getvalue())
        archive.writestr("times.npy", content.getvalue())
    assert_refused(path, "duplicate", "'times'")
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("times", content.getvalue())
    assert_refused(path, "bad-data", "'times'")


@pytest.mark.parametrize("name", ["events.jsonl", "events.npz", "events.csv"])
def test_a_pipe_is_refused(tmp_path, name):
    os.mkfifo(tmp_path / name)
    assert_refused(tmp_path / name, "unreadable-file", "pipe")


@pytest.mark.parametrize(
    ("rows", "code", "names"),
    [
        (None, "bad-data", []),
        ([], "bad-data", []),
        (["0,1"], "bad-syntax", ["line 2", 2]),
        (["0,0,1,0,1", "0,0,soon,0,1"], "bad-data", ["line 3", "'soon'"]),
        (["0,0,1_000,0,1"], "bad-data", ["line 2", "'1_000'"]),
        (["0,0,nan,0,1"], "bad-data", ["line 2"]),
        (["0,0,1,0,1", "0,0,inf,0,1"], "bad-data", ["line 3"]),
        (["0,0,1,0,1", ",0,2,0,1"], "bad-syntax", ["line 3", "user"]),
        (['0,"a,b",1,0,1'], "bad-syntax", ["line 2", "item"]),
    ],
)
def test_bad_csv_files_are_refused(tmp_path, rows, code, names):
    path = tmp_path / "events.csv"
    path.write_text("" if rows is None else "\n".join([sequence_files.HEADER, *rows]))
    assert_refused(path, code, *names)


def test_csv_files_with_unknown_headers_are_refused(tmp_path):
    path = tmp_path / "events.csv"
    for header in ("time,mark", "0,0,0.0,0,0.1", "item_id,user_id,timestamp,state_label"):
        path.write_text(f"{header}\n0,0,1,0,1\n")
        assert_refused(path, "bad-syntax", "line 1", "user_id,item_id,timestamp")


@pytest.mark.parametrize(
    ("name", "line"), [("events.jsonl", b'{"times": [1]}'), ("events.csv", b"user,item,timestamp")]
)
def test_text_that_is_not_utf_8_is_refused_and_byte_order_marks_are_ignored(tmp_path, name, line):
    path = tmp_path / name
    path.write_bytes(b"\n" + line + b"\nK\xf6ln,0,1\n")
    assert_refused(path, "bad-syntax", "line 3", "UTF-8")
    path.write_bytes(gzip.compress(line))
    assert_refused(path, "bad-syntax", "line 1", "UTF-8")
    path.write_bytes(b"\xef\xbb\xbf" + line + (b"\n0,0,1" if name.endswith("csv") else b""))
    assert read_events(path).gaps.tolist() == [1.0]


def test_the_format_is_inferred_from_the_suffix_or_set_by_the_option(tmp_path):
    times, marks = sequence_files.sequences()
    path = sequence_files.write_jsonl(tmp_path / "events.txt", times, marks)
    assert_refused(path, "bad-syntax", ".npz, .jsonl or .csv", "-o task.format=jsonl")
    assert gaps_and_marks(read_events(path, format_name="jsonl")) == expected_gaps_and_marks(times, marks)


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
def test_written_json_lines_are_read_without_loss(tmp_path, sequences):
    times = [np.cumsum(gaps) / 1024 for gaps, _, _ in sequences]
    marks = [sequence_marks for _, sequence_marks, _ in sequences]
    ends = [sequence[-1] + rest / 8 for sequence, (_, _, rest) in zip(times, sequences, strict=True)]
    data = read_events(sequence_files.write_jsonl(tmp_path / "events.jsonl", times, marks, ends))
    assert gaps_and_marks(data) == ([[gap / 1024 for gap in gaps] for gaps, _, _ in sequences], marks)
    assert np.nan_to_num(data.open_intervals).tolist() == [rest / 8 for _, _, rest in sequences]
    assert data.mark_count == max(map(max, marks)) + 1


JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["times", "marks", "end"]), inner),
    max_leaves=8,
)


@FUZZ
@given(st.lists(JSON.map(json.dumps) | st.text(max_size=20), max_size=3), st.sampled_from(["jsonl", "csv", "npz"]))
def test_any_text_is_read_or_refused(tmp_path, lines, format_name):
    path: Path = tmp_path / "events"
    path.write_bytes("\n".join(lines).encode("utf-8", "surrogatepass"))
    try:
        data = read_events(path, format_name=format_name)
    except DataError as error:
        assert len(str(error).splitlines()) == 1
    else:
        assert np.isfinite(data.gaps).all() and data.counts.min() > 0
