"""Computation of one cell, in a worker process.

This module does not import torch, since a worker must set its environment first.
"""

from __future__ import annotations

import logging
import os
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from iclbench import tables
from iclbench.core import kernels
from iclbench.core.context import Context
from iclbench.core.errors import IclbenchError, Interrupted, one_line
from iclbench.core.plugins import as_plugin_error
from iclbench.core.signals import end_with_parent
from iclbench.store.cells import record, relative_paths
from iclbench.store.outcome import Outcome
from iclbench.store.runs import DivergedError, Run, SettingsChangedError, create
from iclbench.store.state import is_intact
from iclbench.sweep.cells import GridCell
from iclbench.sweep.outlook import conflict_message

if TYPE_CHECKING:
    from iclbench.evaluation.cells import CellResult
    from iclbench.language.models.model import LanguageModel
    from iclbench.sweep.language_grids import LanguageCell

log = logging.getLogger("iclbench")


class _NotApplicableError(Exception):
    """A cell is not applicable, for a reason that is found only with the trained model."""


def set_up(threads: int, visible_gpu: str | None = None, instruction_set: str | None = None) -> None:
    """Turn this process into a worker. It must be called before torch is imported.

    A worker sees at most one GPU. It ignores Ctrl-C, which the parent handles. It ends with its parent, so that it does
    not hold the locks of runs afterwards.

    Args:
        threads: number of torch threads.
        visible_gpu: index of the only GPU that this process sees.
        instruction_set: instruction set of PyTorch's CPU kernels, as in `iclbench.core.kernels` (default: the widest
            one).
    """
    if visible_gpu is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = visible_gpu
    if instruction_set is not None:
        kernels.use(instruction_set)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    end_with_parent(os.getppid())
    share_cores(threads)


def share_cores(threads: int) -> None:
    """Limit the number of threads of this process, since other workers use the other cores. It must be called before
    torch is imported."""
    os.environ["OMP_NUM_THREADS"] = str(threads)
    os.environ["ICLBENCH_WORKERS"] = "1"
    import torch

    torch.set_num_threads(threads)


def work(cell: GridCell, context: Context) -> Outcome:
    """Compute one cell, write its row and return its outcome. A failure is returned as an outcome with a reason.

    Raises:
        Interrupted: a signal arrived during training. A checkpoint is written, but no row.
    """
    with _collect_warnings() as messages:
        outcome = _outcome(cell, context)
    outcome = replace(outcome, warnings=tuple(messages))
    record(context.results, cell, outcome, context)
    return outcome


def _outcome(cell: GridCell, context: Context) -> Outcome:
    start = time.perf_counter()
    try:
        files = _WORK_FUNCTIONS[cell.work](cell, context)
        seconds = time.perf_counter() - start
        if cell.kind == "train":
            seconds = _training_seconds(files) or seconds
        return Outcome("done", None, relative_paths(context.results, files), seconds)
    except Interrupted:
        raise
    except DivergedError as error:
        remaining = [path for path in error.failure_files if path.is_file()] if cell.kind == "train" else []
        seconds = time.perf_counter() - start
        return Outcome("diverged", error.reason, relative_paths(context.results, remaining), seconds)
    except _NotApplicableError as error:
        return Outcome("skipped", str(error))
    except _PartialFailureError as error:
        return Outcome("failed", str(error), relative_paths(context.results, error.files), time.perf_counter() - start)
    except (Exception, SystemExit) as error:
        return Outcome("failed", one_line(as_plugin_error(error)), seconds=time.perf_counter() - start)


