"""What a sample representation has learned: true features read off it by linear regression, and drawn (CoQE, figure 6).

Where f(x) = <w, Phi(x)> with the same Phi in all tasks, a representation phi serves as well as Phi does if and only if
Phi(x) = H phi(x) for some matrix H. So H is fitted by least squares on inputs of their own, without an intercept, and
each feature is scored by R² on others. The model is compared with the inputs themselves (in which `least-squares` is
linear) and with the same model before training: a wide random representation alone explains much.

Rows of `values`, evaluator `representation`, metric r_squared: axis `feature`, counted from 1, and without an axis the
mean over features; intervals are over the held-out inputs. Table `examples`, for the model: along the direction that a
feature depends on, its value (role function) and what is read off the representation (role predicted: the mean over
the other directions, low and high the central 90 % of them); x1 the coordinate, `output` the feature, from 0. Where the
representation has no more dimensions than there are features, its dimensions are included, as in the paper's figure
(role dimension: `output` the dimension, `set` the feature along whose direction it is drawn).
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
from iclbench.evaluation.bootstrap import percentiles, resampled_counts
from iclbench.evaluation.cells import CellResult, Rows, Tables
from iclbench.evaluation.contestants import PredictorContestant
from iclbench.evaluation.prompts import PromptSet
from iclbench.probing.probe import NotProbedError, cached_cell
from iclbench.store import identity
from iclbench.store.runs import Run

EVALUATOR = "representation"
# Inputs to fit H on and as many to score it; those among them whose other directions are averaged over in a figure.
INPUTS, DRAWN = 2048, 64
# Coordinates at which a feature is drawn, in standard deviations of the inputs.
GRID = np.linspace(-3, 3, 61)

_Represent = Callable[[Float[Tensor, "N Dx"]], Float[Tensor, "N d"]]


@runtime_checkable
class Representing(Protocol):
    """A backbone with a sample representation of its own."""

    def represent(self, x: Tensor) -> Tensor:
        """phi(x) of every input, `(B, N, Dx)` to `(B, N, d)`."""


@dataclass(frozen=True)
class RepresentationSet(PromptSet):
    """Frozen inputs of the task, the first half to fit on and the second to score."""

    @cached_property
    def id(self) -> str:
        """Readable name and content hash."""
        digest = identity.prompts_id(self, probe=codes.PROBE, of=EVALUATOR)
        return f"{self.task.name}-{self.preset}-representation-{digest}"

    @cached_property
    def inputs(self) -> Float[Tensor, "inputs Dx"]:
        return self.draw("representation", 2 * INPUTS, 1).context.x[:, 0].double()

    def along(self, direction: Float[Tensor, " Dx"]) -> Float[Tensor, "grid drawn Dx"]:
        """Held-out inputs with their coordinate in this direction replaced by every one of the grid."""
        inputs = self.inputs[INPUTS : INPUTS + DRAWN]
        inputs = inputs - (inputs @ direction)[:, None] * direction
        return inputs + torch.from_numpy(GRID)[:, None, None] * direction


def probe_representation(context: Context, run: Run, *, seed: int = 0) -> Iterator[CellResult]:
    """Score the sample representation of a run, the inputs themselves and the untrained model.

    Raises:
        NotProbedError: the backbone has none, or the family names no features.
        UsageError: the run is not finished.
    """
    model = contestants.backbone(run, "cpu", context.data_dir)
    prompts = RepresentationSet(run.config.task, run.config.preset, "none", seed, context.data_dir)
    if prompts.family.features(torch.zeros(1, prompts.family.x_dim)) is None:
        raise NotProbedError(
            f"family '{prompts.task.family}' of run '{run.name}' names no true features; those of combination, "
            "relu-network-shared and linear do"
        )
    trained = model.predictor
    if not (isinstance(trained, Backbone) and isinstance(trained, Representing)):
        raise NotProbedError(
            f"run '{run.name}' has no sample representation: its backbone '{model.name}' does not write represent "
            "(coqe does)"
        )
    untrained = run.config.build(run.config.task.build(context.data_dir)).eval()
    before = PredictorContestant(
        f"{model.name}-untrained",
        f"{run.name}-untrained",
        "baseline",
        identity.untrained_id(run.hash),
        libraries=model.libraries,
        predictor=untrained,
    )
    (inputs,) = contestants.baselines(prompts, ["least-squares"])
    field: list[tuple[PredictorContestant, _Represent]] = [
        (model, _representation(trained)),
        (before, _representation(untrained)),
        (inputs, lambda x: x),
    ]
    for contestant, represent in field:
        work = partial(_scored, contestant, prompts, represent, drawn=contestant is model)
        yield cached_cell(context.results, contestant, prompts, cells.row(contestant, prompts, EVALUATOR), work)


def linear_map(learned: Float[Tensor, "N d"], true: Float[Tensor, "N features"]) -> Float[Tensor, "d features"]:
    """H of least squares, of minimum norm."""
    return torch.linalg.lstsq(learned, true, driver="gelsd").solution


def r_squared(fitted: np.ndarray, true: np.ndarray, weights: np.ndarray | None = None) -> np.ndarray:
    """1 - residual over total sum of squares, per feature.

    Args:
        fitted: `(inputs, features)`.
        true: `(inputs, features)`.
        weights: how often each input counts, `(resamples, inputs)`; None: once.

    Returns:
        `(resamples, features)`; one row without weights.
    """
    weights = np.ones((1, len(true))) if weights is None else weights
    residual = weights @ (fitted - true) ** 2
    centred = true - true.mean(0)
    total = weights @ centred**2 - (weights @ centred) ** 2 / weights.sum(1, keepdims=True)
    return 1 - residual / total


def _representation(backbone: Backbone) -> _Represent:
    """The representation, computed in float64."""
    wide = backbone.double()
    assert isinstance(wide, Representing)

    def represent(x: Tensor) -> Tensor:
        with torch.inference_mode():
            return wide.represent(x.unsqueeze(0)).squeeze(0)

    return represent


def _scored(contestant: PredictorContestant, prompts: RepresentationSet, represent: _Represent, drawn: bool) -> Tables:
    learned, true = represent(prompts.inputs), _features(prompts, prompts.inputs)
    if not learned.isfinite().all():
        bad = int((~learned.isfinite()).any(1).sum())
        raise NonFiniteError(f"the representation of {bad} of {len(learned)} inputs is not finite")
    h = linear_map(learned[:INPUTS], true[:INPUTS])
    fitted, held_out = (learned[INPUTS:] @ h).numpy(), true[INPUTS:].numpy()
    shared = cells.row(contestant, prompts, EVALUATOR) | {
        "metric": "r_squared",
        "n_episodes": INPUTS,
        "normaliser": 1.0,
    }
    (value,) = r_squared(fitted, held_out)
    resampled = r_squared(fitted, held_out, resampled_counts(INPUTS, prompts.seed))
    low, high = percentiles(resampled)
    rows: Rows = [
        shared | {"axis": "feature", "axis_value": float(j), "value": float(v), "low": float(a), "high": float(b)}
        for j, (v, a, b) in enumerate(zip(value, low, high, strict=True), 1)
    ]
    (mean_low,), (mean_high,) = percentiles(resampled.mean(1, keepdims=True))
    rows.append(shared | {"value": float(value.mean()), "low": float(mean_low), "high": float(mean_high)})
    directions = prompts.family.feature_directions()
    if not drawn or directions is None:
        return {"values": rows}
    directions = directions.double()
    curves = _curves(contestant, prompts, lambda x: represent(x) @ h, directions)
    if learned.shape[1] <= true.shape[1]:
        curves += _dimensions(contestant, prompts, represent, directions)
    return {"values": rows, "examples": curves}


def _curves(
    contestant: PredictorContestant,
    prompts: RepresentationSet,
    fitted: _Represent,
    directions: Float[Tensor, "features Dx"],
) -> Rows:
    """Every feature and what is read off the representation for it, along its direction."""
    shared = _example_columns(contestant, prompts)
    rows: Rows = []
    for output, direction in enumerate(directions):
        x = prompts.along(direction)
        flat, shape = x.flatten(0, 1), x.shape[:2]
        read = fitted(flat)[:, output].view(shape).numpy()
        true = _features(prompts, flat)[:, output].view(shape)[:, 0].numpy()
        low, high = percentiles(read.T, 0.9)
        for point, t in enumerate(GRID):
            at = shared | {"output": output, "point": point, "x1": float(t)}
            band = {"low": float(low[point]), "high": float(high[point])}
            rows.append(at | {"role": "function", "value": float(true[point])})
            rows.append(at | {"role": "predicted", "value": float(read[point].mean())} | band)
    return rows


def _dimensions(
    contestant: PredictorContestant,
    prompts: RepresentationSet,
    represent: _Represent,
    directions: Float[Tensor, "features Dx"],
) -> Rows:
    """Every dimension of the representation along every feature's direction: the mean over the other directions."""
    shared = _example_columns(contestant, prompts) | {"role": "dimension"}
    rows: Rows = []
    for index, direction in enumerate(directions):
        means = represent(prompts.along(direction).flatten(0, 1)).unflatten(0, (len(GRID), DRAWN)).mean(1)
        rows += [
            shared | {"set": index, "output": output, "point": point, "x1": float(GRID[point]), "value": float(value)}
            for output, along in enumerate(means.T)
            for point, value in enumerate(along)
        ]
    return rows


def _example_columns(contestant: PredictorContestant, prompts: RepresentationSet) -> dict[str, object]:
    """What all rows of the table `examples` share."""
    shared = cells.row(contestant, prompts, EVALUATOR) | {"episode": 0}
    return {key: value for key, value in shared.items() if key in tables.EXAMPLES}


def _features(prompts: RepresentationSet, x: Float[Tensor, "N Dx"]) -> Float[Tensor, "N features"]:
    features = prompts.family.features(x)
    assert features is not None
    return features
