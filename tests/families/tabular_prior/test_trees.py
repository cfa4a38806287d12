"""Ensembles of trees: batched evaluation against a loop over tables, trees and rows."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from iclbench.families.tabular_prior.trees import Ensembles, TreeTables, draw_trees
from tests.families.sampling import new_generator


def naive_value(ensembles: Ensembles, table: int, unit: int, row: list[float]) -> float:
    """Return the sum, over all trees, of the leaves that a row reaches."""
    total = 0.0
    for tree in range(ensembles.leaves.shape[2]):
        leaf = 0
        for level in range(int(ensembles.depth[table])):
            variable = int(ensembles.variables[table, unit, tree, level])
            leaf = 2 * leaf + (row[variable] > float(ensembles.thresholds[table, unit, tree, level]))
        total += float(ensembles.leaves[table, unit, tree, leaf])
    return total


def draw(is_causal: bool, tables: int = 12, size: int = 4) -> TreeTables:
    causal = torch.full((tables,), is_causal)
    ((index, drawn),) = draw_trees(causal, 1 + torch.arange(tables) % size, size, new_generator())
    assert index.tolist() == list(range(tables))
    return drawn


@pytest.mark.parametrize("is_causal", [True, False])
def test_batched_ensembles_equal_a_loop_over_tables_trees_and_rows(is_causal: bool) -> None:
    drawn = draw(is_causal)
    assert drawn.lower.depth.tolist() == sorted(drawn.lower.depth.tolist(), reverse=True)
    causes = drawn.causes.sample(7, new_generator(1))
    values = drawn.lower(causes)
    assert values.shape == (12, 7, 5 if is_causal else 1)
    for table in range(12):
        for unit in range(values.shape[2]):
            expected = [naive_value(drawn.lower, table, unit, row) for row in causes[table].tolist()]
            torch.testing.assert_close(values[table, :, unit], torch.tensor(expected), atol=1e-5, rtol=1e-5)


def test_columns_and_targets_of_causal_tables_are_distinct_ensembles() -> None:
    drawn = replace(draw(True), noise=torch.zeros(12))
    columns, target = drawn.sample(30, new_generator(2))
    causes = drawn.causes.sample(30, new_generator(2))
    lower = drawn.lower(causes)
    units = torch.cat([lower, drawn.upper(lower)], 2)
    for table in range(12):
        target_and_columns = [int(drawn.target[table]), *drawn.columns[table].tolist()]
        assert len(set(target_and_columns)) == 5
        torch.testing.assert_close(target[table], units[table, :, target_and_columns[0]])
        torch.testing.assert_close(columns[table], units[table][:, target_and_columns[1:]])


def test_noncausal_tables_have_causes_as_columns_and_trees_read_only_used_columns() -> None:
    drawn = replace(draw(False), noise=torch.zeros(12))
    columns, target = drawn.sample(30, new_generator(2))
    causes = drawn.causes.sample(30, new_generator(2))
    assert torch.equal(columns, causes[..., :4])
    torch.testing.assert_close(target, drawn.lower(causes)[..., 0])
    for table in range(12):
        assert int(drawn.lower.variables[table].max()) < 1 + table % 4


def test_thresholds_are_values_of_their_variable_in_the_sample() -> None:
    rows = torch.randn(3, 32, 4, generator=new_generator())
    depth, trees = torch.tensor([3, 2, 1]), torch.tensor([4, 2, 1])
    ensembles = Ensembles.draw(trees, depth, torch.tensor([4, 3, 1]), 2, rows, new_generator())
    for table in range(3):
        for variable, threshold in zip(
            ensembles.variables[table].flatten().tolist(), ensembles.thresholds[table].flatten().tolist(), strict=True
        ):
            assert threshold in rows[table, :, variable].tolist()


def test_outputs_have_variance_one_before_noise() -> None:
    tables = 4000
    rows = torch.randn(tables, 32, 2, generator=new_generator())
    trees, depth = 1 + torch.arange(tables) % 16, torch.full((tables,), 3)
    ensembles = Ensembles.draw(trees, depth, torch.full((tables,), 2), 1, rows, new_generator(1))
    values = ensembles(rows)[:, 0, 0]
    assert float(values.square().mean()) == pytest.approx(1.0, abs=4 * (2 / tables) ** 0.5)
