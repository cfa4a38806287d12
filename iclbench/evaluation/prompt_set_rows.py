"""The rows of all contestants on a prompt set: those of a results folder first, then packed ones."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path

import pandas as pd

from iclbench import tables
from iclbench.evaluation.prompts import PromptSet
from iclbench.tables.runs import replaced_rows


class PromptSetRows:
    """The rows of all contestants of a prompt set; every table is read when it is first asked for, and once.

    Args:
        results: results folder.
        prompts: the prompt set.
    """

    def __init__(self, results: Path, prompts: PromptSet) -> None:
        self.results, self.prompts = results, prompts

    @cached_property
    def values(self) -> pd.DataFrame:
        """Values, without those that compare contestants with each other: these follow from all others."""
        packed = self.packed_values[~self.packed_values["run"].isin(self._trained_otherwise)]
        rows = tables.union("values", [self._own_values, packed])
        return rows[~rows["metric"].isin(tables.COMPARING)]

    @cached_property
    def errors(self) -> pd.DataFrame:
        """Scores of single episodes. Packed ones are of curves mean heights, and under a shift there only where
        likelihoods are compared with an oracle's."""
        packed = self._packed("errors")
        return tables.union("errors", [self._own("errors"), packed[~packed["run"].isin(self._trained_otherwise)]])

    @cached_property
    def packed_values(self) -> pd.DataFrame:
        """All packed values."""
        return self._packed("values")

    @cached_property
    def _own_values(self) -> pd.DataFrame:
        return self._own("values")

    @cached_property
    def _trained_otherwise(self) -> set[str]:
        """The packed runs under whose names others were trained here: no row of theirs fills in what these lack."""
        return set(replaced_rows(self.packed_values, self._own_values)["run"])

    def _own(self, table: tables.TableName) -> pd.DataFrame:
        return tables.read_all(table, self.results / "tables" / self.prompts.id)

    def _packed(self, table: tables.TableName) -> pd.DataFrame:
        rows = tables.packed(table, self.results, self.prompts.task.name, self.prompts.preset)
        return rows[rows["prompt_set"].eq(self.prompts.id)]
