"""Trained runs as scikit-learn estimators: `fit` stores the context, `predict` is one forward pass."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

from iclbench.api.predict import Trained, column_mismatch, columns_of, load
from iclbench.core.guard import guarded
from iclbench.core.standard import Standardisation
from iclbench.store.runs import Run


class ContextSizeWarning(UserWarning):
    """The training set has more rows than the run reads at once, so predictions are means over random draws of rows."""


class _InContext(BaseEstimator):
    """Base class of both estimators: the run, the context, and the standardised inputs.

    A run reads contexts up to its training length. From a larger training set, `n_contexts` random contexts of that
    length are drawn, and predictions are averaged over them. Features are standardised with the mean and variance of
    the training set, since runs are trained on inputs of mean 0 and variance 1. A feature that is constant in the
    training set becomes 0. If there are fewer features than in training, the missing ones are 0.
    """

    def __init__(
        self,
        run: Run | Trained | str | Path | None = None,
        results: str | Path = "results",
        n_contexts: int = 4,
        random_state: Any = 0,
        device: str | torch.device = "cpu",
    ) -> None:
        self.run = run
        self.results = results
        self.n_contexts = n_contexts
        self.random_state = random_state
        self.device = device

    def _load_run(self) -> Trained:
        if self.run is None:
            raise ValueError(f"{type(self).__name__}(run=...): pass a finished run, its name or its folder")
        if isinstance(self.run, Trained):
            return self.run
        return load(self.run, self.results, device=self.device)

    def _store_context(self, X: np.ndarray) -> None:
        """Store the standardised inputs of the training set, and draw the contexts."""
        if not _is_positive(self.n_contexts):
            raise ValueError(f"n_contexts={self.n_contexts!r}: expected a whole number of at least 1")
        self.trained_ = self._load_run()
        shape, run = self.trained_.model.shape, self.trained_.run
        if shape.inputs != "features":
            functions = {"images": "icl.predict", "events": "icl.next_event"}
            function_call = f"{functions.get(shape.inputs, 'icl.next_element')}(run, ...)"
            raise ValueError(f"run '{run.name}' reads {shape.inputs}, not rows of features; use {function_call}")
        if X.shape[1] > shape.x_dim:
            raise ValueError(
                f"X has {X.shape[1]} features, but the run was trained on {shape.x_dim}; select at most {shape.x_dim}"
            )
        self.standard_ = Standardisation.of(X)
        self.X_ = self._features(X)
        rows, limit = len(X), run.config.task.points
        if rows <= limit:
            self.contexts_ = [np.arange(rows)]
            return
        random = check_random_state(self.random_state)
        self.contexts_ = [random.choice(rows, limit, replace=False) for _ in range(self.n_contexts)]
        warnings.warn(
            f"the training set has {rows} rows, and run '{run.name}' reads {limit} at once: predictions are means over "
            f"n_contexts={self.n_contexts} random draws of {limit} rows; to read all rows at once, train a run with "
            f"-o task.points={rows} (in Python: icl.task(..., points={rows}))",
            ContextSizeWarning,
            stacklevel=4,  # the caller of `fit`, which is inside the guard
        )

    def _features(self, X: np.ndarray) -> np.ndarray:
        n_missing = self.trained_.model.shape.x_dim - X.shape[1]
        return np.pad(self.standard_.apply(X), [(0, 0), (0, n_missing)]).clip(-1e6, 1e6)

    def _queries(self, X: Any) -> np.ndarray:
        check_is_fitted(self, "contexts_")
        queries = validate_data(self, X, reset=False, dtype=np.float64)
        if mismatch := column_mismatch(self.columns_, columns_of(X)):
            raise ValueError(f"X has {mismatch[1]} in place of {mismatch[0]}: pass the columns in the order of fit")
        return self._features(queries)


def _is_positive(number: Any) -> bool:
    return isinstance(number, int | np.integer) and bool(number > 0)


class InContextRegressor(RegressorMixin, _InContext):
    """A trained run as a regressor. Targets are standardised to the spread of the training tasks, and predictions are
    converted back.

    Predictions do not depend on the unit or the origin of the targets: with targets `c * y + b` and c > 0 they are
    `c * predict(X) + b`. For a constant target or a single row, the prediction is therefore this value with a standard
    deviation of 0.

    Args:
        run: a finished run of a regression task (`icl.train`, `icl.load`), its name or its folder.
        results: results folder of a run that is given by name.
        n_contexts: number of random contexts to average over, if there are more rows than the training length.
        random_state: seed or generator of the contexts.
        device: device of the model.

    Raises:
        ValueError: no run is given, the run predicts classes or several outputs, the run reads images or events, or X
            has more features than in training.

    Warns:
        ContextSizeWarning: X has more rows than the run reads at once.

    >>> from tempfile import TemporaryDirectory
    >>> from iclbench.api.tasks import task
    >>> from iclbench.api.train import train
    >>> with TemporaryDirectory() as folder:
    ...     run = train(task("linear", "smoke"), "cnp", results=folder, steps=5)
    ...     InContextRegressor(run).fit(np.eye(3), np.arange(3.0)).predict(np.zeros((5, 3))).shape
    (5,)
    """

    @guarded
    def fit(self, X: Any, y: Any) -> InContextRegressor:
        """Store a training set, `(N, features)` and `(N,)`, as the context. No weight changes."""
        self.columns_ = columns_of(X)
        X, y = validate_data(self, X, y, dtype=np.float64, y_numeric=True)
        self._store_context(X)
        shape = self.trained_.model.shape
        if shape.classes is not None:
            raise ValueError("the run predicts class labels; use InContextClassifier")
        if shape.y_dim > 1:
            raise ValueError(f"the run predicts {shape.y_dim} outputs for every row; use icl.predict(run, ...)")
        column = np.asarray(y, dtype=np.float64)[:, None]
        self.y_standard_ = Standardisation.of(column)
        self.y_scale_ = float(np.sqrt(self.trained_.family.normaliser))
        self.y_ = self.y_standard_.apply(column)[:, 0] * self.y_scale_
        return self

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.regressor_tags.poor_score = True  # the score depends on the run
        return tags

    @guarded
    def predict(self, X: Any, return_std: bool = False) -> Any:
        """Means `(Q,)`. With `return_std`, a pair of means and standard deviations, if the run predicts them."""
        queries = self._queries(X)
        means, spreads = [], []
        for rows in self.contexts_:
            prediction = self.trained_.predict(self.X_[rows], self.y_[rows], queries, return_std=return_std)
            mean, std = prediction if return_std else (prediction, np.zeros(len(queries)))
            means.append(mean.astype(np.float64))
            spreads.append(std.astype(np.float64))
        mean = np.mean(means, 0)
        outputs = self.y_standard_.undo(mean[:, None] / self.y_scale_)[:, 0]
        if not return_std:
            return outputs
        variance = np.mean(np.square(spreads) + np.square(means), 0) - np.square(mean)
        return outputs, np.sqrt(np.maximum(variance, 0.0)) / self.y_scale_ * self.y_standard_.deviation


class InContextClassifier(ClassifierMixin, _InContext):
    """A trained run as a classifier, for at most as many classes as its task has.

    Args:
        run: a finished run of a classification task, its name or its folder.
        results: results folder of a run that is given by name.
        n_contexts: number of random contexts to average probabilities over.
        random_state: seed or generator of the contexts.
        device: device of the model.

    Raises:
        ValueError: no run is given, the run predicts numbers, the run reads images or events, or there are more classes
            or features than in training.

    Warns:
        ContextSizeWarning: X has more rows than the run reads at once.

    >>> InContextClassifier("tabular-classes-gpt2-small-s0", n_contexts=8)
    InContextClassifier(n_contexts=8, run='tabular-classes-gpt2-small-s0')
    """

    @guarded
    def fit(self, X: Any, y: Any) -> InContextClassifier:
        """Store a training set, `(N, features)` and labels `(N,)` of any kind, as the context. No weight changes."""
        self.columns_ = columns_of(X)
        X, y = validate_data(self, X, y, dtype=np.float64)
        check_classification_targets(y)
        self._store_context(X)
        self.classes_, self.y_ = np.unique(y, return_inverse=True)
        trained_classes = self.trained_.model.shape.classes
        if trained_classes is None:
            raise ValueError("the run predicts numbers; use InContextRegressor")
        if len(self.classes_) > trained_classes:
            raise ValueError(f"y has {len(self.classes_)} classes, but the run was trained on {trained_classes}")
        return self

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.poor_score = True  # the score depends on the run
        return tags

    @guarded
    def predict_proba(self, X: Any) -> np.ndarray:
        """Probabilities `(Q, classes)` among the classes of the training set."""
        queries = self._queries(X)
        by_context = [self.trained_.predict_proba(self.X_[rows], self.y_[rows], queries) for rows in self.contexts_]
        probabilities = np.mean(by_context, 0)[:, : len(self.classes_)].astype(np.float64)
        normalised: np.ndarray = probabilities / probabilities.sum(1, keepdims=True)
        return normalised

    @guarded
    def predict(self, X: Any) -> np.ndarray:
        """The most likely label at every input, `(Q,)`."""
        indices = self.predict_proba(X).argmax(1)
        labels: np.ndarray = self.classes_[indices]
        return labels
