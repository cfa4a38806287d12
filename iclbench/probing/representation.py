"""Linear regression of the true features of a task on the sample representation of a model (CoQE, figure 6).

If f(x) = <w, Phi(x)> with the same Phi in all tasks, a representation phi is as useful as Phi if and only if
Phi(x) = H phi(x) for some matrix H. The probe therefore fits H by least squares, without an intercept, and scores each
feature by R² on held-out inputs. The model is compared with the raw inputs (contestant `least-squares`) and with the
same model before training, because even a wide random representation explains much of the variance of the features.

Rows of `values` have evaluator `representation` and metric r_squared. There is one row for each feature (axis
`feature`, numbered from 1), and one row without an axis for the mean over features. Intervals are over held-out inputs.

Rows of `examples` have curves along the direction on which a feature depends. `x1` is the coordinate, and `output` is
the number of the feature, from 0. Role `function` is the true feature. Role `predicted` is the regression on the
representation: its mean over the other directions, with the central 90 % as `low` and `high`. If the representation has
at most as many dimensions as the task has features, its dimensions are plotted as in the paper. Their rows have role
`dimension`; `output` is the number of the dimension, and `set` is the feature whose direction is used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from iclbench import tables
from iclbench.backbones.base import Backbone
from iclbench.config import codes
from iclbench.core.context import Context
from iclbench.core.errors import NonFiniteError
from iclbench.evaluation import cells, contestants
from iclbench.evaluation.bootstrap import percentiles, resample_counts
from iclbench.evaluation.cells import CellResult, Rows, Tables
from iclbench.evaluation.contestants import PredictorContestant
from iclbench.evaluation.prompts import PromptSet
from iclbench.probing.cells import NotProbedError, cached_cell, untrained_control
from iclbench.store import identity
from iclbench.store.runs import Run

EVALUATOR = "representation"
# Number of inputs on which H is fitted, which is also the number of held-out inputs.
N_INPUTS = 2048
# Number of held-out inputs over which the curves are averaged.
N_CURVE_INPUTS = 64
# Coordinates of the curves, in standard deviations of the inputs.
GRID = np.linspace(-3, 3, 61)

_Represent = Callable[[Float[Tensor, "N Dx"]], Float[Tensor, "N d"]]


@runtime_checkable
class RepresentationBackbone(Protocol):
    """A backbone with a sample representation."""

    def represent(self, x: Tensor) -> Tensor:
        """Map inputs x of shape `(B, N, Dx)` to their representations phi(x) of shape `(B, N, d)`."""


@dataclass(frozen=True)
class RepresentationSet(PromptSet):
    """Frozen inputs of a task. H is fitted on the first half; the second half is held out."""

    @cached_property
    def id(self) -> str:
        """Readable name and content hash."""
        digest = identity.prompts_id(self, probe=codes.PROBE, of=EVALUATOR)
        return f"{self.task.name}-{self.preset}-representation-{digest}"

    @cached_property
    def inputs(self) -> Float[Tensor, "inputs Dx"]:
        return self.draw("representation", 2 * N_INPUTS, 1).context.x[:, 0].double()

    def inputs_along(self, direction: Float[Tensor, " Dx"]) -> Float[Tensor, "grid drawn Dx"]:
        """Return held-out inputs, with their coordinate along a direction replaced by each coordinate of the grid."""
        inputs = self.inputs[N_INPUTS : N_INPUTS + N_CURVE_INPUTS]
        inputs = inputs - (inputs @ direction)[:, None] * direction
        return inputs + torch.from_numpy(GRID)[:, None, None] * direction


def probe_representation(context: Context, run: Run, *, seed: int = 0) -> Iterator[CellResult]:
    """Score the sample representation of a run, the raw inputs and the untrained model.

    Raises:
        NotProbedError: the backbone has no representation, or the family has no true features.
        UsageError: the run is not finished.
    """
    model = contestants.backbone(run, "cpu", context.data_dir)
    prompts = RepresentationSet(run.config.task, run.config.preset, "none", seed, context.data_dir)
    if prompts.family.features(torch.zeros(1, prompts.family.x_dim)) is None:
        raise NotProbedError(
            f"family '{prompts.task.family}' of run '{run.name}' has no true features; probe a run of combination, "
            "relu-network-shared or linear"
        )
    trained = model.predictor
    if not (isinstance(trained, Backbone) and isinstance(trained, RepresentationBackbone)):
        raise NotProbedError(
            f"run '{run.name}' has no sample representation: its backbone '{model.name}' does not define represent "
            "(coqe does)"
        )
    control = untrained_control(run, model, context.data_dir)
    assert isinstance(control.predictor, Backbone)
    (inputs_contestant,) = contestants.baselines(prompts, ["least-squares"])
    representations: list[tuple[PredictorContestant, _Represent]] = [
        (model, _representation(trained)),
        (control, _representation(control.predictor)),
        (inputs_contestant, lambda x: x),
    ]
    for contestant, represent in representations:
        work = partial(_score_tables, contestant, prompts, represent, with_curves=contestant is model)
        yield cached_cell(
            context.results, contestant, prompts, cells.shared_columns(contestant, prompts, EVALUATOR), work
        )


def linear_map(representation: Float[Tensor, "N d"], true: Float[Tensor, "N features"]) -> Float[Tensor, "d features"]:
    """Return the least-squares solution H of minimum norm."""
    return torch.linalg.lstsq(representation, true, driver="gelsd").solution


def r_squared(fitted: np.ndarray, true: np.ndarray, weights: np.ndarray | None = None) -> np.ndarray:
    """Return the R² of each feature: 1 - residual sum of squares / total sum of squares.

    Args:
        fitted: predicted features, `(inputs, features)`.
        true: true features, `(inputs, features)`.
        weights: weight of each input in each resample, `(resamples, inputs)` (default: one resample with weights 1).

    Returns:
        The R² of each feature in each resample, `(resamples, features)`.
    """
    weights = np.ones((1, len(true))) if weights is None else weights
    residual = weights @ (fitted - true) ** 2
    centred = true - true.mean(0)
    total = weights @ centred**2 - (weights @ centred) ** 2 / weights.sum(1, keepdims=True)
    return 1 - residual / total


def _representation(backbone: Backbone) -> _Represent:
    """Return a function that computes the representations of inputs in float64."""
    double_backbone = backbone.double()
    assert isinstance(double_backbone, RepresentationBackbone)

    def represent(x: Tensor) -> Tensor:
        with torch.inference_mode():
            return double_backbone.represent(x.unsqueeze(0)).squeeze(0)

    return represent


def _score_tables(
    contestant: PredictorContestant, prompts: RepresentationSet, represent: _Represent, with_curves: bool
) -> Tables:
    representation, true = represent(prompts.inputs), _features(prompts, prompts.inputs)
    if not representation.isfinite().all():
        count = int((~representation.isfinite()).any(1).sum())
        raise NonFiniteError(f"the representation of {count} of {len(representation)} inputs is not finite")
    h = linear_map(representation[:N_INPUTS], true[:N_INPUTS])
    fitted, held_out = (representation[N_INPUTS:] @ h).numpy(), true[N_INPUTS:].numpy()
    shared = cells.shared_columns(contestant, prompts, EVALUATOR) | {
        "metric": "r_squared",
        "n_episodes": N_INPUTS,
        "normaliser": 1.0,
    }
    (value,) = r_squared(fitted, held_out)
    resampled = r_squared(fitted, held_out, resample_counts(N_INPUTS, prompts.seed))
    low, high = percentiles(resampled)
    rows: Rows = [
        shared | {"axis": "feature", "axis_value": float(j), "value": float(v), "low": float(a), "high": float(b)}
        for j, (v, a, b) in enumerate(zip(value, low, high, strict=True), 1)
    ]
    (mean_low,), (mean_high,) = percentiles(resampled.mean(1, keepdims=True))
    rows.append(shared | {"value": float(value.mean()), "low": float(mean_low), "high": float(mean_high)})
    directions = prompts.family.feature_directions()
    if not with_curves or directions is None:
        return {"values": rows}
    directions = directions.double()
    curves = _curves(contestant, prompts, lambda x: represent(x) @ h, directions)
    if representation.shape[1] <= true.shape[1]:
        curves += _dimensions(contestant, prompts, represent, directions)
    return {"values": rows, "examples": curves}


def _curves(
    contestant: PredictorContestant,
    prompts: RepresentationSet,
    fitted: _Represent,
    directions: Float[Tensor, "features Dx"],
) -> Rows:
    """Return the curve of each true feature and of its regression on the representation, along the direction of the
    feature."""
    shared = _example_columns(contestant, prompts)
    rows: Rows = []
    for output, direction in enumerate(directions):
        x = prompts.inputs_along(direction)
        flat_x, shape = x.flatten(0, 1), x.shape[:2]
        predicted = fitted(flat_x)[:, output].view(shape).numpy()
        true = _features(prompts, flat_x)[:, output].view(shape)[:, 0].numpy()
        low, high = percentiles(predicted.T, 0.9)
        for point, t in enumerate(GRID):
            point_columns = shared | {"output": output, "point": point, "x1": float(t)}
            band = {"low": float(low[point]), "high": float(high[point])}
            rows.append(point_columns | {"role": "function", "value": float(true[point])})
            rows.append(point_columns | {"role": "predicted", "value": float(predicted[point].mean())} | band)
    return rows


def _dimensions(
    contestant: PredictorContestant,
    prompts: RepresentationSet,
    represent: _Represent,
    directions: Float[Tensor, "features Dx"],
) -> Rows:
    """Return the curve of each dimension of the representation along the direction of each feature, averaged over the
    other directions."""
    shared = _example_columns(contestant, prompts) | {"role": "dimension"}
    rows: Rows = []
    for index, direction in enumerate(directions):
        means = (
            represent(prompts.inputs_along(direction).flatten(0, 1)).unflatten(0, (len(GRID), N_CURVE_INPUTS)).mean(1)
        )
        rows += [
            shared | {"set": index, "output": output, "point": point, "x1": float(GRID[point]), "value": float(value)}
            for output, mean_curve in enumerate(means.T)
            for point, value in enumerate(mean_curve)
        ]
    return rows


def _example_columns(contestant: PredictorContestant, prompts: RepresentationSet) -> dict[str, object]:
    """Return the columns that are the same in all rows of the table `examples`."""
    shared = cells.shared_columns(contestant, prompts, EVALUATOR) | {"episode": 0}
    return {key: value for key, value in shared.items() if key in tables.EXAMPLES}


def _features(prompts: RepresentationSet, x: Float[Tensor, "N Dx"]) -> Float[Tensor, "N features"]:
    features = prompts.family.features(x)
    assert features is not None
    return features
