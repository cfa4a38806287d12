"""Accuracy in context against accuracy in weights, for all tasks of a family: one point per task and contestant."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pandas as pd

from iclbench.analysis import accuracies
from iclbench.core.formats import fixed, integer, shared_words, slug
from iclbench.report.blocks import Block, Column, Section, Table
from iclbench.report.data import Results, Slice
from iclbench.report.figures import plane
from iclbench.report.figures.accuracy import GUESSING, PIXEL_BASELINE, reference_levels
from iclbench.report.sections.equal_budget import current_preset
from iclbench.report.style import ZERO

_ALL = "all settings"
_AXES = ("icl", "iwl")


def section(results: Results) -> Section | None:
    """A figure and its numbers for each family and preset with backbones that are evaluated on both tests."""
    groups: dict[tuple[str, str], list[Slice]] = {}
    for task in results.slices:
        if len(_final_accuracies(task)):
            groups.setdefault((str(task.rows["family"].iloc[0]), task.preset), []).append(task)
    blocks: list[Block] = []
    for (family, preset), tasks in groups.items():
        blocks += _blocks(results, family, preset, sorted(tasks, key=_order))
    return Section("plane", "ICL against IWL", tuple(blocks), rules=("In context and in weights",)) if blocks else None


def _blocks(results: Results, family: str, preset: str, tasks: list[Slice]) -> Iterator[Block]:
    titles = _panel_titles([task.task for task in tasks])
    marks = [_marks(task).assign(panel=titles[task.task], note="") for task in tasks]
    panels = [titles[task.task] for task in tasks]
    if len(tasks) > 1:
        all_marks = pd.concat(marks)
        all_marks = all_marks[all_marks["part"].eq("final") | all_marks["contestant"].eq(GUESSING)]
        notes = all_marks["panel"].where(all_marks["part"] == "final", "")
        marks.insert(0, all_marks.assign(panel=_ALL, note=notes).drop_duplicates())
        panels = [_ALL, *panels]
    data = pd.concat(marks, ignore_index=True)
    has_nearest = data["contestant"].eq(PIXEL_BASELINE).any()
    looks = {name: results.looks[name] for name in sorted(set(data.loc[data["part"] == "final", "contestant"]))}
    looks |= {PIXEL_BASELINE: results.looks[PIXEL_BASELINE]} if has_nearest else {}
    looks |= {GUESSING: ZERO}
    name = f"plane-{slug(family, preset)}"
    caption = f"horizontal lines: guessing{f' and {PIXEL_BASELINE}' if has_nearest else ''}."
    yield plane.figure(name, f"{family}, {preset}: ICL against IWL", caption, data, panels, looks)
    frame = pd.concat([_table_rows(task) for task in tasks], ignore_index=True)
    columns = (
        Column("contestant", "contestant"),
        Column("task", "task"),
        Column("runs", "seeds", integer, numeric=True),
        Column("icl", "ICL", fixed, True, "icl_low", "icl_high"),
        Column("iwl", "IWL", fixed, True, "iwl_low", "iwl_high"),
        Column("peak", "highest ICL", fixed, numeric=True),
        Column("step", "at step", integer, numeric=True),
        Column("iwl_at_peak", "IWL at that step", fixed, numeric=True),
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


def _final_accuracies(task: Slice) -> pd.DataFrame:
    """A row per trained backbone with both tests: columns contestant, runs, run, and icl and iwl with the range over
    seeds."""
    return _with_both_tests(accuracies.final(task), ["contestant"])


def _with_both_tests(rows: pd.DataFrame, keys: list[str]) -> pd.DataFrame:
    """The columns icl and iwl of the backbones with both tests, joined on `keys`."""
    rows = rows[rows["kind"] == "backbone"]
    icl, iwl = (
        rows.loc[rows["evaluator"] == test, [*keys, "value", "lowest", "highest", "runs", "run"]].rename(
            columns={"value": test, "lowest": f"{test}_low", "highest": f"{test}_high"}
        )
        for test in _AXES
    )
    return icl.merge(iwl.drop(columns=["runs", "run"]), on=keys)


def _trajectory(task: Slice) -> pd.DataFrame:
    """Both accuracies by contestant and training step."""
    rows = _with_both_tests(accuracies.trajectory(task), ["contestant", "axis_value"])
    return rows.rename(columns={"axis_value": "step"})


def _peaks(task: Slice) -> pd.DataFrame:
    """Both accuracies at the step with the highest ICL accuracy, by contestant."""
    peaks = accuracies.peaks(accuracies.trajectory(task)).rename(columns={"axis_value": "step"})
    return peaks[["contestant", "step"]].merge(_trajectory(task), on=["contestant", "step"])


def _marks(task: Slice) -> pd.DataFrame:
    """The marks of one task in the figure: columns of `plane.COLUMNS` without panel and note."""
    level = pd.DataFrame(
        [{"contestant": name, "run": name, "icl": value} for name, value in reference_levels(task, "icl").items()]
    )
    by_part = {"path": _trajectory(task), "level": level, "final": _final_accuracies(task), "peak": _peaks(task)}
    marks = pd.concat([rows.assign(part=part) for part, rows in by_part.items()], ignore_index=True)
    return marks.assign(task=task.task).reindex(columns=[c for c in plane.COLUMNS if c not in ("panel", "note")])


def _table_rows(task: Slice) -> pd.DataFrame:
    """A row per contestant with its final and highest accuracies, the highest final ICL accuracy first."""
    peaks = _peaks(task)[["contestant", "step", "icl", "iwl"]].rename(columns={"icl": "peak", "iwl": "iwl_at_peak"})
    frame = _final_accuracies(task).merge(peaks, "left", "contestant").assign(task=task.task)
    return frame.sort_values(["icl", "contestant"], ascending=[False, True], ignore_index=True)


def _order(task: Slice) -> tuple[int, str]:
    """A key that sorts tasks by the number of training classes in the preset of their card, then by name."""
    preset, _ = current_preset(task)
    return preset.parameters.get("classes", 0) if preset else 0, _with_padded_numbers(task.task)


def _with_padded_numbers(name: str) -> str:
    """A key that sorts names by the numbers in them.

    >>> sorted(["bursty-p0", "bursty-p100", "bursty-p50"], key=_with_padded_numbers)
    ['bursty-p0', 'bursty-p50', 'bursty-p100']
    """
    return re.sub(r"\d+", lambda number: number[0].zfill(9), name)


def _panel_titles(tasks: list[str]) -> dict[str, str]:
    """The names of tasks without their common first words, or the full name if no word remains."""
    prefix = shared_words(tasks) if len(tasks) > 1 else ""
    return {task: task.removeprefix(prefix).removeprefix("-") or task for task in tasks}
