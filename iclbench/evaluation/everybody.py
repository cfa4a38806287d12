"""Everybody's rows on a prompt set: those of a results folder first, behind them packed ones."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from iclbench import tables
from iclbench.evaluation.prompts import PromptSet


def values_on(prompts: PromptSet, results: Path) -> pd.DataFrame:
    """Values, without packed ones that compare contestants with each other: these follow from all others."""
    own, packed = _own("values", prompts, results), _packed("values", prompts, results)
    packed = packed[~packed["metric"].isin(tables.COMPARING) & ~packed["run"].isin(_trained_otherwise(own, packed))]
    return tables.union("values", [own, packed])


def errors_on(prompts: PromptSet, results: Path) -> pd.DataFrame:
    """Scores of single episodes. Packed ones are rounded, of curves mean heights, and under a shift there only where
    likelihoods stand beside an oracle's."""
    packed = _packed("errors", prompts, results)
    otherwise = _trained_otherwise(_own("values", prompts, results), _packed("values", prompts, results))
    return tables.union("errors", [_own("errors", prompts, results), packed[~packed["run"].isin(otherwise)]])


def _trained_otherwise(own: pd.DataFrame, packed: pd.DataFrame) -> set[str]:
    """The packed runs under whose names others were trained here: no row of theirs fills in what these lack."""
    own, packed = (rows[rows["variant"].notna() & ~rows["metric"].isin(tables.COMPARING)] for rows in (own, packed))
    here = {(str(run), str(variant)) for run, variant in zip(own["run"], own["variant"], strict=True)}
    other = packed[packed["run"].isin({run for run, _ in here})].drop_duplicates(["run", "variant"])
    return {str(row.run) for row in other.itertuples() if (str(row.run), str(row.variant)) not in here}


def _own(table: tables.TableName, prompts: PromptSet, results: Path) -> pd.DataFrame:
    return tables.read_all(table, results / "tables" / prompts.id)


def _packed(table: tables.TableName, prompts: PromptSet, results: Path) -> pd.DataFrame:
    rows = tables.packed(table, results, prompts.task.name, prompts.preset)
    return rows[rows["prompt_set"].eq(prompts.id)]
