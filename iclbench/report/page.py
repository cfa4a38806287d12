"""A report as one self-contained HTML page, which includes styles, Vega and data, and loads no other files."""

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
from iclbench.report.blocks import Figure, FirstScreen, Gallery, Section, Table
from iclbench.report.exports import TABLE_FORMATS
from iclbench.report.style import Look, short_names

# Shapes of points as paths, centred in a swatch of 32 x 14 pixels.
_SHAPE_PATHS = {
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
class RenderedSection:
    """A section as HTML, with its entry in the table of contents.

    Attributes:
        section: the section without its blocks and parts.
        html: the HTML.
        has_figures: whether the section has figures.
        pictures: number of requested pictures.
        missing_pictures: why pictures could not be drawn, by figure.
        error: why the section could not be created, in one line; empty if it was created.
    """

    section: Section
    html: Markup
    has_figures: bool
    pictures: int
    missing_pictures: dict[str, str]
    error: str = ""


def render_section(
    section: Section, formats: Sequence[str], missing_pictures: dict[str, str], user_backbones: Collection[str] = ()
) -> RenderedSection:
    """Render a section.

    Args:
        section: the section.
        formats: formats of the pictures in `figures/`.
        missing_pictures: why pictures could not be drawn, by figure.
        user_backbones: contestants that are highlighted.
    """
    template = _environment().get_template("section.html")
    html = template.render(
        section=section, formats=list(formats), missing_pictures=missing_pictures, user_backbones=user_backbones
    )
    blocks = section.walk()
    has_figures = any(isinstance(block, Figure) for block in blocks)
    pictures = sum(isinstance(block, Figure | Gallery) for block in blocks) if formats else 0
    empty = replace(section, blocks=(), parts=())
    return RenderedSection(empty, Markup(html), has_figures, pictures, missing_pictures)


def render_page(
    sections: Sequence[RenderedSection], title: str, subtitle: str, vega: str, script_error: str = ""
) -> str:
    """Render the page.

    Args:
        sections: the sections in order.
        title: title of the page.
        subtitle: the line below the title.
        vega: the script that draws figures; empty for a page without figures.
        script_error: why the script is missing.
    """
    return (
        _environment()
        .get_template("page.html")
        .render(
            sections=sections,
            contents=table_of_contents(sections),
            title=title,
            subtitle=subtitle,
            style=Markup(_asset("page.css")),
            script=Markup(_asset("page.js")),
            vega=vega and gzip_base64(vega),
            choices=filter_choices([rendered.section for rendered in sections]),
            script_error=script_error,
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
    environment.filters |= {
        "json": script_json,
        "compressed": compressed_figure,
        "cell_style": cell_style,
        "short_names": short_names,
    }
    environment.tests |= {
        "table": _type_test(Table),
        "figure": _type_test(Figure),
        "gallery": _type_test(Gallery),
        "first_screen": _type_test(FirstScreen),
    }
    environment.globals |= {"swatch": swatch, "table_formats": TABLE_FORMATS}
    return environment


def script_json(value: Any) -> Markup:
    """JSON for a script element, escaped so that it can neither close the element nor open a comment."""
    text = json.dumps(printable_all(value), separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return Markup(text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026"))


def compressed_figure(figure: Figure) -> str:
    """A figure for the page's script, as compressed JSON in base64. The compression reduces a page with a hundred
    figures to a few megabytes."""
    content = {"spec": figure.live, "row_columns": figure.row_columns, "rows": column_lists(figure.data)}
    text = json.dumps(printable_all(content), separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return gzip_base64(text)


def gzip_base64(text: str) -> str:
    """Text as gzip in base64, which the page's script unzips."""
    return b64encode(gzip.compress(text.encode(), mtime=0)).decode("ascii")


def table_of_contents(sections: Sequence[RenderedSection]) -> dict[str, list[RenderedSection]]:
    """The sections by group. Sections without a group come first."""
    groups: dict[str, list[RenderedSection]] = {"": []}
    for rendered in sections:
        groups.setdefault(rendered.section.group, []).append(rendered)
    return groups


def filter_choices(sections: Sequence[Section]) -> dict[str, list[str]]:
    """The choices of the page's filters: names of tasks, presets and contestants."""
    return {
        "task": sorted({section.task for section in sections if section.task}),
        "preset": sorted({section.preset for section in sections if section.preset}),
        "contestant": sorted({name for section in sections for name in section.contestants}),
    }


def column_lists(data: pd.DataFrame) -> dict[str, Any]:
    """A frame as lists by column: numbers with four significant digits, texts as levels and codes."""
    lists: dict[str, Any] = {}
    for name in data.columns:
        column = data[name]
        if pd.api.types.is_bool_dtype(column):
            lists[name] = [bool(v) for v in column]
        elif pd.api.types.is_numeric_dtype(column):
            lists[name] = [_rounded_number(v) for v in column.astype(object).where(column.notna(), None)]
        else:
            codes, levels = pd.factorize(column.astype(object))
            lists[name] = {"levels": [str(level) for level in levels], "codes": [int(c) for c in codes]}
    return lists


def cell_style(shade: float) -> str:
    """The CSS of a cell: a background between white (0) and blue (1), and a text colour with a contrast of at least
    4.5."""
    start, end = (255, 255, 255), (0x1F, 0x5F, 0x99)
    red, green, blue = (round(a + (b - a) * shade) for a, b in zip(start, end, strict=True))
    return f"background:#{red:02x}{green:02x}{blue:02x};color:{'#fff' if shade > 0.84 else '#000'}"


def swatch(look: Look, shape: bool = False) -> Markup:
    """A short line in a contestant's look; `shape` adds the shape of its points."""
    dash = f' stroke-dasharray="{" ".join(str(d) for d in look.dash)}"' if look.dash else ""
    line = f'<line x1="1" y1="7" x2="31" y2="7" stroke="{look.colour}" stroke-width="{look.width}"{dash}/>'
    fill = "#fff" if look.hollow else look.colour
    if shape and look.shape.startswith("M"):  # a path within a square from -1 to 1
        line += (
            f'<path d="{look.shape}" transform="translate(16 7) scale(5.5)" fill="{fill}" stroke="{look.colour}" '
            'stroke-width="1.5" vector-effect="non-scaling-stroke"/>'
        )
    elif shape and look.shape in _SHAPE_PATHS:
        line += f'<path d="{_SHAPE_PATHS[look.shape]}" fill="{fill}" stroke="{look.colour}" stroke-width="1.5"/>'
    return Markup(f'<svg width="32" height="14" aria-hidden="true">{line}</svg>')


def _rounded_number(value: Number | None) -> Number | None:
    """The number, rounded to four significant digits unless it is an integer; None if it is missing or not finite."""
    if value is None or value != value or value in (float("inf"), float("-inf")):
        return None
    if float(value).is_integer() and abs(value) < 1e15:
        return int(value)
    return float(f"{float(value):.4g}")


def _asset(name: str) -> str:
    return files("iclbench.report").joinpath("assets", name).read_text(encoding="utf-8")


def _type_test(cls: type) -> Any:
    return lambda value: isinstance(value, cls)
