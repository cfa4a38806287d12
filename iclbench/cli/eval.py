"""`iclbench eval [RUN...]`: scores runs and their baselines on the frozen prompt sets."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import typer

from iclbench.cli.options import chosen_runs, examples, set_up_torch
from iclbench.config.cards import load_baseline, load_task
from iclbench.config.resolution import parse_overrides
from iclbench.config.runs import CodeChangedError
from iclbench.config.trust import UntrustedError
from iclbench.core.context import Context
from iclbench.core.errors import UsageError
from iclbench.core.signals import heed_ctrl_c
from iclbench.deep_thinking.methods import Method
from iclbench.deep_thinking.methods import method as method_of


def evaluate(
    run: list[str] | None,
    extrapolate: str | None,
    shift: list[str] | None,
    evaluator: list[str] | None,
    baseline: list[str] | None,
    method: str,
    override: list[str] | None,
    data_changed: bool,
    task: str | None,
    csv: Path | None,
    target: str | None,
    header: bool | None,
    seed: int,
    fresh: bool,
    results: Path,
    data_dir: Path | None,
    device: str,
    threads: int,
    json: bool,
) -> None:
    """Score runs on frozen prompts, the task's baselines always beside them."""
    from iclbench.cli.terminal import out, say

    if (csv is None) != (target is None):
        raise UsageError("--csv FILE and --target COLUMN go together")
    if header is not None and csv is None:
        raise UsageError("--header and --no-header are for --csv FILE")
    if csv is not None and (task or shift or evaluator or extrapolate is not None):
        raise UsageError("--csv evaluates on your table as it is; drop --task, --shift, --evaluator and --extrapolate")
    if task is not None:
        load_task(task)  # a mistyped name fails before anything is computed, as of the baselines
    typed = parse_overrides(override or [], ("method", "task"))
    way, files = _method(method, typed.get("method")), typed.get("task", {})
    if files and (csv is not None or task is not None):
        raise UsageError("-o task.path names the data of the runs' own task; drop --task and --csv")
    runs = chosen_runs(results, run)
    for name in baseline or []:
        load_baseline(name)
    if extrapolate is not None:
        examples(extrapolate, 1)
    chosen = set_up_torch(device, threads)
    from iclbench.cli import eval_runs, summary

    table = None if csv is None else eval_runs.read(csv, target, header)
    failed = untrusted = 0
    evaluated: list[str] = []
    edited: list[str] = []
    remarks: dict[str, None] = {}
    for each in runs:
        try:
            other = eval_runs.other_task(each, table, csv, task)
            if other is None and files:
                other = each.config.task.at(files), None
            failed += eval_runs.evaluate_run(
                Context(results, data_dir, chosen),
                each,
                shift or [],
                extrapolate,
                seed,
                other,
                baseline,
                evaluated,
                evaluator,
                way,
                fresh,
                None if json else remarks,
                data_changed,
            )
        except UsageError as error:
            heed_ctrl_c(error)
            if run and len(runs) == 1:
                raise
            untrusted += isinstance(error, UntrustedError)
            failed += 1  # the others go on
            edited += [each.name] * isinstance(error, CodeChangedError)
            say(f"skipped run '{each.name}': {error}")
    summary.print_summary(results, evaluated, json, without=edited)
    for line in remarks:
        out.print(line)
    if again := failed - untrusted:
        say(f"{again} failed; the same command tries them again")
    if failed:
        raise typer.Exit(1)


def _method(name: str, settings: Mapping[str, Any] | None) -> Method | None:
    """The method of this name with these settings; None where the context is taken in as it is."""
    chosen = method_of(name, settings)
    return None if chosen.name == "icl" else chosen
