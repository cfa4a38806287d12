"""Predictions of trained models from arrays or data frames."""

from __future__ import annotations

from collections import Counter
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from iclbench.api import arguments
from iclbench.api.models import check_weight_values
from iclbench.backbones.base import Backbone
from iclbench.core.answers import check_answer
from iclbench.core.bar import Bar
from iclbench.core.devices import resolve_device
from iclbench.core.episodes import Points
from iclbench.core.errors import UsageError
from iclbench.core.guard import guarded
from iclbench.core.predictions import Categorical, Gaussian, Mixture, Prediction
from iclbench.core.predictor import eval_mode, join_positions
from iclbench.core.seeds import generator
from iclbench.families.base import Family
from iclbench.store.archives import find
from iclbench.store.runs import Run

# Number of queries in one forward pass, which limits the use of memory.
_QUERIES_PER_PASS = 1024


@guarded
def predict(model: Any, X_context: Any, y_context: Any, X_query: Any, *, return_std: bool = False) -> Any:
    """Predict the outputs at some inputs, given a context. The weights of the model do not change.

    Args:
        model: a backbone, a `Trained` model or a finished run.
        X_context: inputs of the context, `(N, Dx)`, or `(B, N, Dx)` for several episodes; an array or a data frame with
            the same columns as `X_query`.
        y_context: outputs of the context, `(N,)` or `(N, Dy)`, numbers or class labels from 0; for several episodes,
            with a leading axis B.
        X_query: inputs of the predictions, `(Q, Dx)` or `(B, Q, Dx)`. Queries do not affect each other, unless the
            model predicts a joint distribution (`tnp-nd`, `tnp-a`, `cmanp-and`), which may depend on all inputs.
        return_std: whether to also return standard deviations. The model must predict distributions.

    Returns:
        Means, or the most likely class labels, in the shape of `y_context` with Q in place of N. With `return_std`, a
        pair of means and standard deviations.

    Raises:
        UsageError: shapes, types or columns do not match the model or each other, or `return_std` is set and the model
            does not predict a distribution of numbers.

    >>> from iclbench.api.architectures import GPT2
    >>> from iclbench.api.tasks import task
    >>> model = GPT2(task("linear", "smoke", dim=2), layers=1, width=16)
    >>> predict(model, np.zeros((3, 2)), np.zeros(3), np.zeros((5, 2))).shape
    (5,)
    """
    prompt = Prompt(backbone_of(model), X_context, y_context, X_query)
    prediction, is_single, is_flat = prompt.predict().marginals, prompt.is_single, prompt.is_flat
    points = prediction.point()
    if not return_std:
        return _output_array(points, is_single, is_flat)
    if isinstance(prediction, Categorical):
        raise UsageError(
            "return_std: the model predicts class labels; predict_proba returns their probabilities",
            code="not-applicable",
        )
    if not isinstance(prediction, Gaussian | Mixture | Bar):
        raise UsageError(
            "return_std: the model predicts single values; build it with head='gaussian', 'mixture' or 'bar'",
            code="not-applicable",
        )
    return _output_array(points, is_single, is_flat), _output_array(prediction.std, is_single, is_flat)


@guarded
def predict_proba(model: Any, X_context: Any, y_context: Any, X_query: Any) -> np.ndarray:
    """Predict the probabilities of all classes, `(Q, classes)` or `(B, Q, classes)`.

    The arguments are the same as in `predict`.

    Raises:
        UsageError: as in `predict`, or the model predicts numbers.
    """
    prompt = Prompt(backbone_of(model), X_context, y_context, X_query)
    prediction = prompt.predict()
    if not isinstance(prediction, Categorical):
        raise UsageError("predict_proba: the model predicts numbers; use predict", code="not-applicable")
    return _output_array(prediction.logits.softmax(-1), prompt.is_single, is_flat=False)


