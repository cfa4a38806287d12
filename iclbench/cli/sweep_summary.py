"""The tables that end a sweep, or a dry run of one: cells by task, and what failed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from iclbench.cli.sweep_makespan import jobs_of, print_jobs
from iclbench.cli.sweep_view import duration, label
from iclbench.cli.terminal import measuring, out, print_json, say, table
from iclbench.config.rates import Rates, tuned_on
from iclbench.core.context import Context
from iclbench.core.formats import canonical, count, nbytes, plural
from iclbench.store.cells import Store
from iclbench.store.outcome import Outcome
from iclbench.store.state import state_label
from iclbench.sweep.cells import KINDS, GridCell
from iclbench.sweep.engine import Bundling
from iclbench.sweep.engines import EngineSettings
from iclbench.sweep.estimate import Amount, Estimates, count_parameters, measure_step, parameter_range
from iclbench.sweep.makespan import simulate
from iclbench.sweep.outlook import Found, look
from iclbench.sweep.plan import Plan

_STATES = ("done", "failed", "diverged", "skipped", "to do")


def print_dry_run(
    plan: Plan,
    store: Store,
    device: str,
    data_dir: Path | None,
    workers: int | None,
    json: bool = False,
    added: Sequence[str] = (),
    engine: EngineSettings | None = None,
) -> None:
    """What is done and what is to do, task by task, with parameters, time and disk; how much of it is for backbones
    that are `added` to the grid; what lies in the results folder without a sweep's doing, and what will be refused;
    and the jobs of an engine, where one is to do it."""
    outlook = look(plan, Context(store.results, data_dir))
    plan, added = outlook.plan, [name if ":" in name else canonical(name) for name in added]
    step, size = partial(measure_step, data_dir=data_dir, device=device), partial(count_parameters, data_dir=data_dir)
    is_here = engine is None or device == "cpu"  # an engine's GPUs are elsewhere
    by_group = groups(plan)
    with measuring() as begins:
        estimates = Estimates(store, device, step if is_here else None, size, begins=begins)
        amounts = {group: estimates.of(cell for cell in plan.todo if cell.group == group) for group in by_group}
        parameters = parameter_range(plan, estimates)
        total_work = estimates.of(plan.todo)
        jobs = None if engine is None else jobs_of(plan, engine, Estimates(store, device), estimates)
    if json:
        lines = [
            {
                "task": cells[0].task,
                "preset": cells[0].preset,
                "cells": by_kind(plan, cells),
                "to_do": to_do(plan, group),
                "parameters": parameters.get(group),
                **asdict(amounts[group]),
            }
            for group, cells in by_group.items()
        ]
        total = {
            "cells": by_kind(plan, plan.cells),
            "to_do": to_do(plan),
            "workers": workers,
            **asdict(total_work),
            "there": outlook.there,
            "refused": outlook.refused,
            "no_data": outlook.no_data,
            "untuned": [list(each) for each in untuned_in(plan, store.results)],
            "added": {name: to_do(plan, contestant=name) for name in added},
        } | ({} if jobs is None else {"jobs": jobs})
        print_json({"tasks": lines, "total": total})
        return
    columns = ["task", "preset", *columns_of(plan), "work", "parameters", "time", "disk"]
    rows = [
        [
            cells[0].task,
            cells[0].preset,
            *states(plan, cells),
            words(to_do(plan, group)),
            "–".join(dict.fromkeys(count(n) for n in parameters.get(group, ()))),
            *amount(amounts[group]),
        ]
        for group, cells in by_group.items()
    ]
    rows.append(["all", "", *states(plan, plan.cells), words(to_do(plan)), "", *amount(total_work)])
    # Columns without a value, such as the time of finished cells, are left out.
    filled = [n for n in range(len(columns)) if plan.todo or any(row[n] for row in rows)]
    columns, rows = [columns[n] for n in filled], [[row[n] for n in filled] for row in rows]
    table("", columns, rows, numeric=[n for n in range(2, len(columns)) if columns[n] != "work"], keys=(0, 1))
    if plan.waiting:
        out.print(left_alone(plan))
    for line in (
        *untuned_lines(plan, store.results),
        *_added(plan, added),
        *_done_outside(outlook),
        *_refused(outlook),
        *_without_data(outlook),
    ):
        out.print(line)
    if not plan.todo:
        if not outlook.refused:
            out.print("nothing to do")
        return
    if workers is not None:
        alone = Bundling(0.0, lambda cell: estimates.seconds(cell) or 0.0, together=False)
        taken = simulate(plan, workers, alone).seconds
        expected = "not known yet" if total_work.seconds is None else f"about {duration(taken)}"
        beyond = (
            f" and, not known yet, {words(total_work.unknown)}"
            if total_work.unknown and total_work.seconds is not None
            else ""
        )
        time = f"time on {workers} workers: {expected}{beyond} (the column 'time' is of one); "
        out.print(f"{time}disk: {nbytes(total_work.bytes)}")
    if plan.again:
        out.print(f"{len(plan.again)} of these are done, and will be done again: {_again(plan)}")
    if estimates.measured:
        steps = plural(len(estimates.measured), "pair")
        say(f"steps of {steps} of task and backbone measured now, on this machine as busy as it is")
    if jobs is not None:
        print_jobs(jobs)


def print_outcomes(plan: Plan, outcomes: dict[str, Outcome], json: bool = False) -> int:
    """How things stand after a sweep, and every cell that failed in it; returns their number."""
    failed = [(cell, outcomes[cell.hash]) for cell in plan.cells if _failed(outcomes.get(cell.hash))]
    if json:
        cells = {cell.hash: cell for cell in plan.cells}
        lines = [_about(cells[key], outcome) for key, outcome in outcomes.items()]
        total = {"cells": by_kind(plan, plan.cells), "to_do": to_do(plan)}
        print_json({"total": total, "worked_on": lines})
        return len(failed)
    rows = [[cells[0].task, cells[0].preset, *states(plan, cells)] for cells in groups(plan).values()]
    rows.append(["all", "", *states(plan, plan.cells)])
    table("", ["task", "preset", *columns_of(plan)], rows, numeric=range(2, 2 + len(columns_of(plan))))
    for cell in plan.cells:
        outcome = outcomes.get(cell.hash)
        if outcome is not None and outcome.status == "diverged" and cell.kind == "train":
            out.print(f"diverged: {label(cell)}: {outcome.reason}; it is not tried again")
    for cell, outcome in failed:
        out.print(f"failed: {label(cell)}: {outcome.reason or 'without a reason'}")
    return len(failed)


def untuned_in(plan: Plan, results: Path) -> list[tuple[str, str, str]]:
    """Preset, task and backbone of trainings to do without a learning rate chosen for the backbone, where the preset
    has a table of rates."""
    trainings = [cell for cell in plan.todo if cell.kind == "train" and cell.reason is None]
    triples = {(cell.preset, cell.task, cell.contestant): cell.frozen.card for cell in trainings}
    found = []
    for (preset, task, contestant), card in triples.items():
        rates = Rates.of(preset, task, card, results)
        if rates.chosen and contestant not in rates.chosen:
            found.append((preset, task, contestant))
    return found


def untuned_lines(plan: Plan, results: Path) -> Iterator[str]:
    """What to type before models without a chosen rate are trained; a line for every preset and backbone."""
    by_backbone: dict[tuple[str, str], dict[str, None]] = {}
    for preset, task, backbone in untuned_in(plan, results):
        by_backbone.setdefault((preset, backbone), {})[task] = None
    for (preset, backbone), tasks in by_backbone.items():
        tuned_tasks = sorted({tuned_on(preset, task) for task in tasks})
        yield (
            f"untuned: {backbone} has no learning rate chosen at preset {preset} on {', '.join(tasks)}; first run: "
            f"iclbench tune {backbone} --preset {preset} --tasks {','.join(tuned_tasks)} --results {results}"
        )


def left_alone(plan: Plan) -> str:
    """How many cells wait for others that are left out."""
    return f"{plural(len(plan.waiting), 'cell')} left alone: what they need is left out"


def groups(plan: Plan) -> dict[str, list[GridCell]]:
    """The cells of every task and preset."""
    by_group: dict[str, list[GridCell]] = {}
    for cell in plan.cells:
        by_group.setdefault(cell.group, []).append(cell)
    return by_group


def columns_of(plan: Plan) -> list[str]:
    """The states that a table has columns for: that of diverged trainings only where there are any."""
    return [state for state in _STATES if state != "diverged" or state in plan.states.values()]


def by_kind(plan: Plan, cells: Sequence[GridCell]) -> dict[str, dict[str, int]]:
    """Numbers of cells by kind and state."""
    counts = Counter[tuple[str, str]]((cell.kind, state_label(plan.states[cell.hash])) for cell in cells)
    return {kind: {state: counts[kind, state] for state in _STATES if counts[kind, state]} for kind in KINDS}


def states(plan: Plan, cells: Sequence[GridCell]) -> list[str]:
    """Numbers of cells by state, as a row of a table has them."""
    counts = Counter[str](state_label(plan.states[cell.hash]) for cell in cells)
    return [str(counts[state] or "") for state in columns_of(plan)]


def to_do(plan: Plan, group: str | None = None, contestant: str | None = None) -> dict[str, int]:
    """Numbers of cells that a sweep would work on, by kind, of one task and preset or all, and of one contestant or
    all; those that make no sense get their row without work."""
    wanted = [cell for cell in plan.todo if group in (None, cell.group) and contestant in (None, cell.contestant)]
    counts = Counter(cell.kind for cell in wanted if cell.reason is None)
    return {kind: counts[kind] for kind in KINDS if counts[kind]}


def words(counts: dict[str, int]) -> str:
    return " ".join(f"{number} {kind}" for kind, number in counts.items())


def amount(of: Amount) -> list[str]:
    """Time of one worker and disk, as a row of a table has them."""
    seconds = "" if of.seconds is None else duration(of.seconds)
    unknown = "" if not of.unknown else " + ?" if seconds else "?"
    return [seconds + unknown, nbytes(of.bytes) if of.bytes else ""]


def _added(plan: Plan, names: Iterable[str]) -> Iterator[str]:
    for name in names:
        counts = to_do(plan, contestant=name)
        work = f"{plural(sum(counts.values()), 'cell')} ({words(counts)})" if counts else "nothing"
        yield f"of what is to do, for {name}: {work}"


def _done_outside(outlook: Found) -> Iterator[str]:
    if outlook.there:
        number = sum(outlook.there.values())
        yield f"{number} of those done were done outside of a sweep ({words(outlook.there)}); it only adds their rows"


def _refused(outlook: Found) -> Iterator[str]:
    if outlook.refused:
        yield f"{plural(outlook.failing, 'cell')} of these will fail, and no time is counted for them:"
    yield from (f"  {run}: {why}" for run, why in outlook.refused.items())


def _without_data(outlook: Found) -> Iterator[str]:
    for why, tasks in outlook.no_data.items():
        yield f"no data for {', '.join(tasks)}: {why}"


def _again(plan: Plan) -> str:
    """How many cells are repeated, and for what."""
    why = Counter(
        "train for weights that are not there"
        if cell.kind == "train"
        else "summary for what is new"
        if cell.is_summary
        else "evaluate for scores of single episodes, which packed files do not hold"
        for cell in plan.again
    )
    return ", ".join(f"{number} {what}" for what, number in why.items())


def _failed(outcome: Outcome | None) -> bool:
    return outcome is not None and outcome.status == "failed"


def _about(cell: GridCell, outcome: Outcome) -> dict[str, Any]:
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
