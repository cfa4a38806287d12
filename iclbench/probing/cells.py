"""Code that all probes share: the error for runs that cannot be probed, cached cells, the untrained model, and rows of
means with intervals."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from iclbench.core.errors import UsageError
from iclbench.core.memory import PROBE_REMEDY, memory_advice
from iclbench.evaluation import cells
from iclbench.evaluation.bootstrap import summaries
from iclbench.evaluation.cells import CellResult, Rows, Tables
from iclbench.evaluation.contestants import PredictorContestant
from iclbench.evaluation.prompts import PromptSet
from iclbench.store import identity
from iclbench.store.runs import Run

# Value of the column `evaluator` in the rows of layers and of the methods that they are compared with.
LAYER_EVALUATOR = "probe"


class NotProbedError(UsageError):
    """The probe is not applicable to the run."""

    code = "not-applicable"


def cached_cell(
    results: Path,
    contestant: PredictorContestant,
    prompts: PromptSet,
    shared: dict[str, object],
    work: Callable[[], Tables],
) -> CellResult:
    """Return the cached cell, or compute it with `work`.

    The cell is skipped if the contestant does not support this number of examples. `shared` has the columns that are
    the same in all rows, as in `cells.compute_cell`.
    """
    cached = cells.is_done(results, contestant, prompts)
    if reason := contestant.predictor.too_long(prompts.context_points):
        work = partial(cells.skipped_tables, prompts, shared, reason)
    reason = (
        None if cached else cells.compute_cell(results, contestant, prompts, shared, memory_advice(PROBE_REMEDY)(work))
    )
    return CellResult(contestant, prompts, cached, reason)


def untrained_control(run: Run, model: PredictorContestant, data_dir: Path | None) -> PredictorContestant:
    """Return the untrained model with which a run starts, as a baseline in the probes of the trained `model`. Both are
    on the same device."""
    predictor = run.config.build(run.config.task.build(data_dir)).eval().to(model.device)
    return PredictorContestant(
        f"{model.name}-untrained",
        f"{run.name}-untrained",
        "baseline",
        identity.untrained_id(run.hash),
        libraries=model.libraries,
        device=model.device,
        predictor=predictor,
    )


def rows_along_axis(
    shared: dict[str, object], axis: Sequence[float], scores: Float[Tensor, "B axis"], seed: int
) -> Rows:
    """Return a row for each value of the axis, with the mean over tasks and its interval."""
    return mean_rows(shared, [{"axis_value": axis_value} for axis_value in axis], scores, seed)


def mean_rows(
    shared: dict[str, object], axis_columns: Sequence[dict[str, object]], scores: Float[Tensor, "B axis"], seed: int
) -> Rows:
    """Return a row for each column of `scores`, with the mean over tasks and its interval. The row is a failed row if
    the score of a task is not finite."""
    scores64 = scores.to(torch.float64).numpy()
    nonfinite = (~np.isfinite(scores64)).sum(0)
    return [
        shared
        | columns
        | ({"status": "failed", "reason": _nonfinite_reason(int(count), len(scores64))} if count else summary)
        for columns, count, summary in zip(axis_columns, nonfinite, summaries(scores64, seed), strict=True)
    ]


def _nonfinite_reason(count: int, tasks: int) -> str:
    return f"the answer is not finite in {count} of {tasks} tasks"
