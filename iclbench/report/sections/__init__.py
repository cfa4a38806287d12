"""The sections of a report, in reading order. Each function takes the results or a slice and returns a section, or None
if the section would be empty.

To report a new kind of result, add a module to this package and its function to one of the lists.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from functools import partial

from iclbench.core.errors import UsageError
from iclbench.core.formats import canonical
from iclbench.report.blocks import Section
from iclbench.report.data import Results, Slice
from iclbench.report.sections import (
    context_size,
    costs,
    coverage,
    equal_budget,
    examples,
    extrapolation,
    gap,
    heat_map,
    in_context,
    language,
    leaderboard,
    learning_curves,
    loops,
    missing,
    named_pairs,
    over_training,
    overview,
    pareto,
    plane,
    pools,
    probing,
    provenance,
    published,
    rank,
    ranking,
    rate_window,
    related,
    representation,
    shifts,
    solutions,
    state_sizes,
    summary,
    table_ranks,
    targets,
    training,
)

OPENING_SECTIONS: list[Callable[[Results], Section | None]] = [
    summary.section,
    heat_map.section,
    ranking.section,
    named_pairs.section,
    pareto.section,
    over_training.section,
    equal_budget.section,
    overview.section,
]
TASK_SECTIONS: list[Callable[[Slice], Section | None]] = [
    learning_curves.section,
    leaderboard.section,
    targets.section,
    table_ranks.section,
    in_context.section,
    solutions.section,
    state_sizes.section,
    loops.section,
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
CLOSING_SECTIONS: list[Callable[[Results], Section | None]] = [
    pools.section,
    plane.section,
    published.all_tasks,
    language.section,
    costs.section,
    coverage.section,
    missing.section,
    provenance.section,
]


@dataclass(frozen=True)
class Job:
    """A function that creates a section, with a title for progress and error messages."""

    title: str
    make: Callable[[], Section | None]


def section_names() -> list[str]:
    """The names of all sections, in reading order."""
    functions: list[Callable[..., Section | None]] = [*OPENING_SECTIONS, *TASK_SECTIONS, *CLOSING_SECTIONS]
    return list(dict.fromkeys(_name(section) for section in functions))


def selected_names(only: Collection[str]) -> set[str]:
    """The names of sections in canonical spelling (default: all names).

    Raises:
        UsageError: a section does not exist.
    """
    for name in only:
        if canonical(name) not in section_names():
            raise UsageError(
                f"unknown section '{name}'; the sections are {', '.join(section_names())}", code="unknown-name"
            )
    return set(map(canonical, only)) or set(section_names())


def jobs(results: Results, selection: Collection[str]) -> list[Job]:
    """The jobs for the sections with these names, in reading order."""

    def result_jobs(sections: Sequence[Callable[[Results], Section | None]]) -> list[Job]:
        return [
            Job(_name(section).replace("-", " "), partial(section, results))
            for section in sections
            if _name(section) in selection
        ]

    task_sections = [section for section in TASK_SECTIONS if _name(section) in selection]
    if len(task_sections) < len(TASK_SECTIONS):
        results = replace(results, local_runs=frozenset())  # the sections to which their links point may be missing
    tasks = [Job(task.title, partial(_task_section, task, task_sections)) for task in results.slices if task_sections]
    return [*result_jobs(OPENING_SECTIONS), *tasks, *result_jobs(CLOSING_SECTIONS)]


def report_sections(results: Results, only: Collection[str] = ()) -> list[Section]:
    """The sections with these names (default: all) that are not empty."""
    sections = [job.make() for job in jobs(results, selected_names(only))]
    return [section for section in sections if section is not None]


def _task_section(task: Slice, sections: Sequence[Callable[[Slice], Section | None]]) -> Section | None:
    """The section of a task, with a part for each of `sections` that is not empty."""
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
    """The name of a section: the name of its module, with hyphens.

    >>> _name(learning_curves.section), _name(published.section) == _name(published.all_tasks)
    ('learning-curves', True)
    """
    return section.__module__.rpartition(".")[2].replace("_", "-")
