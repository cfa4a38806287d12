"""Build a report: create all sections, write their files, and assemble the page.

`sections` turn the frames of `data` into `blocks`; `page` renders the blocks as HTML, `exports` writes them as files,
and `drawing` as pictures.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path

from iclbench.core.errors import IclbenchError, UnknownNameError, UsageError, one_line
from iclbench.core.files import write_text
from iclbench.core.formats import plural, slug
from iclbench.report import exports, workers
from iclbench.report.blocks import FirstScreen, Section, Text
from iclbench.report.data import Results, load_results
from iclbench.report.drawing import Drawer, Script
from iclbench.report.page import RenderedSection, render_page, render_section
from iclbench.report.sections import Job, jobs, selected_names
from iclbench.report.style import vega_lite

log = logging.getLogger("iclbench")

PAGE = "index.html"
# The element in the head of a page that marks it as a report.
GENERATOR = '<meta name="generator" content="iclbench">'
# Called with the number of finished sections, the number of all sections, and the title of the section that finished.
Progress = Callable[[int, int, str], None]


@dataclass(frozen=True)
class Report:
    """A written report.

    Attributes:
        page: path of the page.
        pictures: number of written pictures.
        missing_pictures: why pictures could not be drawn, by figure.
        script_error: why the page cannot draw its figures; empty if it can.
        failed_sections: why sections could not be created, by title.
    """

    page: Path
    pictures: int
    missing_pictures: dict[str, str]
    script_error: str
    failed_sections: dict[str, str]


def build(
    results: Path,
    out: Path,
    *,
    formats: Sequence[str] = (),
    title: str | None = None,
    tasks: Sequence[str] = (),
    contestants: Sequence[str] = (),
    only: Collection[str] = (),
    processes: int = 1,
    progress: Progress | None = None,
) -> Report:
    """Write the report on a results folder to `out`.

    The folder also contains `tables/`, with CSV, Markdown and LaTeX files, and `figures/`, with the rows and the
    pictures of each figure. The same result tables give byte-identical files. If a picture cannot be drawn, the page
    states the reason.

    Args:
        results: a results folder.
        out: the folder to write to.
        formats: formats of pictures, "png", "svg" and "pdf" (default: none, because drawing takes most of the time).
        title: title of the page.
        tasks: the tasks to report on (default: all).
        contestants: the contestants and runs to show (default: all).
        only: the names of the sections to write, as in `sections` (default: all).
        processes: number of processes that create sections.
        progress: called after every section.

    Raises:
        UsageError: the folder has no results (code `nothing-to-do`); a format, task, contestant, run or section is
            unknown (`unknown-name`); `out` contains a page, tables or figures that are not from a report (`exists`).
        IclbenchError: `out` cannot be written (`unreadable-file`).
    """
    for name in sorted(set(formats) - set(exports.FORMATS)):
        raise UnknownNameError("figure format", name, exports.FORMATS)
    names = selected_names(only)
    with closing(Script(vega_lite())) as script:
        return _build(
            load_results(results, tasks, contestants), out, script, names, formats, title, processes, progress
        )


def _build(
    results: Results,
    out: Path,
    script: Script,
    names: Collection[str],
    formats: Sequence[str],
    title: str | None,
    processes: int,
    progress: Progress | None,
) -> Report:
    try:
        _mark_as_report(out)
        section_jobs = jobs(results, names)
        writers = [partial(_write_section, job, out, tuple(formats), results.user_backbones) for job in section_jobs]
        by_index: dict[int, RenderedSection | None] = {}
        for index, rendered in workers.run_jobs(writers, processes):
            by_index[index] = rendered
            if progress is not None:
                progress(len(by_index), len(section_jobs), section_jobs[index].title)
        sections = [rendered for _, rendered in sorted(by_index.items()) if rendered is not None]
        needs_script = any(rendered.has_figures for rendered in sections)
        vega, script_error = _script_text(script) if needs_script else ("", "")
        page = out / PAGE
        html = render_page(sections, title or "In-context learning results", subtitle(results), vega, script_error)
        write_text(page, html, sync=False)
    except OSError as error:
        raise IclbenchError(
            f"cannot write the report to {out}: {error.strerror}; pass another folder to --out",
            code="unreadable-file",
        ) from error
    finally:
        if _drawer.cache_info().currsize:
            _drawer().close()
            _drawer.cache_clear()  # the next report tries failed pictures again
    missing_pictures = {name: reason for rendered in sections for name, reason in rendered.missing_pictures.items()}
    failed_sections = {rendered.section.title: rendered.error for rendered in sections if rendered.error}
    pictures = sum(rendered.pictures for rendered in sections) - len(missing_pictures)
    return Report(page, pictures, missing_pictures, script_error, failed_sections)


def _mark_as_report(out: Path) -> None:
    """Write a page that marks the folder as an unfinished report.

    Raises:
        UsageError: the folder contains a page, tables or figures that are not from a report (code `exists`).
    """
    page = out / PAGE
    if page.is_file() and GENERATOR in page.read_text(encoding="utf-8", errors="replace"):
        return
    for path in (page, out / "tables", out / "figures"):
        if path.exists():
            raise UsageError(
                f"{path} exists and is not part of a report; pass another folder to --out, or delete it",
                code="exists",
            )
    write_text(page, f"<!DOCTYPE html>\n{GENERATOR}\n<p>This report is not finished.</p>\n", sync=False)


def _script_text(script: Script) -> tuple[str, str]:
    """The script that draws the figures on the page; if it is not available, an empty text and the reason."""
    try:
        return script.text, ""
    except ChildProcessError as error:
        return "", str(error)


def _write_section(
    job: Job, out: Path, formats: tuple[str, ...], user_backbones: frozenset[str]
) -> RenderedSection | None:
    """Create a section, write the files of its blocks, and render it; None if the section has no content. If the
    section cannot be created, a section with the error is rendered instead."""
    try:
        section = job.make()
    except (IclbenchError, OSError, MemoryError):
        raise
    except Exception as error:
        log.debug("section '%s'", job.title, exc_info=True)
        error_line = f"{type(error).__name__}: {one_line(error)}"
        message = Text(f"This section could not be created: {error_line} (this is a bug).")
        failed_section = Section(slug(job.title), job.title, (message,))
        return replace(render_section(failed_section, formats, {}, user_backbones), error=error_line)
    if section is None:
        return None
    missing_pictures = {}
    for block in section.walk():
        if isinstance(block, Text | FirstScreen):
            continue
        if (reason := exports.write(block, out, formats, _drawer())) is not None:
            missing_pictures[block.name] = reason
    return render_section(section, formats, missing_pictures, user_backbones)


@cache
def _drawer() -> Drawer:
    """The drawer of this process, which all sections of a report share."""
    return Drawer(vega_lite())


def subtitle(results: Results) -> str:
    """The numbers of tasks and contestants in the report, and its presets."""
    measured_rows, cells = results.rows[results.rows["kind"] != "published"], results.language.cells
    parts = []
    if len(measured_rows):
        parts = [plural(int(measured_rows["task"].nunique()), "task")]
        parts += [
            plural(int(rows[column].nunique()), kind)  # variants and methods do not count as backbones
            for kind, column in (("backbone", "model"), ("baseline", "contestant"), ("oracle", "contestant"))
            if len(rows := measured_rows[measured_rows["kind"] == kind])
        ]
        presets = sorted(measured_rows["preset"].unique())
        parts[-1] += f"; {'preset' if len(presets) == 1 else 'presets'} {', '.join(presets)}"
    if len(cells):
        parts.append(plural(int(cells["task"].nunique()), "language task"))
        models = cells.loc[cells["kind"] == "backbone", "model"].nunique()
        parts.append(plural(int(models), "language model"))
    return ", ".join(parts) + "; selected contestants" * (len(results.hidden_rows) > 0)
