"""Exported files: CSV with all digits, escaped Markdown and LaTeX, and figures in PNG, SVG and PDF."""

import csv
import xml.etree.ElementTree as ElementTree
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from iclbench.core.formats import fixed, number, seconds, slug
from iclbench.core.png import encode
from iclbench.report import exports
from iclbench.report.blocks import Column, Figure, Gallery, Picture, Section, Table
from iclbench.report.data import Results
from iclbench.report.drawing import Drawer
from iclbench.report.sections import extrapolation
from iclbench.report.style import vega_lite

SPECIAL_CHARACTERS = "a|b_c & 50% of $x^2 {y} \\ <i> `z` [w]\nnew line #1 ~"


@pytest.fixture
def table() -> Table:
    frame = pd.DataFrame(
        {
            "name": [SPECIAL_CHARACTERS, "b", "c"],
            "error": [1 / 3, 1e-17, None],
            "low": [0.1, 0.0, None],
            "high": [0.5, 1.0, None],
            "rank": [1, 1, 2],
        }
    )
    columns = (Column("name", "name_of it"), Column("error", "error", number, True, "low", "high"))
    return Table("t", "title", "100 % of_it", frame, columns, group="rank")


def _check_csv(path: Path, frame: pd.DataFrame) -> None:
    """Assert that a file has the columns and values of a frame with all digits, and empty cells for missing values."""
    with path.open(encoding="utf-8", newline="") as file:
        header, *rows = csv.reader(file)
    assert header == [str(column) for column in frame.columns]
    assert len(rows) == len(frame)
    for texts, values in zip(rows, frame.itertuples(index=False), strict=True):
        for text, value in zip(texts, values, strict=True):
            if pd.isna(value):
                assert text == ""
            elif isinstance(value, float):
                assert float(text) == value
            else:
                assert text == str(value)


def test_csv_round_trips(table: Table, tmp_path: Path) -> None:
    exports.write_table(table, tmp_path)
    _check_csv(tmp_path / "t.csv", table.frame)


def test_every_table_of_a_report_round_trips(sections: list[Section], page: Path) -> None:
    tables = [block for section in sections for block in section.walk() if isinstance(block, Table)]
    assert len(tables) > 10
    for block in tables:
        _check_csv(page.parent / "tables" / f"{block.name}.csv", block.frame)


def test_markdown_escapes_bars_and_underscores(table: Table) -> None:
    lines = exports.markdown(table).splitlines()
    assert lines[0] == r"| name\_of it | error |"
    assert lines[1] == "| :--- | ---: |"
    # A row with two columns has three unescaped bars.
    assert all(line.replace(r"\|", "").count("|") == 3 for line in lines[:5])
    assert r"a\|b\_c" in lines[2]
    assert lines[2].endswith(r"| 0.333 \[0.100, 0.500\] |")
    assert lines[4] == "| c | – |"


def test_latex_escapes_every_special_character(table: Table) -> None:
    text = exports.latex(table)
    row = next(line for line in text.splitlines() if line.startswith("a"))
    assert row == (
        r"a\textbar{}b\_c \& 50\% of \$x\textasciicircum{}2 \{y\} \textbackslash{} \textless{}i\textgreater{} `z` "
        r"{[}w] new line \#1 \textasciitilde{} & 0.333 {[}0.100, 0.500] \\"
    )
    assert r"\caption{100 \% of\_it}" in text
    assert text.count(r"\addlinespace") == 1, "rows are separated only where the rank changes"


def test_figures_are_written_as_png_svg_and_pdf(report_results: Results, tmp_path: Path) -> None:
    task = next(s for s in report_results.slices if s.task == "linear")
    section = extrapolation.section(task)
    assert section is not None
    (figure,) = [block for block in section.blocks if isinstance(block, Figure)]
    with closing(Drawer(vega_lite())) as drawer:
        assert exports.write(figure, tmp_path, ("png", "svg", "pdf"), drawer) is None
    assert (tmp_path / "figures" / f"{figure.name}.pdf").read_bytes().startswith(b"%PDF-")
    png = (tmp_path / "figures" / f"{figure.name}.png").read_bytes()
    assert png.startswith(b"\x89PNG")
    width, height = int.from_bytes(png[16:20]), int.from_bytes(png[20:24])
    assert width > 1120
    assert height > 680, "the picture has twice the size of the figure, which is 560 x 340"
    svg = (tmp_path / "figures" / f"{figure.name}.svg").read_text(encoding="utf-8")
    texts = {node.text for node in ElementTree.fromstring(svg).iter("{http://www.w3.org/2000/svg}text")}
    assert {"gpt2", "mamba", "normalised squared error", "trained: 20"} <= texts


def test_a_gallery_is_written_as_pdf_with_its_pictures(tmp_path: Path) -> None:
    picture = Picture(encode(np.full((84, 84, 3), 100, np.uint8)), "grey")
    empty = Gallery("empty", "t", "c", ("image",), (("row", (None,)),))
    gallery = replace(empty, name="grey", rows=(("row", (picture,)),))
    with closing(Drawer(vega_lite())) as drawer:
        for block in (empty, gallery):
            assert exports.write(block, tmp_path, ("pdf",), drawer) is None
    images = {path.stem: path.read_bytes().count(b"/Image") for path in (tmp_path / "figures").glob("*.pdf")}
    assert images["empty"] < images["grey"]


def test_numbers_and_durations_are_formatted_with_few_digits() -> None:
    assert [number(v) for v in (0, 1, 0.0123456, 99.96, 123456789, float("inf"))] == [
        "0",
        "1.00",
        "0.0123",
        "100",
        "1.23e+08",
        "∞",
    ]
    assert [fixed(v) for v in (1.0, -0.0001, 0.12345)] == ["1.000", "0.000", "0.123"]
    assert [seconds(v) for v in (0.39951, 59.9, 60, 3600)] == ["400 ms", "59.9 s", "1 min 0 s", "1 h 0 min"]


def test_slugs_are_distinct_short_and_safe_as_file_names() -> None:
    assert slug("a b") != slug("a/b") != slug("a-b")
    assert "/" not in slug("../../etc/passwd")
    assert not slug("..").startswith(".")
    assert len(slug("x" * 500)) < 120
