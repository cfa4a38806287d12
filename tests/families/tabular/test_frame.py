"""Reading users' tables with text, missing values, dates and booleans."""

import gzip
import logging
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from iclbench.core import limits
from iclbench.core.errors import DataError, IclbenchError, UsageError
from iclbench.families.tabular.frame import read_frame, read_labelled_frame

TABLE = """price,colour,day,new,size
"1,200",red,2020-01-01,True,1.5
"3,400",,2020-02-01,False,NA
900,blue,2020-03-01,,2.5
"""


def write(folder: Path, text: str, name: str = "t.csv") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize("separator", [",", ";", "\t"])
@pytest.mark.parametrize("suffix", [".csv", ".csv.gz"])
def test_text_missing_values_dates_and_booleans_are_read(tmp_path: Path, separator: str, suffix: str) -> None:
    text = TABLE.replace('"1,200"', '"1#200"').replace('"3,400"', '"3#400"').replace(",", separator).replace("#", ",")
    path = write(tmp_path, text, f"t{suffix}")
    if suffix == ".csv.gz":
        path.write_bytes(gzip.compress(text.encode()))
    frame = read_frame(path)
    assert list(frame.columns) == ["price", "colour", "day", "new", "size"]
    assert frame["price"].tolist() == ["1,200", "3,400", "900"]
    assert frame["colour"].tolist() == ["red", None, "blue"]
    assert frame["new"].dtype == "boolean" and frame["new"].isna().tolist() == [False, False, True]
    np.testing.assert_array_equal(frame["size"], [1.5, np.nan, 2.5])


@pytest.mark.parametrize("header", ["wind, m/s;power, kW\n", ""])
def test_commas_are_decimal_marks_if_semicolons_separate_the_columns(tmp_path: Path, header: str) -> None:
    frame = read_frame(write(tmp_path, header + "1,5;20,25\n2,5;30,75\n"))
    assert list(frame.columns) == (["wind, m/s", "power, kW"] if header else ["column 1", "column 2"])
    assert frame.iloc[0].tolist() == [1.5, 20.25]


@pytest.mark.parametrize(
    "text, expected, is_unclear",
    [
        # a column of decimal commas shows that points separate thousands
        ("a;b\n100,30;1.503\n38,02;578\n7,5;12.000\n", [[100.3, 1503], [38.02, 578], [7.5, 12000]], False),
        ("a;b\n100,30 €;1.503 €\n38,02 €;578 €\n", [[100.3, 1503], [38.02, 578]], False),
        ("a;b\n-0,5;x\n1,25;y\n", [[-0.5, "x"], [1.25, "y"]], False),
        # three digits behind every comma
        ("a;b\n11,106;0\n3,093;1\n", [[11.106, 0], [3.093, 1]], True),
        # numbers below 1000 without a mark
        ("a;b\n1.503;7\n578;8\n", [[1503, 7], [578, 8]], True),
        ("a;b\n1,503;7\n578;8\n", [["1,503", 7], ["578", 8]], True),
        # decimal points
        ("a;b\n7.4;1,503\n0.076;578\n", [[7.4, "1,503"], [0.076, "578"]], False),
        ("a;b\n1.503;7\n2.578;8\n", [[1.503, 7], [2.578, 8]], False),
        ('a,b\n"11,106",0\n"3,093",1\n', [["11,106", 0], ["3,093", 1]], True),
        ("a,b\n1.503,7\n578,8\n", [[1.503, 7], [578, 8]], True),
        # both marks: each column has its own
        ("a;b\n1.5;100,30\n2.5;7,5\n", [[1.5, "100,30"], [2.5, "7,5"]], False),
        # dates and codes do not show a mark
        ("a;b\n1.5;01.02.2021\n2.25;03.04.2021\n", [[1.5, "01.02.2021"], [2.25, "03.04.2021"]], False),
    ],
)
def test_all_columns_of_a_file_determine_its_decimal_mark(
    tmp_path: Path, text: str, expected: list[list[object]], is_unclear: bool, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "iclbench"):
        assert read_frame(write(tmp_path, text)).to_numpy(object).tolist() == expected
    assert ("is read as" in caplog.text) == is_unclear


def test_new_rows_have_the_decimal_mark_of_the_training_table_if_their_own_is_unclear(tmp_path: Path) -> None:
    commas = read_frame(write(tmp_path, "a;b\n100,30;1.503\n38,02;578\n"))
    assert read_frame(write(tmp_path, "b\n1.250\n", "new.csv"), like=commas)["b"].tolist() == [1250]
    assert read_frame(write(tmp_path, "a;b\n1;1.250\n", "new.csv"), like=commas)["b"].tolist() == [1250]
    assert read_frame(write(tmp_path, "a;b\n1.5;1.250\n", "new.csv"), like=commas)["b"].tolist() == [1.25]
    points = read_frame(write(tmp_path, "a,b\n1.5,2.5\n0.5,3.5\n"))
    assert read_frame(write(tmp_path, "a;b\n1,503;0\n", "new.csv"), like=points)["a"].tolist() == [1.503]


