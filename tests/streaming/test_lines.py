"""Lines that come in: what is a point, a query, a header, and what is refused in which words."""

import pytest
import torch

from iclbench.backbones.base import TaskShape
from iclbench.core.errors import DataError
from iclbench.streaming.lines import Line, LineFormat

TWO_ONE = LineFormat.of(TaskShape(x_dim=2, points=9), torch.finfo(torch.float32).max)
LIKE = "write one like 0.5 (? stands for outputs only)"
LABELS = LineFormat.of(TaskShape(x_dim=1, points=9, classes=3, head="categorical"), torch.finfo(torch.float32).max)


def line(number: int, x: list[float], y: list[float] | None) -> Line:
    return Line(number, [float(v) for v in x], None if y is None else [float(v) for v in y])


def read(*lines: str, columns: LineFormat = TWO_ONE) -> list[Line]:
    return list(columns.read((f"{text}\n" for text in lines), "data.csv"))


def test_points_queries_and_blank_lines() -> None:
    assert read("1, 2,3", "", "-1e-3,.5,?", "4,5,", "6,7, ? ") == [
        line(1, [1, 2], [3]),
        line(3, [-1e-3, 0.5], None),
        line(4, [4, 5], None),
        line(5, [6, 7], None),
    ]


@pytest.mark.parametrize("header", ["x1,x2,y1", "X1, X2, Y1", "\ufeffx1,x2,y1"])
def test_a_header_may_stand_before_the_first_line(header: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", "iclbench"):
        assert read("", header, "1,2,3") == [line(3, [1, 2], [3])]
    assert not caplog.messages


@pytest.mark.parametrize("header", ["longitude,latitude,temperature", "x1,width,y1", "x1,x3,Y1"])
def test_names_that_are_not_those_of_the_task_are_reported_in_one_line(
    header: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("INFO", "iclbench"):
        assert read("", header, "1,2,3") == [line(3, [1, 2], [3])]
    (said,) = caplog.messages
    unknown = {*header.split(",")} - {"x1", "y1", "Y1"}
    assert "data.csv" in said and "\n" not in said and all(name in said for name in unknown)


@pytest.mark.parametrize("header", ["Y1,X1,X2", "y1,X2,x1", "x1,y1,width", "price,x1,x2", "x1,x1,y1"])
def test_known_names_in_another_order_are_refused_in_any_spelling(header: str) -> None:
    with pytest.raises(DataError, match=r"line 1: .*x1,x2,y1"):
        read(header, "1,2,3")


def test_quoted_fields_are_what_they_quote_also_on_the_first_line() -> None:
    assert read('"0","1","2"', '"1", 2,?') == [line(1, [0, 1], [2]), line(2, [1, 2], None)]
    assert read('"x1","x2","y1"', "1,2,3") == [line(2, [1, 2], [3])]


@pytest.mark.parametrize("first", ["1_5,2_5,3_5", "\u0661,\u0662,\u0663", "1/2,1/3,1/4"])
def test_a_first_line_of_what_only_looks_like_numbers_is_no_header(first: str) -> None:
    with pytest.raises(DataError, match=r"line 1: x1 is .*, not a number"):
        read(first, "1,2,3")


def test_labels_are_integers() -> None:
    assert read("0.5,2", "1,?", columns=LABELS) == [line(1, [0.5], [2]), line(2, [1], None)]


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["1,2,3", "1,2,nan"], "data.csv, line 2: y1 is nan; write finite numbers only"),
        (["1,-inf,3"], "data.csv, line 1: x2 is -inf; write finite numbers only"),
        (["1,2,3", "", "1,two,3"], "data.csv, line 3: x2 is 'two', not a number; " + LIKE),
        (["1,2,3", "x1,x2,y1"], "data.csv, line 2: x1 is 'x1', not a number; " + LIKE),
        (["1,2_0,3"], "data.csv, line 1: x2 is '2_0', not a number; " + LIKE),
        (["1,\u0662,3"], "data.csv, line 1: x2 is '\u0662', not a number; " + LIKE),
        (
            ["1,2,3", '"1,2,3'],
            "data.csv, line 2: 1 column instead of 3; write x1,x2,y1, with ? for the outputs of a query",
        ),
        (["?,2,3"], "data.csv, line 1: x1 is '?', not a number; " + LIKE),
        (["1,2,1e39"], "data.csv, line 1: y1 is 1e39, more than 3.4e+38 in size; scale the data or try --float64"),
        (["1,2"], "data.csv, line 1: 2 columns instead of 3; write x1,x2,y1, with ? for the outputs of a query"),
        (["1;2;3"], "data.csv, line 1: 1 column instead of 3; write x1,x2,y1, with ? for the outputs of a query"),
        (["a,b,c,d"], "data.csv, line 1: 4 columns instead of 3; write x1,x2,y1, with ? for the outputs of a query"),
        (["y1,x1,x2"], "data.csv, line 1: the columns are in another order; write them as x1,x2,y1"),
    ],
)
def test_what_is_refused_names_its_line(lines: list[str], message: str) -> None:
    with pytest.raises(DataError) as raised:
        read(*lines)
    assert str(raised.value) == message


@pytest.mark.parametrize("label", ["3", "-1", "0.5"])
def test_other_labels_are_refused(label: str) -> None:
    with pytest.raises(DataError, match=rf"line 1: label is {label}; write an integer from 0 to 2"):
        read(f"1,{label}", columns=LABELS)


def test_lines_are_read_as_they_are_asked_for() -> None:
    def lines():
        yield "1,2,3"
        raise AssertionError("one line too many was read")

    assert next(TWO_ONE.read(lines(), "data.csv")) == line(1, [1, 2], [3])
