"""The whole report: every section made, its files written, and the page put together.

`sections` turn the frames of `data` into `blocks`; `page` writes the blocks as HTML, `exports` as files, `drawing` as
pictures.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path

from iclbench.core.errors import IclbenchError, UsageError, one_line
from iclbench.core.files import write_text
from iclbench.core.formats import plural, slug
from iclbench.report import exports, workers
from iclbench.report.blocks import Glance, Section, Text
from iclbench.report.data import Results, load
from iclbench.report.drawing import Drawer, Script
from iclbench.report.page import Part, part, render
from iclbench.report.sections import Job, jobs, selected_names
from iclbench.report.style import vega_lite

log = logging.getLogger("iclbench")

PAGE = "index.html"
# The element of its head that tells a report's page from others.
GENERATOR = '<meta name="generator" content="iclbench">'
# Told how many sections are done, of how many, and the last of them.
Progress = Callable[[int, int, str], None]


@dataclass(frozen=True)
class Report:
    """What was written.

    Attributes:
        page: the page.
        pictures: how many lie beside it.
        missing: why others are missing, by figure.
        undrawn: why the page cannot draw its figures; empty if it can.
        broken: why sections could not be made, by title.
    """

    page: Path
    pictures: int
    missing: dict[str, str]
    undrawn: str
    broken: dict[str, str]


def build(
    results: Path,
    out: Path,
    *,
    formats: Sequence[str] = (),
    title: str | None = None,
    tasks: Sequence[str] = (),
    only: Sequence[str] = (),
    processes: int = 1,
    progress: Progress | None = None,
) -> Report:
    """Write the report on a results folder to `out`.

    Beside the page: `tables/` as CSV, Markdown and LaTeX, and `figures/` with the rows behind every figure and its
    picture in every one of `formats` (png, svg). The same tables give the same bytes. A picture that cannot be drawn is
    missing, with the reason.

    Args:
        results: a results folder.
        out: the folder to write to.
        formats: of pictures; none by default, as drawing takes most of the time.
        title: of the page.
        tasks: report on these alone; all by default.
        only: write these sections alone, by the names of `sections`; all by default.
        processes: so many sections are made at once, each in a process.
        progress: told after every section.

    Raises:
        UsageError: there is nothing to report; an unknown format, task or section; `out` holds a page, tables or
            figures that are not a report's.
        IclbenchError: `out` cannot be written.
    """
    if unknown := set(formats) - set(exports.FORMATS):
        raise UsageError(f"unknown figure format '{sorted(unknown)[0]}'; known: {', '.join(exports.FORMATS)}")
    names = selected_names(only)
    with closing(Script(vega_lite())) as script:
        return _build(load(results, tasks), out, script, names, formats, title, processes, progress)


def _build(
    found: Results,
    out: Path,
    script: Script,
    names: Collection[str],
    formats: Sequence[str],
    title: str | None,
    processes: int,
    progress: Progress | None,
) -> Report:
    try:
        _claim(out)
        todo = jobs(found, names)
        made: dict[int, Part | None] = {}
        for place, written in workers.each(
            [partial(_write, job, out, tuple(formats), found.user_backbones) for job in todo], processes
        ):
            made[place] = written
            if progress is not None:
                progress(len(made), len(todo), todo[place].title)
        parts = [each for _, each in sorted(made.items()) if each is not None]
        vega, undrawn = _script(script) if any(each.drawn for each in parts) else ("", "")
        page = out / PAGE
        html = render(parts, title or "In-context learning results", subtitle(found), vega, undrawn)
        write_text(page, html, sync=False)
    except OSError as error:
        raise IclbenchError(
            f"cannot write the report to {out}: {error.strerror}; name another folder with --out"
        ) from error
    finally:
        if _drawer.cache_info().currsize:
            _drawer().close()
            _drawer.cache_clear()  # the next report tries anew what could not be drawn in this one
    missing = {name: reason for each in parts for name, reason in each.missing.items()}
    broken = {each.section.title: each.broken for each in parts if each.broken}
    return Report(page, sum(each.pictures for each in parts) - len(missing), missing, undrawn, broken)


def _claim(out: Path) -> None:
    """Write a page that says that the report is not finished, so that a folder is known as a report's from the start.

    Raises:
        UsageError: the folder holds a page, tables or figures that are not a report's.
    """
    page = out / PAGE
    if page.is_file() and GENERATOR in page.read_text(encoding="utf-8", errors="replace"):
        return
    for path in (page, out / "tables", out / "figures"):
        if path.exists():
            raise UsageError(f"{path} exists and is not part of a report: name another folder with --out, or delete it")
    write_text(page, f"<!DOCTYPE html>\n{GENERATOR}\n<p>This report is not finished.</p>\n", sync=False)


def _script(script: Script) -> tuple[str, str]:
    """What draws the figures on the page, and why there is none."""
    try:
        return script.text, ""
    except ChildProcessError as error:
        return "", str(error)


def _write(job: Job, out: Path, formats: tuple[str, ...], own: frozenset[str]) -> Part | None:
    """Make a section, write the files of its blocks, and return its HTML; None if it has nothing to say. One that fails
    is told in its place, and the others stand."""
    try:
        section = job.make()
    except (IclbenchError, OSError, MemoryError):
        raise
    except Exception as error:
        log.debug("section '%s'", job.title, exc_info=True)
        why = f"{type(error).__name__}: {one_line(error)}"
        told = Section(slug(job.title), job.title, (Text(f"This section could not be made: {why} (this is a bug)."),))
        return replace(part(told, formats, {}, own), broken=why)
    if section is None:
        return None
    missing = {}
    for block in section.walk():
        if isinstance(block, Text | Glance):
            continue
        if (reason := exports.write(block, out, formats, _drawer())) is not None:
            missing[block.name] = reason
    return part(section, formats, missing, own)


@cache
def _drawer() -> Drawer:
    """One for each process and report."""
    return Drawer(vega_lite())


def subtitle(results: Results) -> str:
    """How much is in the report."""
    own, cells = results.rows[results.rows["kind"] != "published"], results.language.cells
    parts = []
    if len(own):
        parts = [plural(int(own["task"].nunique()), "task")]
        parts += [
            plural(int(rows[column].nunique()), kind)  # variants and methods are no others
            for kind, column in (("backbone", "model"), ("baseline", "contestant"), ("oracle", "contestant"))
            if len(rows := own[own["kind"] == kind])
        ]
        presets = sorted(own["preset"].unique())
        parts[-1] += f"; {'preset' if len(presets) == 1 else 'presets'} {', '.join(presets)}"
    if len(cells):
        parts.append(plural(int(cells["task"].nunique()), "language task"))
        models = cells.loc[cells["kind"] == "backbone", "model"].nunique()
        parts.append(plural(int(models), "language model"))
    return ", ".join(parts)
