"""Missing results: failed evaluations, results that are not computed yet, and unreadable files."""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd

from iclbench.registry import needs_missing_inputs
from iclbench.report.blocks import Block, Column, Section, Table, Text
from iclbench.report.data import Results, Slice
from iclbench.tables.evaluators import DIAGNOSTICS, POOL

# Metrics from which scores for the questions `next` and `targets` are computed.
_SCORED_METRICS = ("squared_error", "log_likelihood", "nll", "cross_entropy")
_UNREADABLE = "Files that could not be read as tables (they were not changed):"


def section(results: Results) -> Section:
    blocks: list[Block] = [table for table in (failure_table(results), _missing_table(results)) if table is not None]
    if results.skipped_files:
        blocks.append(Text(_UNREADABLE, results.skipped_files))
    if results.excluded_rows:
        blocks.append(Text("Rows that are not comparable with the rows shown:", results.excluded_rows))
    if results.cells["status"].isin(["failed", "diverged"]).any():
        blocks.append(Text("Cells of the sweep without results are listed under Coverage."))
    if not blocks:
        blocks.append(Text("Nothing is missing: all cells have results."))
    return Section("missing", "Missing and failed results", tuple(blocks))


def failure_table(results: Results) -> Table | None:
    """A table of failed and skipped evaluations; None if no evaluation failed or was skipped."""
    keys = ["task", "preset", "contestant", "run", "shift", "evaluator", "status", "reason"]
    rows = pd.concat([values[values["status"].ne("ok")] for values in (results.rows, results.language.rows)])
    rows = rows[rows["metric"].ne("score")]  # a score that is not defined is not a missing result
    if rows.empty:
        return None
    frame = rows.groupby(keys, as_index=False, dropna=False).agg(
        metrics=("metric", lambda m: ", ".join(sorted(set(m))))
    )
    caption = (
        "Evaluations that lack results, completely or at some sizes, with the reason. Skipped: more examples than the "
        "model supports, or a target of a probe that is not defined or does not vary."
    )
    return Table("failed", "Failed or skipped", caption, frame, tuple(Column(c, c) for c in keys))


def _missing_table(results: Results) -> Table | None:
    """A table of results that are not computed yet; None if no result is missing."""
    headers = {"task": "task", "preset": "preset", "contestant": "contestant", "what": "missing", "fix": "what to run"}
    frame = pd.DataFrame(missing_results(results), columns=list(headers))
    if frame.empty:
        return None
    caption = (
        "Results that exist for other models on the same task, or for the same model on other tasks, with the command "
        "that computes them."
    )
    columns = tuple(Column(key, header) for key, header in headers.items())
    return Table("missing", "Results not computed yet", caption, frame, columns)


def missing_results(results: Results) -> list[tuple[str, str, str, str, str]]:
    """The results that are not computed yet: task, preset, contestant, missing result and command of each."""
    # A task has a slice per training length, and the same result can be missing in several of them.
    return list(dict.fromkeys(missing for task in results.slices for missing in _missing_results_of(task)))


def _missing_results_of(task: Slice) -> list[tuple[str, str, str, str, str]]:
    """The missing results of a task, in the order of `_missing_evaluations`, `_missing_summaries` and
    `_missing_trainings`. Failed cells are not included."""
    evaluated_rows = task.rows[
        ~_in_training(task) & ~task.rows["evaluator"].isin(DIAGNOSTICS) & task.rows["kind"].ne("published")
    ]
    missing = [
        *_missing_evaluations(task, evaluated_rows),
        *((name, "summary", f"iclbench eval {run}") for name, run in _missing_summaries(evaluated_rows)),
        *_missing_trainings(task),
    ]
    return [(task.task, task.preset, *each) for each in missing]


def _in_training(task: Slice) -> pd.Series:
    return task.rows["axis"].eq("train_step").fillna(False).astype(bool)


