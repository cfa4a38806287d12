"""Fits of models with scikit-learn's interface on the prefixes of one episode.

This module does not import torch, because worker processes import only a small part of the package.
"""

from __future__ import annotations

import copy
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any

import numpy as np

# Smallest probability of a class: the machine epsilon of float32, as in scikit-learn's `log_loss`. It makes the
# cross-entropy finite for classes that are not in the context.
SMALLEST_PROBABILITY = float(np.finfo(np.float32).eps)
# Probability of the predicted class if the model does not predict probabilities.
CONFIDENCE = 0.99


def fit_values(
    model: Any, x: np.ndarray, y: np.ndarray, lengths: np.ndarray, queries: np.ndarray, with_std: bool
) -> np.ndarray:
    """Return predictions of numbers by models that are fitted on the first `lengths[p]` points.

    Args:
        model: a regressor.
        x, y: the points, `(N, Dx)` and `(N,)`.
        lengths: prefix lengths, `(P,)`.
        queries: queries for each prefix, `(P, Q, Dx)`.
        with_std: whether the model also predicts standard deviations.

    Returns:
        Means and standard deviations, `(P, Q, 2)`. For length 0, they are 0 and 1. Without `with_std`, all standard
        deviations are 1.
    """
    answers = np.zeros((*queries.shape[:2], 2))
    answers[..., 1] = 1.0
    with _quiet():
        for p, n in enumerate(lengths):
            if n == 0:
                continue
            fitted = _fit(model, x[:n], y[:n])
            if with_std:
                answers[p, :, 0], answers[p, :, 1] = fitted.predict(queries[p], return_std=True)
            else:
                answers[p, :, 0] = np.asarray(fitted.predict(queries[p]), dtype=float).reshape(-1)
    # A Gaussian process without noise predicts a standard deviation of 0 at its points.
    answers[..., 1] = np.maximum(answers[..., 1], 1e-6)
    return answers


def fit_classes(
    model: Any, x: np.ndarray, y: np.ndarray, lengths: np.ndarray, queries: np.ndarray, classes: int
) -> np.ndarray:
    """Return log-probabilities of classes, `(P, Q, classes)`, by models fitted on the first `lengths[p]` points.

    Before the fit, the labels in a prefix are renumbered from 0, as XGBoost requires. If a prefix contains only one
    label, the model is not fitted and this label is predicted. For length 0, all classes have the unnormalised
    log-probability 0.

    Args:
        model: a classifier.
        x, y, lengths, queries: as in `fit_values`, with integer labels `y`.
        classes: number of classes.
    """
    answers = np.zeros((*queries.shape[:2], classes))
    with _quiet():
        for p, n in enumerate(lengths):
            if n == 0:
                continue
            labels, numbers = np.unique(y[:n], return_inverse=True)
            probabilities = np.zeros((queries.shape[1], classes))
            if len(labels) == 1:
                probabilities[:, labels[0]] = 1.0
            else:
                fitted = _fit(model, x[:n], numbers)
                probabilities[:, labels] = _class_probabilities(fitted, queries[p], len(labels))
            answers[p] = np.log(np.maximum(probabilities, SMALLEST_PROBABILITY))
    return answers


def _fit(model: Any, x: np.ndarray, y: np.ndarray) -> Any:
    """Return a fitted copy of the model; the model itself is not fitted, because fits may change its state.

    The number of nearest neighbours is limited to the number of points. If a search does not have enough points for its
    folds, or if a fold lacks a class, the model inside the search is fitted with its own settings instead.
    """
    model = copy.deepcopy(model)
    settings = model.get_params(deep=False) if hasattr(model, "get_params") else {}
    neighbours = settings.get("n_neighbors")
    if isinstance(neighbours, int) and neighbours > len(x):
        return model.set_params(n_neighbors=len(x)).fit(x, y)
    is_search = "cv" in settings and "estimator" in settings
    try:
        return model.fit(x, y)
    except ValueError:
        if not is_search:
            raise
        return _fit(settings["estimator"], x, y)


def _class_probabilities(fitted: Any, queries: np.ndarray, count: int) -> np.ndarray:
    """Return the probabilities of the classes, `(Q, count)`."""
    if hasattr(fitted, "predict_proba"):
        return np.asarray(fitted.predict_proba(queries), dtype=float)
    predicted = np.asarray(fitted.predict(queries)).reshape(-1).astype(int)
    return np.where(np.arange(count) == predicted[:, None], CONFIDENCE, (1 - CONFIDENCE) / (count - 1))


@contextmanager
def _quiet() -> Iterator[None]:
    """Suppress warnings and output to stdout, which is reserved for results."""
    with warnings.catch_warnings(), Path(os.devnull).open("w") as sink, redirect_stdout(sink):
        warnings.simplefilter("ignore")
        yield
