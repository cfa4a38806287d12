"""Trained runs as scikit-learn estimators: `fit` stores the context, and `predict` is a forward pass of the model."""

from __future__ import annotations

import warnings
from numbers import Real
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import torch
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_consistent_length, check_is_fitted, validate_data

from iclbench.api.predict import Trained, column_mismatch, columns_of, load
from iclbench.api.table_model import MAX_ROWS, TableModel
from iclbench.core.errors import UsageError
from iclbench.core.guard import guarded
from iclbench.core.standard import Standardisation
from iclbench.families.tabular.encoder import TableEncoder, TargetKind
from iclbench.store.runs import Run
from iclbench.store.shipped import TABLE_RUNS, shipped_run


class ContextSizeWarning(UserWarning):
    """The training set has more rows or columns than the model reads at once, so predictions are averaged over random
    selections of them."""


class UnreadCellsWarning(UserWarning):
    """Cells of a new table count as missing, because they do not have the kind of their column, or because the training
    set does not contain their category."""


class _InContext(BaseEstimator):
    """Base class of both estimators, which loads the run, encodes the columns and stores the context.

    The columns of a data frame may contain numbers, booleans, dates, categories, text and missing values
    (`iclbench.families.tabular.encoder`). They are standardised with the mean and variance of the training set, because
    runs are trained on inputs with mean 0 and variance 1. If there are fewer columns than in training, the missing
    columns are 0. If there are more rows or columns than the model reads at once, the model reads several random
    selections of them, and its predictions are averaged (`iclbench.api.table_model`).
    """

    target_kind: ClassVar[TargetKind]

    def __init__(
        self,
        run: Run | Trained | str | Path | None = None,
        results: str | Path = "results",
        n_contexts: int = 4,
        n_permutations: int | None = None,
        random_state: Any = 0,
        device: str | torch.device = "cpu",
    ) -> None:
        self.run = run
        self.results = results
        self.n_contexts = n_contexts
        self.n_permutations = n_permutations
        self.random_state = random_state
        self.device = device

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        tags.input_tags.categorical = True
        tags.input_tags.string = True
        return tags

    def _load_run(self) -> Trained:
        if isinstance(self.run, Trained):
            return self.run
        if self.run is not None:
            return load(self.run, self.results, device=self.device)
        name = TABLE_RUNS[self.target_kind]
        run = shipped_run(name)
        if run is None:
            raise UsageError(
                f"the package has no run '{name}'; train a run on a task with features and pass its name (iclbench "
                f"predict RUN, or {type(self).__name__}(run=...))",
                code="missing-file",
            )
        return load(run, device=self.device)

    def _validated(self, X: Any, y: Any, **checks: Any) -> tuple[pd.DataFrame, np.ndarray]:
        """Return the training set as a data frame, and its targets, after scikit-learn's checks."""
        for name, number in (("n_contexts", self.n_contexts), ("n_permutations", self.n_permutations)):
            if not (_is_positive(number) or (name == "n_permutations" and number is None)):
                raise ValueError(f"{name}={number!r}: expected a whole number of at least 1")
        self.columns_ = columns_of(X)
        if self.columns_:
            # If y is None, the second call of `validate_data` raises the error. This call comes after the check of y,
            # because it stores the names of the columns.
            if y is not None:
                y = validate_data(self, y=y, **checks)
            validate_data(self, X, y, skip_check_array=True)
            check_consistent_length(X, y)
        else:
            X, y = validate_data(self, X, y, dtype=None, ensure_all_finite=False, **checks)
        return _frame(X), y

    def _encoded(self, frame: pd.DataFrame) -> np.ndarray:
        """Load the run, and return the encoded training set."""
        self.trained_ = self._load_run()
        shape, run = self.trained_.model.shape, self.trained_.run
        if shape.inputs != "features":
            functions = {"images": "icl.predict", "events": "icl.next_event"}
            function_call = f"{functions.get(shape.inputs, 'icl.next_element')}(run, ...)"
            raise ValueError(f"run '{run.name}' reads {shape.inputs}, not rows of features; use {function_call}")
        # In arrays without column names, a column that counts the rows may be an input, such as a time.
        self.encoder_ = TableEncoder(drop_index=bool(self.columns_)).fit(frame)
        return self.encoder_.transform(frame)

    def _store_context(self, x: np.ndarray, y: np.ndarray) -> None:
        """Store the context, and select its rows and columns."""
        self.model_ = TableModel(
            self.trained_,
            x,
            y,
            n_contexts=self.n_contexts,
            n_permutations=self.n_permutations,
            random=check_random_state(self.random_state),
        )
        self.remarks_ = self.model_.remarks
        if self.model_.selects_rows or self.model_.selects_columns:
            advice = ""
            if self.model_.selects_rows and len(x) <= MAX_ROWS:
                advice = (
                    f"; to read all rows at once, train a run with -o task.points={len(x)} (in Python: icl.task(..., "
                    f"points={len(x)}))"
                )
            warnings.warn(
                f"run '{self.trained_.run.name}': {'; '.join(self.remarks_)}{advice}",
                ContextSizeWarning,
                stacklevel=4,  # the warning points at the call of `fit`
            )

    def _queries(self, X: Any) -> np.ndarray:
        check_is_fitted(self, "model_")
        if columns_of(X):
            validate_data(self, X, reset=False, skip_check_array=True)
        else:
            X = validate_data(self, X, reset=False, dtype=None, ensure_all_finite=False)
        if mismatch := column_mismatch(self.columns_, columns_of(X)):
            raise ValueError(f"X has {mismatch[1]} in place of {mismatch[0]}: pass the columns in the order of fit")
        frame = _frame(X).set_axis(list(self.encoder_.input_names), axis=1)
        if unread := self.encoder_.unread(frame):
            warnings.warn("; ".join(unread), UnreadCellsWarning, stacklevel=4)
        return self.encoder_.transform(frame)


