"""Answers of a model for arrays: contexts in, predictions out."""

from __future__ import annotations

from collections import Counter
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from iclbench.api import arguments
from iclbench.api.models import check_values
from iclbench.backbones.base import Backbone
from iclbench.core.answers import check_answer
from iclbench.core.devices import chosen_device
from iclbench.core.episodes import Points
from iclbench.core.errors import UsageError
from iclbench.core.guard import guarded
from iclbench.core.predictions import Categorical, Gaussian, Mixture, Prediction
from iclbench.core.predictor import as_used, join_positions
from iclbench.core.seeds import generator
from iclbench.families.base import Family
from iclbench.store.archives import find
from iclbench.store.runs import Run

# Queries answered at once, so that memory is bounded however many are asked.
_AT_ONCE = 1024


@guarded
def predict(model: Any, X_context: Any, y_context: Any, X_query: Any, *, return_std: bool = False) -> Any:
    """What a model answers at some inputs after seeing a context; nothing is trained.

    Args:
        model: a backbone, a `Trained` model or a finished run.
        X_context: inputs of the context, `(N, Dx)` or, of several episodes, `(B, N, Dx)`; arrays or frames, whose
            columns are those of `X_query`.
        y_context: its outputs, `(N,)` or `(N, Dy)`, numbers or class labels from 0; of several episodes with B before.
        X_query: inputs to be answered, `(Q, Dx)` or `(B, Q, Dx)`; no query sees another, unless the model has one
            distribution for all of them (`tnp-nd`, `tnp-a`, `cmanp-and`), which may depend on all inputs.
        return_std: also the standard deviation, of a model that predicts distributions.

    Returns:
        Means in the shape of `y_context` with Q in place of N, of class labels the likeliest; with `return_std` a pair.

    Raises:
        UsageError: shapes, types or columns do not fit the model or one another, or it predicts single values and
            `return_std` is asked.

    >>> from iclbench.api.architectures import GPT2
    >>> from iclbench.api.tasks import task
    >>> model = GPT2(task("linear", "smoke", dim=2), layers=1, width=16)
    >>> predict(model, np.zeros((3, 2)), np.zeros(3), np.zeros((5, 2))).shape
    (5,)
    """
    asked = _Asked(backbone_of(model), X_context, y_context, X_query)
    prediction, single, flat = asked.answer().marginals, asked.single, asked.flat
    found = prediction.point()
    if not return_std:
        return _array(found, single, flat)
    if isinstance(prediction, Categorical):
        raise UsageError("return_std: the model answers with class labels; predict_proba gives their probabilities")
    if not isinstance(prediction, Gaussian | Mixture):
        raise UsageError(
            "return_std: the model answers single values; build it for a task with head='gaussian' (or 'mixture')"
        )
    return _array(found, single, flat), _array(prediction.std, single, flat)


@guarded
def predict_proba(model: Any, X_context: Any, y_context: Any, X_query: Any) -> np.ndarray:
    """Probabilities of all classes, `(Q, classes)` or `(B, Q, classes)`; arguments as in `predict`.

    Raises:
        UsageError: as `predict`; or the model predicts numbers.
    """
    asked = _Asked(backbone_of(model), X_context, y_context, X_query)
    prediction = asked.answer()
    if not isinstance(prediction, Categorical):
        raise UsageError("predict_proba: the model predicts numbers, not classes")
    return _array(prediction.logits.softmax(-1), asked.single, False)


@guarded
def sample_y(model: Any, X_context: Any, y_context: Any, X_query: Any, n_samples: int = 1, seed: int = 0) -> np.ndarray:
    """Draws of the outputs at all inputs together: of a model with a joint distribution they are functions, of others
    independent from input to input. Other arguments as in `predict`.

    Args:
        n_samples: number of draws.
        seed: of the draws.

    Returns:
        In the shape of what `predict` returns, with `n_samples` before; noise of the outputs included.

    >>> from iclbench.api.architectures import CNP
    >>> from iclbench.api.tasks import task
    >>> model = CNP(task("gp-mixture", "smoke"), width=16)
    >>> sample_y(model, np.zeros((3, 1)), np.zeros(3), np.zeros((5, 1)), n_samples=2).shape
    (2, 5)
    """
    asked = _Asked(backbone_of(model), X_context, y_context, X_query)
    drawn = asked.sample(arguments.integer("n_samples", n_samples), arguments.seed(seed))
    return np.stack([_array(each, asked.single, asked.flat) for each in drawn])