@guarded
def sample_y(model: Any, X_context: Any, y_context: Any, X_query: Any, n_samples: int = 1, seed: int = 0) -> np.ndarray:
    """Sample the outputs at all inputs.

    If the model predicts a joint distribution, the outputs of a sample are drawn jointly, as values of one function.
    Otherwise, they are drawn independently. The other arguments are the same as in `predict`.

    Args:
        n_samples: number of samples.
        seed: seed of the samples.

    Returns:
        Samples in the shape of the means of `predict`, with a leading axis `n_samples`. They include the noise of the
        outputs.

    >>> from iclbench.api.architectures import CNP
    >>> from iclbench.api.tasks import task
    >>> model = CNP(task("gp-mixture", "smoke"), width=16)
    >>> sample_y(model, np.zeros((3, 1)), np.zeros(3), np.zeros((5, 1)), n_samples=2).shape
    (2, 5)
    """
    prompt = Prompt(backbone_of(model), X_context, y_context, X_query)
    samples = prompt.sample(arguments.integer("n_samples", n_samples), arguments.seed(seed))
    return np.stack([_output_array(sample, prompt.is_single, prompt.is_flat) for sample in samples])


class Trained:
    """The model of a finished run.

    Attributes:
        run: the run.
        device: device of the model.
    """

    def __init__(self, run: Run, device: str | torch.device = "cpu", data_dir: Path | None = None) -> None:
        self.run, self.device, self._data_dir = run, resolve_device(device), data_dir

    @cached_property
    @guarded
    def model(self) -> Backbone:
        """The backbone with its trained weights, in eval mode.

        Raises:
            UsageError: the run is not finished.
        """
        return self.run.load(self.device, self._data_dir)

    @cached_property
    @guarded
    def family(self) -> Family:
        """The family of the run's task; its data are read on first use."""
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
    """Load the model of a finished run.

    Args:
        run: a run (`icl.train`), the name of a run, or the folder of a run. A run from packed results with weights,
            such as `reference/linear-mamba2-grid-s0`, is unpacked into the folder of runs.
        results: results folder of a run that is given by name.
        device: auto, cpu, cuda, cuda:1, ...
        data_dir: folder with your copies of data sets, for tasks that need them.

    Raises:
        UsageError: the run does not exist, or is not finished.

    >>> from tempfile import TemporaryDirectory
    >>> from iclbench.api.tasks import task
    >>> from iclbench.api.train import train
    >>> with TemporaryDirectory() as folder:
    ...     run = train(task("linear", "smoke", dim=2), "cnp", results=folder, steps=5)
    ...     load(run.name, folder).predict(np.zeros((3, 2)), np.zeros(3), np.zeros((5, 2))).shape
    (5,)
    """
    if not isinstance(run, Run | str | Path):
        raise UsageError(f"load takes a run, its name or its folder, not {type(run).__name__}", code="bad-value")
    if not isinstance(run, Run):
        path = Path(run).absolute()
        folder = arguments.folder("results", results).absolute()
        run = Run(path) if (path / "config.toml").is_file() else find(folder, str(run))
    trained = Trained(run, device, None if data_dir is None else arguments.folder("data_dir", data_dir))
    _ = trained.model
    return trained


def backbone_of(model: Any) -> Backbone:
    """Return the backbone of a `model` argument; raise `UsageError` if it does not have a backbone."""
    if isinstance(model, Run):
        model = Trained(model)
    if isinstance(model, Trained):
        return model.model
    if not isinstance(model, Backbone):
        raise UsageError(
            f"model: expected a backbone, icl.load(...) or a finished run, not {type(model).__name__}", code="bad-value"
        )
    check_weight_values(model)
    return model


