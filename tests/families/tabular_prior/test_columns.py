"""Inputs and targets of synthetic tables: layouts of columns, categories, missing cells and classes."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch

from iclbench.families.tabular_prior import columns, labels
from iclbench.families.tabular_prior.columns import Layout, inputs, standardised
from tests.families.sampling import new_generator

TABLES = 4000


def draw_layouts(
    tables: int = TABLES, size: int = 5, largest: int = 5, categorical: float = 0.2, missing: float = 0.5
) -> Layout:
    return Layout.draw(torch.zeros(tables, dtype=torch.bool), size, largest, categorical, missing, new_generator())


def share(mask: torch.Tensor) -> float:
    return float(mask.double().mean())


def four_standard_errors(probability: float, count: int) -> float:
    return 4 * math.sqrt(probability * (1 - probability) / count)


def test_layouts_have_the_stated_distributions() -> None:
    layout = draw_layouts()
    assert (torch.bincount(layout.used, minlength=6)[1:] / TABLES - 0.2).abs().max() < four_standard_errors(0.2, TABLES)
    assert torch.equal(layout.columns + layout.has_missing.sum(1), layout.used)
    is_used = torch.arange(5) < layout.columns.unsqueeze(1)
    assert not layout.has_missing[~is_used].any() and not layout.categories[~is_used].any()
    is_categorical = layout.categories[is_used] > 0
    assert share(is_categorical) == pytest.approx(0.2, abs=four_standard_errors(0.2, len(is_categorical)))
    categories = layout.categories[layout.categories > 0].double()
    # The number of categories is an exponential number with mean 10, rounded and limited to the range from 2 to 32, so
    # P(2) is the probability that the exponential number is less than 2.5.
    assert share(categories == 2) == pytest.approx(1 - math.exp(-0.25), abs=four_standard_errors(0.22, len(categories)))
    assert (int(categories.min()), int(categories.max())) == (2, 32)
    # In half of the tables, half of the columns have missing cells. There may be no room for the indicator of the last
    # column, so only the first column of each table is counted.
    first = layout.has_missing[:, 0][layout.used > 1]
    assert share(first) == pytest.approx(0.25, abs=four_standard_errors(0.25, len(first)))
    assert not layout.has_missing[layout.used == 1].any()


def test_plain_tables_have_neither_categories_nor_missing_cells() -> None:
    layout = Layout.draw(torch.ones(500, dtype=torch.bool), 5, 5, 1.0, 1.0, new_generator())
    assert not layout.categories.any() and not layout.has_missing.any()
    assert torch.equal(layout.columns, layout.used)


def test_each_column_is_followed_by_its_indicator_of_missing_cells() -> None:
    """The reference is a loop over tables and columns."""
    layout = replace(draw_layouts(300), categories=torch.zeros(300, 5, dtype=torch.long))
    values = torch.randn(300, 40, 5, generator=new_generator(1))
    x = inputs(values, layout, new_generator(2))
    for table in range(300):
        place = 0
        for column in range(int(layout.columns[table])):
            cell, place = x[table, :, place], place + 1
            if layout.has_missing[table, column]:
                indicator, place = x[table, :, place], place + 1
                is_missing = indicator > 0
                assert not cell[is_missing].any()
                observed = values[table, ~is_missing, column].double().numpy()
                expected = (observed - observed.mean()) / observed.std()
                np.testing.assert_allclose(cell[~is_missing].numpy(), expected, atol=1e-5)
                if is_missing.any():
                    np.testing.assert_allclose(float(indicator.std(correction=0)), 1, atol=1e-5)
                    assert len(indicator.unique()) == 2
            else:
                torch.testing.assert_close(
                    cell,
                    standardised(
                        values[table, :, column : column + 1].unsqueeze(0), torch.ones(1, 40, 1, dtype=torch.bool)
                    )[0, :, 0],
                )
        assert place == int(layout.used[table]) and not x[table, :, place:].any()


def test_missing_cells_have_the_rate_of_the_table() -> None:
    layout = draw_layouts(2000, missing=1.0)
    layout = replace(layout, missing_rate=torch.full_like(layout.missing_rate, 0.2))
    values = torch.randn(2000, 100, 5, generator=new_generator(1))
    missing = columns._missing(values, layout, new_generator(2))
    assert not missing[(~layout.has_missing).unsqueeze(1).expand_as(missing)].any()
    for is_informative, high_rate, low_rate in ((False, 0.2, 0.2), (True, 0.4, 0.0)):
        table, column = (layout.has_missing & (layout.is_informative == is_informative)).nonzero(as_tuple=True)
        cells, numbers = missing[table, :, column], values[table, :, column]
        is_high = numbers > numbers.median(1, keepdim=True).values
        assert share(cells[is_high]) == pytest.approx(high_rate, abs=four_standard_errors(0.4, int(is_high.sum())))
        assert share(cells[~is_high]) == pytest.approx(low_rate, abs=four_standard_errors(0.2, int((~is_high).sum())))
    rates = draw_layouts().missing_rate
    assert float(rates.min()) >= 0 and float(rates.max()) <= 0.3
    assert float(rates.mean()) == pytest.approx(0.15, abs=0.002)


def test_categories_are_intervals_of_values_with_codes_in_random_order() -> None:
    layout = draw_layouts(800, categorical=1.0, missing=0.0)
    values = torch.randn(800, 200, 5, generator=new_generator(1))
    codes = columns._with_categories(values, layout.categories, new_generator(2))
    in_order = 0
    for table, column in layout.categories.nonzero().tolist():
        count = int(layout.categories[table, column])
        labels_by_value = codes[table, values[table, :, column].argsort(), column].tolist()
        # Every code is an integer below the number of categories and corresponds to one interval of values.
        assert set(labels_by_value) <= set(range(count))
        changes = sum(a != b for a, b in pairwise(labels_by_value))
        assert changes == len(set(labels_by_value)) - 1
        in_order += count == 4 and labels_by_value == sorted(labels_by_value)
    four_categories = int((layout.categories == 4).sum())
    assert four_categories > 100 and in_order / four_categories < 0.2
    is_unused = torch.arange(5) >= layout.columns.unsqueeze(1)
    assert torch.equal(codes.mT[is_unused], values.mT[is_unused])


def test_columns_with_one_value_are_zero() -> None:
    values = torch.full((1, 6, 2), 1e6)
    values[0, :, 1] = torch.arange(6) * 1e-3
    observed = torch.ones(1, 6, 2, dtype=torch.bool)
    x = standardised(values, observed)
    assert not x[..., 0].any() and float(x[0, :, 1].std(correction=0)) == pytest.approx(1, abs=1e-5)
    assert not standardised(values, torch.zeros_like(observed)).any()
    assert not standardised(torch.randn(3, 1, 2), torch.ones(3, 1, 2, dtype=torch.bool)).any()


def test_a_target_depends_only_on_itself_and_the_reference_rows() -> None:
    """Changing one target changes neither the standardised values nor the classes of other targets."""
    y, reference = torch.randn(50, 20, generator=new_generator()), torch.randn(50, 64, generator=new_generator(1))
    changed = y.clone()
    changed[:, -1] += 100
    before, after = (labels.standardised_targets(values, reference) for values in (y, changed))
    assert torch.equal(before[:, :-1], after[:, :-1]) and (after[:, -1] == labels.CLIP).all()
    expected = (y - reference.mean(1, keepdim=True)) / reference.std(1, keepdim=True, correction=0)
    torch.testing.assert_close(before, expected.clamp(-5, 5))
    counts = labels.class_counts(50, 4, new_generator())
    before, after = (labels.class_labels(values, reference, counts, 4, new_generator(2)) for values in (y, changed))
    assert torch.equal(before[:, :-1], after[:, :-1]) and not torch.equal(before, after)
    assert not labels.standardised_targets(y, torch.full((50, 64), 3.0)).any()


def test_half_of_the_tables_are_binary_and_others_have_a_uniform_number_of_classes() -> None:
    counts = labels.class_counts(20_000, 5, new_generator())
    shares = torch.bincount(counts, minlength=6)[2:] / 20_000
    expected = torch.tensor([0.5 + 0.125, 0.125, 0.125, 0.125])
    assert (shares - expected).abs().max() < four_standard_errors(0.5, 20_000)
    assert (labels.class_counts(100, 2, new_generator()) == 2).all()


def test_classes_are_intervals_of_values_with_labels_in_random_order() -> None:
    tables, classes = 3000, 6
    y, reference = (
        torch.randn(tables, 300, generator=new_generator()),
        torch.randn(tables, 64, generator=new_generator(1)),
    )
    counts = labels.class_counts(tables, classes, new_generator(2))
    drawn = labels.class_labels(y, reference, counts, classes, new_generator(3))
    assert ((drawn >= 0) & (drawn < counts.unsqueeze(1))).all()
    by_value = drawn.gather(1, y.argsort(1))
    changes = (by_value[:, 1:] != by_value[:, :-1]).sum(1)
    present = torch.tensor([len(row.unique()) for row in drawn])
    assert torch.equal(changes, present - 1)
    binary = counts == 2
    # In a binary table, the lowest interval has either label with equal probability.
    assert share(by_value[binary, 0] == 0) == pytest.approx(0.5, abs=four_standard_errors(0.5, int(binary.sum())))
    minority = torch.stack([zero_share := (drawn[binary] == 0).double().mean(1), 1 - zero_share]).min(0).values
    assert float(minority.min()) > 0.005 and float(minority.quantile(0.1)) > 0.08
