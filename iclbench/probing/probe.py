"""Probing of runs. The layers of the model, gradient descent, baselines and oracles are compared on the same queries.
If the run reads a stream, hidden states are probed instead (`hidden_states`).

Rows of `values` have evaluator `probe` and `n_context` k. They have intervals over tasks.

- Rows with axis `layer` have the metrics squared_error (after a scale and a shift of the layer's predictions are
  fitted), squared_error_raw (without them), scale, shift, and the standard deviations of scale and shift over tasks.
- Rows with axis `gd_step` have the metric squared_error.
- Rows of baselines and oracles have the metric squared_error and no axis.
- Rows with evaluator `gamma_search` contain the search for the gamma of GD++: squared_error along axis `gamma`, and the
  best value (metric gamma).

Errors of single tasks are not stored, because the table `errors` has no column for the layer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

from iclbench.backbones.base import Backbone
from iclbench.config.resolution import family_class
from iclbench.core.context import Context
from iclbench.evaluation import cells, contestants
from iclbench.evaluation.cells import CellResult, Rows, Tables
from iclbench.evaluation.contestants import PredictorContestant
from iclbench.probing.cells import LAYER_EVALUATOR, NotProbedError, cached_cell, mean_rows, rows_along_axis
from iclbench.probing.descent import DESCENTS, STEPS, Descent, step_errors, tune_gamma
from iclbench.probing.hidden_states import probe_hidden_states
from iclbench.probing.layers import decode_layers, probe_layers
from iclbench.probing.probe_set import ProbeSet
from iclbench.store.runs import Run

SEARCH_EVALUATOR = "gamma_search"


def probe(
    context: Context,
    run: Run,
    contexts: Sequence[int] | None = None,
    *,
    fit: int | None = None,
    test: int | None = None,
    tasks: int | None = None,
    shift: str = "none",
    seed: int = 0,
) -> Iterator[CellResult]:
    """Probe a run at each context size and yield each finished cell.

    Args:
        context: results folder, data sets, and device of the backbone.
        run: a finished run.
        contexts: numbers of examples in context (default: the number in training).
        fit: number of queries on which the scale and shift of each layer's predictions are fitted (default: 10). For
            streams, it is the number of episodes on which linear probes are fitted (default: 4,096).
        test: number of scored queries (default: 40). For streams, it is the number of scored episodes (default: 1,024).
        tasks: number of episodes (default: 128). It cannot be set for streams.
        shift: the shift of the distribution.
        seed: seed of the probe set.

    Raises:
        NotProbedError: the backbone has no `predict_by_layer`, or the run predicts class labels or events. If the run
            reads a stream: the backbone has no `hidden_by_layer`, or `tasks` is given.
        UsageError: the run is not finished.
    """
    model = contestants.backbone(run, context.device, context.data_dir)
    shift = run.config.task.shift_name(shift)
    sizes = list(dict.fromkeys(contexts or [run.config.task.points]))
    numbers: dict[str, Any] = {
        name: n for name, n in {"fit": fit, "test": test, "tasks": tasks}.items() if n is not None
    }
    if family_class(run.config.task.family).is_stream:
        if tasks is not None:
            raise NotProbedError(
                f"run '{run.name}' reads a stream; set the numbers of episodes with --fit and --test instead of --tasks"
            )
        yield from probe_hidden_states(context, run, model, sizes, shift=shift, seed=seed, **numbers)
        return
    if not (isinstance(model.predictor, Backbone) and model.predictor.has_layers):
        raise NotProbedError(
            f"run '{run.name}' has no layers to probe: its backbone '{model.name}' does not define predict_by_layer"
        )
    if run.config.task.head in ("categorical", "event"):
        predicted = "class labels" if run.config.task.head == "categorical" else "events"
        raise NotProbedError(f"run '{run.name}' predicts {predicted}; the probe needs a regression task")
    for size in sizes:
        prompts = ProbeSet(
            task=run.config.task,
            preset=run.config.preset,
            shift=shift,
            seed=seed,
            data_dir=context.data_dir,
            context=size,
            **numbers,
        )
        for contestant, work in _cells(model, prompts):
            yield cached_cell(context.results, contestant, prompts, _shared_columns(contestant, prompts), work)


def reference_names(prompts: ProbeSet) -> list[str]:
    """Return the names of the baselines and oracles that are plotted together with the layers."""
    exact = ["least-squares"] if prompts.family.linear_in_x else []
    return list(dict.fromkeys(["zero", *exact, *prompts.task.oracles]))


def _cells(model: PredictorContestant, prompts: ProbeSet) -> Iterator[tuple[PredictorContestant, Callable[[], Tables]]]:
    """Yield the contestants on this probe set, each with the function that computes its cell."""
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
    shared = _shared_columns(model, prompts) | {"axis": "layer"}
    rows: Rows = []
    for metric, scores in (("squared_error", probe.error), ("squared_error_raw", probe.raw_error)):
        rows += rows_along_axis(shared | {"metric": metric, "normaliser": normaliser}, layers, scores, prompts.seed)
    for metric, numbers in (("scale", probe.scale), ("shift", probe.shift)):
        unnormalised = shared | {"normaliser": 1.0}
        rows += rows_along_axis(unnormalised | {"metric": metric}, layers, numbers, prompts.seed)
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
    shared = _shared_columns(reference, prompts) | {"metric": "squared_error", "normaliser": normaliser}
    return {"values": mean_rows(shared, [{}], (errors / normaliser).unsqueeze(1), prompts.seed)}


def _descent_tables(descent: Descent, prompts: ProbeSet) -> Tables:
    normaliser = prompts.family.normaliser
    shared = _shared_columns(descent.contestant, prompts) | {"normaliser": normaliser, "metric": "squared_error"}
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
    rows += rows_along_axis(
        shared | {"axis": "gd_step"}, [float(step) for step in range(1, STEPS + 1)], errors, prompts.seed
    )
    return {"values": rows}


def _shared_columns(contestant: PredictorContestant, prompts: ProbeSet) -> dict[str, object]:
    return cells.shared_columns(contestant, prompts, LAYER_EVALUATOR) | {"n_context": prompts.context}