class Prompt:
    """A context and queries, checked and converted to tensors.

    Attributes:
        is_single: whether the arrays have no axis of episodes.
        is_flat: whether the arrays have no axis of outputs.
    """

    def __init__(self, model: Backbone, X_context: Any, y_context: Any, X_query: Any) -> None:
        if not model.shape.x_dim:
            calls = {"events": "icl.next_event(model, times, marks)"}
            call = calls.get(model.shape.inputs, "icl.next_element(model, elements)")
            raise UsageError(
                f"the model reads {model.shape.inputs}, which have no inputs; use {call}", code="not-applicable"
            )
        x, queries = _inputs(model, "X_context", X_context), _inputs(model, "X_query", X_query)
        _check_columns(columns_of(X_context), columns_of(X_query))
        if x.shape[-1] != queries.shape[-1]:
            raise UsageError(
                f"X_context {_shape(x)} and X_query {_shape(queries)}: both need the same number of columns",
                code="bad-value",
            )
        if x.dim() != queries.dim() or (x.dim() == 3 and len(x) != len(queries)):
            raise UsageError(
                f"X_context {_shape(x)} and X_query {_shape(queries)}: pass both as (points, Dx), or both as "
                "(B, points, Dx) with the same B",
                code="bad-value",
            )
        self.model, self.is_single = model, x.dim() == 2
        y, self.is_flat = _outputs(model, y_context, x)
        if self.is_single:
            x, y, queries = x.unsqueeze(0), y.unsqueeze(0), queries.unsqueeze(0)
        if reason := model.too_long(x.shape[1]):
            raise UsageError(
                f"X_context: the model does not support {x.shape[1]} points: {reason}", code="not-applicable"
            )
        weight = next(model.parameters(), torch.empty(0))
        x, queries = x.to(weight.device, weight.dtype), queries.to(weight.device, weight.dtype)
        y = y.to(weight.device, weight.dtype if y.is_floating_point() else y.dtype)
        self.context, self.queries = Points.full(x, y), queries

    def predict(self) -> Prediction:
        """Return the prediction, `(B, Q)`; if queries do not affect each other, it is computed in several passes."""
        pass_size = _QUERIES_PER_PASS if self.model.joint == "apart" else max(1, self.queries.shape[1])
        with eval_mode(self.model), torch.no_grad():
            batches = self.queries.split(pass_size, 1)
            predictions = [self.model.predict_targets(self.context, batch) for batch in batches]
        for batch, prediction in zip(batches, predictions, strict=True):
            check_answer(self.model, "predict_targets", prediction, batch.shape, self.context.y)
        return join_positions(predictions)

    def sample(self, n: int, seed: int) -> torch.Tensor:
        """Sample from the joint distribution of all outputs, `(n, B, Q, ...)`."""
        random_generator = generator(seed, "sample_y", device=self.queries.device)
        with eval_mode(self.model), torch.no_grad():
            return self.model.sample_targets(self.context, self.queries, n, random_generator)


def _inputs(model: Backbone, name: str, values: Any) -> torch.Tensor:
    x = _floats(name, values)
    if x.dim() == 3 and not len(x):
        raise UsageError(f"{name} has shape {_shape(x)}: pass at least one episode", code="bad-value")
    if x.dim() not in (2, 3) or (x.shape[-1] != model.shape.x_dim and not model.reads_any_columns):
        raise UsageError(
            f"{name} has shape {_shape(x)}: expected (points, {model.shape.x_dim}) or (B, points, "
            f"{model.shape.x_dim}), since the model was built for {model.shape.x_dim} input dimensions",
            code="bad-value",
        )
    return x


def columns_of(values: Any) -> list[Any]:
    """Return the column names of a data frame, which may have any type; empty if the value is not a data frame."""
    names = list(getattr(values, "columns", ()))
    return [None if isinstance(name, float) and name != name else name for name in names]  # NaN does not equal itself


def column_mismatch(expected: list[Any], actual: list[Any]) -> tuple[Any, Any, bool] | None:
    """Return the first pair of names that differ, and whether only the order differs; None if all names match.

    A frame with columns 0, 1, ... may have been created without names, so it matches any names.
    """
    differences = [(one, other) for one, other in zip(expected, actual, strict=False) if one != other]
    has_same_names, default_names = Counter(expected) == Counter(actual), list(range(len(expected)))
    if not differences or (not has_same_names and default_names in (expected, actual)):
        return None
    return *differences[0], has_same_names


def _check_columns(context: list[Any], queries: list[Any]) -> None:
    """Raise `UsageError` if both lists contain column names that differ, even if only the order differs."""
    if mismatch := column_mismatch(context, queries):
        context_name, query_name, has_same_names = mismatch
        advice = "pass X_query[X_context.columns]" if has_same_names else "both need the same columns"
        raise UsageError(
            f"X_query has {query_name} in place of {context_name} in X_context: {advice}", code="bad-value"
        )


def _outputs(model: Backbone, values: Any, x: torch.Tensor) -> tuple[torch.Tensor, bool]:
    """Return outputs, `(*B, N, Dy)`, or labels, `(*B, N)`, and whether the values have no axis of outputs."""
    if model.shape.classes is not None:
        return _labels(values, x, model.shape.classes), True
    y, outputs = _floats("y_context", values), model.shape.y_dim
    is_flat = outputs == 1 and y.shape == x.shape[:-1]
    if not is_flat and y.shape != (*x.shape[:-1], outputs):
        flat_shape = f"{_shape(x[..., 0])} or " if outputs == 1 else ""
        raise UsageError(
            f"y_context has shape {_shape(y)}: expected {flat_shape}{(*x.shape[:-1], outputs)} for X_context of "
            f"shape {_shape(x)}",
            code="bad-value",
        )
    return (y.unsqueeze(-1) if is_flat else y), is_flat


