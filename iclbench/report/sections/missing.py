"""What a reader must not assume: cells that failed, cells that nobody ran, files that could not be read."""

from __future__ import annotations

import pandas as pd

from iclbench.report.blocks import Block, Column, Section, Table, Text
from iclbench.report.data import Results, Slice
from iclbench.tables.evaluators import INSIDE

# Metrics that scores of the questions `next` and `targets` are made of.
_SCORED = ("squared_error", "log_likelihood", "nll")
_UNREADABLE = "Files that were skipped because they could not be read as tables (they are left as they are):"


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
            "What others have on the same task, or the same backbone on other tasks, and scores that need baselines "
            "which are not evaluated."
        )
        blocks.append(Table("missing", "Not run", caption, frame, tuple(Column(k, h) for k, h in headers.items())))
    if results.skipped:
        blocks.append(Text(_UNREADABLE, results.skipped))
    if results.set_aside:
        blocks.append(Text("Rows that cannot be compared with the ones shown:", results.set_aside))
    if results.cells["status"].isin(["failed", "diverged"]).any():
        blocks.append(Text("Cells of the sweep that have no numbers stand with their reasons under Coverage."))
    if not blocks:
        blocks.append(Text("Nothing: every cell that was started has its numbers."))
    return Section("missing", "What is missing or failed", tuple(blocks))


def failed(results: Results) -> Table | None:
    keys = ["task", "preset", "contestant", "run", "shift", "evaluator", "status", "reason"]
    rows = pd.concat([every[every["status"].ne("ok")] for every in (results.rows, results.language.rows)])
    if rows.empty:
        return None
    frame = rows.groupby(keys, as_index=False, dropna=False).agg(
        metrics=("metric", lambda m: ", ".join(sorted(set(m))))
    )
    caption = (
        "Cells that were started and gave no number, or not at all sizes, with the reason they gave. Skipped: more "
        "examples than the contestant takes."
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
    # A baseline that only stands beside a probe (GD++ with a gamma of its own) is not meant to be evaluated, and
    # guessing is no contestant.
    asked = set(evaluated["contestant"]) - {"chance"}
    # What a method makes of a backbone (gpt2+deep-thinking) is nobody's duty.
    # Of what diverged, all that there is to say stands under what failed.
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
        if (name, shift) not in tried and name not in {*task.results.with_method, *task.results.elsewhere}
    ]
    found += [
        (task.task, task.preset, name, "summary", f"iclbench eval {run}") for name, run in _not_summed_up(evaluated)
    ]
    here = task.results.backbones.get(task.preset, {})
    anywhere = {name for names in here.values() for name in names}
    cells = task.results.cells
    # What makes no sense with a task does so at no preset.
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
    """What fills the gap; baselines are evaluated beside any run of the task."""
    own = task.runs.get(contestant) or [run for runs in task.runs.values() for run in runs]
    run = min((run for run in own if run not in diverged), default="RUN")
    left, n = task.extrapolations.get(shift, (shift, None))
    if n is not None and left == "none":
        return f"iclbench eval {run} --extrapolate {n}"
    return f"iclbench eval {run}" + ("" if shift == "none" else f" --shift {shift}")
