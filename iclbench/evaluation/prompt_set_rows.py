"""The rows of all contestants on a prompt set, from the results folder and from packed results."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path

import pandas as pd

from iclbench import tables
from iclbench.evaluation.prompts import PromptSet
from iclbench.tables.runs import replaced_rows


class PromptSetRows:
    """The rows of all contestants on a prompt set; each table is read once, on first use.

    Args:
        results: results folder.
        prompts: the prompt set.
    """

    def __init__(self, results: Path, prompts: PromptSet) -> None:
        self.results, self.prompts = results, prompts

    @cached_property
    def values(self) -> pd.DataFrame:
        """Rows of the table `values`, except metrics that compare contestants, which are computed from these rows."""
        packed = self.packed_values[~self.packed_values["run"].isin(self._replaced_runs)]
        rows = tables.union("values", [self._local_values, packed])
        return rows[~rows["metric"].isin(tables.COMPARISON_METRICS)]

    @cached_property
    def errors(self) -> pd.DataFrame:
        """Rows of the table `errors`.

        Packed results contain only the mean height of each episode's curve, not the curve itself. For prompt sets with
        a shift, they contain rows only if likelihoods are compared with those of an oracle.
        """
        packed = self._packed("errors")
        return tables.union("errors", [self._local("errors"), packed[~packed["run"].isin(self._replaced_runs)]])

    @cached_property
    def packed_values(self) -> pd.DataFrame:
        """Rows of the table `values` in packed results, including those of replaced runs."""
        return self._packed("values")

    @cached_property
    def _local_values(self) -> pd.DataFrame:
        return self._local("values")

    @cached_property
    def _replaced_runs(self) -> set[str]:
        """The packed runs that are excluded because the results folder contains another run with the same name."""
        return set(replaced_rows(self.packed_values, self._local_values)["run"])

    def _local(self, table: tables.TableName) -> pd.DataFrame:
        return tables.read_all(table, self.results / "tables" / self.prompts.id)

    def _packed(self, table: tables.TableName) -> pd.DataFrame:
        rows = tables.read_packed(table, self.results, self.prompts.task.name, self.prompts.preset)
        return rows[rows["prompt_set"].eq(self.prompts.id)]
