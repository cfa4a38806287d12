"""Standardise the columns of tables to mean 0 and standard deviation 1, and invert the transformation."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

# A column counts as constant if its range, relative to the largest absolute value, is at most this rounding error.
_ROUNDING = 8 * np.finfo(np.float64).eps


@dataclass(frozen=True)
class Standardisation:
    """Mean and standard deviation of each column. Standardised values do not depend on the unit and the origin of a
    column.

    Values are first scaled to [0, 1], so that very large or very small values do not overflow or underflow. All values
    of a constant column become 0, and the inverse of 0 is the constant.

    Attributes:
        size: largest absolute value.
        low, width: smallest value and range, divided by `size`; the width is 0 if the column is constant.
        mean, std: mean and standard deviation of the values in [0, 1].

    >>> import numpy as np
    >>> price = Standardisation.of(np.array([[1.0], [3.0], [5.0], [7.0]]))
    >>> price.undo(np.array([[0.0], [1.0]])).round(2).tolist(), price.deviation.round(2).tolist()
    ([[4.0], [6.24]], [2.24])
    """

    size: Float[np.ndarray, " columns"]
    low: Float[np.ndarray, " columns"]
    width: Float[np.ndarray, " columns"]
    mean: Float[np.ndarray, " columns"]
    std: Float[np.ndarray, " columns"]

    @classmethod
    def of(cls, values: Float[np.ndarray, "rows columns"]) -> Standardisation:
        """Compute the mean and standard deviation of these columns."""
        size = np.maximum(np.abs(values).max(0), np.finfo(np.float64).tiny)
        low = (values / size).min(0)
        width = (values / size - low).max(0)
        width = np.where(width > _ROUNDING, width, 0.0)
        unit = (values / size - low) / np.where(width > 0, width, 1.0)
        return cls(size, low, width, unit.mean(0), unit.std(0))

    def apply(self, values: Float[np.ndarray, "rows columns"]) -> Float[np.ndarray, "rows columns"]:
        """Standardise values."""
        is_varying = self.width > 0
        with np.errstate(over="ignore"):  # values far outside the range become infinite
            unit = (values / self.size - self.low) / np.where(is_varying, self.width, 1.0)
            standard: np.ndarray = (unit - self.mean) / np.where(is_varying, self.std, 1.0)
        return np.where(is_varying, standard, 0.0)

    def undo(self, standard: Float[np.ndarray, "rows columns"]) -> Float[np.ndarray, "rows columns"]:
        """The inverse of `apply`."""
        return np.where(self.width > 0, (standard * self.std + self.mean) * self.width + self.low, self.low) * self.size

    @property
    def deviation(self) -> Float[np.ndarray, " columns"]:
        """Standard deviation of the values; 0 for a constant column."""
        return np.where(self.width > 0, self.std * self.width, 0.0) * self.size
