"""The blocks as one HTML page that needs nothing else: styles, Vega and data are inside, and it may load nothing."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from typing import Any

import pandas as pd
from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from iclbench.report.blocks import Figure, Gallery, Section, Table, Text
from iclbench.report.exports import TABLE_FORMATS
from iclbench.report.formats import Number
from iclbench.report.style import Look


def render(sections: Sequence[Section], title: str, subtitle: str, formats: Sequence[str]) -> str:
    """The whole page. `formats` are the figure formats that lie in `figures/` beside it."""
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters |= {"json": embedded, "columns": columns, "background": background}
    environment.tests |= {"table": _is(Table), "figure": _is(Figure), "gallery": _is(Gallery), "paragraph": _is(Text)}
    drawn = any(isinstance(block, Figure) for section in sections for block in section.walk())
    return environment.from_string(_asset("page.html")).render(
        sections=sections,
        title=title,
        subtitle=subtitle,
        formats=formats,
        table_formats=TABLE_FORMATS,
        style=Markup(_asset("page.css")),
        script=Markup(_asset("page.js")),
        vega=Markup(_vega()) if drawn else "",
        swatch=swatch,
    )


def embedded(value: Any) -> Markup:
    """JSON for a script element: nothing in it can close the element or open a comment."""
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return Markup(text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026"))


def columns(data: pd.DataFrame) -> dict[str, Any]:
    """A frame column by column: numbers with six significant digits, texts as levels and codes."""
    packed: dict[str, Any] = {}
    for name in data.columns:
        column = data[name]
        if pd.api.types.is_bool_dtype(column):
            packed[name] = [int(v) for v in column]
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


def swatch(look: Look) -> Markup:
    """A short line in a contestant's look."""
    dash = f' stroke-dasharray="{" ".join(str(d) for d in look.dash)}"' if look.dash else ""
    line = f'<line x1="1" y1="5" x2="31" y2="5" stroke="{look.colour}" stroke-width="{look.width}"{dash}/>'
    return Markup(f'<svg width="32" height="10" aria-hidden="true">{line}</svg>')


def _short(value: Number | None) -> Number | None:
    if value is None or value != value or value in (float("inf"), float("-inf")):
        return None
    short = float(f"{float(value):.6g}")
    return int(short) if short.is_integer() and abs(short) < 1e15 else short


@cache
def _vega() -> str:
    """Vega, Vega-Lite and vega-embed as one script."""
    import altair
    import vl_convert

    version = ".".join(altair.SCHEMA_VERSION.lstrip("v").split(".")[:2])
    script: str = vl_convert.javascript_bundle(vl_version=version)  # type: ignore[call-arg]  # the stub lacks the default
    return script.replace("</script", "<\\/script")


def _asset(name: str) -> str:
    return files("iclbench.report").joinpath("assets", name).read_text(encoding="utf-8")


def _is(kind: type) -> Any:
    return lambda value: isinstance(value, kind)
