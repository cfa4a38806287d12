"""Gap to the oracle: paired by episode, by number of related datasets, context size and stratum."""

from __future__ import annotations

import pandas as pd

from iclbench.analysis.target_scores import main_counts, overall, related_counts, repeated_over_counts, shifts
from iclbench.core.formats import fixed
from iclbench.report.blocks import Block, Column, Section, Table
from iclbench.report.data import Slice
from iclbench.report.figures import targets
from iclbench.report.sections.targets import has_joint
from iclbench.report.titles import related_title, shift_title

_GAP = "Log-likelihood per target of the oracle minus that of the model (nats, lower is better)"
_JOINT_GAP = "Joint log-likelihood per target of the oracle minus that of the model (nats, lower is better)"


def section(task: Slice) -> Section | None:
    lines = task.targets_by_run[task.targets_by_run["metric"] == "gap"]
    if lines.empty:
        return None
    own, blocks = lines[lines["shift"] == "none"], []
    if len(own):
        blocks += [*_by_related(task, own), *_by_context(task, own)]
    means = task.targets[task.targets["metric"] == "gap"]
    blocks += [_numbers(task, shift, means[means["shift"] == shift]) for shift in shifts(means)]
    means = task.targets[task.targets["metric"] == "gap_joint"]
    if has_joint(task.targets):
        blocks += [_numbers(task, shift, means[means["shift"] == shift], joint=True) for shift in shifts(means)]
    return Section(f"{task.id}-gap", "Gap to the oracle", tuple(blocks))


def _by_related(task: Slice, rows: pd.DataFrame) -> list[Block]:
    """Against the number of related datasets: all episodes, then each stratum."""
    asked = related_counts(rows)
    if len(asked) < 2:
        return []
    panels = {"all episodes": overall(rows)} | {name: rows[rows["stratum"] == name] for name in _strata(rows)}
    figure = targets.figure(
        task,
        {title: repeated_over_counts(own, asked) for title, own in panels.items() if len(own)},
        targets.related_axis(asked),
        name="gap-related",
        title=f"{task.task}: gap to the oracle against the number of related datasets",
        caption=f"{_GAP} against the number of related datasets. Level lines: models that do not use them.",
    )
    return [figure]


def _by_context(task: Slice, rows: pd.DataFrame) -> list[Block]:
    """Against the context size, a panel per number of related datasets."""
    bins = rows[(rows["axis"] == "n_context") & (rows["axis_value"] > 0)]  # an empty context has no place on a log axis
    ends = sorted(float(end) for end in bins["axis_value"].unique())
    if len(ends) < 2:
        return []
    across = targets.XAxis("axis_value", "context points, up to", "context points up to", tuple(ends), log=True)
    shown = main_counts(bins)
    beside = repeated_over_counts(bins, shown)
    figure = targets.figure(
        task,
        {related_title(n): beside[beside["n_related"] == n] for n in shown},
        across,
        name="gap-context",
        title=f"{task.task}: gap to the oracle against the context size",
        caption=f"{_GAP} against the number of context points, in bins.",
    )
    return [figure]


def _numbers(task: Slice, shift: str, rows: pd.DataFrame, joint: bool = False) -> Table:
    """A row per contestant and number of related datasets; columns: all episodes, bins, strata."""
    ends = sorted(float(end) for end in rows.loc[rows["axis"] == "n_context", "axis_value"].unique())
    parts = {"all": ("all episodes", overall(rows))}
    for end, title in zip(ends, _bins(ends), strict=True):
        parts[f"n{end:g}"] = (title, rows[(rows["axis"] == "n_context") & (rows["axis_value"] == end)])
    parts |= {f"s_{name}": (name, rows[rows["stratum"] == name]) for name in _strata(rows)}
    keys = ["contestant", "kind", "n_related"]
    frame = rows[keys].drop_duplicates()
    for key, (_, part) in parts.items():
        names = {"value": key, "low": f"{key}_low", "high": f"{key}_high", "n_episodes": f"{key}_episodes"}
        frame = frame.merge(part[[*keys, *names]].rename(columns=names), "left", keys)
    frame = frame.sort_values(["all", *keys], ignore_index=True)
    episodes = int(parts["all"][1]["n_episodes"].max())
    many = bool(frame["n_related"].any())
    related = (Column("n_related", "related datasets", lambda n: str(int(n)), numeric=True),) if many else ()
    kind = "Joint gap" if joint else "Gap"
    return Table(
        name=f"{task.id}-gap" + ("-joint" if joint else "") + ("" if shift == "none" else f"-{shift}"),
        title=f"{kind} to the oracle: {shift_title(shift)}",
        caption=f"{_JOINT_GAP if joint else _GAP} over {episodes:,} episodes ({shift_title(shift)}) and by number of "
        f"context points{' and stratum' if len(parts) > 1 + len(ends) else ''}, with paired 95 % intervals."
        + (_teacher_forced(task) if joint else ""),
        frame=frame,
        columns=(
            Column("contestant", "contestant"),
            *related,
            *(
                Column(key, title, fixed, True, f"{key}_low", f"{key}_high", episodes=f"{key}_episodes")
                for key, (title, _) in parts.items()
            ),
        ),
        folded=shift != "none",
    )


def _teacher_forced(task: Slice) -> str:
    """The models with a joint likelihood given true targets, in a sentence."""
    forced = task.targets.loc[task.targets["metric"] == "log_likelihood_teacher_forced", "contestant"]
    if forced.empty:
        return ""
    return f" Given the true previous targets: {', '.join(sorted(forced.unique()))}."


def _strata(rows: pd.DataFrame) -> list[str]:
    """Every stratum's name."""
    return sorted(str(name) for name in rows["stratum"].dropna().unique())


def _bins(ends: list[float]) -> list[str]:
    """The bins of context sizes by name: none, 1 to 4, 5 to 16, 17 to 64, ..."""
    return ["no points" if end == 0 else f"{int(end) // 4 + 1 if end > 4 else 1} to {int(end)} points" for end in ends]