class Trained:
    """The model of a finished run.

    Attributes:
        run: the run.
        device: where the model computes.
    """

    def __init__(self, run: Run, device: str | torch.device = "cpu", data_dir: Path | None = None) -> None:
        self.run, self.device, self._data_dir = run, chosen_device(device), data_dir

    @cached_property
    @guarded
    def model(self) -> Backbone:
        """The backbone with its weights, in eval mode; raises `UsageError` where the run is not finished."""
        return self.run.load(self.device, self._data_dir)

    @cached_property
    @guarded
    def family(self) -> Family:
        """What the run was trained on, without its data until they are asked for."""
        return self.run.config.task.build(self._data_dir)

    @guarded
    def predict(self, X_context: Any, y_context: Any, X_query: Any, *, return_std: bool = False) -> Any:
        """See `predict`."""
        return predict(self.model, X_context, y_context, X_query, return_std=return_std)

    @guarded
    def predict_proba(self, X_context: Any, y_context: Any, X_query: Any) -> np.ndarray:
        """See `predict_proba`."""
        return predict_proba(self.model, X_context, y_context, X_query)

    @guarded
    def sample_y(self, X_context: Any, y_context: Any, X_query: Any, n_samples: int = 1, seed: int = 0) -> np.ndarray:
        """See `sample_y`."""
        return sample_y(self.model, X_context, y_context, X_query, n_samples, seed)

    def __repr__(self) -> str:
        return f"load({str(self.run.path)!r})"


@guarded
def load(
    run: Run | str | Path,
    results: str | Path = "results",
    *,
    device: str | torch.device = "auto",
    data_dir: str | Path | None = None,
) -> Trained:
    """The model of a finished run.

    Args:
        run: what `train` returned, the name of a run, or its folder. A run whose weights packed results bring along,
            `reference/linear-mamba2-grid-s0`, is unpacked to where runs live.
        results: results folder, for a name.
        device: auto, cpu, cuda, cuda:1, ...
        data_dir: folder with your copies of data sets, for tasks that need them.

    Raises:
        UsageError: there is no such run, or it is not finished.

    >>> from tempfile import TemporaryDirectory
    >>> from iclbench.api.tasks import task
    >>> from iclbench.api.train import train
    >>> with TemporaryDirectory() as folder:
    ...     run = train(task("linear", "smoke", dim=2), "cnp", results=folder, steps=5)
    ...     load(run.name, folder).predict(np.zeros((3, 2)), np.zeros(3), np.zeros((5, 2))).shape
    (5,)
    """
    if not isinstance(run, Run | str | Path):
        raise UsageError(f"load takes a run, its name or its folder, not {type(run).__name__}")
    if not isinstance(run, Run):
        path = Path(run).absolute()
        folder = arguments.folder("results", results).absolute()
        run = Run(path) if (path / "config.toml").is_file() else find(folder, str(run))
    found = Trained(run, device, None if data_dir is None else arguments.folder("data_dir", data_dir))
    _ = found.model
    return found


def backbone_of(model: Any) -> Backbone:
    """The backbone of whatever a function takes as a model; raises `UsageError` where it is none."""
    if isinstance(model, Run):
        model = Trained(model)
    if isinstance(model, Trained):
        return model.model
    if not isinstance(model, Backbone):
        raise UsageError(f"model: expected a backbone, icl.load(...) or a finished run, not {type(model).__name__}")
    check_values(model)
    return model


