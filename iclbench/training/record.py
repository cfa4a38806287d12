"""Files that are written at the end of training: the learning curve, the costs and the weights of a finished run, or
the record of a divergence."""

from __future__ import annotations

import json
from collections.abc import Mapping

from torch import Tensor

from iclbench import __version__, tables
from iclbench.backbones.base import Backbone
from iclbench.core import devices
from iclbench.core.errors import IclbenchError
from iclbench.core.files import save_tensors, write_text
from iclbench.core.version import provenance
from iclbench.families.base import Family
from iclbench.store import identity
from iclbench.store.runs import DivergedError, Run
from iclbench.training.fit import Progress

Rows = list[dict[str, object]]


def finish(run: Run, device: str, threads: int, backbone: Backbone, family: Family, progress: Progress) -> None:
    """Write the learning curve and the costs, and finally the weights, which mark the run as finished.

    The costs include the costs of all branches.

    Raises:
        IclbenchError: the weights of a branch are missing.
    """
    config = run.config
    for steps in config.train.branch_steps:
        if not run.has_branch(steps):
            raise IclbenchError(
                f"run '{run.name}': the weights of its branch of {steps} steps are missing ({run.branch(steps)}); run "
                "the same command again to train it",
                code="missing-file",
            )
    shared, normaliser = _shared_columns(run), _normaliser(run, family)
    score_rows = [shared | {"normaliser": 1.0} | row for row in progress.scored]
    tables.write(
        "values", _curve(run, normaliser, progress) + score_rows, run.path / "values.parquet", {"config": run.hash}
    )
    cost_columns = _identifying_columns(run) | {
        "device": devices.device_label(device),
        "threads": threads,
        "version": __version__,
    }
    costs = [
        cost_columns | {"phase": "model", "metric": "parameters", "value": float(backbone.parameter_count)},
        cost_columns | {"phase": "train", "metric": "steps", "value": float(config.train.total_steps)},
        cost_columns | {"phase": "train", "metric": "seconds", "value": progress.seconds},
        cost_columns
        | {"phase": "train_step", "metric": "seconds", "value": progress.seconds / config.train.total_steps},
    ]
    if encoder_parameters := backbone.encoder_parameter_count:
        costs.append(
            cost_columns | {"phase": "model", "metric": "encoder_parameters", "value": float(encoder_parameters)}
        )
    if progress.bytes:
        costs.append(cost_columns | {"phase": "train", "metric": "bytes", "value": float(progress.bytes)})
    tables.write("costs", costs, run.path / "costs.parquet", {"config": run.hash})
    save_tensors(run.weights, backbone.state_dict(), run.signature, digest=True)


def write_branch(run: Run, steps: int, weights: Mapping[str, Tensor]) -> None:
    """Write the weights of the branch that ends after `steps` steps."""
    save_tensors(run.branch(steps), weights, run.branch_signature(steps), digest=True)


def write_divergence(run: Run, family: Family, progress: Progress, error: DivergedError) -> None:
    """Write the learning curve up to the divergence, with a failed row at its end, and finally the record of the
    divergence."""
    normaliser = _normaliser(run, family)
    failed_row = _shared_columns(run) | {
        "evaluator": "train",
        "axis": "train_step",
        "axis_value": float(error.step),
        "metric": "loss",
        "status": "failed",
        "reason": error.reason,
    }
    curve = [row for row in _curve(run, normaliser, progress) if row["axis_value"] != failed_row["axis_value"]]
    score_rows = [_shared_columns(run) | {"normaliser": 1.0} | row for row in progress.scored]
    tables.write("values", [*curve, *score_rows, failed_row], run.path / "values.parquet", {"config": run.hash})
    record = {"config": run.hash, "step": error.step, "what": error.problem}
    write_text(run.path / run.DIVERGED, json.dumps(record, indent=2) + "\n")


def _identifying_columns(run: Run) -> dict[str, object]:
    """Return the columns that identify a training run in all tables."""
    config = run.config
    return {"run": run.name, "task": config.task.name, "contestant": config.backbone.name, "preset": config.preset}


def _shared_columns(run: Run) -> dict[str, object]:
    """Return the columns that are the same in all rows of a training run."""
    config = run.config
    return _identifying_columns(run) | {
        "family": config.task.family,
        "data": config.task.data,
        "model": config.backbone.name,
        "kind": "backbone",
        "seed": config.seed,
        "variant": identity.variant_id(config),
        "shift": "none",
        "distribution": "none",
        "status": "ok",
        "card": config.task.card,
        **provenance(),
    }


def _normaliser(run: Run, family: Family) -> float:
    return family.normaliser if run.config.task.head == "point" else 1.0


def _curve(run: Run, normaliser: float, progress: Progress) -> Rows:
    shared = _shared_columns(run)
    return [
        shared
        | {
            "evaluator": "train",
            "axis": "train_step",
            "axis_value": float(step),
            "metric": "loss",
            "value": loss / normaliser,
            "normaliser": normaliser,
        }
        for step, loss in zip(progress.steps, progress.losses, strict=True)
    ]
