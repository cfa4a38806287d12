"""Standardised columns: comparison with scikit-learn's `StandardScaler`, extreme units, and constant columns."""

import numpy as np
import pytest
from sklearn.preprocessing import StandardScaler

from iclbench.core.standard import Standardisation


def columns(rows: int = 12) -> np.ndarray:
    return np.random.default_rng(0).normal(size=(rows, 3)) * [1.0, 1e-3, 40.0] + [0.0, 5.0, -7.0]


def test_values_and_inverse_equal_scikit_learn() -> None:
    values = columns()
    standard, scaler = Standardisation.of(values), StandardScaler().fit(values)
    np.testing.assert_allclose(standard.apply(columns(30)), scaler.transform(columns(30)), rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(standard.undo(standard.apply(columns(30))), columns(30), rtol=1e-12)
    np.testing.assert_allclose(standard.deviation, scaler.scale_, rtol=1e-9)


@pytest.mark.parametrize("unit", [1e-290, 1e-6, 3.0, 1e290])
def test_standardised_values_do_not_depend_on_unit_and_origin(unit: float) -> None:
    values = columns()
    other = unit * values + unit
    np.testing.assert_allclose(
        Standardisation.of(other).apply(other), Standardisation.of(values).apply(values), rtol=1e-9, atol=1e-9
    )
    np.testing.assert_allclose(Standardisation.of(other).deviation / unit, values.std(0), rtol=1e-9)


@pytest.mark.parametrize("constant", [0.0, 0.1, -1e300, 5e-324])
@pytest.mark.parametrize("rows", [1, 7])
def test_a_constant_column_becomes_0_and_the_inverse_of_0_is_the_constant(constant: float, rows: int) -> None:
    standard = Standardisation.of(np.full((rows, 1), constant))
    assert standard.apply(np.array([[constant], [1.0], [-1e300]])).tolist() == [[0.0], [0.0], [0.0]]
    assert standard.undo(np.array([[0.0], [2.0]])).tolist() == [[constant], [constant]]
    assert standard.deviation.tolist() == [0.0]


def test_a_column_that_varies_only_by_rounding_errors_counts_as_constant() -> None:
    values = np.array([[0.3], [0.1 + 0.2], [0.3]])
    assert not Standardisation.of(values).apply(values).any()
