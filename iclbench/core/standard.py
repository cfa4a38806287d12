"""Columns brought to mean 0 and standard deviation 1, and back: the one rule for tables and their targets."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

# A column is constant if its values differ by rounding errors only, relative to the largest of them.
_ROUNDING = 8 * np.finfo(np.float64).eps


@dataclass(frozen=True)
class Standard:
    """Mean and standard deviation of every column. In every unit and from every origin it gives the same numbers.

    Values are brought to [0, 1] first, so that huge and tiny units neither overflow nor vanish. A constant column has
    no scale: all values become 0, and 0 becomes the constant again.

    Attributes:
        size: the largest absolute value.
        low, width: the smallest value and the range, in units of `size`; the width is 0 if the column is constant.
        mean, std: of the values in [0, 1].

    >>> import numpy as np
    >>> price = Standard.of(np.array([[1.0], [3.0], [5.0], [7.0]]))
    >>> price.undo(np.array([[0.0], [1.0]])).round(2).tolist(), price.deviation.round(2).tolist()
    ([[4.0], [6.24]], [2.24])
    """

    size: Float[np.ndarray, " columns"]
    low: Float[np.ndarray, " columns"]
    width: Float[np.ndarray, " columns"]
    mean: Float[np.ndarray, " columns"]
    std: Float[np.ndarray, " columns"]

    @classmethod
    def of(cls, values: Float[np.ndarray, "rows columns"]) -> Standard:
        """The standard of these columns."""
        size = np.maximum(np.abs(values).max(0), np.finfo(np.float64).tiny)
        low = (values / size).min(0)
        width = (values / size - low).max(0)
        width = np.where(width > _ROUNDING, width, 0.0)
        unit = (values / size - low) / np.where(width > 0, width, 1.0)
        return cls(size, low, width, unit.mean(0), unit.std(0))

    def apply(self, values: Float[np.ndarray, "rows columns"]) -> Float[np.ndarray, "rows columns"]:
        """Values of these columns in standard units."""
        varies = self.width > 0
        with np.errstate(over="ignore"):  # of values far beyond the range
            unit = (values / self.size - self.low) / np.where(varies, self.width, 1.0)
            standard: np.ndarray = (unit - self.mean) / np.where(varies, self.std, 1.0)
        return np.where(varies, standard, 0.0)

    def undo(self, standard: Float[np.ndarray, "rows columns"]) -> Float[np.ndarray, "rows columns"]:
        """The values that `apply` turns into these."""
        return np.where(self.width > 0, (standard * self.std + self.mean) * self.width + self.low, self.low) * self.size

    @property
    def deviation(self) -> Float[np.ndarray, " columns"]:
        """Standard deviation of the values, 0 of a constant column."""
        return np.where(self.width > 0, self.std * self.width, 0.0) * self.size
