"""Predictions of a trained model for new rows of a table, averaged over several contexts.

A model reads a limited number of rows and columns, its answers depend on the numbers of the classes, and those of a
causal model also on the order of the rows. Predictions are therefore averaged over *members*: contexts with random
selections of rows and columns, random orders of the rows, and random numbers of the classes. The first member has the
rows in their order, if all are read, and the classes in sorted order.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from jaxtyping import Float, Int

from iclbench.api.predict import Prompt, Trained
from iclbench.core.errors import UsageError
from iclbench.core.predictions import Categorical, Point
from iclbench.core.standard import Standardisation
from iclbench.families.tabular.real_tables import LIMIT

# Largest number of rows of a context, and largest number of columns for models that read any number of columns. They
# limit the use of memory.
MAX_ROWS, MAX_COLUMNS = 1000, 100
# Number of orders of the rows over which the answers of a causal model are averaged.
CAUSAL_PERMUTATIONS = 4
# Limits on the number of random selections of columns. Within these limits, it is the smallest number with which each
# column is read at least once.
_MIN_SELECTIONS, _MAX_SELECTIONS = 4, 16


@dataclass(frozen=True)
class Member:
    """Indices of the rows of a context, in order, and of the columns that the model reads, and the number of every
    class as the model reads it (empty for numbers)."""

    rows: Int[np.ndarray, " N"]
    columns: Int[np.ndarray, " D"]
    labels: Int[np.ndarray, " classes"]


@dataclass(frozen=True)
class Answers:
    """Predictions of numbers.

    Attributes:
        mean: means.
        std: standard deviations; None if the model predicts single values.
        low: lower ends of the central intervals; None if the model predicts single values.
        high: upper ends of the central intervals; None if the model predicts single values.
    """

    mean: Float[np.ndarray, " Q"]
    std: Float[np.ndarray, " Q"] | None = None
    low: Float[np.ndarray, " Q"] | None = None
    high: Float[np.ndarray, " Q"] | None = None


class TableModel:
    """A trained model with the rows of a table as its context.

    Args:
        trained: a trained model that reads rows of features.
        x: encoded columns of the context.
        y: outputs on the scale of the model's task, or class indices.
        n_contexts: number of random selections of rows, if there are more rows than the model reads at once.
        n_permutations: number of orders of the rows and classes (default: 4 for a causal model, and 1 for a set model,
            whose answers do not depend on the order of the rows).
        random: random number generator for the members.

    Attributes:
        members: the contexts.
        remarks: sentences about the random selections and orders, for the user.
    """

    def __init__(
        self,
        trained: Trained,
        x: Float[np.ndarray, "N columns"],
        y: np.ndarray,
        *,
        n_contexts: int,
        n_permutations: int | None,
        random: np.random.RandomState,
    ) -> None:
        self._trained, self._y = trained, y
        self._standard = Standardisation.of(x)
        self._x = self._inputs(x)
        if n_permutations is None:
            n_permutations = CAUSAL_PERMUTATIONS if trained.model.order == "causal" else 1
        self._classes = 0 if trained.model.shape.classes is None else int(y.max()) + 1
        limits = (self.row_limit, self.column_limit)
        self.members = _members(self._x.shape, limits, self._classes, n_contexts, n_permutations, random)

    @cached_property
    def row_limit(self) -> int:
        """Largest number of rows in a context: the number in training, or `MAX_ROWS` for set models without a limit."""
        model, trained_rows = self._trained.model, self._trained.run.config.task.points
        if model.order == "set" and model.longest is None:
            return MAX_ROWS
        limit = min(MAX_ROWS, trained_rows)
        return limit if model.longest is None else min(limit, model.longest - 1)

    @cached_property
    def column_limit(self) -> int:
        """Number of columns that the model reads at once."""
        model = self._trained.model
        return max(MAX_COLUMNS, model.shape.x_dim) if model.reads_any_columns else model.shape.x_dim

    @property
    def has_intervals(self) -> bool:
        """Whether the model predicts distributions instead of single values."""
        return self._trained.model.shape.prediction is not Point

    @property
    def selects_rows(self) -> bool:
        """Whether there are more rows than the model reads at once."""
        return len(self._x) > self.row_limit

    @property
    def selects_columns(self) -> bool:
        """Whether there are more columns than the model reads at once."""
        return self._x.shape[1] > self.column_limit

    @property
    def remarks(self) -> list[str]:
        rows, columns = self._x.shape
        count = len(self.members)
        selection_text = (
            "1 random selection" if count == 1 else f"{count} random selections, whose predictions are averaged"
        )
        remarks = []
        if self.selects_rows:
            remarks.append(f"the model reads {self.row_limit} of the {rows} rows at once: {selection_text}")
        if self.selects_columns:
            remarks.append(
                f"the model reads {self.column_limit} of the {columns} encoded columns at once: {selection_text}"
            )
        if not remarks and count > 1:
            remarks.append(
                f"predictions are averaged over {count} orders of the rows{' and classes' * (self._classes > 0)}"
            )
        if min(rows, self.row_limit) > (trained_rows := self._trained.run.config.task.points):
            remarks.append(f"contexts are longer than in training ({trained_rows} rows)")
        return remarks

    def numbers(self, x: Float[np.ndarray, "Q columns"], level: float = 0.9) -> Answers:
        """Predict numbers on the scale of the model's task; the ends of intervals are means over members."""
        answers = [self._member_numbers(member, self._inputs(x), level) for member in self.members]
        means, stds, lows, highs = (np.stack(parts) for parts in zip(*answers, strict=True))
        mean = means.mean(0)
        if np.isnan(stds).any():
            return Answers(mean)
        variance = (stds**2 + means**2).mean(0) - mean**2
        return Answers(mean, np.sqrt(np.maximum(variance, 0.0)), lows.mean(0), highs.mean(0))

    def probabilities(self, x: Float[np.ndarray, "Q columns"]) -> Float[np.ndarray, "Q classes"]:
        """Predict the probabilities of the classes of the context, normalised to sum to 1."""
        inputs = self._inputs(x)
        by_member = [self._member_probabilities(member, inputs) for member in self.members]
        probabilities = np.mean(by_member, 0).astype(np.float64)
        normalised: np.ndarray = probabilities / probabilities.sum(1, keepdims=True)
        return normalised

    def _inputs(self, x: Float[np.ndarray, "N columns"]) -> Float[np.ndarray, "N columns"]:
        return self._standard.apply(x).clip(-LIMIT, LIMIT)

    def _prompt(self, member: Member, queries: Float[np.ndarray, "Q columns"]) -> Prompt:
        context, queries = (self._selected(x, member.columns) for x in (self._x[member.rows], queries))
        y = self._y[member.rows]
        return Prompt(self._trained.model, context, member.labels[y] if self._classes else y, queries)

    def _selected(self, x: Float[np.ndarray, "N columns"], columns: np.ndarray) -> Float[np.ndarray, "N Dx"]:
        """Return the columns of a member as inputs of the model, padded with zeros if the model reads more columns."""
        inputs = x[:, columns]
        model = self._trained.model
        width = max(1, len(columns)) if model.reads_any_columns else model.shape.x_dim
        if getattr(self._trained.family.parameters, "rescale", False) and len(columns):
            inputs = inputs * (width / len(columns))  # as in training
        return np.pad(inputs, [(0, 0), (0, width - len(columns))])

    def _member_numbers(
        self, member: Member, queries: np.ndarray, level: float
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        prediction = self._prompt(member, queries).predict().marginals
        mean = _column(prediction.point())
        interval = prediction.interval(level)
        if interval is None:
            none = np.full_like(mean, np.nan)
            return mean, none, none, none
        std = prediction.std  # type: ignore[attr-defined]
        return mean, _column(std), _column(interval[0]), _column(interval[1])

    def _member_probabilities(self, member: Member, queries: np.ndarray) -> np.ndarray:
        prediction = self._prompt(member, queries).predict()
        assert isinstance(prediction, Categorical)
        return _finite(prediction.logits.softmax(-1)[0])[:, member.labels]


def _members(
    shape: tuple[int, ...],
    limits: tuple[int, int],
    classes: int,
    n_contexts: int,
    n_permutations: int,
    random: np.random.RandomState,
) -> list[Member]:
    """Return the contexts. Rows and columns are selected at random if there are more than `limits`."""
    (rows, columns), (row_limit, column_limit) = shape, limits
    selects_rows, selects_columns = rows > row_limit, columns > column_limit
    counts = [n_permutations]
    if selects_rows:
        counts.append(n_contexts)
    if selects_columns:
        counts.append(int(np.clip(-(-columns // column_limit), _MIN_SELECTIONS, _MAX_SELECTIONS)))
    members, unread = [], np.arange(0)
    for index in range(max(counts)):
        if selects_rows:
            row_indices = random.choice(rows, row_limit, replace=False)
        else:
            row_indices = np.arange(rows) if index == 0 or n_permutations == 1 else random.permutation(rows)
        column_indices = np.arange(columns)
        if selects_columns:
            if len(unread) < column_limit:  # start a new round, so that all columns are read about equally often
                read_columns = np.setdiff1d(np.arange(columns), unread)
                unread = np.concatenate([unread, random.permutation(read_columns)])
            column_indices, unread = np.sort(unread[:column_limit]), unread[column_limit:]
        labels = np.arange(classes) if index == 0 else random.permutation(classes)
        members.append(Member(row_indices, column_indices, labels))
    return members


def _column(values: torch.Tensor) -> np.ndarray:
    return _finite(values[0, :, 0])


def _finite(values: torch.Tensor) -> np.ndarray:
    array: np.ndarray = values.double().cpu().numpy()
    if not np.isfinite(array).all():
        raise UsageError(
            "the predictions are not finite; bring inputs and outputs to the scale of the model's task",
            code="not-finite",
        )
    return array
