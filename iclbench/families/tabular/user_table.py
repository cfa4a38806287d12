"""Splits of a user's table, on which runs that were trained on any task with features can be evaluated."""

from __future__ import annotations

from typing import Any

import numpy as np
from jaxtyping import Float, Int

from iclbench.core.errors import DataError
from iclbench.core.formats import plural
from iclbench.families.tabular.encoder import EncodedTarget, target_step
from iclbench.families.tabular.real_tables import MIN_TARGETS, RealTables, RealTablesParameters
from iclbench.families.tabular.table_set import LabelledTable

# Largest default number of rows of a context, and largest number of targets of a split.
MAX_POINTS, MAX_TARGETS = 1000, 256


class UserTable(RealTables):
    """Splits of a user's table.

    Args:
        parameters: see `RealTablesParameters`; `variance` is the variance in the task of the model.
        table: the table.
    """

    def __init__(self, parameters: RealTablesParameters, table: LabelledTable) -> None:
        super().__init__(parameters, tables=[table])

    @property
    def table(self) -> LabelledTable:
        return self.tables[0]

    def outputs(
        self, context: Int[np.ndarray, " N"], others: Int[np.ndarray, " M"]
    ) -> Float[np.ndarray, " M"] | Int[np.ndarray, " M"]:
        """Return the outputs of other rows in the units of an episode with this context."""
        y = self.table.y[np.concatenate([context, others])]
        if self.classes is not None:
            return y[len(context) :]
        return self.scaled_outputs(y, len(context))[len(context) :]

    def remarks(self, points: int, prompts: int) -> list[str]:
        table = self.table
        target = target_step(table.target, EncodedTarget(table.kind, table.y, table.class_names))
        return [*super().remarks(points, prompts), target, *table.encoder.summary, *table.encoder.remarks]

    def encoding(self) -> dict[str, Any]:
        """Return the encoding of the target and of all columns as plain values."""
        table = self.table
        target = {"name": table.target, "kind": table.kind, "classes": list(table.class_names)}
        return {"target": target, **table.encoder.to_dict()}


def context_rows(table: LabelledTable, trained_rows: int, requested: int | None, is_unlimited: bool, run: str) -> int:
    """Return the number of rows of a context.

    Args:
        table: the table.
        trained_rows: number of rows of a context in training.
        requested: number that the user requests (default: `trained_rows`, but at most 1,000 and at most four fifths of
            the table).
        is_unlimited: whether the model reads contexts of any length.
        run: name of the run, for the message.

    Raises:
        DataError: the table is too small, or the model reads fewer rows.
    """
    if requested is None:
        requested = min(trained_rows, MAX_POINTS, table.rows - max(MIN_TARGETS, table.rows // 5))
    if requested > trained_rows and not is_unlimited:
        raise DataError(
            f"--points {requested}: run '{run}' was trained with {trained_rows} rows and cannot read more; use fewer "
            "points, or train a run with a larger -o task.points",
            code="not-applicable",
        )
    if requested < 1 or table.rows < requested + MIN_TARGETS:
        raise DataError(
            f"'{table.name}' has {plural(table.rows, 'row')} with a target, fewer than a context of "
            f"{plural(max(requested, 1), 'row')} and {MIN_TARGETS} targets; use a larger table or fewer --points"
        )
    return requested
