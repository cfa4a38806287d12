"""Trained runs as scikit-learn estimators: `fit` stores the context, `predict` is one forward pass."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

from iclbench.api.predict import Trained, columns_of, load, misplaced
from iclbench.config.runs import Run
from iclbench.core.guard import guarded


class _InContext(BaseEstimator):
    """What both share: the run, the context, and inputs as the run knows them.

    A run takes contexts up to its trained length: of a larger training set, `n_contexts` random ones of that length are
    drawn, and answers are averaged over them. Inputs are standardised by the training set, since runs are trained on
    inputs of mean 0 and variance 1; fewer features than the run has are filled up with zeros.
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

    def _trained(self) -> Trained:
        if self.run is None:
            raise ValueError(f"{type(self).__name__}(run=...): give a finished run, its name or its folder")
        if isinstance(self.run, Trained):
            return self.run
        return load(self.run, self.results, device=self.device)

    def _take(self, X: np.ndarray) -> None:
        """Note the training set's inputs and how they are scaled, and draw the contexts."""
        if not _positive(self.n_contexts):
            raise ValueError(f"n_contexts={self.n_contexts!r}: expected a whole number of at least 1")
        self.trained_ = self._trained()
        shape = self.trained_.model.shape
        if shape.marks is not None:
            raise ValueError("the run predicts events, which have no features; use icl.next_event")
        known = shape.x_dim
        if X.shape[1] > known:
            raise ValueError(f"X has {X.shape[1]} features, and the run was trained on {known}; choose fewer of them")
        # Of huge inputs the squares would not be finite.
        largest = np.maximum(np.abs(X).max(0), np.finfo(float).tiny)
        scaled = X / largest
        spread = scaled.std(0)
        self.mean_ = scaled.mean(0) * largest
        self.scale_ = np.where(spread > 1e-12, spread, 1.0) * largest
        self.X_ = self._features(X)
        most = min(len(X), self.trained_.run.config.task.points)
        random = check_random_state(self.random_state)
        draws = 1 if most == len(X) else self.n_contexts
        self.contexts_ = [
            np.arange(len(X)) if most == len(X) else random.choice(len(X), most, replace=False) for _ in range(draws)
        ]

    def _features(self, X: np.ndarray) -> np.ndarray:
        scaled = (X - self.mean_) / self.scale_
        missing = self.trained_.model.shape.x_dim - X.shape[1]
        return np.pad(scaled, [(0, 0), (0, missing)]).clip(-1e6, 1e6)

    def _queries(self, X: Any) -> np.ndarray:
        check_is_fitted(self, "contexts_")
        queries = validate_data(self, X, reset=False, dtype=np.float64)
        if found := misplaced(self.columns_, columns_of(X)):
            raise ValueError(f"X has {found[1]} where fit was given {found[0]}: give the columns of fit in their order")
        return self._features(queries)


def _positive(number: Any) -> bool:
    return isinstance(number, int | np.integer) and bool(number > 0)


class InContextRegressor(RegressorMixin, _InContext):
    """A trained run as a regressor. Outputs are standardised to the spread that the run was trained on, and back.

    Args:
        run: a finished run of a regression task (`icl.train`, `icl.load`), its name or its folder.
        results: results folder, for a name.
        n_contexts: random contexts of the trained length that answers are averaged over, where there are more points.
        random_state: of these draws.
        device: where the model computes.

    Raises:
        ValueError: no run is given, it is one of classes, or X has more features than it was trained on.

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
        """Take in a training set, `(N, features)` and `(N,)`; no weight changes."""
        self.columns_ = columns_of(X)
        X, y = validate_data(self, X, y, dtype=np.float64, y_numeric=True)
        self._take(X)
        if self.trained_.model.shape.classes is not None:
            raise ValueError("the run predicts class labels; use InContextClassifier")
        task = self.trained_.run.config.task
        y = np.asarray(y, dtype=np.float64)
        # Of huge outputs the squares would not be finite; a power of two rounds nothing.
        unit = float(np.ldexp(0.5, np.frexp(np.abs(y).max())[1]))
        self.y_mean_ = float(np.mean(y / unit)) * unit
        spread = float(np.std(y / unit)) * unit
        self.y_scale_ = (spread if spread > 0 else 1.0) / np.sqrt(task.build().normaliser)
        self.y_ = (y - self.y_mean_) / self.y_scale_
        return self

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.regressor_tags.poor_score = True  # it is that of the run
        return tags

    @guarded
    def predict(self, X: Any, return_std: bool = False) -> Any:
        """Means `(Q,)`; with `return_std` a pair with the standard deviations, of a run that predicts distributions."""
        queries = self._queries(X)
        means, spreads = [], []
        for rows in self.contexts_:
            found = self.trained_.predict(self.X_[rows], self.y_[rows], queries, return_std=return_std)
            mean, std = found if return_std else (found, np.zeros(len(queries)))
            means.append(mean.astype(np.float64))
            spreads.append(std.astype(np.float64))
        mean = np.mean(means, 0)
        whole = mean * self.y_scale_ + self.y_mean_
        if not return_std:
            return whole
        variance = np.mean(np.square(spreads) + np.square(means), 0) - np.square(mean)
        return whole, np.sqrt(np.maximum(variance, 0.0)) * self.y_scale_


class InContextClassifier(ClassifierMixin, _InContext):
    """A trained run as a classifier of as many classes as its task has, or fewer.

    Args:
        run: a finished run of a classification task, its name or its folder.
        results: results folder, for a name.
        n_contexts: random contexts of the trained length that probabilities are averaged over.
        random_state: of these draws.
        device: where the model computes.

    Raises:
        ValueError: no run is given, it is one of numbers, or there are more classes or features than it knows.

    >>> InContextClassifier("tabular-classes-gpt2-small-s0", n_contexts=8)
    InContextClassifier(n_contexts=8, run='tabular-classes-gpt2-small-s0')
    """

    @guarded
    def fit(self, X: Any, y: Any) -> InContextClassifier:
        """Take in a training set, `(N, features)` and labels `(N,)` of any kind; no weight changes."""
        self.columns_ = columns_of(X)
        X, y = validate_data(self, X, y, dtype=np.float64)
        check_classification_targets(y)
        self._take(X)
        self.classes_, self.y_ = np.unique(y, return_inverse=True)
        known = self.trained_.model.shape.classes
        if known is None:
            raise ValueError("the run predicts numbers; use InContextRegressor")
        if len(self.classes_) > known:
            raise ValueError(f"y has {len(self.classes_)} classes, and the run was trained on {known}")
        return self

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.poor_score = True  # it is that of the run
        return tags

    @guarded
    def predict_proba(self, X: Any) -> np.ndarray:
        """Probabilities `(Q, classes)` among the classes of the training set."""
        queries = self._queries(X)
        found = [self.trained_.predict_proba(self.X_[rows], self.y_[rows], queries) for rows in self.contexts_]
        own = np.mean(found, 0)[:, : len(self.classes_)].astype(np.float64)
        shares: np.ndarray = own / own.sum(1, keepdims=True)
        return shares

    @guarded
    def predict(self, X: Any) -> np.ndarray:
        """The likeliest label at every input, `(Q,)`."""
        likeliest = self.predict_proba(X).argmax(1)
        labels: np.ndarray = self.classes_[likeliest]
        return labels
