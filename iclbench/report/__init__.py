"""Tables to figures and one self-contained HTML page. Reads parquet only: neither torch nor the network.

`sections` turn the frames of `data` into `blocks`; `page` writes the blocks as HTML, `exports` as files.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from iclbench.errors import IclbenchError, UsageError
from iclbench.formats import plural
from iclbench.report import exports
from iclbench.report.blocks import Figure, Gallery, Table
from iclbench.report.data import Results, load
from iclbench.report.page import render
from iclbench.report.sections import report

PAGE = "index.html"


def build(results: Path, out: Path, *, formats: Sequence[str] = exports.FORMATS, title: str | None = None) -> Path:
    """Write the report on a results folder to `out` and return the path of its page.

    Beside the page: `figures/` in every one of `formats` (png, svg; none is fine) and `tables/` as CSV, Markdown and
    LaTeX. The same tables give the same bytes. Raises `UsageError` when there is nothing to report and `IclbenchError`
    when `out` cannot be written.
    """
    if unknown := set(formats) - set(exports.FORMATS):
        raise UsageError(f"unknown figure format '{sorted(unknown)[0]}'; known: {', '.join(exports.FORMATS)}")
    found = load(results)
    sections = report(found)
    blocks = [block for section in sections for block in section.walk()]
    try:
        for block in blocks:
            if isinstance(block, Table):
                exports.write_table(block, out / "tables")
            elif isinstance(block, Figure):
                exports.write_figure(block, out / "figures", formats)
            elif isinstance(block, Gallery):
                exports.write_gallery(block, out / "figures", formats)
        page = out / PAGE
        exports.write_text(page, render(sections, title or "In-context learning results", subtitle(found), formats))
    except OSError as error:
        raise IclbenchError(
            f"cannot write the report to {out}: {error.strerror}; name another folder with --out"
        ) from error
    return page


def subtitle(results: Results) -> str:
    """How much is in the report."""
    own, cells = results.rows[results.rows["kind"] != "published"], results.language.cells
    by_kind = own.groupby("kind")["contestant"].nunique()
    parts = []
    if len(own):
        parts = [plural(int(own["task"].nunique()), "task")]
        parts += [plural(int(by_kind[kind]), kind) for kind in ("backbone", "baseline", "oracle") if kind in by_kind]
        presets = sorted(own["preset"].unique())
        parts[-1] += f"; {'preset' if len(presets) == 1 else 'presets'} {', '.join(presets)}"
    if len(cells):
        parts.append(plural(int(cells["task"].nunique()), "language task"))
        models = cells.loc[cells["kind"] == "backbone", "model"].nunique()
        parts.append(plural(int(models), "language model"))
    return ", ".join(parts)
