"""The sections of a report, in reading order. Each takes the frames and returns a section, or None when it has no rows.

A new kind of result (streams) becomes a new file here and an entry in one of the lists.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial

from iclbench.core.errors import UnknownNameError
from iclbench.core.formats import canonical
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
    named_pairs,
    over_training,
    overview,
    pareto,
    plane,
    probing,
    provenance,
    published,
    rank,
    ranking,
    rate_window,
    related,
    representation,
    shifts,
    summary,
    targets,
    training,
)

OPENING: list[Callable[[Results], Section | None]] = [
    summary.section,
    heat_map.section,
    ranking.section,
    named_pairs.section,
    pareto.section,
    over_training.section,
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
    rate_window.section,
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


@dataclass(frozen=True)
class Job:
    """A section to be made, and what to call it meanwhile."""

    title: str
    make: Callable[[], Section | None]


def names() -> list[str]:
    """The names of all sections, in reading order."""
    every: list[Callable[..., Section | None]] = [*OPENING, *OF_TASK, *CLOSING]
    return list(dict.fromkeys(_name(section) for section in every))


def chosen(only: Collection[str]) -> set[str]:
    """The sections of these names, all if there are none; raises `UnknownNameError` for others."""
    for name in only:
        if canonical(name) not in names():
            raise UnknownNameError("section", name, names())
    return set(map(canonical, only)) or set(names())


def jobs(results: Results, wanted: Collection[str]) -> list[Job]:
    """What is to be made, in reading order: the sections of these names."""

    def of_all(sections: Sequence[Callable[[Results], Section | None]]) -> list[Job]:
        return [
            Job(_name(section).replace("-", " "), partial(section, results))
            for section in sections
            if _name(section) in wanted
        ]

    of_task = [section for section in OF_TASK if _name(section) in wanted]
    tasks = [Job(task.title, partial(_task, task, of_task)) for task in results.slices if of_task]
    return [*of_all(OPENING), *tasks, *of_all(CLOSING)]


def report(results: Results, only: Collection[str] = ()) -> list[Section]:
    """The sections of these names that have something to say, of all if there are none."""
    made = [job.make() for job in jobs(results, chosen(only))]
    return [section for section in made if section is not None]


def _task(task: Slice, sections: Sequence[Callable[[Slice], Section | None]]) -> Section | None:
    parts = tuple(part for part in (section(task) for section in sections) if part is not None)
    if not parts:
        return None
    return Section(
        task.id,
        task.title,
        parts=parts,
        group=task.preset,
        task=task.task,
        preset=task.preset,
        contestants=tuple(sorted(task.kinds)),
    )


def _name(section: Callable[..., object]) -> str:
    """A section goes by its module.

    >>> _name(learning_curves.section), _name(published.section) == _name(published.everywhere)
    ('learning-curves', True)
    """
    return section.__module__.rpartition(".")[2].replace("_", "-")
