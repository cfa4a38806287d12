"""Missing results: cells that failed, cells that were not run, files that could not be read."""

from __future__ import annotations

import pandas as pd

from iclbench.report.blocks import Block, Column, Section, Table, Text
from iclbench.report.data import Results, Slice
from iclbench.tables.evaluators import INSIDE

# Metrics that scores of the questions `next` and `targets` are made of.
_SCORED = ("squared_error", "log_likelihood", "nll")
_UNREADABLE = "Files that could not be read as tables (unchanged):"


def section(results: Results) -> Section:
    blocks: list[Block] = []
    if (table := failed(results)) is not None:
        blocks.append(table)
    if not_run := gaps(results):
        headers = {
            "task": "task",
            "preset": "preset",
            "contestant": "contestant",
            "what": "missing",
            "fix": "what to run",
        }
        frame = pd.DataFrame(not_run, columns=list(headers))
        caption = (
            "Results that other models have on the same task, or the same model on other tasks, with the command that "
            "computes them."
        )
        blocks.append(
            Table(
                "missing", "Results not computed yet", caption, frame, tuple(Column(k, h) for k, h in headers.items())
            )
        )
    if results.skipped_files:
        blocks.append(Text(_UNREADABLE, results.skipped_files))
    if results.excluded_rows:
        blocks.append(Text("Rows that are not comparable with the ones shown:", results.excluded_rows))
    if results.cells["status"].isin(["failed", "diverged"]).any():
        blocks.append(Text("Cells of the sweep without results are listed under Coverage."))
    if not blocks:
        blocks.append(Text("Nothing is missing: all cells have results."))
    return Section("missing", "Missing and failed results", tuple(blocks))


def failed(results: Results) -> Table | None:
    keys = ["task", "preset", "contestant", "run", "shift", "evaluator", "status", "reason"]
    rows = pd.concat([every[every["status"].ne("ok")] for every in (results.rows, results.language.rows)])
    if rows.empty:
        return None
    frame = rows.groupby(keys, as_index=False, dropna=False).agg(
        metrics=("metric", lambda m: ", ".join(sorted(set(m))))
    )
    caption = (
        "Evaluations without a result, or without one at some sizes, with the reason. Skipped: more examples than the "
        "model supports."
    )
    return Table("failed", "Failed or skipped", caption, frame, tuple(Column(c, c) for c in keys))


def gaps(results: Results) -> list[tuple[str, str, str, str, str]]:
    """Task, preset, contestant, what is missing and what to run."""
    # A task has a slice per trained length; what is missing altogether is missing once.
    return list(dict.fromkeys(gap for task in results.slices for gap in _gaps(task)))


def _gaps(task: Slice) -> list[tuple[str, str, str, str, str]]:
    """Backbones and baselines of this task without rows where others have some, and backbones that the summary leaves
    out; failed cells are not gaps."""
    in_training = task.rows["axis"].eq("train_step").fillna(False).astype(bool)
    evaluated = task.rows[~in_training & ~task.rows["evaluator"].isin(INSIDE) & (task.rows["kind"] != "published")]
    tried = set(zip(evaluated["contestant"], evaluated["shift"], strict=True))
    shifts = sorted({str(shift) for _, shift in tried})
    # A baseline of a probe (GD++ with a gamma of its own) is not meant to be evaluated, and neither is guessing.
    asked = set(evaluated["contestant"]) - {"chance"}
    # A method on a backbone (gpt2+deep-thinking) is optional. Diverged runs are among the failed ones.
    diverged = set(task.rows.loc[in_training & task.rows["status"].eq("failed"), "run"])
    contestants = sorted(
        n
        for n, kind in task.kinds.items()
        if (kind == "backbone" and not set(task.runs.get(n, ["?"])) <= diverged) or (kind == "baseline" and n in asked)
    )
    found = [
        (
            task.task,
            task.preset,
            name,
            "evaluation" if shift == "none" else f"shift {shift}",
            _command(task, name, shift, diverged),
        )
        for name in contestants
        for shift in shifts or ["none"]
        if (name, shift) not in tried
        and name not in {*task.results.method_contestants, *task.results.other_training_tasks}
    ]
    found += [
        (task.task, task.preset, name, "summary", f"iclbench eval {run}") for name, run in _not_summed_up(evaluated)
    ]
    here = task.results.backbones.get(task.preset, {})
    anywhere = {name for names in here.values() for name in names}
    cells = task.results.cells
    # A backbone that is not applicable to a task is so at every preset.
    without = cells["kind"].eq("train") & cells["status"].eq("skipped")
    listed = cells.loc[(cells["task"] == task.task) & (without | (cells["preset"] == task.preset)), "contestant"]
    return found + [
        (task.task, task.preset, name, "everything", f"iclbench train {task.task} {name} --preset {task.preset}")
        for name in sorted(anywhere - set(here.get(task.task, [])) - set(listed))  # a sweep says why, under coverage
    ]


def _not_summed_up(rows: pd.DataFrame) -> list[tuple[str, str]]:
    """Contestant and run of backbones without a score: others have one on the same prompts, or none has, since the
    baselines that scores are measured by are not evaluated."""
    ok = rows[rows["status"].eq("ok") & rows["axis"].isna()]
    scores = ok[ok["metric"].eq("score")]
    metrics = dict(zip(scores["prompt_set"], scores["score_of"], strict=True))
    trained_task = ok["shift"].eq("none") & ok["evaluator"].isin(["next", "targets"]) & ok["metric"].isin(_SCORED)
    scored_by = ok["metric"].eq(ok["prompt_set"].map(metrics))
    own = ok[ok["kind"].eq("backbone") & (scored_by | trained_task & ~ok["prompt_set"].isin(metrics))]
    left = own[~own["run"].isin(scores["run"])].drop_duplicates("run")
    return list(zip(left["contestant"], left["run"], strict=True))


def _command(task: Slice, contestant: str, shift: str, diverged: set[str]) -> str:
    """The command that computes it; baselines are evaluated with any run of the task."""
    own = task.runs.get(contestant) or [run for runs in task.runs.values() for run in runs]
    run = min((run for run in own if run not in diverged), default="RUN")
    left, n = task.extrapolations.get(shift, (shift, None))
    if n is not None and left == "none":
        return f"iclbench eval {run} --extrapolate {n}"
    return f"iclbench eval {run}" + ("" if shift == "none" else f" --shift {shift}")
