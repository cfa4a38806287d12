"""Probing of runs: the layers of the model, gradient descent and reference levels on the same queries.

Rows of `values` have evaluator `probe` and `n_context` k. Axis `layer` has squared_error after scale and shift,
squared_error_raw before them, scale, shift, and the standard deviations of scale and shift over tasks. Axis `gd_step`
has squared_error. Reference levels have squared_error and no axis. Evaluator `gamma_search` has the search for the
gamma of GD++: squared_error along axis `gamma`, and the best value (metric gamma). Intervals are over tasks. Errors per
task are not stored, because the table `errors` has no column for the layer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from iclbench.backbones.base import Backbone
from iclbench.core.context import Context
from iclbench.core.errors import UsageError
from iclbench.core.memory import PROBE_REMEDY, memory_advice
from iclbench.evaluation import cells, contestants
from iclbench.evaluation.bootstrap import summaries
from iclbench.evaluation.cells import CellResult, Rows, Tables
from iclbench.evaluation.contestants import PredictorContestant
from iclbench.evaluation.prompts import PromptSet
from iclbench.probing.descent import DESCENTS, STEPS, Descent, step_errors, tune_gamma
from iclbench.probing.layers import decode_layers, probe_layers
from iclbench.probing.probe_set import ProbeSet
from iclbench.store.runs import Run

EVALUATOR, SEARCH_EVALUATOR = "probe", "gamma_search"


class NotProbedError(UsageError):
    """The probe does not apply to a run."""

    code = "not-applicable"


def probe(
    context: Context,
    run: Run,
    contexts: Sequence[int] | None = None,
    *,
    fit: int = 10,
    test: int = 40,
    tasks: int = 128,
    shift: str = "none",
    seed: int = 0,
) -> Iterator[CellResult]:
    """Probe a run at each context size and yield each finished cell.

    Args:
        context: results folder, data sets, and device of the backbone.
        run: a finished run.
        contexts: numbers of examples in context (default: the number in training).
        fit: number of queries on which scale and shift are fitted.
        test: number of scored queries.
        tasks: number of episodes.
        shift: the shift of the distribution.
        seed: seed of the probe set.

    Raises:
        NotProbedError: the backbone has no `predict_by_layer`, predicts class labels or events, or reads a stream.
        UsageError: the run is not finished.
    """
    model = contestants.backbone(run, context.device, context.data_dir)
    if not (isinstance(model.predictor, Backbone) and model.predictor.has_layers):
        raise NotProbedError(
            f"run '{run.name}' has no layers to probe: its backbone '{model.name}' does not define predict_by_layer"
        )
    if run.config.task.head in ("categorical", "event"):
        predicted = "class labels" if run.config.task.head == "categorical" else "events"
        raise NotProbedError(f"run '{run.name}' predicts {predicted}; the probe needs a regression task")
    if not model.predictor.shape.x_dim:
        raise NotProbedError(f"run '{run.name}' reads a stream, whose queries have no inputs; probe another run")
    shift = run.config.task.shift_name(shift)
    sizes = list(dict.fromkeys(contexts or [run.config.task.points]))
    for size in sizes:
        prompts = ProbeSet(
            run.config.task,
            run.config.preset,
            shift,
            seed,
            context.data_dir,
            context=size,
            fit=fit,
            test=test,
            tasks=tasks,
        )
        for contestant, work in _cells(model, prompts):
            yield cached_cell(context.results, contestant, prompts, _row(contestant, prompts), work)


def cached_cell(
    results: Path,
    contestant: PredictorContestant,
    prompts: PromptSet,
    shared: dict[str, object],
    work: Callable[[], Tables],
) -> CellResult:
    """The cached cell, or the cell that `work` computes. It is skipped if the contestant does not support this number
    of examples. `shared` has the columns that are the same in all rows, as in `cells.compute_cell`."""
    cached = cells.is_done(results, contestant, prompts)
    if reason := contestant.predictor.too_long(prompts.context_points):
        work = partial(cells.skipped_tables, prompts, shared, reason)
    reason = (
        None if cached else cells.compute_cell(results, contestant, prompts, shared, memory_advice(PROBE_REMEDY)(work))
    )
    return CellResult(contestant, prompts, cached, reason)


def reference_names(prompts: ProbeSet) -> list[str]:
    """The names of the baselines and oracles whose levels are plotted together with the layers."""
    exact = ["least-squares"] if prompts.family.linear_in_x else []
    return list(dict.fromkeys(["zero", *exact, *prompts.task.oracles]))


def _cells(model: PredictorContestant, prompts: ProbeSet) -> Iterator[tuple[PredictorContestant, Callable[[], Tables]]]:
    """The contestants on this probe set, each with the function that computes its cell."""
    yield model, partial(_layer_tables, model, prompts)
    for reference in contestants.baselines(prompts, reference_names(prompts)):
        yield reference, partial(_level_tables, reference, prompts)
    if prompts.family.linear_in_x:
        for descent in DESCENTS:
            yield descent.contestant, partial(_descent_tables, descent, prompts)


def _layer_tables(model: PredictorContestant, prompts: ProbeSet) -> Tables:
    assert isinstance(model.predictor, Backbone)
    decoded = decode_layers(model.predictor, prompts, model.device)
    normaliser = prompts.family.normaliser
    probe = probe_layers(decoded, prompts.episodes.queries.y.double(), prompts.fit, normaliser)
    layers = [float(layer) for layer in range(1, len(decoded) + 1)]
    shared = _row(model, prompts) | {"axis": "layer"}
    rows: Rows = []
    for metric, scores in (("squared_error", probe.error), ("squared_error_raw", probe.raw_error)):
        rows += _rows_along_axis(shared | {"metric": metric, "normaliser": normaliser}, layers, scores, prompts.seed)
    for metric, numbers in (("scale", probe.scale), ("shift", probe.shift)):
        unnormalised = shared | {"normaliser": 1.0}
        rows += _rows_along_axis(unnormalised | {"metric": metric}, layers, numbers, prompts.seed)
        rows += [
            unnormalised
            | {"metric": f"{metric}_std", "axis_value": layer, "value": float(column.std()), "n_episodes": len(column)}
            for layer, column in zip(layers, numbers.T, strict=True)
            if len(column) > 1 and column.isfinite().all()
        ]
    return {"values": rows}


def _level_tables(reference: PredictorContestant, prompts: ProbeSet) -> Tables:
    episodes, predictor = prompts.episodes, reference.predictor
    answer = predictor.informed(episodes.truth).ask(episodes, "targets")
    errors = (answer.point() - episodes.queries.y)[:, prompts.fit :].double().square().sum(-1).mean(-1)
    normaliser = prompts.family.normaliser
    shared = _row(reference, prompts) | {"metric": "squared_error", "normaliser": normaliser}
    return {"values": _mean_rows(shared, [{}], (errors / normaliser).unsqueeze(1), prompts.seed)}


def _descent_tables(descent: Descent, prompts: ProbeSet) -> Tables:
    normaliser = prompts.family.normaliser
    shared = _row(descent.contestant, prompts) | {"normaliser": normaliser, "metric": "squared_error"}
    rows: Rows = []
    gamma = 0.0
    if descent.step_size is not None:
        search = tune_gamma(prompts, descent.step_size)
        gamma = search.best
        candidates = zip(search.grid.tolist(), search.errors.tolist(), strict=True)
        search_columns = shared | {"evaluator": SEARCH_EVALUATOR, "n_episodes": prompts.tasks}
        rows += [
            search_columns | {"axis": "gamma", "axis_value": g, "value": e} for g, e in candidates if np.isfinite(e)
        ]
        reason = (
            f"the best of {len(search.grid)} from {search.grid[0]:.0e} to {search.grid[-1]:.0e} after {STEPS} steps on "
            f"{prompts.tasks} tasks of an independent draw"
        )
        rows.append(search_columns | {"metric": "gamma", "normaliser": 1.0, "value": gamma, "reason": reason})
    errors = step_errors(prompts, gamma, descent.step_size or "raw")
    rows += _rows_along_axis(
        shared | {"axis": "gd_step"}, [float(step) for step in range(1, STEPS + 1)], errors, prompts.seed
    )
    return {"values": rows}


def _row(contestant: PredictorContestant, prompts: ProbeSet) -> dict[str, object]:
    return cells.shared_columns(contestant, prompts, EVALUATOR) | {"n_context": prompts.context}


def _rows_along_axis(
    shared: dict[str, object], axis: Sequence[float], scores: Float[Tensor, "B axis"], seed: int
) -> Rows:
    """Mean over tasks, with interval, at each value of the axis."""
    return _mean_rows(shared, [{"axis_value": axis_value} for axis_value in axis], scores, seed)


def _mean_rows(
    shared: dict[str, object], axis_columns: Sequence[dict[str, object]], scores: Float[Tensor, "B axis"], seed: int
) -> Rows:
    """Mean over tasks, with interval, of each column; a failed row if the score of a task is not finite."""
    scores64 = scores.to(torch.float64).numpy()
    nonfinite = (~np.isfinite(scores64)).sum(0)
    return [
        shared
        | columns
        | ({"status": "failed", "reason": _nonfinite_reason(int(count), len(scores64))} if count else summary)
        for columns, count, summary in zip(axis_columns, nonfinite, summaries(scores64, seed), strict=True)
    ]


def _nonfinite_reason(bad: int, tasks: int) -> str:
    return f"the answer is not finite in {bad} of {tasks} tasks"