@pytest.mark.parametrize("separator", ["|", " "])
def test_a_file_with_other_separators_is_refused_with_the_supported_ones(tmp_path: Path, separator: str) -> None:
    with pytest.raises(DataError, match="commas, semicolons or tabs"):
        read_labelled_frame(write(tmp_path, "a,b\n1,2\n".replace(",", separator)))


def test_integers_are_read_as_integers(tmp_path: Path) -> None:
    frame = read_frame(write(tmp_path, "a,b,c\n1,1.0,2\n2,2.0,x\n"))
    assert [dtype.kind for dtype in frame.dtypes] == ["i", "i", "O"]


@pytest.mark.parametrize("cells", [["01", "2", "10"], ["-007", "1", "2"], ["1234567890123456", "1", "2"]])
def test_numbers_that_would_lose_digits_are_text(tmp_path: Path, cells: list[str]) -> None:
    text = "code,x\n" + "".join(f"{cell},1.5\n" for cell in cells)
    frame = read_frame(write(tmp_path, text))
    assert frame["code"].tolist() == cells and frame["x"].dtype == float
    for numbers in (["0", "0.5", "100"], ["1e-05", "0", "-0.1"], ["0.12345678901234567", "1", "2"]):
        assert read_frame(write(tmp_path, text.replace("1.5", "{}").format(*numbers)))["x"].dtype == float


def test_the_target_keeps_words_for_missing_values_as_text(tmp_path: Path) -> None:
    path = write(tmp_path, "a,Class,b\nNA,x,1\nx,NA,2\ny,nan,3\ny,,4\n")
    for target in ("Class", "2", None):
        frame, labels = read_labelled_frame(path, target=target)
        assert list(frame) == ["a", "b"] and frame["a"].tolist() == [None, "x", "y", "y"]
        assert (labels.name, labels.tolist()) == ("Class", ["x", "NA", None, None])
    assert read_labelled_frame(write(tmp_path, "a,b\nx,1\ny,NA\n"))[1].isna().tolist() == [False, True]


def test_a_line_with_the_name_of_the_target_is_a_header(tmp_path: Path) -> None:
    path = write(tmp_path, "2019,2020,y\n1,2,low\n3,4,high\n")
    assert list(read_frame(path)) == ["column 1", "column 2", "column 3"]
    frame, labels = read_labelled_frame(path, target="y")
    assert list(frame) == ["2019", "2020"] and labels.tolist() == ["low", "high"]


def test_a_table_can_be_read_with_the_column_types_of_another(tmp_path: Path) -> None:
    like = read_frame(write(tmp_path, "1,2,y\n5,x,1\n6,y,2\n")).drop(columns="y")
    path = write(tmp_path, "2,1\n7,0.5\n")
    assert read_frame(path, like=like).to_dict("list") == {"2": ["7"], "1": [0.5]}, "text columns are read as text"
    with pytest.raises(DataError):
        read_frame(path)


@pytest.mark.parametrize("first", ["", "Unnamed: 0"])
def test_a_first_column_without_a_name_is_the_row_index(
    tmp_path: Path, first: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "iclbench"):
        frame = read_frame(write(tmp_path, f"{first},a,b\n7,1,x\n3,2,y\n"))
    assert list(frame.columns) == ["a", "b"] and "index" in caplog.text


def test_a_parquet_file_gives_the_same_frame(tmp_path: Path) -> None:
    frame = pd.DataFrame(
        {
            "x": [1.5, None],
            "n": [1, 2],
            "c": pd.Categorical(["a", "b"]),
            "t": ["x", None],
            "d": pd.to_datetime(["2020-01-01", "2020-01-03"]),
            "z": pd.to_datetime(["2020-01-01", "2020-01-03"]).tz_localize("Europe/Berlin"),
            "flag": pd.array([True, None], dtype="boolean"),
            "list": [[1], [2]],
        },
        index=pd.Index([5, 9], name="key"),
    )
    frame.to_parquet(tmp_path / "t.parquet")
    frame_from_file = read_frame(tmp_path / "t.parquet")
    assert list(frame_from_file.columns) == ["x", "n", "c", "t", "d", "z", "flag"]
    for name in ("x", "n", "c", "t", "d", "flag"):
        assert [v for v in frame_from_file[name] if not pd.isna(v)] == [v for v in frame[name] if not pd.isna(v)], name
    assert frame_from_file["z"].dt.tz is None and frame_from_file["d"].dtype.kind == "M"


