"""Write the files of a report: figures as PNG, SVG and PDF, tables as CSV, Markdown and LaTeX."""

from __future__ import annotations

import re
from collections.abc import Sequence
from html import escape
from pathlib import Path

import pandas as pd

from iclbench.core.files import write_text
from iclbench.core.formats import printable, printable_all
from iclbench.report.blocks import Block, Figure, Gallery, Table
from iclbench.report.drawing import Drawer
from iclbench.report.style import FONT

FORMATS = ("png", "svg", "pdf")
TABLE_FORMATS = ("csv", "md", "tex")

_LATEX = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "$": r"\$",
    "&": r"\&",
    "#": r"\#",
    "%": r"\%",
    "_": r"\_",
    "^": r"\textasciicircum{}",
    "~": r"\textasciitilde{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    "–": "--",
    "−": "$-$",
    "·": r"$\cdot$",
    "[": "{[}",  # LaTeX reads a leading bracket as an optional argument of the row above
}
_IN_LATEX = str.maketrans(_LATEX)
_IN_MARKDOWN = str.maketrans({character: f"\\{character}" for character in r"\`*_[]<>|~"})
_SPACES = re.compile(r"\s+")


def write(block: Block, out: Path, formats: Sequence[str], drawer: Drawer) -> str | None:
    """Write the files of a block.

    A table is written in each of `TABLE_FORMATS`. The rows of a figure are written as CSV. Figures and galleries are
    drawn in each of `formats`.

    Returns:
        The reason why the pictures could not be drawn; None if they were drawn or if no pictures are needed.
    """
    folder = out / "figures"
    if isinstance(block, Table):
        write_table(block, out / "tables")
    elif isinstance(block, Figure):
        write_text(folder / f"{block.name}.csv", _csv(block.rows()), sync=False)
        if formats:
            return drawer.draw(printable_all(block.static), folder / block.name, formats)
    elif isinstance(block, Gallery) and formats:
        folder.mkdir(parents=True, exist_ok=True)
        return drawer.draw(gallery_svg(block), folder / block.name, formats)
    return None


def gallery_svg(gallery: Gallery) -> str:
    """Render a gallery as SVG, with the titles of its rows and columns."""
    side, gap, margin = 84, 8, 110
    parts = [
        f'<text transform="translate({margin + column * (side + gap)} {margin - 6}) rotate(-30)">{_title(title)}</text>'
        for column, title in enumerate(gallery.columns)
    ]
    for row, (title, pictures) in enumerate(gallery.rows):
        y = margin + row * (side + gap)
        parts.append(f'<text x="{margin - gap}" y="{y + side / 2}" text-anchor="end">{_title(title)}</text>')
        parts += [
            f'<g transform="translate({margin + column * (side + gap)} {y})">'
            f'<image width="{side}" height="{side}" href="{picture.uri}"/>'
            f'<rect width="{side}" height="{side}" fill="none" stroke="#ccc"/></g>'
            for column, picture in enumerate(pictures)
            if picture is not None
        ]
    width = margin + len(gallery.columns) * (side + gap) + margin
    height = margin + len(gallery.rows) * (side + gap)
    size = f'width="{width}" height="{height}" font-family="{FONT}" font-size="11"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size}>'
    return "\n".join([head, '<rect width="100%" height="100%" fill="white"/>', *parts, "</svg>"]) + "\n"


def write_table(table: Table, folder: Path) -> None:
    """Write a table in each of `TABLE_FORMATS`."""
    write_text(folder / f"{table.name}.csv", _csv(table.frame), sync=False)
    write_text(folder / f"{table.name}.md", markdown(table), sync=False)
    write_text(folder / f"{table.name}.tex", latex(table), sync=False)


def markdown(table: Table) -> str:
    """Render a table as a Markdown pipe table, with numbers aligned to the right."""
    rule = ["---:" if column.numeric else ":---" for column in table.columns]
    lines = [[_markdown(c.header) for c in table.columns], rule]
    lines += [[_markdown(cell.text) for cell in row] for row in table.rows()]
    notes = "".join(f"{number}. {_markdown(note)}\n" for number, note in enumerate(table.notes, 1))
    text = "".join(f"| {' | '.join(line)} |\n" for line in lines) + f"\n{_markdown(table.caption)}\n"
    return f"{text}\n{notes}" if notes else text


def latex(table: Table) -> str:
    """Render a table as a LaTeX `table` environment with booktabs rules."""
    head = " & ".join(_latex(c.header) for c in table.columns)
    body = []
    for row, starts_group in zip(table.rows(), table.starts_group(), strict=True):
        body.append(
            (r"\addlinespace" + "\n" if starts_group else "") + " & ".join(_latex(cell.text) for cell in row) + r" \\"
        )
    spec = "".join("r" if c.numeric else "l" for c in table.columns)
    lines = [
        "% needs \\usepackage{booktabs}",
        r"\begin{table}",
        r"\centering",
        rf"\begin{{tabular}}{{{spec}}}",
        r"\toprule",
        rf"{head} \\",
        r"\midrule",
        *body,
        r"\bottomrule",
        r"\end{tabular}",
        *(rf"\par\footnotesize {number}. {_latex(note)}" for number, note in enumerate(table.notes, 1)),
        rf"\caption{{{_latex(table.caption)}}}",
        rf"\label{{tab:{table.name}}}",
        r"\end{table}",
    ]
    return "\n".join(lines) + "\n"


def _title(text: str) -> str:
    return escape(printable(text))


def _csv(frame: pd.DataFrame) -> str:
    return printable(frame.to_csv(index=False, lineterminator="\n"))


def _markdown(text: str) -> str:
    return printable(_SPACES.sub(" ", text)).translate(_IN_MARKDOWN)


def _latex(text: str) -> str:
    return printable(_SPACES.sub(" ", text)).translate(_IN_LATEX)
