"""Reading users' numeric tables: correct values, and error codes for unsuitable files."""

import csv
import gzip
import os
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from iclbench.core.errors import DataError
from iclbench.families.tabular import csv_file
from iclbench.families.tabular.table_file import read_table
from tests.refusals import refused

X = np.array([[1.0, -2.5], [0.25, 4e3], [3.0, 0.0]])
Y = np.array([7.0, 8.0, 9.5])


@pytest.fixture
def frame():
    return pd.DataFrame({"width": X[:, 0], "price": Y, "height": X[:, 1]})


def write(frame, folder, suffix, **options):
    path = folder / f"houses{suffix}"
    if suffix == ".parquet":
        frame.to_parquet(path)
    else:
        frame.to_csv(path, index=False, **options)
    return path


@pytest.mark.parametrize("suffix", [".csv", ".csv.gz", ".parquet"])
def test_all_formats_give_the_same_table(frame, tmp_path, suffix):
    table = read_table(write(frame, tmp_path, suffix), "price")
    np.testing.assert_array_equal(table.x, X)
    np.testing.assert_array_equal(table.y, Y)
    assert (table.features, table.target, table.name, table.rows) == (("width", "height"), "price", "houses", 3)


@pytest.mark.parametrize("suffix", [".csv", ".csv.gz"])
def test_without_a_header_columns_are_numbered_and_the_target_is_the_last_one(frame, tmp_path, suffix):
    path = write(frame[["width", "height", "price"]], tmp_path, suffix, header=False)
    table = read_table(path)
    np.testing.assert_array_equal(table.x, X)
    np.testing.assert_array_equal(table.y, Y)
    assert table.features == ("column 1", "column 2")
    assert read_table(path, "1").target == "column 1"
    assert read_table(path, "column 2").target == "column 2"


def test_the_target_can_be_selected_by_its_number(frame, tmp_path):
    assert read_table(write(frame, tmp_path, ".csv"), "2").target == "price"
    numbered = frame.rename(columns={"height": "2"})
    assert read_table(write(numbered, tmp_path, ".csv"), "2").target == "2", "names take precedence over numbers"


def test_numbers_do_not_select_columns_by_position_if_columns_are_named_by_numbers(tmp_path):
    """`--target 1` could select the first column or the column with the name 1."""
    frame = pd.DataFrame(np.column_stack([X, Y]), columns=[0, 1, 2])
    frame.to_csv(tmp_path / "t.csv", index=False)
    frame.rename(columns=str).to_parquet(tmp_path / "t.parquet")
    for path, header in ((tmp_path / "t.csv", True), (tmp_path / "t.parquet", None)):
        table = read_table(path, "1", header)
        assert (table.target, table.features) == ("1", ("0", "2"))
        np.testing.assert_array_equal(table.y, X[:, 1])
        np.testing.assert_array_equal(table.x, np.column_stack([X[:, 0], Y]))
        with refused("unknown-name", path, "'3'", "0, 1, 2"):
            read_table(path, "3", header)
    rows = read_table(tmp_path / "t.csv", "1", header=False)
    assert rows.target == "column 1"
    np.testing.assert_array_equal(rows.y, [0, *X[:, 0]])


@pytest.mark.parametrize(
    "text",
    [
        "0,1,2\n0.5,1.5,2.5\n3.5,4,5\n",
        "0,1,2\n7,8,9\n3,4,5\n",
        "1,2\r\n7,8\r\n3,4\r\n",
        "2018,2019\n1.5,2\n3,4\n",
        '"0","1"\n"7","8"\n"3","4"\n',
    ],
)
def test_an_ambiguous_first_line_is_refused(tmp_path, text):
    path = tmp_path / "t.csv"
    path.write_text(text)
    with refused("missing-value", path, "--header", "--no-header"):
        read_table(path)
    assert read_table(path, header=False).rows == read_table(path, header=True).rows + 1 == text.count("\n")


@pytest.mark.parametrize("text", ["3,1\n7,8\n", "1.0,2.0\n3.5,4\n", "5,5\n1.5,2\n", "-1,2\n0.5,3\n", "01,2\n0.5,3\n"])
def test_unambiguous_first_lines_of_numbers_are_rows(tmp_path, text):
    path = tmp_path / "t.csv"
    path.write_text(text)
    assert read_table(path).rows == 2