ARFF = """% a comment
@RELATION weather
@ATTRIBUTE outlook {sunny, 'very rainy', overcast}
@attribute 'wind speed' REAL
@attribute code {1,2}
@attribute note string

@DATA
sunny,1.5,1,'it''s'
'very rainy',?,2,"a, b"
?,2,1,?
"""


def test_arff_files_are_read(tmp_path: Path) -> None:
    frame = read_frame(write(tmp_path, ARFF.replace("it''s", "it\\'s"), "t.arff"))
    assert list(frame.columns) == ["outlook", "wind speed", "code", "note"]
    assert frame["outlook"].tolist() == ["sunny", "very rainy", None]
    np.testing.assert_array_equal(frame["wind speed"], [1.5, np.nan, 2])
    assert frame["code"].tolist() == ["1", "2", "1"], "values of a nominal attribute are names"
    assert frame["note"].tolist() == ["it's", "a, b", None]


def test_sparse_arff_rows_are_read(tmp_path: Path) -> None:
    text = "@relation r\n@attribute a numeric\n@attribute b {x,y}\n@data\n{0 2.5}\n{1 y}\n"
    frame = read_frame(write(tmp_path, text, "t.arff"))
    assert frame["a"].tolist() == [2.5, 0] and frame["b"].tolist() == ["x", "y"]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("t.txt", "a,b\n1,2\n"),
        ("t.csv", ""),
        ("t.csv", "a,b\n"),
        ("t.csv", "a,b\n1,2\n3\n"),
        ("t.csv", "a,a\n1,2\n"),
        ("t.csv.gz", "a,b\n1,2\n"),
        ("t.parquet", "a,b\n1,2\n"),
        ("t.arff", "a,b\n1,2\n"),
        ("t.arff", "@relation r\n@attribute a numeric\n@data\n1,2\n"),
        ("t.arff", "@relation r\n@attribute a numeric\n@data\n"),
        ("t.arff", "@relation r\n@attribute a relational\n@data\n1\n"),
    ],
)
def test_files_that_are_not_tables_are_refused_with_a_one_line_message(tmp_path: Path, name: str, text: str) -> None:
    with pytest.raises(DataError) as error:
        read_frame(write(tmp_path, text, name))
    assert str(error.value).count("\n") == 0 and name in str(error.value)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    for suffix in (".csv", ".parquet", ".arff"):
        with pytest.raises(IclbenchError) as error:
            read_frame(tmp_path / f"t{suffix}")
        assert error.value.code == "missing-file"


def test_a_header_of_numbers_requires_the_option_header(tmp_path: Path) -> None:
    path = write(tmp_path, "0,1,2\n0.5,1.5,a\n3.5,4,b\n")
    with pytest.raises(DataError) as error:
        read_frame(path)
    assert error.value.code == "missing-value" and "--header" in str(error.value)
    assert list(read_frame(path, header=True).columns) == ["0", "1", "2"]
    assert list(read_frame(path, header=False).columns) == ["column 1", "column 2", "column 3"]
    with pytest.raises(UsageError):
        read_frame(tmp_path / "t.parquet", header=True)


@pytest.mark.parametrize("suffix", [".csv", ".csv.gz", ".parquet", ".arff"])
def test_files_larger_than_the_limit_are_refused(tmp_path: Path, suffix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / f"t{suffix}"
    frame = pd.DataFrame({"a": ["x" * 50] * 20_000, "b": 1.0})
    if suffix == ".parquet":
        frame.to_parquet(path)
    elif suffix == ".arff":
        path.write_text("@relation r\n@attribute a string\n@data\n" + "x\n" * 100_000)
    else:
        frame.to_csv(path, index=False)
    monkeypatch.setenv(limits.VARIABLE, "200K")
    with pytest.raises(limits.TooLargeError):
        read_frame(path)


def test_a_numeric_attribute_of_an_arff_file_has_no_text(tmp_path: Path) -> None:
    text = "@relation t\n@attribute a numeric\n@attribute b {x,y}\n@data\n1,x\n?,y\nCELL,x\n"
    assert read_frame(write(tmp_path, text.replace("CELL", "1e3"), "t.arff"))["a"].tolist()[::2] == [1, 1000]
    with pytest.raises(DataError, match=r"line 7.*'a' is numeric, not 'high'"):
        read_frame(write(tmp_path, text.replace("CELL", "high"), "t.arff"))