class _Asked:
    """A checked question.

    Attributes:
        single: whether there was no axis of episodes.
        flat: whether there was none of outputs.
    """

    def __init__(self, model: Backbone, X_context: Any, y_context: Any, X_query: Any) -> None:
        if model.shape.marks is not None:
            raise UsageError("the model reads events, which have no inputs; icl.next_event(model, times, marks)")
        x, queries = _inputs(model, "X_context", X_context), _inputs(model, "X_query", X_query)
        _check_columns(columns_of(X_context), columns_of(X_query))
        if x.dim() != queries.dim() or (x.dim() == 3 and len(x) != len(queries)):
            raise UsageError(
                f"X_context {_shape(x)} and X_query {_shape(queries)}: both are (points, Dx), or both (B, points, Dx) "
                "with the same B"
            )
        self.model, self.single = model, x.dim() == 2
        y, self.flat = _outputs(model, y_context, x)
        if self.single:
            x, y, queries = x.unsqueeze(0), y.unsqueeze(0), queries.unsqueeze(0)
        if reason := model.too_long(x.shape[1]):
            raise UsageError(f"X_context has {x.shape[1]} points: {reason}")
        weight = next(model.parameters(), torch.empty(0))
        x, queries = (each.to(weight.device, weight.dtype) for each in (x, queries))
        y = y.to(weight.device, weight.dtype if y.is_floating_point() else y.dtype)
        self.context, self.queries = Points.full(x, y), queries

    def answer(self) -> Prediction:
        """The prediction, `(B, Q)`; by portions where no target sees another."""
        at_once = _AT_ONCE if self.model.joint == "apart" else max(1, self.queries.shape[1])
        with as_used(self.model), torch.no_grad():
            parts = self.queries.split(at_once, 1)
            answers = [self.model.predict_targets(self.context, part) for part in parts]
        for part, answer in zip(parts, answers, strict=True):
            check_answer(self.model, "predict_targets", answer, part.shape, self.context.y)
        return join_positions(answers)

    def sample(self, n: int, seed: int) -> torch.Tensor:
        """Draws of all outputs together, `(n, B, Q, ...)`."""
        draw = generator(seed, "sample_y", device=self.queries.device)
        with as_used(self.model), torch.no_grad():
            return self.model.sample_targets(self.context, self.queries, n, draw)


def _inputs(model: Backbone, name: str, values: Any) -> torch.Tensor:
    found = _floats(name, values)
    if found.dim() == 3 and not len(found):
        raise UsageError(f"{name} has shape {_shape(found)}: it is empty")
    if found.dim() not in (2, 3) or found.shape[-1] != model.shape.x_dim:
        raise UsageError(
            f"{name} has shape {_shape(found)}: expected (points, {model.shape.x_dim}) or (B, points, "
            f"{model.shape.x_dim}), since the model was built for {model.shape.x_dim} input dimensions"
        )
    return found


def columns_of(values: Any) -> list[Any]:
    """The names of a frame's columns, of any type; empty if it is not a frame."""
    names = list(getattr(values, "columns", ()))
    return [None if isinstance(name, float) and name != name else name for name in names]  # NaN equals nothing


def misplaced(known: list[Any], given: list[Any]) -> tuple[Any, Any, bool] | None:
    """The first two names that differ, and whether the columns are the same in another order; None: all agree.

    A frame whose columns are numbered 0, 1, ... may have had no names: it agrees with other names.
    """
    differ = [(one, other) for one, other in zip(known, given, strict=False) if one != other]
    same_names, numbered = Counter(known) == Counter(given), list(range(len(known)))
    if not differ or (not same_names and numbered in (known, given)):
        return None
    return *differ[0], same_names


def _check_columns(context: list[Any], queries: list[Any]) -> None:
    """Raise `UsageError` where both have names for their columns and these differ, even if only in their order."""
    if found := misplaced(context, queries):
        one, other, same_names = found
        advice = "give X_query[X_context.columns]" if same_names else "both need the same columns"
        raise UsageError(f"X_query has {other} where X_context has {one}: {advice}")


