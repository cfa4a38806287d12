"""Evaluation of contestants in memory, and of runs and their baselines with results written to files."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import pandas as pd

from iclbench import tables
from iclbench.config.resolution import TaskConfig
from iclbench.core.bounds import check_size_of_episodes
from iclbench.core.context import Context
from iclbench.core.errors import UsageError
from iclbench.core.files import remove
from iclbench.core.formats import assignments
from iclbench.core.predictor import eval_mode
from iclbench.core.signals import raise_if_ctrl_c
from iclbench.core.version import provenance
from iclbench.deep_thinking.methods import Method
from iclbench.evaluation import cells, contestants, examples, gaps, scores, targets
from iclbench.evaluation.cells import CellResult
from iclbench.evaluation.contestants import PredictorContestant
from iclbench.evaluation.next_points import score_next
from iclbench.evaluation.prompt_set_rows import PromptSetRows
from iclbench.evaluation.prompts import PromptSet
from iclbench.families.base import Family
from iclbench.families.shifts import Shift
from iclbench.registry import noun_of_points
from iclbench.store.runs import Run, write_errors

# The axis of rows of branches. These rows differ from rows of the axis train_step at the same step: the learning rate
# of a branch has decayed, while rows of train_step are measured during training, before the decay.
BRANCH = "branch"
# The functions that score a contestant on a prompt set, by the question of the task.
_SCORERS = {"next": score_next, "targets": targets.score_targets}


def evaluate(contestants: Iterable[PredictorContestant], prompts: PromptSet) -> pd.DataFrame:
    """Evaluate contestants on a prompt set in memory.

    Returns:
        The rows of the table `values`, as in a results folder, including the metrics that compare contestants
        (`COMPARISON_METRICS`). A failed contestant has a row with the reason.

    >>> from iclbench.config.resolution import resolve_run
    >>> from iclbench.evaluation.contestants import baselines, contestant_of_predictor
    >>> config = resolve_run("linear", "gpt2", "smoke", overrides=["task.dim=2", "task.episodes=8"])
    >>> model, prompts = config.build(config.task.build()), PromptSet(config.task, "smoke")
    >>> values = evaluate([contestant_of_predictor("mine", model), *baselines(prompts, ["ridge"])], prompts)
    >>> values.query("metric == 'squared_error' and n_context == 5")["contestant"].tolist()
    ['mine', 'ridge']
    """
    cell_tables = [_tables_of(contestant, prompts)[0] for contestant in contestants]
    if not cell_tables:
        return tables.frame("values", [])
    values, errors = (_union(table, cell_tables) for table in ("values", "errors"))
    if prompts.evaluator:
        values = tables.union("values", [values, tables.frame("values", [targets.chance_row(prompts)])])
    elif prompts.task.question == "targets":
        values = tables.union("values", [values, tables.frame("values", gaps.gap_rows(values, errors, prompts))])
    elif prompts.task.head == "event":
        values = tables.union("values", [values, tables.frame("values", gaps.next_gap_rows(values, errors, prompts))])
    score_rows = scores.scores_of(values, lambda: errors, prompts)
    return values if score_rows is None else tables.union("values", [values, score_rows])


def _union(table: tables.TableName, all_tables: Sequence[cells.Tables]) -> pd.DataFrame:
    """Return the rows of one table for several contestants."""
    return tables.union(
        table, [tables.frame(table, cell_tables[table]) for cell_tables in all_tables if table in cell_tables]
    )


def _tables_of(contestant: PredictorContestant, prompts: PromptSet) -> tuple[cells.Tables, str | None]:
    """Return all tables of a cell, including rows of branches, and the reason if all or part of the cell failed."""
    shared = cells.shared_columns(contestant, prompts, prompts.question)
    score = _SCORERS[prompts.task.question]
    with eval_mode(contestant.predictor):
        computed_tables, reason = cells.compute_tables(contestant, prompts, shared, lambda: score(contestant, prompts))
    for steps, load in contestant.branches.items():
        branch_tables, branch_reason = cells.compute_tables(
            contestant,
            prompts,
            shared,
            lambda load=load: score(replace(contestant, predictor=load(), branches={}), prompts),  # type: ignore[misc]
        )
        values = tables.frame("values", computed_tables["values"]), _on_axis(branch_tables["values"], BRANCH, steps)
        computed_tables["values"], reason = tables.union("values", values), reason or branch_reason
    if contestant.coordinate is not None:
        computed_tables = {"values": _on_axis(computed_tables["values"], *contestant.coordinate)}
    return computed_tables, reason


def _on_axis(values: cells.Rows | pd.DataFrame, axis: str, axis_value: int) -> pd.DataFrame:
    """Return the rows that cover all episodes, with this coordinate."""
    rows = tables.frame("values", values)
    return rows[rows["axis"].isna()].assign(axis=axis, axis_value=float(axis_value))


def evaluate_cell(results: Path, contestant: PredictorContestant, prompts: PromptSet) -> str | None:
    """Evaluate one contestant on a prompt set and write its cell; return the reason if all or part of it failed."""
    computed_tables, reason = _tables_of(contestant, prompts)
    cells.write(results, contestant, prompts, computed_tables, reason)
    return reason


@dataclass(frozen=True)
class PackedCell:
    """A cell of packed results.

    Attributes:
        pack_name: name of the packed results.
        tables: tables of the cell.
        libraries: versions of the libraries with which the cell was computed.
    """

    pack_name: str
    tables: cells.Tables
    libraries: dict[str, str]


# A function that returns a cell of packed results, or None if they do not contain the cell.
FindPackedCell = Callable[[PredictorContestant, PromptSet], PackedCell | None]
# A callback that is called with each cell before it is computed or read from the cache.
OnStart = Callable[[PredictorContestant, PromptSet], None]


def canonical_shifts(task: TaskConfig, names: Sequence[str]) -> list[str]:
    """Return the canonical names of shifts; `all` means all shifts of the task card.

    Raises:
        UsageError: the family does not have one of the shifts, or a shift does not allow its number of points.
        TooLargeError: the episodes of a shift are larger than the limit.
    """
    family = task.build()
    shifts = [family.parse_shift(shift) for name in names for shift in (task.shifts if name == "all" else [name])]
    for shift in shifts:
        points = task.point_count(shift.examples or task.points)
        family.check_shift(shift, points)
        if shift.examples is not None:
            check_size_of_episodes(task.episodes, points, family.x_dim + family.y_dim)
    return list(dict.fromkeys(shift.name for shift in shifts))


def shifts_of(run: Run, requested: Sequence[str], extrapolate: int | None, task: TaskConfig | None = None) -> list[str]:
    """Return the names of the shifts to evaluate, which always include "none".

    Args:
        run: the evaluated run.
        requested: names of shifts; `all` means all shifts of the task card.
        extrapolate: number of examples N of an additional shift `points-N`; None to add no shift.
        task: the task of the prompts (default: the task of the run).

    Raises:
        UsageError: `extrapolate` is not larger than the number of examples in training.
    """
    names = ["none", *canonical_shifts(task or run.config.task, requested)]
    if extrapolate is not None:
        training_points = run.config.task.points
        if extrapolate <= training_points:
            raise UsageError(
                f"--extrapolate {extrapolate} is not beyond the training length of run '{run.name}' ({training_points} "
                f"{noun_of_points(run.config.task.family)}); pass a larger number, or --extrapolate alone for 4x",
                code="bad-value",
            )
        names.append(Shift().with_examples(extrapolate).name)
    return list(dict.fromkeys(names))


def evaluators_of(run: Run, requested: Sequence[str], task: TaskConfig | None = None) -> list[str]:
    """Return the names of the family's own tests to evaluate.

    Args:
        run: the evaluated run.
        requested: names of tests, with hyphens or underscores; if empty, the tests of the task card.
        task: the task of the prompts (default: the task of the run).
    """
    task = task or run.config.task
    return task.evaluator_names(task.build(), requested or task.evaluators)


def evaluate_run(
    context: Context,
    run: Run,
    shifts: Sequence[str] = ("none",),
    evaluators: Sequence[str] | None = None,
    *,
    seed: int = 0,
    task: TaskConfig | None = None,
    family: Family | None = None,
    baseline_names: Sequence[str] | None = None,
    method: Method | None = None,
    loops: Sequence[int] = (),
    summaries: bool = True,
    lookup: FindPackedCell | None = None,
    fresh: bool = False,
    on_start: OnStart | None = None,
    data_changed: bool = False,
    further: Callable[[PromptSet], Sequence[PredictorContestant]] | None = None,
) -> Iterator[CellResult]:
    """Evaluate a run and its baselines under each shift and with each evaluator, and yield each finished cell.

    Args:
        context: results folder, data sets, and the device of the backbone; baselines run on the CPU.
        run: a finished run.
        shifts: shifts from `shifts_of`.
        evaluators: evaluators from `evaluators_of` (default: those of the task).
        seed: evaluation seed; prompt sets of different seeds are independent.
        task: the task of the prompts (default: the task of the run).
        family: the family that samples the prompts of `task`, already adapted to the run (for a user's own table).
        baseline_names: baselines and oracles (default: those of the task card).
        method: an additional method with which the run is evaluated.
        loops: numbers of loops with which the run is also evaluated.
        summaries: whether to write gaps and scores, which compare contestants; a sweep writes them at its end instead.
        lookup: a function that finds finished cells of baselines in packed results.
        fresh: whether to recompute cells that an earlier evaluation copied from packed results.
        on_start: called with each cell before it is computed or read from the cache.
        data_changed: whether to evaluate the run even if the data differ from the training data.
        further: a function that returns additional contestants for a prompt set.

    Raises:
        DataChangedError: the data differ from the training data, and `data_changed` is False.
        UsageError: the run is not finished, does not support the method, has no loops, or does not fit the task.
    """
    results, data_dir = context.results, context.data_dir
    model = contestants.backbone(run, context.device, data_dir)
    task = task or run.config.task
    if family is None:
        family = task.build_held_out(data_dir, data_changed)  # shared by all prompt sets, so data are loaded once
        model = contestants.adapt_to_task(model, run, task, family)
    write_published(results, task)
    tests = task.evaluator_names(family, task.evaluators) if evaluators is None else evaluators
    remaining = prompt_sets(task, run.config.preset, shifts, tests, seed, data_dir, family)
    models = [model] if method is None else [model, contestants.with_deep_thinking(model, method)]
    models += [contestants.with_loops(model, number) for number in dict.fromkeys(loops)]
    while remaining:
        prompts = remaining.pop(0)  # removed from the list, so that the memory of its episodes is freed
        all_contestants = [*models, *contestants.baselines(prompts, baseline_names)]
        all_contestants += [] if further is None else further(prompts)
        yield from evaluate_cells(results, prompts, all_contestants, lookup, fresh, on_start)
        if summaries:
            summarise(results, prompts)


def evaluate_baseline(
    context: Context,
    task: TaskConfig,
    preset: str,
    name: str,
    shifts: Sequence[str],
    evaluators: Sequence[str],
    *,
    seed: int = 0,
) -> Iterator[CellResult]:
    """Evaluate one baseline or oracle of a task without a run; the caller writes the summaries."""
    family = task.build_held_out(context.data_dir)
    remaining = prompt_sets(task, preset, shifts, evaluators, seed, context.data_dir, family)
    while remaining:
        prompts = remaining.pop(0)
        yield from evaluate_cells(context.results, prompts, contestants.baselines(prompts, [name]))


def prompt_sets(
    task: TaskConfig,
    preset: str,
    shifts: Sequence[str],
    evaluators: Sequence[str],
    seed: int = 0,
    data_dir: Path | None = None,
    family: Family | None = None,
) -> list[PromptSet]:
    """Return a prompt set for each shift and for each of the family's own tests."""
    sets = [PromptSet(task, preset, shift, seed, data_dir, family) for shift in shifts]
    return sets + [PromptSet(task, preset, "none", seed, data_dir, family, evaluator=name) for name in evaluators]


def evaluate_cells(
    results: Path,
    prompts: PromptSet,
    prompt_contestants: Sequence[PredictorContestant],
    lookup: FindPackedCell | None = None,
    fresh: bool = False,
    on_start: OnStart | None = None,
) -> Iterator[CellResult]:
    """Evaluate contestants on a prompt set one after another, without recomputing finished cells."""
    for contestant in prompt_contestants:
        raise_if_ctrl_c()
        if on_start is not None:
            on_start(contestant, prompts)
        if cells.is_done(results, contestant, prompts):
            pack_name = cells.pack_name_of(results, contestant, prompts)
            if not (fresh and pack_name):
                yield CellResult(contestant, prompts, cached=True, pack_name=pack_name)
                continue
        packed_cell = lookup(contestant, prompts) if lookup is not None else None
        if packed_cell is not None:
            metadata = {"pack": packed_cell.pack_name} | {f"library.{k}": v for k, v in packed_cell.libraries.items()}
            cells.write_finished(results, contestant, prompts, packed_cell.tables, metadata)
            yield CellResult(contestant, prompts, cached=False, pack_name=packed_cell.pack_name)
            continue
        yield CellResult(contestant, prompts, cached=False, reason=evaluate_cell(results, contestant, prompts))


def summarise(results: Path, prompts: PromptSet) -> None:
    """Write the gaps, scores and examples of a prompt set, which are computed from the tables of all contestants.

    They are recomputed if another process writes tables in the meantime.
    """
    previous_files = None
    while previous_files != (current_files := _contestant_files(results, prompts)):
        previous_files = current_files
        prompt_rows = PromptSetRows(results, prompts)
        if prompts.evaluator:
            targets.write_chance(results, prompts)
        elif prompts.task.question == "targets":
            gaps.write_gaps(prompt_rows)
            examples.write_prompts(results, prompts)
        elif prompts.task.head == "event":
            gaps.write_gaps(prompt_rows)
        scores.write_scores(prompt_rows)


def _contestant_files(results: Path, prompts: PromptSet) -> set[tuple[str, int]]:
    """Return the names and modification times of the contestants' tables."""
    files = set()
    for path in (results / "tables" / prompts.id).glob("*.values.parquet"):
        with suppress(FileNotFoundError):
            files.add((path.name, path.stat().st_mtime_ns))
    return files


def write_published(results: Path, task: TaskConfig) -> None:
    """Write the published numbers of a task for all presets, as rows of the table `values`."""
    rows: list[dict[str, object]] = [
        {
            "run": f"published-{p.contestant}",
            "task": task.name,
            "family": task.family,
            "contestant": p.contestant,
            "model": p.contestant,
            "kind": "published",
            "preset": p.preset,
            "shift": p.shift,
            "distribution": p.shift,
            "evaluator": p.evaluator or task.question,
            "n_context": p.n_context,
            "n_related": p.n_related,
            "metric": p.metric,
            "value": p.value,
            "low": p.low,
            "high": p.high,
            "data": assignments(p.data) or None,
            "status": "ok",
            "reason": f"{p.source}; {p.read}",
            "card": task.card,
            **provenance(),
        }
        for p in task.published
    ]
    path = results / "tables" / "published" / f"{task.name}.values.parquet"
    if not rows:
        remove(path)
        return
    with write_errors(results):
        tables.write("values", rows, path, {})
