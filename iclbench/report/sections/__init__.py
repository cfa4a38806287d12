"""The sections of a report, in reading order. Each takes the frames and returns a section, or None when it has no rows.

A new kind of result (streams) becomes a new file here and an entry in one of the lists.
"""

from collections.abc import Callable

from iclbench.report.blocks import Section
from iclbench.report.data import Results, Slice
from iclbench.report.sections import (
    context_size,
    costs,
    coverage,
    examples,
    extrapolation,
    footing,
    gap,
    heat_map,
    in_context,
    language,
    leaderboard,
    learning_curves,
    missing,
    overview,
    pareto,
    plane,
    probing,
    provenance,
    published,
    rank,
    ranking,
    related,
    representation,
    shifts,
    targets,
    training,
)

OPENING: list[Callable[[Results], Section | None]] = [
    heat_map.section,
    ranking.section,
    pareto.section,
    footing.section,
    overview.section,
]
OF_TASK: list[Callable[[Slice], Section | None]] = [
    learning_curves.section,
    leaderboard.section,
    targets.section,
    in_context.section,
    gap.section,
    related.section,
    context_size.section,
    examples.section,
    extrapolation.section,
    shifts.section,
    probing.section,
    rank.section,
    representation.section,
    published.section,
    training.section,
]
CLOSING: list[Callable[[Results], Section | None]] = [
    plane.section,
    published.everywhere,
    language.section,
    costs.section,
    coverage.section,
    missing.section,
    provenance.section,
]


def report(results: Results) -> list[Section]:
    """All sections that have something to say."""
    opening = [section(results) for section in OPENING]
    tasks = [_task(task) for task in results.slices]
    closing = [section(results) for section in CLOSING]
    return [section for section in (*opening, *tasks, *closing) if section is not None]


def _task(task: Slice) -> Section | None:
    parts = tuple(part for part in (section(task) for section in OF_TASK) if part is not None)
    return Section(task.id, task.title, parts=parts, group=task.preset) if parts else None