def _missing_evaluations(task: Slice, evaluated_rows: pd.DataFrame) -> Iterator[tuple[str, str, str]]:
    """Yield contestant, evaluation and command for each backbone or baseline that lacks rows for a shift on which other
    contestants were evaluated."""
    pairs = set(evaluated_rows[["contestant", "shift"]].drop_duplicates().itertuples(index=False, name=None))
    shifts = sorted({str(shift) for _, shift in pairs})
    # The reference `chance` and the baselines of a probe (GD++ with another gamma) are not evaluated on the questions.
    baselines = set(evaluated_rows["contestant"].unique()) - {"chance"}
    other_runs = set(task.rows.loc[_in_training(task) & task.rows["status"].eq("failed"), "run"].unique())
    # Runs trained on a limited pool of functions are not in the leaderboards of the task.
    is_pool = task.rows["axis"].eq(POOL).fillna(False) & task.rows["axis_value"].notna()
    other_runs |= set(task.rows.loc[is_pool, "run"].unique()) - set(evaluated_rows["run"].unique())
    # A method on a backbone (gpt2+deep-thinking) is optional.
    optional_contestants = {*task.results.method_contestants, *task.results.other_training_tasks}
    contestants = sorted(
        name
        for name, kind in task.kinds.items()
        if (kind == "backbone" and not set(task.runs_by_backbone.get(name, ["?"])) <= other_runs)
        or (kind == "baseline" and name in baselines)
    )
    for name in contestants:
        for shift in shifts or ["none"]:
            if (name, shift) not in pairs and name not in optional_contestants:
                title = "evaluation" if shift == "none" else f"shift {shift}"
                yield name, title, _command(task, name, shift, other_runs)


def _missing_summaries(rows: pd.DataFrame) -> list[tuple[str, str]]:
    """Contestant and run of backbones without a score row, if other contestants have one on the same prompts, or if no
    contestant has one, for example because baselines are missing."""
    ok = rows[rows["status"].eq("ok") & rows["axis"].isna()]
    scores = rows[rows["metric"].eq("score") & rows["axis"].isna()]  # including rows of undefined scores
    metrics = dict(zip(scores["prompt_set"], scores["score_of"], strict=True))
    is_question = ok["shift"].eq("none") & ok["evaluator"].isin(["next", "targets"])
    is_scored = ok["metric"].eq(ok["prompt_set"].map(metrics))
    is_scorable = is_question & ok["metric"].isin(_SCORED_METRICS) & ~ok["prompt_set"].isin(metrics)
    backbones = ok[ok["kind"].eq("backbone") & (is_scored | is_scorable)]
    without_score = backbones[~backbones["run"].isin(scores["run"])].drop_duplicates("run")
    return list(zip(without_score["contestant"], without_score["run"], strict=True))


def _missing_trainings(task: Slice) -> Iterator[tuple[str, str, str]]:
    """Yield name, the word "everything" and command for each backbone of the preset without rows on this task.

    Backbones in a sweep are omitted, because the section on coverage gives the reasons. Backbones that need inputs are
    omitted, too, if the task has only a stream of elements without inputs.
    """
    backbones = task.results.backbones.get(task.preset, {})
    all_backbones = {name for names in backbones.values() for name in names}
    cells = task.results.cells
    # A backbone that is not applicable to a task is not applicable at any preset.
    not_applicable = cells["kind"].eq("train") & cells["status"].eq("skipped")
    is_relevant = cells["task"].eq(task.task) & (not_applicable | cells["preset"].eq(task.preset))
    in_sweep = set(cells.loc[is_relevant, "contestant"])
    for name in sorted(all_backbones - set(backbones.get(task.task, [])) - in_sweep):
        if needs_missing_inputs(name, task.family):
            continue
        yield name, "everything", f"iclbench train {task.task} {name} --preset {task.preset}"


def _command(task: Slice, contestant: str, shift: str, other_runs: set[str]) -> str:
    """The command of a missing evaluation; a baseline is evaluated with any run of the task."""
    runs = task.runs_by_backbone.get(contestant) or [run for runs in task.runs_by_backbone.values() for run in runs]
    run = min((run for run in runs if run not in other_runs), default="RUN")
    other_shift, n = task.extrapolations.get(shift, (shift, None))
    if n is not None and other_shift == "none":
        return f"iclbench eval {run} --extrapolate {n}"
    return f"iclbench eval {run}" + ("" if shift == "none" else f" --shift {shift}")