@contextmanager
def _collect_warnings() -> Iterator[list[str]]:
    """Collect the warnings that are logged within the block."""
    messages: list[str] = []

    class Listener(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            messages.append(record.getMessage())

    listener = Listener(logging.WARNING)
    log.addHandler(listener)
    try:
        yield messages
    finally:
        log.removeHandler(listener)


def _train(cell: GridCell, context: Context) -> list[Path]:
    from iclbench.evaluation.run_training import train_with_monitor

    run = _run(cell, context)
    with run.lock(wait=True):
        if run.is_finished and (damaged_files := [path for path in run.training_files if not is_intact(path)]):
            # A file may look damaged because the file system fails temporarily. Reading it then raises an error, so
            # that the weights of an intact run are not deleted.
            for path in damaged_files:
                with suppress(FileNotFoundError):
                    path.read_bytes()
            run.weights.unlink(missing_ok=True)
    # If another sweep is training the run, wait until it has finished.
    train_with_monitor(run, context, wait=True)
    return run.training_files


def _training_seconds(files: Iterable[Path]) -> float | None:
    """Return the seconds of a run's training, including the time before interruptions."""
    costs = tables.read("costs", next(path for path in files if path.name == "costs.parquet"))
    rows = costs[costs["phase"].eq("train") & costs["metric"].eq("seconds")]
    return float(rows["value"].iloc[0]) if len(rows) else None


def _evaluate(cell: GridCell, context: Context) -> list[Path]:
    from iclbench.evaluation.evaluate import evaluate_baseline, evaluate_run

    if cell.is_summary:
        return _summarise(cell, context)
    shifts, tests, seed = (cell.options[key] for key in ("shifts", "evaluators", "seed"))
    if cell.baseline is not None:
        results = evaluate_baseline(context, cell.task_config, cell.preset, cell.baseline, shifts, tests, seed=seed)
    else:
        results = evaluate_run(
            context,
            _run(cell, context),
            shifts,
            tests,
            seed=seed,
            baseline_names=[],
            loops=cell.options.get("loops", ()),
            summaries=False,
        )
    return _files(context.results, results)


def _summarise(cell: GridCell, context: Context) -> list[Path]:
    from iclbench.evaluation.evaluate import prompt_sets, summarise, write_published

    task = cell.task_config
    family = task.build_held_out(context.data_dir)
    write_published(context.results, task)
    files = sorted((context.results / "tables" / "published").glob(f"{task.name}.values.parquet"))
    pending_sets = prompt_sets(
        task,
        cell.preset,
        cell.options["shifts"],
        cell.options["evaluators"],
        cell.options["seed"],
        context.data_dir,
        family,
    )
    while pending_sets:  # each prompt set is released after its summary
        prompts = pending_sets.pop(0)
        summarise(context.results, prompts)
        folder = context.results / "tables" / prompts.id
        files += [*sorted((folder / "summary").glob("*.parquet")), *folder.glob("prompts.*.parquet")]
    return files


def _probe(cell: GridCell, context: Context) -> list[Path]:
    from iclbench.probing.cells import NotProbedError
    from iclbench.probing.probe import probe
    from iclbench.probing.rank import probe_rank
    from iclbench.probing.representation import probe_representation

    run, contexts = _run(cell, context), cell.options["contexts"] or None
    kinds: dict[str, Callable[[], Iterator[CellResult]]] = {
        "layers": lambda: probe(context, run, contexts),
        "rank": lambda: probe_rank(context, run, contexts),
        "representation": lambda: probe_representation(context, run),
    }
    try:
        return _files(context.results, kinds[cell.options["probe"]]())
    except NotProbedError as error:
        raise _NotApplicableError(str(error)) from error


def _cost(cell: GridCell, context: Context) -> list[Path]:
    from iclbench.evaluation.contestants import untrained
    from iclbench.evaluation.costs.costs import CostSizes, measure_costs

    assert cell.config is not None
    contestant = untrained(cell.run, cell.config, context.device, context.data_dir)
    path, warnings, _ = measure_costs(
        context,
        contestant,
        cell.task_config,
        cell.preset,
        CostSizes(cell.options["points"]),
        train=cell.config.train,
    )
    for line in warnings:
        log.warning(line)
    return [path]


# The last language model that this worker loaded, or the error that loading raised, by the arguments of loading.
_LAST_MODEL: dict[tuple[str, str, str], LanguageModel | IclbenchError] = {}


def _language_model(name: str, dtype: str, device: str) -> LanguageModel:
    """Return a language model. A worker loads a model once for several tasks, and removes it before the next model.

    If loading fails, it is not tried again for the next task, since without a network the hub's library tries for
    minutes. If the memory was too small, loading is tried again.
    """
    from iclbench.language.models.loading import DoesNotFitError
    from iclbench.language.models.model import load

    key = (name, dtype, device)
    if key not in _LAST_MODEL:
        _LAST_MODEL.clear()
        try:
            _LAST_MODEL[key] = load(name, dtype=dtype, device=device)
        except DoesNotFitError:
            raise
        except IclbenchError as error:
            _LAST_MODEL[key] = error
    model = _LAST_MODEL[key]
    if isinstance(model, IclbenchError):
        raise model.with_traceback(None)
    return model


def _language(cell: LanguageCell, context: Context) -> list[Path]:
    from iclbench.deep_thinking.methods import parse_method
    from iclbench.language.evaluate import evaluate_model
    from iclbench.language.summary import summary_path

    options = dict(cell.options)
    model = _language_model(options.pop("model"), options.pop("dtype"), context.device)
    results: list[CellResult] = []
    for method in [parse_method(*each) for each in options.pop("methods")]:
        results += evaluate_model(context, model, [cell.task_config], method, **options)
    means = sorted({summary_path(context.results, each.contestant.run, each.prompts) for each in results})
    return list(dict.fromkeys([*_files(context.results, results), *filter(Path.is_file, means)]))


_WORK_FUNCTIONS: dict[str, Callable[[Any, Context], list[Path]]] = {
    "train": _train,
    "evaluate": _evaluate,
    "probe": _probe,
    "cost": _cost,
    "language": _language,
}


def _run(cell: GridCell, context: Context) -> Run:
    """Return the run of a cell, and create its folder if it does not exist.

    Raises:
        IclbenchError: the folder holds a run that was trained with different settings, which only the user may remove.
    """
    assert cell.config is not None
    try:
        return create(context.results, cell.config, cell.run, context.data_dir, wait=True)
    except SettingsChangedError as error:
        raise IclbenchError(conflict_message(error), code=error.code) from error


class _PartialFailureError(IclbenchError):
    """Some rows of an evaluation failed.

    Attributes:
        files: all tables of the evaluation.
    """

    def __init__(self, message: str, files: list[Path]) -> None:
        super().__init__(message)
        self.files = files


def _files(results: Path, cell_results: Iterable[CellResult]) -> list[Path]:
    """Return the paths of the tables of these evaluation cells.

    Raises:
        _PartialFailureError: some cells failed. The error has the first reason and the tables of all cells.
    """
    from iclbench.evaluation.cells import cell_path

    files, failures = [], []
    for result in cell_results:
        if result.reason:
            failures.append(f"{result.prompts.evaluation}: {result.reason}")
        values = cell_path(results, result.contestant, result.prompts)
        other_tables = str(tables.metadata(values).get("other_tables", "")).split()
        files += [values, *(cell_path(results, result.contestant, result.prompts, name) for name in other_tables)]
    if failures:
        more = f" (and {len(failures) - 1} more)" if len(failures) > 1 else ""
        raise _PartialFailureError(failures[0] + more, files)
    return files
