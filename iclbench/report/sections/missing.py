"""What a reader must not assume: cells that failed, cells that nobody ran, files that could not be read."""

from __future__ import annotations

import pandas as pd

from iclbench.report.blocks import Block, Column, Section, Table, Text
from iclbench.report.data import EXTRAPOLATION, Results, Slice


def section(results: Results) -> Section:
    blocks: list[Block] = []
    if (failed := _failed(results)) is not None:
        blocks.append(failed)
    gaps = pd.DataFrame([gap for task in results.slices for gap in _gaps(task)], columns=["task", "preset", "contestant", "what", "fix"])
    if len(gaps):
        columns = [Column(c, c) for c in ("task", "preset", "contestant")] + [Column("what", "what is missing"), Column("fix", "what to run")]
        caption = "What others have on the same task, or the same backbone on other tasks."
        blocks.append(Table("missing", "Not run", caption, gaps, tuple(columns)))
    if results.skipped:
        blocks.append(Text("Files that were skipped because they could not be read as tables (they are left as they are):", results.skipped))
    if results.set_aside:
        blocks.append(Text("Rows that cannot be compared with the ones shown:", results.set_aside))
    return Section("missing", "What is missing or failed", tuple(blocks or [Text("Nothing: every cell that was started has its numbers.")]))


def _failed(results: Results) -> Table | None:
    keys = ["task", "preset", "contestant", "run", "shift", "evaluator", "reason"]
    rows = results.values[results.values["status"] == "failed"]
    if rows.empty:
        return None
    frame = rows.groupby(keys, as_index=False, dropna=False).agg(metrics=("metric", lambda m: ", ".join(sorted(set(m)))))
    columns = tuple(Column(c, c) for c in ("task", "preset", "contestant", "run", "shift", "evaluator", "reason"))
    return Table("failed", "Failed", "Cells that were started and gave no number, with the reason they gave.", frame, columns)


def _gaps(task: Slice) -> list[dict[str, str]]:
    """Backbones and baselines of this task without rows where others have some; failed cells are not gaps."""
    v = task.values
    tried = {(r.contestant, r.shift) for r in v[v["evaluator"] != "train"][["contestant", "shift"]].drop_duplicates().itertuples()}
    own = [name for name, kind in task.kinds.items() if kind != "oracle"]
    shifts = sorted({shift for _, shift in tried})
    found = []
    for name in sorted(own):
        runs = v.loc[v["contestant"] == name, "run"]
        run = str(runs.iloc[0]) if task.kinds[name] == "backbone" and len(runs) else "RUN"
        for shift in shifts:
            if (name, shift) not in tried:
                what, fix = "evaluation", f"iclbench eval {run}"
                if pd.Series([shift]).str.fullmatch(EXTRAPOLATION).item():
                    what, fix = f"extrapolation ({shift})", f"{fix} --extrapolate {shift.removeprefix('points-')}"
                elif shift != "none":
                    what, fix = f"shift {shift}", f"{fix} --shift {shift}"
                found.append({"task": task.task, "preset": task.preset, "contestant": name, "what": what, "fix": fix})
    values = task.results.values
    elsewhere = values.loc[(values["kind"] == "backbone") & (values["preset"] == task.preset), "contestant"].unique()
    for name in sorted(set(elsewhere) - set(task.kinds)):
        fix = f"iclbench train {task.task} {name} --preset {task.preset}"
        found.append({"task": task.task, "preset": task.preset, "contestant": name, "what": "everything", "fix": fix})
    return found