def _labels(values: Any, x: torch.Tensor, classes: int) -> torch.Tensor:
    labels = plain_array("y_context", values, "whole numbers")
    if labels.dtype.kind == "f" and np.isnan(labels).any():
        raise UsageError("y_context contains NaN; remove these points", code="bad-value")
    if labels.size and labels.dtype.kind not in "iu":
        raise UsageError(
            f"y_context has dtype {labels.dtype}: expected whole numbers, class labels below {classes}",
            code="bad-value",
        )
    if labels.shape != x.shape[:-1]:
        raise UsageError(
            f"y_context has shape {labels.shape}: expected {_shape(x[..., 0])}, a label per point", code="bad-value"
        )
    if labels.size and (labels.min() < 0 or labels.max() >= classes):
        raise UsageError(
            f"y_context has labels from {labels.min()} to {labels.max()}: expected 0 to {classes - 1}",
            code="bad-value",
        )
    return torch.as_tensor(labels.astype(np.int64))


def plain_numbers(name: str, values: Any, dtype_kinds: str = "fiub") -> np.ndarray:
    """Convert values to an array of float64.

    Raises:
        UsageError: the values cannot be converted to an array, or `dtype_kinds` does not contain the kind of its dtype.
    """
    array = plain_array(name, values, "numbers")
    if array.dtype.kind not in dtype_kinds:
        raise UsageError(f"{name}: expected an array of numbers (dtype {array.dtype})", code="bad-value")
    return array.astype(np.float64)


def plain_array(name: str, values: Any, content: str) -> np.ndarray:
    """Convert values to a NumPy array. Missing values in data frames and masked values become NaN.

    Raises:
        UsageError: the values cannot be converted, such as a ragged list or a list of tensors with gradients.

    >>> plain_array("y", np.ma.masked_array([1, 2], mask=[False, True]), "numbers")
    array([ 1., nan])
    """
    try:
        return _plain(values)
    except (TypeError, ValueError, RuntimeError) as error:
        reason = str(error).splitlines()[0]
        raise UsageError(f"{name}: expected an array of {content} ({reason})", code="bad-value") from None


def _plain(values: Any) -> np.ndarray:
    if isinstance(values, torch.Tensor):
        return _numpy(values.detach())
    if isinstance(values, pd.DataFrame | pd.Series):
        types = set(values.dtypes) if isinstance(values, pd.DataFrame) else {values.dtype}
        kinds, is_numpy = {dtype.kind for dtype in types}, len(types) == 1 and isinstance(next(iter(types)), np.dtype)
        if kinds <= set("fiub") and not is_numpy:  # NumPy would convert mixed and pandas dtypes to objects
            is_integer = kinds <= set("iu") and not np.asarray(values.isna()).any()
            return values.to_numpy(np.int64 if is_integer else np.float64, na_value=np.nan)
    if np.ma.is_masked(values) and values.dtype.kind in "fiub":
        return np.ma.filled(values.astype(np.float64), np.nan)
    return np.asarray(values)


def _numpy(values: torch.Tensor) -> np.ndarray:
    """Convert a tensor to a NumPy array; bfloat16 becomes float32, because NumPy does not have bfloat16."""
    array: np.ndarray = (values.float() if values.dtype == torch.bfloat16 else values).cpu().numpy()
    return array


def _floats(name: str, values: Any) -> torch.Tensor:
    array = plain_numbers(name, values)
    if not np.isfinite(array).all():
        raise UsageError(
            f"{name} contains NaN or infinity; replace the values or remove these points", code="bad-value"
        )
    return torch.from_numpy(np.ascontiguousarray(array))


def _shape(t: torch.Tensor) -> tuple[int, ...]:
    return tuple(t.shape)


def _output_array(t: torch.Tensor, is_single: bool, is_flat: bool) -> np.ndarray:
    """Convert a prediction to a NumPy array with the same axes as the arguments."""
    if is_flat and t.is_floating_point():
        t = t.squeeze(-1)
    array = _numpy(t[0] if is_single else t)
    if not np.isfinite(array).all():
        raise UsageError(
            "the predictions are not finite; bring inputs and outputs to the scale of the model's task",
            code="not-finite",
        )
    return array