def _outputs(model: Backbone, values: Any, x: torch.Tensor) -> tuple[torch.Tensor, bool]:
    """Outputs of `(*B, N, Dy)`, or labels of `(*B, N)`; and whether the axis of outputs was left out."""
    if model.shape.classes is not None:
        return _labels(values, x, model.shape.classes), True
    found, outputs = _floats("y_context", values), model.shape.y_dim
    flat = outputs == 1 and found.shape == x.shape[:-1]
    if not flat and found.shape != (*x.shape[:-1], outputs):
        either = f"{_shape(x[..., 0])} or " if outputs == 1 else ""
        raise UsageError(
            f"y_context has shape {_shape(found)}: expected {either}{(*x.shape[:-1], outputs)} beside X_context of "
            f"shape {_shape(x)}"
        )
    return (found.unsqueeze(-1) if flat else found), flat


def _labels(values: Any, x: torch.Tensor, classes: int) -> torch.Tensor:
    found = plain_array("y_context", values, "whole numbers")
    if found.dtype.kind == "f" and np.isnan(found).any():
        raise UsageError("y_context holds NaN; leave those points out")
    if found.size and found.dtype.kind not in "iu":
        raise UsageError(f"y_context has dtype {found.dtype}: expected whole numbers, class labels below {classes}")
    if found.shape != x.shape[:-1]:
        raise UsageError(f"y_context has shape {found.shape}: expected {_shape(x[..., 0])}, a label per point")
    if found.size and (found.min() < 0 or found.max() >= classes):
        raise UsageError(f"y_context has labels from {found.min()} to {found.max()}: expected 0 to {classes - 1}")
    return torch.as_tensor(found.astype(np.int64))


def plain_numbers(name: str, values: Any, kinds: str = "fiub") -> np.ndarray:
    """As an array of float64; raises `UsageError` for what is no array or holds other kinds of NumPy's types."""
    found = plain_array(name, values, "numbers")
    if found.dtype.kind not in kinds:
        raise UsageError(f"{name}: expected an array of numbers (dtype {found.dtype})")
    return found.astype(np.float64)


def plain_array(name: str, values: Any, what: str) -> np.ndarray:
    """As an array of NumPy; what a frame does not know and what a masked array hides is NaN.

    Raises:
        UsageError: it is none: ragged, a tensor with gradients in a list.

    >>> plain_array("y", np.ma.masked_array([1, 2], mask=[False, True]), "numbers")
    array([ 1., nan])
    """
    try:
        return _plain(values)
    except (TypeError, ValueError, RuntimeError) as error:
        raise UsageError(f"{name}: expected an array of {what} ({str(error).splitlines()[0]})") from None


def _plain(values: Any) -> np.ndarray:
    if isinstance(values, torch.Tensor):
        return _numpy(values.detach())
    if isinstance(values, pd.DataFrame | pd.Series):
        types = set(values.dtypes) if isinstance(values, pd.DataFrame) else {values.dtype}
        kinds, plain = {each.kind for each in types}, len(types) == 1 and isinstance(next(iter(types)), np.dtype)
        if kinds <= set("fiub") and not plain:  # several types, or one of pandas, would be made objects
            whole = kinds <= set("iu") and not np.asarray(values.isna()).any()
            return values.to_numpy(np.int64 if whole else np.float64, na_value=np.nan)
    if np.ma.is_masked(values) and values.dtype.kind in "fiub":
        return np.ma.filled(values.astype(np.float64), np.nan)
    return np.asarray(values)


def _numpy(values: torch.Tensor) -> np.ndarray:
    """NumPy has no bfloat16."""
    found: np.ndarray = (values.float() if values.dtype == torch.bfloat16 else values).cpu().numpy()
    return found


def _floats(name: str, values: Any) -> torch.Tensor:
    found = plain_numbers(name, values)
    if not np.isfinite(found).all():
        raise UsageError(f"{name} holds NaN or infinity; fill the gaps in, or leave those points out")
    return torch.from_numpy(np.ascontiguousarray(found))


def _shape(t: torch.Tensor) -> tuple[int, ...]:
    return tuple(t.shape)


def _array(t: torch.Tensor, single: bool, flat: bool) -> np.ndarray:
    """As a NumPy array, without the axes that were not asked for."""
    if flat and t.is_floating_point():
        t = t.squeeze(-1)
    found = _numpy(t[0] if single else t)
    if not np.isfinite(found).all():
        raise UsageError("the model's answers are not finite; bring inputs and outputs to the scale of its task")
    return found
