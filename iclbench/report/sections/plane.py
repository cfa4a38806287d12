"""Learning in context against learning in weights over all settings of a family: one point per task and contestant."""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd

from iclbench.analysis import accuracies
from iclbench.core.formats import fixed, integer, shared_words, slug
from iclbench.report.blocks import Block, Column, Section, Table
from iclbench.report.data import Results, Slice
from iclbench.report.figures import plane
from iclbench.report.figures.accuracy import GUESSING, NEAREST, levels
from iclbench.report.style import ZERO

_ALL = "all settings"
_AXES = ("icl", "iwl")


def section(results: Results) -> Section | None:
    """A figure and its numbers for every family and preset whose backbones took both tests."""
    groups: dict[tuple[str, str], list[Slice]] = {}
    for task in results.slices:
        if len(_ends(task)):
            groups.setdefault((str(task.rows["family"].iloc[0]), task.preset), []).append(task)
    blocks: list[Block] = []
    for (family, preset), tasks in groups.items():
        blocks += _blocks(results, family, preset, tasks)
    return Section("plane", "ICL against IWL", tuple(blocks)) if blocks else None


def _blocks(results: Results, family: str, preset: str, tasks: list[Slice]) -> Iterator[Block]:
    short = _short([task.task for task in tasks])
    parts = [_marks(task).assign(panel=short[task.task], note="") for task in tasks]
    panels = [short[task.task] for task in tasks]
    if len(tasks) > 1:
        ends = pd.concat(parts)
        ends = ends[ends["part"].eq("final") | ends["contestant"].eq(GUESSING)]
        notes = ends["panel"].where(ends["part"] == "final", "")
        parts.insert(0, ends.assign(panel=_ALL, note=notes).drop_duplicates())
        panels = [_ALL, *panels]
    data = pd.concat(parts, ignore_index=True)
    drawn = set(data["contestant"])
    looks = {name: results.looks[name] for name in sorted(set(data.loc[data["part"] == "final", "contestant"]))}
    looks |= {NEAREST: results.looks[NEAREST]} if NEAREST in drawn else {}
    looks |= {GUESSING: ZERO}
    name = f"plane-{slug(family, preset)}"
    reading = f"level lines: guessing{f' and {NEAREST}' if NEAREST in drawn else ''}."
    yield plane.figure(name, f"{family}, {preset}: ICL against IWL", reading, data, panels, looks)
    frame = pd.concat([_numbers(task) for task in tasks], ignore_index=True)
    columns = (
        Column("contestant", "contestant"),
        Column("task", "task"),
        Column("runs", "seeds", integer, numeric=True),
        Column("icl", "ICL", fixed, True, "icl_low", "icl_high"),
        Column("iwl", "IWL", fixed, True, "iwl_low", "iwl_high"),
        Column("peak", "highest ICL", fixed, numeric=True),
        Column("iwl_at_peak", "IWL then", fixed, numeric=True),
        Column("step", "at step", integer, numeric=True),
    )
    yield Table(
        name=f"{name}-numbers",
        title="Numbers behind the figure",
        caption="Accuracy of trained models (mean and range over seeds), and the highest mean ICL accuracy during "
        "training with the IWL accuracy at that step." + "".join(dict.fromkeys(task.diverged_note for task in tasks)),
        frame=frame,
        columns=tuple(c for c in columns if frame[c.key].notna().any()),
        group="task",
        folded=True,
    )


def _ends(task: Slice) -> pd.DataFrame:
    """A row per backbone that took both tests: columns contestant, runs, and icl and iwl with the ends of the seeds."""
    return _both(accuracies.final(task), ["contestant"])


def _both(rows: pd.DataFrame, keys: list[str]) -> pd.DataFrame:
    """Both tests side by side where there are both."""
    rows = rows[rows["kind"] == "backbone"]
    icl, iwl = (
        rows.loc[rows["evaluator"] == test, [*keys, "value", "lowest", "highest", "runs", "run"]].rename(
            columns={"value": test, "lowest": f"{test}_low", "highest": f"{test}_high"}
        )
        for test in _AXES
    )
    return icl.merge(iwl.drop(columns=["runs", "run"]), on=keys)


def _way(task: Slice) -> pd.DataFrame:
    return _both(accuracies.trajectory(task), ["contestant", "axis_value"]).rename(columns={"axis_value": "step"})


def _peaks(task: Slice) -> pd.DataFrame:
    best = accuracies.peaks(accuracies.trajectory(task)).rename(columns={"axis_value": "step"})
    return best[["contestant", "step"]].merge(_way(task), on=["contestant", "step"])


def _marks(task: Slice) -> pd.DataFrame:
    """Everything that is drawn of one task, with the columns of `plane.COLUMNS` but for panel and note."""
    level = pd.DataFrame(
        [{"contestant": name, "run": name, "icl": value} for name, value in levels(task, "icl").items()]
    )
    parts = {"path": _way(task), "level": level, "final": _ends(task), "peak": _peaks(task)}
    marks = pd.concat([rows.assign(part=part) for part, rows in parts.items()], ignore_index=True)
    return marks.assign(task=task.task).reindex(columns=[c for c in plane.COLUMNS if c not in ("panel", "note")])


def _numbers(task: Slice) -> pd.DataFrame:
    """A row per contestant, the highest on ICL first."""
    best = _peaks(task)[["contestant", "step", "icl", "iwl"]].rename(columns={"icl": "peak", "iwl": "iwl_at_peak"})
    frame = _ends(task).merge(best, "left", "contestant").assign(task=task.task)
    return frame.sort_values(["icl", "contestant"], ascending=[False, True], ignore_index=True)


def _short(tasks: list[str]) -> dict[str, str]:
    """Every task's name without the words that all of them begin with; the whole name where nothing would be left."""
    shared = shared_words(tasks) if len(tasks) > 1 else ""
    return {task: task.removeprefix(shared).removeprefix("-") or task for task in tasks}
