"""The tables at the end of a sweep or a dry run: cells by task, and failures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from iclbench.cli.sweep_makespan import jobs_of, print_jobs
from iclbench.cli.sweep_view import cell_label, duration_text
from iclbench.cli.terminal import measurement_status, out, print_json, print_table, say
from iclbench.config.rates import Rates, tuning_task
from iclbench.core.context import Context
from iclbench.core.formats import canonical, count, nbytes, plural
from iclbench.store.cells import CellStore
from iclbench.store.outcome import Outcome
from iclbench.store.rates import read_rates
from iclbench.store.state import state_label
from iclbench.sweep.cells import KINDS, GridCell
from iclbench.sweep.engine import Bundling
from iclbench.sweep.engines import EngineSettings
from iclbench.sweep.estimate import Amount, Estimates, count_parameters, measure_step, parameter_range
from iclbench.sweep.makespan import simulate
from iclbench.sweep.outlook import Outlook, outlook_of
from iclbench.sweep.plan import Plan

_STATES = ("done", "failed", "diverged", "skipped", "to do")


def print_dry_run(
    plan: Plan,
    store: CellStore,
    device: str,
    data_dir: Path | None,
    workers: int | None,
    json: bool = False,
    added_backbones: Sequence[str] = (),
    engine: EngineSettings | None = None,
) -> None:
    """Print the numbers of finished and remaining cells of each task, with parameters, time and disk space.

    Further lines describe the cells of `added_backbones`, existing results that are not recorded as cells, runs that
    will be refused, and the jobs of an engine.
    """
    outlook = outlook_of(plan, Context(store.results, data_dir))
    plan, added_backbones = outlook.plan, [name if ":" in name else canonical(name) for name in added_backbones]
    step_timer = partial(measure_step, data_dir=data_dir, device=device)
    parameter_counter = partial(count_parameters, data_dir=data_dir)
    can_measure = engine is None or device == "cpu"  # an engine's GPUs are on other machines
    by_group = cells_by_group(plan)
    with measurement_status() as on_measure:
        estimates = Estimates(
            store, device, step_timer if can_measure else None, parameter_counter, on_measure=on_measure
        )
        amounts = {group: estimates.amount(cell for cell in plan.todo if cell.group == group) for group in by_group}
        parameters = parameter_range(plan, estimates)
        total_work = estimates.amount(plan.todo)
        jobs = None if engine is None else jobs_of(plan, engine, Estimates(store, device), estimates)
    if json:
        records = [
            {
                "task": cells[0].task,
                "preset": cells[0].preset,
                "cells": counts_by_kind(plan, cells),
                "to_do": todo_counts(plan, group),
                "parameters": parameters.get(group),
                **asdict(amounts[group]),
            }
            for group, cells in by_group.items()
        ]
        total = {
            "cells": counts_by_kind(plan, plan.cells),
            "to_do": todo_counts(plan),
            "workers": workers,
            **asdict(total_work),
            "devices": estimates.devices,
            "existing": outlook.existing,
            "refused": outlook.refusals,
            "no_data": outlook.missing_data,
            "untuned": [list(triple) for triple in untuned_backbones(plan, store.results)],
            "added": {name: todo_counts(plan, contestant=name) for name in added_backbones},
        } | ({} if jobs is None else {"jobs": jobs})
        print_json({"tasks": records, "total": total})
        return
    columns = ["task", "preset", *state_columns(plan), "work", "parameters", "time", "disk"]
    rows = [
        [
            cells[0].task,
            cells[0].preset,
            *state_cells(plan, cells),
            counts_text(todo_counts(plan, group)),
            "–".join(dict.fromkeys(count(n) for n in parameters.get(group, ()))),
            *amount_cells(amounts[group]),
        ]
        for group, cells in by_group.items()
    ]
    rows.append(
        ["all", "", *state_cells(plan, plan.cells), counts_text(todo_counts(plan)), "", *amount_cells(total_work)]
    )
    # If no cell is to do, columns without a value, such as the time, are omitted.
    nonempty = [n for n in range(len(columns)) if plan.todo or any(row[n] for row in rows)]
    columns, rows = [columns[n] for n in nonempty], [[row[n] for n in nonempty] for row in rows]
    print_table("", columns, rows, numeric=[n for n in range(2, len(columns)) if columns[n] != "work"], keys=(0, 1))
    if plan.waiting:
        out.print(waiting_line(plan))
    for line in (
        *untuned_lines(plan, store.results),
        *_added_lines(plan, added_backbones),
        *_existing_lines(outlook),
        *_refusal_lines(outlook),
        *_missing_data_lines(outlook),
    ):
        out.print(line)
    if not plan.todo:
        if not outlook.refusals:
            out.print("nothing to do")
        return
    if workers is not None:
        bundling = Bundling(0.0, lambda cell: estimates.seconds(cell) or 0.0, is_grouped=False)
        makespan = simulate(plan, workers, bundling).seconds
        expected_time = "not known yet" if total_work.seconds is None else f"about {duration_text(makespan)}"
        unknown_text = (
            f", without {counts_text(total_work.unknown)} of unknown time"
            if total_work.unknown and total_work.seconds is not None
            else ""
        )
        speed_text = f"; speed measured on {', '.join(estimates.devices)}" if estimates.devices else ""
        out.print(
            f"time on {workers} workers: {expected_time}{unknown_text} (column 'time': one worker{speed_text}); "
            f"disk: {nbytes(total_work.bytes)}"
        )
    if plan.repeated:
        out.print(f"{plural(len(plan.repeated), 'finished cell')} to recompute: {_repeated_line(plan)}")
    if estimates.measured_seconds:
        steps = plural(len(estimates.measured_seconds), "pair")
        say(f"training steps of {steps} of task and backbone measured on this machine at its current load")
    if jobs is not None:
        print_jobs(jobs)


def print_outcomes(plan: Plan, outcomes: dict[str, Outcome], json: bool = False) -> int:
    """Print the states of cells after a sweep, and every failed cell. Return the number of failed cells."""
    failed_cells = [(cell, outcomes[cell.hash]) for cell in plan.cells if _is_failed(outcomes.get(cell.hash))]
    if json:
        cells = {cell.hash: cell for cell in plan.cells}
        records = [_record(cells[key], outcome) for key, outcome in outcomes.items()]
        total = {"cells": counts_by_kind(plan, plan.cells), "to_do": todo_counts(plan)}
        print_json({"total": total, "worked_on": records})
        return len(failed_cells)
    rows = [[cells[0].task, cells[0].preset, *state_cells(plan, cells)] for cells in cells_by_group(plan).values()]
    rows.append(["all", "", *state_cells(plan, plan.cells)])
    print_table("", ["task", "preset", *state_columns(plan)], rows, numeric=range(2, 2 + len(state_columns(plan))))
    for cell in plan.cells:
        outcome = outcomes.get(cell.hash)
        if outcome is not None and outcome.status == "diverged" and cell.kind == "train":
            out.print(f"diverged: {cell_label(cell)}: {outcome.reason}; the sweep does not repeat it")
    for cell, outcome in failed_cells:
        out.print(f"failed: {cell_label(cell)}: {outcome.reason or 'no reason given'}")
    return len(failed_cells)


def untuned_backbones(plan: Plan, results: Path) -> list[tuple[str, str, str]]:
    """Return the preset, task and backbone of each training run to do without a chosen learning rate. Tasks for which
    no learning rate was chosen for any backbone are omitted."""
    training_cells = [cell for cell in plan.todo if cell.kind == "train" and cell.reason is None]
    triples = {(cell.preset, cell.task, cell.contestant): cell.task_config.card for cell in training_cells}
    untuned_triples = []
    for (preset, task, contestant), card in triples.items():
        rates = Rates.of(preset, task, card, read_rates(results, preset))
        if rates.chosen_settings and contestant not in rates.chosen_settings:
            untuned_triples.append((preset, task, contestant))
    return untuned_triples


def untuned_lines(plan: Plan, results: Path) -> Iterator[str]:
    """Yield the `tune` commands for backbones without a chosen learning rate, one line per preset and backbone."""
    by_backbone: dict[tuple[str, str], dict[str, None]] = {}
    for preset, task, backbone in untuned_backbones(plan, results):
        by_backbone.setdefault((preset, backbone), {})[task] = None
    for (preset, backbone), tasks in by_backbone.items():
        tuned_tasks = sorted({tuning_task(preset, task) for task in tasks})
        yield (
            f"untuned: {backbone} has no learning rate chosen at preset {preset} on {', '.join(tasks)}; first run: "
            f"iclbench tune {backbone} --preset {preset} --tasks {','.join(tuned_tasks)} --results {results}"
        )


def waiting_line(plan: Plan) -> str:
    """Return a line with the number of cells that are skipped because they need excluded cells."""
    return f"{plural(len(plan.waiting), 'cell')} skipped, since they need cells that the options exclude"


def cells_by_group(plan: Plan) -> dict[str, list[GridCell]]:
    """Return the cells of each pair of task and preset."""
    by_group: dict[str, list[GridCell]] = {}
    for cell in plan.cells:
        by_group.setdefault(cell.group, []).append(cell)
    return by_group


def state_columns(plan: Plan) -> list[str]:
    """Return the states with a column in the tables. The state "diverged" has a column only if a cell diverged."""
    return [state for state in _STATES if state != "diverged" or state in plan.states.values()]


def counts_by_kind(plan: Plan, cells: Sequence[GridCell]) -> dict[str, dict[str, int]]:
    """Return the numbers of cells by kind and state."""
    counts = Counter[tuple[str, str]]((cell.kind, state_label(plan.states[cell.hash])) for cell in cells)
    return {kind: {state: counts[kind, state] for state in _STATES if counts[kind, state]} for kind in KINDS}


def state_cells(plan: Plan, cells: Sequence[GridCell]) -> list[str]:
    """Return the numbers of cells by state as text, for a row of a table."""
    counts = Counter[str](state_label(plan.states[cell.hash]) for cell in cells)
    return [str(counts[state]) for state in state_columns(plan)]


def todo_counts(plan: Plan, group: str | None = None, contestant: str | None = None) -> dict[str, int]:
    """Return the numbers of cells to compute by kind. Cells that are not applicable are not counted.

    `group` restricts the cells to one task and preset, and `contestant` to one contestant (default: all).
    """
    cells = [cell for cell in plan.todo if group in (None, cell.group) and contestant in (None, cell.contestant)]
    counts = Counter(cell.kind for cell in cells if cell.reason is None)
    return {kind: counts[kind] for kind in KINDS if counts[kind]}


def counts_text(counts: dict[str, int]) -> str:
    """Format numbers of cells by kind: `4 train 8 evaluate`."""
    return " ".join(f"{number} {kind}" for kind, number in counts.items())


def amount_cells(amount: Amount) -> list[str]:
    """Return the time on one worker and the disk space as text, for a row of a table."""
    seconds = "" if amount.seconds is None else duration_text(amount.seconds)
    unknown = "" if not amount.unknown else " + ?" if seconds else "?"
    return [seconds + unknown, nbytes(amount.bytes) if amount.bytes else ""]


def _added_lines(plan: Plan, names: Iterable[str]) -> Iterator[str]:
    for name in names:
        counts = todo_counts(plan, contestant=name)
        work = f"{plural(sum(counts.values()), 'cell')} ({counts_text(counts)})" if counts else "nothing"
        yield f"to do for {name}: {work}"


def _existing_lines(outlook: Outlook) -> Iterator[str]:
    if outlook.existing:
        number = sum(outlook.existing.values())
        counts = counts_text(outlook.existing)
        yield f"{number} of the done cells were computed without a sweep ({counts}); the sweep adds their rows"


def _refusal_lines(outlook: Outlook) -> Iterator[str]:
    if outlook.refusals:
        yield f"{plural(outlook.failing_cells, 'cell')} to do will fail; their time is not included:"
    yield from (f"  {run}: {reason}" for run, reason in outlook.refusals.items())


def _missing_data_lines(outlook: Outlook) -> Iterator[str]:
    for reason, tasks in outlook.missing_data.items():
        yield f"no data for {', '.join(tasks)}: {reason}"


def _repeated_line(plan: Plan) -> str:
    """Return a text with the number of repeated cells for each reason."""
    reasons = Counter(
        "train for missing weights"
        if cell.kind == "train"
        else "summary for new cells"
        if cell.is_summary
        else "evaluate for scores of single episodes, which are not packed"
        for cell in plan.repeated
    )
    return ", ".join(f"{number} {reason}" for reason, number in reasons.items())


def _is_failed(outcome: Outcome | None) -> bool:
    return outcome is not None and outcome.status == "failed"


def _record(cell: GridCell, outcome: Outcome) -> dict[str, Any]:
    return {
        "kind": cell.kind,
        "run": cell.run,
        "task": cell.task,
        "preset": cell.preset,
        "status": outcome.status,
        "reason": outcome.reason,
        "seconds": outcome.seconds,
        "warnings": list(outcome.warnings),
    }
