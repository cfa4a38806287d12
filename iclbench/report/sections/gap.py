"""Gap to the oracle, paired by episode: by number of related datasets, context size and stratum."""

from __future__ import annotations

import pandas as pd

from iclbench.analysis.target_scores import (
    has_joint,
    main_counts,
    over_all_episodes,
    related_counts,
    repeat_over_counts,
    shifts,
)
from iclbench.core.formats import fixed
from iclbench.report.blocks import Block, Column, Section, Table
from iclbench.report.data import Slice
from iclbench.report.figures import targets
from iclbench.report.titles import related_title, shift_title

_GAP = "Log-likelihood per target of the oracle minus that of the model (nats, lower is better)"
_JOINT_GAP = "Joint log-likelihood per target of the oracle minus that of the model (nats, lower is better)"


def section(task: Slice) -> Section | None:
    lines = task.targets_by_run[task.targets_by_run["metric"] == "gap"]
    if lines.empty:
        return None
    unshifted = lines[lines["shift"] == "none"]
    blocks: list[Block] = []
    if len(unshifted):
        blocks += [*_related_figures(task, unshifted), *_context_figures(task, unshifted)]
    means = task.targets[task.targets["metric"] == "gap"]
    blocks += [_table(task, shift, means[means["shift"] == shift]) for shift in shifts(means)]
    means = task.targets[task.targets["metric"] == "gap_joint"]
    if has_joint(task.targets):
        blocks += [_table(task, shift, means[means["shift"] == shift], joint=True) for shift in shifts(means)]
    return Section(f"{task.id}-gap", "Gap to the oracle", tuple(blocks), rules=("Gap",))


def _related_figures(task: Slice, rows: pd.DataFrame) -> list[Block]:
    """A figure against the number of related datasets: a panel for all episodes, then one per stratum."""
    n_related = related_counts(rows)
    if len(n_related) < 2:
        return []
    panels = {"all episodes": over_all_episodes(rows)} | {name: rows[rows["stratum"] == name] for name in _strata(rows)}
    figure = targets.figure(
        task,
        {title: repeat_over_counts(in_panel, n_related) for title, in_panel in panels.items() if len(in_panel)},
        targets.related_axis(n_related),
        name="gap-related",
        title=f"{task.task}: gap to the oracle against the number of related datasets",
        caption=f"{_GAP} against the number of related datasets. Horizontal lines: models that do not use them.",
    )
    return [figure]


def _context_figures(task: Slice, rows: pd.DataFrame) -> list[Block]:
    """A figure against the context size, with a panel per number of related datasets."""
    bins = rows[(rows["axis"] == "n_context") & (rows["axis_value"] > 0)]  # a log axis cannot show an empty context
    ends = sorted(float(end) for end in bins["axis_value"].unique())
    if len(ends) < 2:
        return []
    x_axis = targets.XAxis("axis_value", "context points, up to", "context points up to", tuple(ends), log=True)
    n_related = main_counts(bins)
    bins = repeat_over_counts(bins, n_related)
    figure = targets.figure(
        task,
        {related_title(n): bins[bins["n_related"] == n] for n in n_related},
        x_axis,
        name="gap-context",
        title=f"{task.task}: gap to the oracle against the context size",
        caption=f"{_GAP} against the number of context points, in bins.",
    )
    return [figure]


def _table(task: Slice, shift: str, rows: pd.DataFrame, joint: bool = False) -> Table:
    """A table with a row per contestant and number of related datasets, and columns for all episodes, bins and
    strata."""
    ends = sorted(float(end) for end in rows.loc[rows["axis"] == "n_context", "axis_value"].unique())
    groups = {"all": ("all episodes", over_all_episodes(rows))}
    for end, title in zip(ends, _bin_titles(ends), strict=True):
        groups[f"n{end:g}"] = (title, rows[(rows["axis"] == "n_context") & (rows["axis_value"] == end)])
    groups |= {f"s_{name}": (name, rows[rows["stratum"] == name]) for name in _strata(rows)}
    keys = ["contestant", "kind", "n_related"]
    frame = rows[keys].drop_duplicates()
    for key, (_, group) in groups.items():
        names = {"value": key, "low": f"{key}_low", "high": f"{key}_high", "n_episodes": f"{key}_episodes"}
        frame = frame.merge(group[[*keys, *names]].rename(columns=names), "left", keys)
    frame = frame.sort_values(["all", *keys], ignore_index=True)
    n_episodes = int(groups["all"][1]["n_episodes"].max())
    has_related = bool(frame["n_related"].any())
    related = (Column("n_related", "related datasets", lambda n: str(int(n)), numeric=True),) if has_related else ()
    return Table(
        name=f"{task.id}-gap" + ("-joint" if joint else "") + ("" if shift == "none" else f"-{shift}"),
        title=f"{'Joint gap' if joint else 'Gap'} to the oracle: {shift_title(shift)}",
        caption=f"{_JOINT_GAP if joint else _GAP} over {n_episodes:,} episodes ({shift_title(shift)}) and by number of "
        f"context points{' and stratum' if len(groups) > 1 + len(ends) else ''}, with paired 95 % intervals."
        + (_teacher_forced(task) if joint else ""),
        frame=frame,
        columns=(
            Column("contestant", "contestant"),
            *related,
            *(
                Column(key, title, fixed, True, f"{key}_low", f"{key}_high", episodes=f"{key}_episodes")
                for key, (title, _) in groups.items()
            ),
        ),
        folded=shift != "none",
    )


def _teacher_forced(task: Slice) -> str:
    """A sentence that names the models whose joint likelihood is computed given the true previous targets; empty
    without such models."""
    teacher_forced_contestants = task.targets.loc[
        task.targets["metric"] == "log_likelihood_teacher_forced", "contestant"
    ]
    if teacher_forced_contestants.empty:
        return ""
    names = ", ".join(sorted(teacher_forced_contestants.unique()))
    return f" Models that are given the true previous targets (teacher forcing): {names}."


def _strata(rows: pd.DataFrame) -> list[str]:
    """The names of all strata."""
    return sorted(str(name) for name in rows["stratum"].dropna().unique())


def _bin_titles(ends: list[float]) -> list[str]:
    """The titles of bins of context sizes that end at 0, 4, 16, 64, ...

    >>> _bin_titles([0, 4, 16])
    ['no points', '1 to 4 points', '5 to 16 points']
    """
    return ["no points" if end == 0 else f"{int(end) // 4 + 1 if end > 4 else 1} to {int(end)} points" for end in ends]
