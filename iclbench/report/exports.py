"""Figures as PNG and SVG, tables as CSV, Markdown and LaTeX."""

from __future__ import annotations

import re
from collections.abc import Sequence
from html import escape
from pathlib import Path

from iclbench.files import atomic
from iclbench.report.blocks import Figure, Gallery, Table
from iclbench.report.style import FONT

FORMATS = ("png", "svg")
TABLE_FORMATS = ("csv", "md", "tex")

_LATEX = {
    "\\": r"\textbackslash{}", "{": r"\{", "}": r"\}", "$": r"\$", "&": r"\&", "#": r"\#", "%": r"\%", "_": r"\_",
    "^": r"\textasciicircum{}", "~": r"\textasciitilde{}", "<": r"\textless{}", ">": r"\textgreater{}",
    "|": r"\textbar{}", "–": "--", "−": "$-$", "·": r"$\cdot$",
}  # fmt: skip


def write_text(path: Path, content: str) -> None:
    with atomic(path) as temporary:
        temporary.write_text(content, encoding="utf-8", newline="\n")


def write_figure(figure: Figure, folder: Path, formats: Sequence[str]) -> None:
    """The rows behind the figure as CSV, and one file per format, drawn by vl-convert: no browser and no network."""
    import altair
    import vl_convert

    write_text(folder / f"{figure.name}.csv", figure.rows().to_csv(index=False, lineterminator="\n"))
    if formats:
        version = ".".join(altair.SCHEMA_VERSION.lstrip("v").split(".")[:2])
        _write_svg(vl_convert.vegalite_to_svg(figure.static, vl_version=version), figure.name, folder, formats)


def write_gallery(gallery: Gallery, folder: Path, formats: Sequence[str]) -> None:
    """All pictures on one sheet."""
    if formats:
        _write_svg(sheet(gallery), gallery.name, folder, formats)


def _write_svg(svg: str, name: str, folder: Path, formats: Sequence[str]) -> None:
    import vl_convert

    if "svg" in formats:
        write_text(folder / f"{name}.svg", svg)
    if "png" in formats:
        with atomic(folder / f"{name}.png") as temporary:
            temporary.write_bytes(vl_convert.svg_to_png(svg, scale=2))


def sheet(gallery: Gallery) -> str:
    """The pictures with the titles of their rows and columns as SVG."""
    side, gap, margin = 84, 8, 110
    parts = [
        f'<text transform="translate({margin + column * (side + gap)} {margin - 6}) rotate(-30)">{escape(title)}</text>'
        for column, title in enumerate(gallery.columns)
    ]
    for row, (title, pictures) in enumerate(gallery.rows):
        y = margin + row * (side + gap)
        parts.append(f'<text x="{margin - gap}" y="{y + side / 2}" text-anchor="end">{escape(title)}</text>')
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
    write_text(folder / f"{table.name}.csv", table.frame.to_csv(index=False, lineterminator="\n"))
    write_text(folder / f"{table.name}.md", markdown(table))
    write_text(folder / f"{table.name}.tex", latex(table))


def markdown(table: Table) -> str:
    """A pipe table; numbers are aligned to the right."""
    rule = ["---:" if column.numeric else ":---" for column in table.columns]
    lines = [[_markdown(c.header) for c in table.columns], rule]
    lines += [[_markdown(cell.text) for cell in row] for row in table.rows()]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines) + f"\n{_markdown(table.caption)}\n"


def latex(table: Table) -> str:
    """A `table` environment with booktabs rules."""
    head = " & ".join(_latex(c.header) for c in table.columns)
    body = []
    for row, starts in zip(table.rows(), table.starts_group(), strict=True):
        body.append(
            (r"\addlinespace" + "\n" if starts else "") + " & ".join(_latex(cell.text) for cell in row) + r" \\"
        )
    spec = "".join("r" if c.numeric else "l" for c in table.columns)
    lines = [
        "% needs \\usepackage{booktabs}", r"\begin{table}", r"\centering", rf"\begin{{tabular}}{{{spec}}}", r"\toprule",
        rf"{head} \\", r"\midrule", *body, r"\bottomrule", r"\end{tabular}", rf"\caption{{{_latex(table.caption)}}}",
        rf"\label{{tab:{table.name}}}", r"\end{table}",
    ]  # fmt: skip
    return "\n".join(lines) + "\n"


def _markdown(text: str) -> str:
    flat = re.sub(r"\s+", " ", text)
    return re.sub(r"([\\`*_\[\]<>|~])", r"\\\1", flat)


def _latex(text: str) -> str:
    flat = re.sub(r"\s+", " ", text)
    # A leading bracket would be read as the optional argument of the row before.
    return "".join(_LATEX.get(character, character) for character in flat).replace("[", "{[}")
