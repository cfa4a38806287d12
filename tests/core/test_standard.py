"""Standardised columns against scikit-learn's scaler, and what has no scale."""

import numpy as np
import pytest
from sklearn.preprocessing import StandardScaler

from iclbench.core.standard import Standard


def columns(rows: int = 12) -> np.ndarray:
    return np.random.default_rng(0).normal(size=(rows, 3)) * [1.0, 1e-3, 40.0] + [0.0, 5.0, -7.0]


def test_it_is_scikit_learns_scaler_and_its_inverse() -> None:
    values = columns()
    standard, scaler = Standard.of(values), StandardScaler().fit(values)
    np.testing.assert_allclose(standard.apply(columns(30)), scaler.transform(columns(30)), rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(standard.undo(standard.apply(columns(30))), columns(30), rtol=1e-12)
    np.testing.assert_allclose(standard.deviation, scaler.scale_, rtol=1e-9)


@pytest.mark.parametrize("unit", [1e-290, 1e-6, 3.0, 1e290])
def test_units_and_origins_change_nothing(unit: float) -> None:
    values = columns()
    moved = unit * values + unit
    np.testing.assert_allclose(Standard.of(moved).apply(moved), Standard.of(values).apply(values), rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(Standard.of(moved).deviation / unit, values.std(0), rtol=1e-9)


@pytest.mark.parametrize("constant", [0.0, 0.1, -1e300, 5e-324])
@pytest.mark.parametrize("rows", [1, 7])
def test_a_constant_column_is_0_and_0_is_the_constant(constant: float, rows: int) -> None:
    standard = Standard.of(np.full((rows, 1), constant))
    assert standard.apply(np.array([[constant], [1.0], [-1e300]])).tolist() == [[0.0], [0.0], [0.0]]
    assert standard.undo(np.array([[0.0], [2.0]])).tolist() == [[constant], [constant]]
    assert standard.deviation.tolist() == [0.0]


def test_rounding_errors_are_no_scale() -> None:
    values = np.array([[0.3], [0.1 + 0.2], [0.3]])
    assert not Standard.of(values).apply(values).any()