def _frame(X: Any) -> pd.DataFrame:
    """Convert an array or a data frame of any library to a pandas data frame."""
    if isinstance(X, pd.DataFrame):
        return X
    names = columns_of(X)  # X may be a data frame of another library
    return pd.DataFrame({name: list(X[name]) for name in names}) if names else pd.DataFrame(X)


def _is_positive(number: Any) -> bool:
    return isinstance(number, int | np.integer) and bool(number > 0)


class InContextRegressor(RegressorMixin, _InContext):
    """A trained run as a scikit-learn regressor.

    Targets are scaled to the spread of the outputs in training, and predictions are converted back. Predictions
    therefore do not depend on the unit or the origin of the targets: for targets `c * y + b` with c > 0, they are
    `c * predict(X) + b`. If all targets are equal, or if there is only one row, the prediction is the value of the
    target with a standard deviation of 0.

    Args:
        run: a finished run of a regression task (`icl.train`, `icl.load`), its name or its folder (default: the run
            `reference/cells-regression` of the package).
        results: results folder of a run that is given by name.
        n_contexts: number of random selections of rows to average over if there are more rows than the model reads at
            once. A causal model reads as many rows as in training, a set model up to 1,000.
        n_permutations: number of orders of the rows to average over (default: 4 for a causal model, 1 for a set model).
            Every selection has another order, so the number of selections is at least `n_permutations`.
        random_state: seed or generator of the selections and orders.
        device: device of the model.

    Raises:
        ValueError: the run predicts classes or several outputs, or does not read rows of features.
        UsageError: no run is given, and the package does not contain the default run.

    Warns:
        ContextSizeWarning: X has more rows or columns than the model reads at once.
        UnreadCellsWarning: cells of a new table cannot be read, or have a category that the training set lacks.

    >>> from tempfile import TemporaryDirectory
    >>> from iclbench.api.tasks import task
    >>> from iclbench.api.train import train
    >>> with TemporaryDirectory() as folder:
    ...     run = train(task("linear", "smoke"), "cnp", results=folder, steps=5)
    ...     InContextRegressor(run).fit(np.eye(3), np.arange(3.0)).predict(np.zeros((5, 3))).shape
    (5,)
    """

    target_kind = "number"

    @guarded
    def fit(self, X: Any, y: Any) -> InContextRegressor:
        """Store a training set, `(N, features)` and `(N,)`, as the context; the weights do not change."""
        frame, y = self._validated(X, y, y_numeric=True)
        x, shape = self._encoded(frame), self.trained_.model.shape
        if shape.classes is not None:
            raise ValueError("the run predicts class labels; use InContextClassifier")
        if shape.y_dim > 1:
            raise ValueError(f"the run predicts {shape.y_dim} outputs for every row; use icl.predict(run, ...)")
        column = np.asarray(y, dtype=np.float64)[:, None]
        self.y_standard_ = Standardisation.of(column)
        self.y_scale_ = float(np.sqrt(self.trained_.family.normaliser))
        self._store_context(x, self.y_standard_.apply(column)[:, 0] * self.y_scale_)
        return self

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.regressor_tags.poor_score = True  # the score depends on the run
        return tags

    @guarded
    def predict(self, X: Any, return_std: bool = False) -> Any:
        """Predict means, `(Q,)`. With `return_std`, return a pair of means and standard deviations.

        Raises:
            ValueError: `return_std` is set, and the run predicts single values.
        """
        queries = self._queries(X)
        answers = self.model_.numbers(queries)
        mean = self._in_units(answers.mean)
        if not return_std:
            return mean
        if answers.std is None:
            raise ValueError(f"return_std: {self._no_spread()}")
        return mean, answers.std / self.y_scale_ * self.y_standard_.deviation

    @guarded
    def predict_interval(self, X: Any, level: float = 0.9) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Predict means and the lower and upper ends of central intervals, `(Q,)` each.

        The intervals contain an output with probability `level`. If predictions are averaged over several selections or
        orders of the rows, so are the ends.

        Raises:
            ValueError: the run predicts single values, or `level` is not between 0 and 1.
        """
        if not (isinstance(level, Real) and 0 < level < 1):
            raise ValueError(f"level={level!r}: expected a probability between 0 and 1, such as 0.9")
        queries = self._queries(X)
        answers = self.model_.numbers(queries, level)
        if answers.low is None or answers.high is None:
            raise ValueError(f"predict_interval: {self._no_spread()}")
        return self._in_units(answers.mean), self._in_units(answers.low), self._in_units(answers.high)

    def _no_spread(self) -> str:
        run = self.trained_.run.name
        return f"run '{run}' predicts single values; use a run of a task with head='gaussian' (or 'mixture')"

    def _in_units(self, outputs: np.ndarray) -> np.ndarray:
        """Convert outputs of the model to the unit of the targets."""
        return self.y_standard_.undo(outputs[:, None] / self.y_scale_)[:, 0]


class InContextClassifier(ClassifierMixin, _InContext):
    """A trained run as a scikit-learn classifier, for at most as many classes as its training task has.

    Args:
        run: a finished run of a classification task, its name or its folder (default: the run
            `reference/cells-classification` of the package).
        results: results folder of a run that is given by name.
        n_contexts: number of random selections of rows over which probabilities are averaged, as in
            `InContextRegressor`.
        n_permutations: number of orders of the rows and of the classes to average over, as in `InContextRegressor`. The
            model numbers the classes, and its answers depend on their order. The first order is the sorted one.
        random_state: seed or generator of the selections and orders.
        device: device of the model.

    Raises:
        ValueError: the run predicts numbers, was trained on fewer classes, or does not read rows of features.
        UsageError: no run is given, and the package does not contain the default run.

    Warns:
        ContextSizeWarning: X has more rows or columns than the model reads at once.
        UnreadCellsWarning: cells of a new table cannot be read, or have a category that the training set lacks.

    >>> InContextClassifier("tabular-classes-gpt2-small-s0", n_contexts=8)
    InContextClassifier(n_contexts=8, run='tabular-classes-gpt2-small-s0')
    """

    target_kind = "class"

    @guarded
    def fit(self, X: Any, y: Any) -> InContextClassifier:
        """Store a training set, `(N, features)` and labels `(N,)` of any type, as the context; the weights do not
        change."""
        frame, y = self._validated(X, y)
        check_classification_targets(y)
        x = self._encoded(frame)
        self.classes_, indices = np.unique(y, return_inverse=True)
        trained_classes = self.trained_.model.shape.classes
        if trained_classes is None:
            raise ValueError("the run predicts numbers; use InContextRegressor")
        if len(self.classes_) > trained_classes:
            raise ValueError(
                f"y has {len(self.classes_)} classes, but run '{self.trained_.run.name}' was trained on "
                f"{trained_classes}; merge rare classes, or train a run with -o task.classes={len(self.classes_)}"
            )
        self._store_context(x, indices)
        return self

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.poor_score = True  # the score depends on the run
        return tags

    @guarded
    def predict_proba(self, X: Any) -> np.ndarray:
        """Predict the probabilities of the classes of the training set, `(Q, classes)`."""
        queries = self._queries(X)
        return self.model_.probabilities(queries)

    @guarded
    def predict(self, X: Any) -> np.ndarray:
        """Predict the most likely label for each row, `(Q,)`."""
        indices = self.predict_proba(X).argmax(1)
        labels: np.ndarray = self.classes_[indices]
        return labels
