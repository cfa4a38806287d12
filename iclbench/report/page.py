"""The blocks as one HTML page that needs nothing else: styles, Vega and data are inside, and it may load nothing."""

from __future__ import annotations

import gzip
import json
from base64 import b64encode
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from typing import Any

import pandas as pd
from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup

from iclbench.core.formats import Number, printable, printable_all
from iclbench.report.blocks import Figure, Gallery, Glance, Section, Table
from iclbench.report.exports import TABLE_FORMATS
from iclbench.report.style import Look, short

# The shapes of points as paths in the middle of a swatch of 32 x 14 pixels.
_OUTLINES = {
    "circle": "M11 7a5 5 0 1 0 10 0a5 5 0 1 0 -10 0z",
    "square": "M11.5 2.5h9v9h-9z",
    "triangle-up": "M16 1.5l5.5 10h-11z",
    "triangle-down": "M16 12.5l5.5 -10h-11z",
    "triangle-right": "M21.5 7l-10 5.5v-11z",
    "triangle-left": "M10.5 7l10 5.5v-11z",
    "diamond": "M16 1l5.5 6l-5.5 6l-5.5 -6z",
    "cross": "M14 1.5h4v3.5h3.5v4h-3.5v3.5h-4v-3.5h-3.5v-4h3.5z",
}


@dataclass(frozen=True)
class Part:
    """A section as HTML, and what the table of contents needs of it.

    Attributes:
        section: without its contents.
        html: the section.
        drawn: whether there are figures in it.
        pictures: how many pictures were asked for.
        missing: why pictures of it were not written, by figure.
        broken: why it could not be made, in a line; empty if it was.
    """

    section: Section
    html: Markup
    drawn: bool
    pictures: int
    missing: dict[str, str]
    broken: str = ""


def part(section: Section, formats: Sequence[str], missing: dict[str, str], own: Collection[str] = ()) -> Part:
    """One section of the page. `formats` are the figure formats that lie in `figures/` beside it, but for those of the
    figures that are `missing`, with the reason; contestants that are the user's `own` stand out."""
    html = (
        _environment()
        .get_template("section.html")
        .render(section=section, formats=list(formats), missing=missing, own=own)
    )
    blocks = section.walk()
    drawn = any(isinstance(block, Figure) for block in blocks)
    pictures = sum(isinstance(block, Figure | Gallery) for block in blocks) if formats else 0
    about = replace(section, blocks=(), parts=())
    return Part(about, Markup(html), drawn, pictures, missing)


def render(parts: Sequence[Part], title: str, subtitle: str, vega: str, undrawn: str = "") -> str:
    """The complete page; `vega` is the script that draws figures, `undrawn` says why there is none."""
    return (
        _environment()
        .get_template("page.html")
        .render(
            sections=parts,
            contents=contents(parts),
            title=title,
            subtitle=subtitle,
            style=Markup(_asset("page.css")),
            script=Markup(_asset("page.js")),
            vega=vega and zipped(vega),
            choices=choices([each.section for each in parts]),
            undrawn=undrawn,
        )
    )


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=FunctionLoader(_asset),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda value: printable(value) if isinstance(value, str) and not isinstance(value, Markup) else value,
    )
    environment.filters |= {"json": embedded, "packed": packed, "background": background, "short": short}
    environment.tests |= {"table": _is(Table), "figure": _is(Figure), "gallery": _is(Gallery), "glance": _is(Glance)}
    environment.globals |= {"swatch": swatch, "table_formats": TABLE_FORMATS}
    return environment


def embedded(value: Any) -> Markup:
    """JSON for a script element: nothing in it can close the element or open a comment."""
    text = json.dumps(printable_all(value), separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return Markup(text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026"))


def packed(figure: Figure) -> str:
    """What the page's script needs of a figure, as compressed JSON in base64: a page of a hundred figures stays a few
    megabytes."""
    content = {"spec": figure.live, "behind": figure.behind, "rows": columns(figure.data)}
    text = json.dumps(printable_all(content), separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return zipped(text)


def zipped(text: str) -> str:
    """A text as the page's script unzips it."""
    return b64encode(gzip.compress(text.encode(), mtime=0)).decode("ascii")


def contents(sections: Sequence[Part]) -> dict[str, list[Part]]:
    """The sections by group, first those without one."""
    groups: dict[str, list[Part]] = {"": []}
    for section in sections:
        groups.setdefault(section.section.group, []).append(section)
    return groups


def choices(sections: Sequence[Section]) -> dict[str, list[str]]:
    """What the sections can be filtered by: the names of tasks, presets and contestants."""
    return {
        "task": sorted({section.task for section in sections if section.task}),
        "preset": sorted({section.preset for section in sections if section.preset}),
        "contestant": sorted({name for section in sections for name in section.contestants}),
    }


def columns(data: pd.DataFrame) -> dict[str, Any]:
    """A frame column by column: numbers with six significant digits, texts as levels and codes."""
    packed: dict[str, Any] = {}
    for name in data.columns:
        column = data[name]
        if pd.api.types.is_bool_dtype(column):
            packed[name] = [bool(v) for v in column]
        elif pd.api.types.is_numeric_dtype(column):
            packed[name] = [_short(v) for v in column.astype(object).where(column.notna(), None)]
        else:
            codes, levels = pd.factorize(column.astype(object))
            packed[name] = {"levels": [str(level) for level in levels], "codes": [int(c) for c in codes]}
    return packed


def background(shade: float) -> str:
    """White to blue, and the ink that is readable on it (contrast at least 4.5)."""
    start, end = (255, 255, 255), (0x1F, 0x5F, 0x99)
    red, green, blue = (round(a + (b - a) * shade) for a, b in zip(start, end, strict=True))
    return f"background:#{red:02x}{green:02x}{blue:02x};color:{'#fff' if shade > 0.84 else '#000'}"


def swatch(look: Look, shape: bool = False) -> Markup:
    """A short line in a contestant's look, with the shape of its points or without."""
    dash = f' stroke-dasharray="{" ".join(str(d) for d in look.dash)}"' if look.dash else ""
    line = f'<line x1="1" y1="7" x2="31" y2="7" stroke="{look.colour}" stroke-width="{look.width}"{dash}/>'
    fill = "#fff" if look.hollow else look.colour
    if shape and look.shape.startswith("M"):  # a path within a square from -1 to 1
        line += (
            f'<path d="{look.shape}" transform="translate(16 7) scale(5.5)" fill="{fill}" stroke="{look.colour}" '
            'stroke-width="1.5" vector-effect="non-scaling-stroke"/>'
        )
    elif shape and look.shape in _OUTLINES:
        line += f'<path d="{_OUTLINES[look.shape]}" fill="{fill}" stroke="{look.colour}" stroke-width="1.5"/>'
    return Markup(f'<svg width="32" height="14" aria-hidden="true">{line}</svg>')


def _short(value: Number | None) -> Number | None:
    if value is None or value != value or value in (float("inf"), float("-inf")):
        return None
    short = float(f"{float(value):.6g}")
    return int(short) if short.is_integer() and abs(short) < 1e15 else short


def _asset(name: str) -> str:
    return files("iclbench.report").joinpath("assets", name).read_text(encoding="utf-8")


def _is(kind: type) -> Any:
    return lambda value: isinstance(value, kind)
