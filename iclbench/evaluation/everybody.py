"""Everybody's rows on a prompt set: those of a results folder first, behind them packed ones."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from iclbench import tables
from iclbench.evaluation.prompts import PromptSet


def values_on(prompts: PromptSet, results: Path) -> pd.DataFrame:
    """Values, without packed ones that compare contestants with each other: these follow from all others."""
    packed = _packed("values", prompts, results)
    return tables.union("values", [_own("values", prompts, results), packed[~packed["metric"].isin(tables.COMPARING)]])


def errors_on(prompts: PromptSet, results: Path) -> pd.DataFrame:
    """Scores of single episodes. Packed ones are rounded, of curves mean heights, and under a shift there only where
    likelihoods stand beside an oracle's."""
    return tables.union("errors", [_own("errors", prompts, results), _packed("errors", prompts, results)])


def _own(table: tables.TableName, prompts: PromptSet, results: Path) -> pd.DataFrame:
    return tables.read_all(table, results / "tables" / prompts.id)


def _packed(table: tables.TableName, prompts: PromptSet, results: Path) -> pd.DataFrame:
    rows = tables.packed(table, results, prompts.task.name, prompts.preset)
    return rows[rows["prompt_set"].eq(prompts.id)]
