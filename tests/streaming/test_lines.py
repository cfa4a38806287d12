"""Input lines: points, queries, headers and errors."""

import pytest
import torch

from iclbench.backbones.base import TaskShape
from iclbench.streaming.lines import Line, LineFormat
from tests.refusals import refused

TWO_ONE = LineFormat.of(TaskShape(x_dim=2, points=9), torch.finfo(torch.float32).max)

LABELS = LineFormat.of(TaskShape(x_dim=1, points=9, classes=3, head="categorical"), torch.finfo(torch.float32).max)


def line(number: int, x: list[float], y: list[float] | None) -> Line:
    return Line(number, [float(v) for v in x], None if y is None else [float(v) for v in y])


def read(*lines: str, columns: LineFormat = TWO_ONE) -> list[Line]:
    return list(columns.read((f"{text}\n" for text in lines), "data.csv"))


def test_lines_are_read_as_points_or_queries_and_blank_lines_are_ignored() -> None:
    assert read("1, 2,3", "", "-1e-3,.5,?", "4,5,", "6,7, ? ") == [
        line(1, [1, 2], [3]),
        line(3, [-1e-3, 0.5], None),
        line(4, [4, 5], None),
        line(5, [6, 7], None),
    ]


@pytest.mark.parametrize("header", ["x1,x2,y1", "X1, X2, Y1", "\ufeffx1,x2,y1"])
def test_a_header_may_precede_the_first_line(header: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", "iclbench"):
        assert read("", header, "1,2,3") == [line(3, [1, 2], [3])]
    assert not caplog.messages


@pytest.mark.parametrize("header", ["longitude,latitude,temperature", "x1,width,y1", "x1,x3,Y1"])
def test_unknown_column_names_are_reported(header: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", "iclbench"):
        assert read("", header, "1,2,3") == [line(3, [1, 2], [3])]
    (message,) = caplog.messages
    unknown = {*header.split(",")} - {"x1", "y1", "Y1"}
    assert "data.csv" in message and "\n" not in message and all(name in message for name in unknown)


@pytest.mark.parametrize("header", ["Y1,X1,X2", "y1,X2,x1", "x1,y1,width", "price,x1,x2", "x1,x1,y1"])
def test_column_names_in_a_different_order_are_refused(header: str) -> None:
    with refused("bad-data", "line 1", "x1,x2,y1"):
        read(header, "1,2,3")


def test_quotation_marks_are_ignored() -> None:
    assert read('"0","1","2"', '"1", 2,?') == [line(1, [0, 1], [2]), line(2, [1, 2], None)]
    assert read('"x1","x2","y1"', "1,2,3") == [line(2, [1, 2], [3])]


@pytest.mark.parametrize("first_line", ["1_5,2_5,3_5", "\u0661,\u0662,\u0663", "1/2,1/3,1/4"])
def test_a_first_line_that_resembles_numbers_is_not_a_header(first_line: str) -> None:
    with refused("bad-data", "line 1", "x1"):
        read(first_line, "1,2,3")


def test_labels_are_read_as_integers() -> None:
    assert read("0.5,2", "1,?", columns=LABELS) == [line(1, [0.5], [2]), line(2, [1], None)]


@pytest.mark.parametrize(
    ("lines", "names"),
    [
        (["1,2,3", "1,2,nan"], ("line 2", "y1", "nan")),
        (["1,-inf,3"], ("line 1", "x2", "-inf")),
        (["1,2,3", "", "1,two,3"], ("line 3", "x2", "'two'")),
        (["1,2,3", "x1,x2,y1"], ("line 2", "x1", "'x1'")),
        (["1,2_0,3"], ("line 1", "x2", "'2_0'")),
        (["1,\u0662,3"], ("line 1", "x2", "'\u0662'")),
        (["1,2,3", '"1,2,3'], ("line 2", "1 column", 3, "x1,x2,y1")),
        (["?,2,3"], ("line 1", "x1", "'?'")),
        (["1,2,1e39"], ("line 1", "y1", "1e39", "3.4e+38", "--float64")),
        (["1,2"], ("line 1", "2 columns", 3, "x1,x2,y1")),
        (["1;2;3"], ("line 1", "1 column", 3, "x1,x2,y1")),
        (["a,b,c,d"], ("line 1", "4 columns", 3, "x1,x2,y1")),
        (["y1,x1,x2"], ("line 1", "x1,x2,y1")),
    ],
)
def test_invalid_lines_are_refused(lines: list[str], names: tuple[object, ...]) -> None:
    with refused("bad-data", "data.csv", *names):
        read(*lines)


@pytest.mark.parametrize("label", ["3", "-1", "0.5"])
def test_labels_that_are_not_classes_of_the_model_are_refused(label: str) -> None:
    with refused("bad-data", "line 1", "label", label, "0 to 2"):
        read(f"1,{label}", columns=LABELS)


def test_lines_are_read_lazily() -> None:
    def lines():
        yield "1,2,3"
        raise AssertionError("one line too many was read")

    assert next(TWO_ONE.read(lines(), "data.csv")) == line(1, [1, 2], [3])