def test_the_option_header_overrides_the_inferred_header(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("a,b,3\n1,2,5\n3,4,6\n")
    with refused("bad-data", path, "column 1 (line 1: 'a')", "column 2 (line 1: 'b')"):
        read_table(path, "3", header=False)
    path.write_text("nan,b\n1,2\n3,4\n")
    assert read_table(path, header=True).features == ("nan",)


@pytest.mark.parametrize("index", [True, False])
def test_a_row_index_written_by_pandas_is_refused_in_csv_files(tmp_path, index):
    """The files are the output of `DataFrame(array).to_csv()`, before and after pandas reads and rewrites it."""
    path = tmp_path / "t.csv"
    frame = pd.DataFrame(np.column_stack([X, Y]))
    frame.to_csv(path)
    if not index:
        pd.read_csv(path).to_csv(path, index=False)
    with refused("bad-data", path, "column 1", "to_csv(index=False)"):
        read_table(path)


@pytest.mark.parametrize("name", [None, "id"])
def test_the_row_index_of_a_parquet_file_is_not_a_column(frame, tmp_path, name, caplog):
    path = tmp_path / "t.parquet"
    frame.index = pd.Index([10, 20, 40], name=name)
    frame.to_parquet(path)
    assert pq.read_schema(path).names[-1] == (name or "__index_level_0__")
    with caplog.at_level("INFO", "iclbench"):
        table = read_table(path)
    assert (table.features, table.target) == (("width", "price"), "height")
    assert (name or "__index_level_0__") in caplog.text
    with refused("unknown-name", name or "__index_level_0__"):
        read_table(path, name or "__index_level_0__")
    pq.write_table(pq.read_table(path).replace_schema_metadata(None), path)
    assert read_table(path).target == (name or "height"), "without metadata a named index is a column"


@pytest.mark.parametrize(
    "metadata", [b"{", b"[]", b'{"index_columns": 7}', b'{"index_columns": [{"kind": "range"}, null, "z"]}']
)
def test_unusual_pandas_metadata_is_ignored(tmp_path, metadata):
    path = tmp_path / "t.parquet"
    pq.write_table(pa.table({"a": [1.0, 2.0], "b": [3.0, 4.0]}).replace_schema_metadata({"pandas": metadata}), path)
    assert read_table(path).features == ("a",)


@pytest.mark.parametrize("word", ["#N/A", "#NA", "<NA>", "-nan", "-NaN", "1.#QNAN"])
def test_words_for_missing_values_are_the_same_as_in_pandas(tmp_path, word):
    path = tmp_path / "t.csv"
    path.write_text(f"a,b\n1,2\n{word},3\n4,5\n")
    assert pd.read_csv(path)["a"].isna().tolist() == [False, True, False]
    with refused("bad-data", path, f"a (1: line 3: '{word}')", "1 of 3"):
        read_table(path)


@pytest.mark.parametrize("is_quoted", [False, True])
def test_booleans_are_the_same_in_csv_and_parquet(tmp_path, is_quoted):
    frame = pd.DataFrame({"on": [True, False, True], "y": [1.5, 2.0, 3.0]})
    frame.to_csv(tmp_path / "t.csv", index=False, quoting=csv.QUOTE_ALL if is_quoted else csv.QUOTE_MINIMAL)
    frame.to_parquet(tmp_path / "t.parquet")
    for name in ("t.csv", "t.parquet"):
        assert read_table(tmp_path / name, "y").x.tolist() == [[1.0], [0.0], [1.0]]
    (tmp_path / "t.csv").write_text("on,y\ntrue,1\nFALSE,2\n")
    assert read_table(tmp_path / "t.csv", "on").y.tolist() == [1.0, 0.0]
    (tmp_path / "t.csv").write_text("on,y\nTrue,1\n1,2\n")
    with refused("bad-data", "on (line 2: 'True')"):
        read_table(tmp_path / "t.csv", "y")


@pytest.mark.parametrize("suffix", [".csv", ".csv.gz", ".parquet"])
def test_a_pipe_is_refused(tmp_path, suffix):
    os.mkfifo(tmp_path / f"t{suffix}")
    with refused("unreadable-file", tmp_path / f"t{suffix}", "pipe"):
        read_table(tmp_path / f"t{suffix}")


def test_names_and_cells_in_messages_are_printable_and_short(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text(f"a\x1b[31m\u202e,{'b' * 3000},y\n\x1b[2Jx,{'z' * 3000},1\n2,3,4\n")
    with refused("bad-data", path) as error:
        read_table(path, "y")
    assert str(error.value).isprintable()
    assert len(str(error.value)) < len(str(path)) + 500


def test_byte_order_marks_blank_lines_spaces_and_quotes_are_accepted(tmp_path):
    path = tmp_path / "t.csv"
    path.write_bytes(b'\xef\xbb\xbf"a", b\r\n1, "2"\r\n\r\n3,4\r\n')
    table = read_table(path, "b")
    assert table.features == ("a",)
    assert table.x.tolist() == [[1.0], [3.0]]
    assert table.y.tolist() == [2.0, 4.0]


def test_a_first_line_with_a_word_above_a_number_is_a_header(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("year,2019\n1,2\n3,4\n")
    assert read_table(path).target == "2019"


@pytest.mark.parametrize("word", ["", "NA", "n/a", "NaN", "Null", "none", "?"])
def test_numbers_and_missing_values_in_the_first_line_are_not_a_header(tmp_path, word):
    path = tmp_path / "t.csv"
    path.write_text(f"1,{word}\n2,3\n4,5\n")
    with refused("bad-data", path, f"column 2 (1: line 1: '{word}')", "1 of 3"):
        read_table(path, "1")


def test_missing_values_below_the_first_line_do_not_determine_the_header(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("name,nan\n?,2\n3,4\n")
    with refused("bad-data", "name (1: line 2: '?')", "1 of 2"):
        read_table(path)
    path.write_text("year,2019\nnan,2\n3,4\n")
    with refused("bad-data", "column 1 (line 1: 'year')"):
        read_table(path)


def test_parquet_columns_of_booleans_integers_and_decimals_are_numbers(tmp_path):
    path = tmp_path / "t.parquet"
    decimals = pa.array([1, 2], pa.decimal128(5, 2))
    pq.write_table(pa.table({"b": [True, False], "i": [2**60, 1], "d": decimals, "y": [0.5, 1.0]}), path)
    assert read_table(path, "y").x.tolist() == [[1.0, 2.0**60, 1.0], [0.0, 1.0, 2.0]]


@pytest.mark.parametrize(
    ("text", "target", "code", "names"),
    [
        ("", None, "bad-data", []),
        ("\n\n", None, "bad-data", []),
        ("a,b\n", None, "bad-data", []),
        ("1_5,2\n3,4\n", None, "bad-data", ["column 1 (line 1: '1_5')"]),
        ("\u0661,\u0662\n3,4\n", None, "bad-data", ["'column 2'", "(line 1: '\u0662')"]),
        ("a,b\n1,2\n\uff11,3\n", None, "bad-data", ["a (line 3: '\uff11')"]),
        ("a\n1\n2\n", None, "bad-data", []),
        ("a;b\n1;2\n", None, "bad-data", []),
        ("a,b\n1,2\n3\n", None, "bad-syntax", ["line 3", 1, 2]),
        ("a,b\n1,2\n3,4,5\n", None, "bad-syntax", ["line 3", 3, 2]),
        ("a,a,b\n1,2,3\n4,5,6\n", None, "duplicate", [": a;"]),
        (",a,b\n0,2,3\n1,5,6\n", None, "bad-data", ["column 1"]),
        ("a,price\n1,2\n3,4\n", "prise", "unknown-name", ["'prise'", "'price'"]),
        ("a,b\n1,2\n3,4\n", "3", "unknown-name", ["'3'", "1 to 2"]),
        ("a,b\n1,2\n3,4\n", "0", "unknown-name", ["'0'"]),
        ("a,b\n1,2\n3,4\n", "²", "unknown-name", ["'²'"]),
        ("a,town,c,y\n1,Rome,x,2\n3,Oslo,y,4\n", "y", "bad-data", ["town (line 2: 'Rome')", "c (line 2: 'x')"]),
        ("1,Rome,2\n3,Oslo,4\n", None, "bad-data", ["column 2 (line 1: 'Rome')"]),
        ("a,y\n1,low\n3,high\n", "y", "bad-data", ["'y'", "(line 2: 'low')"]),
        (
            "a,b,y\n1,,2\n3,NA,4\n?,5,6\n7,8,9\n",
            "y",
            "bad-data",
            ["a (1: line 4: '?')", "b (2: line 2: '')", "3 of 4"],
        ),
        ("a,y\n1,\n3,4\n", "y", "bad-data", ["y (1: line 2: '')"]),
        ("a,y\ninf,1\n3,4\n", "y", "bad-data", ["a (1: line 2: 'inf')"]),
        ("a,y\n1,2\n1e999,1\n3,4\n", "y", "bad-data", ["a (1: line 3: '1e999')"]),
        ("a,y\n1,5\n3,5\n", "y", "bad-data", ["'y'", 2]),
        ("a,y\n1,5\n", "y", "bad-data", ["'y'", 1]),
        ('a,y\n1,"2\n3,4\n', "y", "bad-data", ["line 3"]),
    ],
)
def test_bad_tables_are_refused(tmp_path, text, target, code, names):
    path = tmp_path / "t.csv"
    path.write_text(text, encoding="utf-8")
    with refused(code, path, *names):
        read_table(path, target)


@pytest.mark.parametrize(
    ("name", "content", "code"),
    [
        ("t.csv", "größe,y\n1,2\n3,4\n".encode("latin-1"), "bad-syntax"),
        ("t.csv", bytes(range(256)) * 4, "bad-syntax"),
        ("t.csv.gz", b"a,b\n1,2\n", "unreadable-file"),
        ("t.csv.gz", gzip.compress(b"a,b\n1,2\n3,4\n" * 100, mtime=0)[:-20], "unreadable-file"),
        ("t.csv.gz", gzip.compress(b"a,b\n1,2\n3,4\n" * 100, mtime=0)[:10] + b"\xff" * 40, "unreadable-file"),
        ("t.parquet", b"PAR1 but not really PAR1", "unreadable-file"),
        ("t.parquet", b"", "unreadable-file"),
        ("t.xlsx", b"PK", "bad-syntax"),
        ("t.csv", b"a,b\n1," + b"9" * 200_000 + b"\n", "bad-syntax"),
    ],
)
def test_files_of_other_formats_are_refused(tmp_path, name, content, code):
    path = tmp_path / name
    path.write_bytes(content)
    with refused(code, path):
        read_table(path)


@pytest.mark.parametrize("suffix", [".csv", ".csv.gz", ".parquet"])
def test_missing_files_and_folders_are_refused(tmp_path, suffix):
    with refused("missing-file", tmp_path / f"nowhere{suffix}"):
        read_table(tmp_path / f"nowhere{suffix}")
    folder = tmp_path / f"folder{suffix}"
    folder.mkdir()
    with refused("unreadable-file", folder):
        read_table(folder)
    with pytest.raises(DataError):
        read_table(f"null\0byte{suffix}")


def test_the_option_header_is_refused_for_parquet(frame, tmp_path):
    path = write(frame, tmp_path, ".parquet")
    for header, option in ((True, "--header"), (False, "--no-header")):
        with refused("conflict", path, option):
            read_table(path, header=header)


@pytest.mark.parametrize(
    ("columns", "names"),
    [
        ({"a": ["x", "y"], "y": [1.0, 2.0]}, ["in a;"]),
        ({"a": [[1], [2]], "y": [1.0, 2.0]}, ["in a;"]),
        ({"a": pd.to_datetime(["2020-01-01", "2020-01-02"]), "y": [1.0, 2.0]}, ["in a;"]),
        ({"a": [1.0, None], "y": [1.0, 2.0]}, ["a (1: row 2)"]),
        ({"a": [None, None], "y": [1.0, 2.0]}, ["a (2: row 1)"]),
        ({"a": [1.0, np.inf], "y": [1.0, 2.0]}, ["a (1: row 2)"]),
        ({"a": [], "y": []}, []),
    ],
)
def test_bad_parquet_columns_are_refused(tmp_path, columns, names):
    path = tmp_path / "t.parquet"
    pd.DataFrame(columns).to_parquet(path)
    with refused("bad-data", path, *names):
        read_table(path)


PLAIN_CELLS = st.one_of(
    st.floats(allow_nan=False).map(repr),
    st.floats(allow_nan=False).map(lambda x: f"{x:.3e}"),
    st.integers(-(10**25), 10**25).map(str),
    st.sampled_from(
        ["True", "false", "", " 1", "2 ", "+3", ".5", "5.", "-.5", "1e", ".", "+-1", "1e400", "0x1", "1-2"]
    ),
    st.integers(0, 99).map('"{}"'.format),
    st.text(alphabet='0123456789+-.eE \t"', max_size=6),
)


@settings(max_examples=300, deadline=None)
@given(
    st.integers(1, 3).flatmap(
        lambda n: st.lists(st.lists(PLAIN_CELLS, min_size=n, max_size=n), min_size=2, max_size=6)
    ),
    st.sampled_from(["", "a,b,c\n", '"a","b","c"\n']),
    st.sampled_from(["\n", "\r\n"]),
)
def test_both_csv_parsers_read_the_same_numbers(cells, header, end):
    data = (header + end.join(",".join(row) for row in cells) + end).encode()
    by_arrow = csv_file._parse_with_arrow(data, None)
    if by_arrow is None:
        return
    by_cell = csv_file._parse_cells(Path("t.csv"), data, None)
    assert by_arrow[:2] == by_cell[:2]
    for arrow_column, cell_column in zip(by_arrow[2], by_cell[2], strict=True):
        np.testing.assert_array_equal(arrow_column.values, cell_column.values)
        assert not (np.signbit(arrow_column.values) ^ np.signbit(cell_column.values)).any()


def test_purely_numeric_csv_files_are_parsed_by_arrow(tmp_path, monkeypatch):
    """Arrow makes reading large tables fast, as measured by `benchmarks/libraries.py`."""
    monkeypatch.setattr(csv_file, "_parse_cells", lambda *_: pytest.fail("parsed cell by cell"))
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(
        {"x": rng.normal(size=9), "i": range(9), "on": rng.random(9) < 0.5, "y": rng.normal(size=9) * 1e300}
    )
    for options in (
        {},
        {"quoting": csv.QUOTE_ALL},
        {"lineterminator": "\r\n"},
        {"header": False},
        {"float_format": "%.18e"},
    ):
        frame.to_csv(tmp_path / "t.csv", index=False, **options)
        table = read_table(tmp_path / "t.csv")
        np.testing.assert_array_equal(table.x, frame[["x", "i", "on"]].to_numpy(dtype=float))
        np.testing.assert_array_equal(table.y, frame["y"])


FUZZ = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
CELLS = st.one_of(
    st.floats(width=32).map(str),
    st.integers().map(str),
    st.sampled_from(["", "NA", "nan", "inf", "x", '"', "1,5", " "]),
)


def read_or_refuse(path, target):
    try:
        table = read_table(path, target)
    except DataError as error:
        assert len(str(error).splitlines()) == 1
    else:
        assert np.isfinite(table.x).all()
        assert np.isfinite(table.y).all()
        assert table.x.shape == (table.rows, len(table.features))


@FUZZ
@given(st.binary(max_size=200), st.sampled_from([".csv", ".csv.gz", ".parquet"]), st.none() | st.text(max_size=5))
def test_any_bytes_are_read_or_refused(tmp_path, content, suffix, target):
    path = tmp_path / f"t{suffix}"
    path.write_bytes(content)
    read_or_refuse(path, target)


@FUZZ
@given(st.text(max_size=200), st.none() | st.text(max_size=5))
def test_any_text_is_read_or_refused(tmp_path, content, target):
    path = tmp_path / "t.csv"
    path.write_text(content, encoding="utf-8")
    read_or_refuse(path, target)


@FUZZ
@given(
    st.integers(1, 3).flatmap(lambda n: st.lists(st.lists(CELLS, min_size=n, max_size=n), max_size=6)), st.booleans()
)
def test_any_cells_are_read_or_refused(tmp_path, cells, header):
    path = tmp_path / "t.csv.gz"
    lines = ([["a", "b", "c"][: len(cells[0])]] if header and cells else []) + cells
    path.write_bytes(gzip.compress("\n".join(",".join(row) for row in lines).encode()))
    read_or_refuse(path, None)
