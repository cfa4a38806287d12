"""The work of one cell, in a process of its own.

Nothing heavy is imported with this module: a worker sets its environment first, and only then comes torch.
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
from iclbench.core.plugins import blamed
from iclbench.core.signals import end_with_parent
from iclbench.store.cells import paths, record
from iclbench.store.outcome import Outcome
from iclbench.store.runs import DivergedError, Run, TrainedOtherwiseError, create
from iclbench.store.state import is_intact
from iclbench.sweep.cells import GridCell
from iclbench.sweep.outlook import in_the_way

if TYPE_CHECKING:
    from iclbench.evaluation.cells import CellResult
    from iclbench.language.models.model import LanguageModel
    from iclbench.sweep.language_grids import LanguageCell

log = logging.getLogger("iclbench")


class _Skipped(Exception):  # noqa: N818
    """The cell makes no sense for this run, which shows only once it is there."""


def set_up(threads: int, visible_gpu: str | None = None, instruction_set: str | None = None) -> None:
    """Make this process a worker, before anything heavy is imported.

    It sees one GPU if any, ignores Ctrl-C, which is the parent's to answer, and ends when its parent does, so that
    nobody is left holding the locks of runs.

    Args:
        threads: torch threads.
        visible_gpu: index of the only GPU that this process is to see.
        instruction_set: of PyTorch's CPU kernels, as in `kernels`; None: the widest that there is.
    """
    if visible_gpu is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = visible_gpu
    if instruction_set is not None:
        kernels.use(instruction_set)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    end_with_parent(os.getppid())
    share_cores(threads)


def share_cores(threads: int) -> None:
    """Compute with so many threads, of a machine whose cores are shared out already; before torch is imported."""
    os.environ["OMP_NUM_THREADS"] = str(threads)
    os.environ["ICLBENCH_WORKERS"] = "1"
    import torch

    torch.set_num_threads(threads)


def work(cell: GridCell, context: Context) -> Outcome:
    """Do one cell and leave its row; what fails is an outcome with a reason.

    Raises:
        Interrupted: a signal came while training; a checkpoint was written, and the cell has no row.
    """
    with _warnings() as messages:
        outcome = _outcome(cell, context)
    outcome = replace(outcome, warnings=tuple(messages))
    record(context.results, cell, outcome, context)
    return outcome


def _outcome(cell: GridCell, context: Context) -> Outcome:
    started = time.perf_counter()
    try:
        files = _WORK[cell.work](cell, context)
        seconds = time.perf_counter() - started
        if cell.kind == "train":
            seconds = _training_seconds(files) or seconds
        return Outcome("done", None, paths(context.results, files), seconds)
    except Interrupted:
        raise
    except DivergedError as error:
        left = [path for path in error.left if path.is_file()] if cell.kind == "train" else []
        seconds = time.perf_counter() - started
        return Outcome("diverged", error.reason, paths(context.results, left), seconds)
    except _Skipped as error:
        return Outcome("skipped", str(error))
    except _FailedInPartError as error:
        return Outcome("failed", str(error), paths(context.results, error.left), time.perf_counter() - started)
    except (Exception, SystemExit) as error:
        return Outcome("failed", one_line(blamed(error)), seconds=time.perf_counter() - started)


@contextmanager
def _warnings() -> Iterator[list[str]]:
    """The warnings that are logged in the block."""
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
    from iclbench.evaluation.monitor import Monitor
    from iclbench.training.run import train

    run = _run(cell, context)
    with run.lock(wait=True):
        if run.finished and (broken := [path for path in run.written if not is_intact(path)]):
            # Something that training alone makes is gone or cut short, unless the file system does not give it now.
            for path in broken:
                with suppress(FileNotFoundError):
                    path.read_bytes()
            run.weights.unlink(missing_ok=True)
    # Another sweep may train it, which is as good as doing it here.
    train(run, context, monitor=Monitor, wait=True)
    return run.written


def _training_seconds(files: Iterable[Path]) -> float | None:
    """How long a run was trained, by all processes that took part."""
    costs = tables.read("costs", next(path for path in files if path.name == "costs.parquet"))
    rows = costs[costs["phase"].eq("train") & costs["metric"].eq("seconds")]
    return float(rows["value"].iloc[0]) if len(rows) else None


def _evaluate(cell: GridCell, context: Context) -> list[Path]:
    from iclbench.evaluation.evaluate import evaluate_baseline, evaluate_run

    if cell.is_summary:
        return _summarise(cell, context)
    shifts, tests, seed = (cell.asked[key] for key in ("shifts", "evaluators", "seed"))
    if cell.baseline is not None:
        found = evaluate_baseline(context, cell.frozen, cell.preset, cell.baseline, shifts, tests, seed=seed)
    else:
        found = evaluate_run(context, _run(cell, context), shifts, tests, seed=seed, baseline_names=[], summaries=False)
    return _files(context.results, found)


def _summarise(cell: GridCell, context: Context) -> list[Path]:
    from iclbench.evaluation.evaluate import prompt_sets, summarise, write_published

    task = cell.frozen
    family = task.build_held_out(context.data_dir)
    write_published(context.results, task)
    files = sorted((context.results / "tables" / "published").glob(f"{task.name}.values.parquet"))
    asked = prompt_sets(
        task, cell.preset, cell.asked["shifts"], cell.asked["evaluators"], cell.asked["seed"], context.data_dir, family
    )
    while asked:
        prompts = asked.pop(0)
        summarise(context.results, prompts)
        folder = context.results / "tables" / prompts.id
        files += [*sorted((folder / "summary").glob("*.parquet")), *folder.glob("prompts.*.parquet")]
    return files


def _probe(cell: GridCell, context: Context) -> list[Path]:
    from iclbench.probing.probe import NotProbedError, probe
    from iclbench.probing.rank import probe_rank
    from iclbench.probing.representation import probe_representation

    run, contexts = _run(cell, context), cell.asked["contexts"] or None
    kinds: dict[str, Callable[[], Iterator[CellResult]]] = {
        "layers": lambda: probe(context, run, contexts),
        "rank": lambda: probe_rank(context, run, contexts),
        "representation": lambda: probe_representation(context, run),
    }
    try:
        return _files(context.results, kinds[cell.asked["probe"]]())
    except NotProbedError as error:
        raise _Skipped(str(error)) from error


def _cost(cell: GridCell, context: Context) -> list[Path]:
    from iclbench.evaluation.contestants import untrained
    from iclbench.evaluation.costs.costs import Sizes, measure_costs

    assert cell.config is not None
    contestant = untrained(cell.run, cell.config, context.device, context.data_dir)
    path, left_out, _ = measure_costs(
        context,
        contestant,
        cell.frozen,
        cell.preset,
        Sizes(cell.asked["points"]),
        train=cell.config.train,
    )
    for line in left_out:
        log.warning(line)
    return [path]


# The last language model of this worker, or why it cannot be had, by what it was asked for.
_LAST_MODEL: dict[tuple[str, str, str], LanguageModel | IclbenchError] = {}


def _language_model(name: str, dtype: str, device: str) -> LanguageModel:
    """Read once by a worker, however many tasks in a row it answers, and let go of before the next is read. What cannot
    be had is not asked for again either, since the hub's library tries for minutes where there is no network; memory
    that was too small may be there the next time."""
    from iclbench.language.models.loading import DoesNotFitError
    from iclbench.language.models.model import load

    asked = (name, dtype, device)
    if asked not in _LAST_MODEL:
        _LAST_MODEL.clear()
        try:
            _LAST_MODEL[asked] = load(name, dtype=dtype, device=device)
        except DoesNotFitError:
            raise
        except IclbenchError as error:
            _LAST_MODEL[asked] = error
    model = _LAST_MODEL[asked]
    if isinstance(model, IclbenchError):
        raise model.with_traceback(None)
    return model


def _language(cell: LanguageCell, context: Context) -> list[Path]:
    from iclbench.deep_thinking.methods import method_as_typed
    from iclbench.language.evaluate import evaluate_model
    from iclbench.language.summary import summary_path

    asked = dict(cell.asked)
    model = _language_model(asked.pop("model"), asked.pop("dtype"), context.device)
    found: list[CellResult] = []
    for method in [method_as_typed(*each) for each in asked.pop("methods")]:
        found += evaluate_model(context, model, [cell.frozen], method, **asked)
    means = sorted({summary_path(context.results, each.contestant.run, each.prompts) for each in found})
    return list(dict.fromkeys([*_files(context.results, found), *filter(Path.is_file, means)]))


_WORK: dict[str, Callable[[Any, Context], list[Path]]] = {
    "train": _train,
    "evaluate": _evaluate,
    "probe": _probe,
    "cost": _cost,
    "language": _language,
}


def _run(cell: GridCell, context: Context) -> Run:
    """The folder of the cell's run.

    Raises:
        IclbenchError: it holds a run that was trained under other settings, which is nobody's but the user's to remove.
    """
    assert cell.config is not None
    try:
        return create(context.results, cell.config, cell.run, context.data_dir, wait=True)
    except TrainedOtherwiseError as error:
        raise IclbenchError(in_the_way(error)) from error


class _FailedInPartError(IclbenchError):
    """An evaluation has failed rows; `left` are the files that hold them, and the others."""

    def __init__(self, message: str, left: list[Path]) -> None:
        super().__init__(message)
        self.left = left


def _files(results: Path, found: Iterable[CellResult]) -> list[Path]:
    """The tables of these evaluation cells, once all are there.

    Raises:
        _FailedInPartError: some failed, with the reason of the first, and what all of them left.
    """
    from iclbench.evaluation.cells import cell_path

    files, failed = [], []
    for each in found:
        if each.reason:
            failed.append(f"{each.prompts.evaluation}: {each.reason}")
        values = cell_path(results, each.contestant, each.prompts)
        beside = str(tables.metadata(values).get("beside", "")).split()
        files += [values, *(cell_path(results, each.contestant, each.prompts, name) for name in beside)]
    if failed:
        more = f" (and {len(failed) - 1} more)" if len(failed) > 1 else ""
        raise _FailedInPartError(failed[0] + more, files)
    return files
