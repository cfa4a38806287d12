"""Inputs of tables: categorical columns, missing cells, standardisation, and the positions of columns.

A column with missing cells is followed by its indicator, a column that marks these cells. Both are standardised over
the rows of the table, and a missing cell is then 0, the mean of the observed cells. Unused columns follow the used
columns and are 0. Columns with only one value are also 0.

In a categorical column, codes replace numbers: the column is cut at the values of K - 1 random rows, and the K
intervals get the codes 0 to K - 1 in random order. K is 10 times an exponential number, rounded, at least 2 and at most
`MOST_CATEGORIES`.

In half of the columns with missing cells, every cell is missing with the same probability, which is uniform from 0 to
0.3. In the other columns, only cells above the median are missing, with twice this probability.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from iclbench.core.records import TensorRecord
from iclbench.families.tabular_prior.draws import chance, first, integers, random_order, uniform

MOST_CATEGORIES = 32
MEAN_CATEGORIES = 10
MOST_MISSING = 0.3
_MISSING_COLUMNS = 0.5
_INFORMATIVE = 0.5


@dataclass(frozen=True)
class Layout(TensorRecord):
    """The kinds of the columns of B tables.

    Attributes:
        used: number of used columns, including indicators.
        columns: number of columns with values, which are the first of the C columns.
        categories: number of categories; 0 for numeric columns.
        has_missing: whether a column has missing cells.
        missing_rate: expected share of missing cells in such a column, if its values are distinct.
        is_informative: whether only cells above the median are missing.
    """

    used: Int[Tensor, " B"]
    columns: Int[Tensor, " B"]
    categories: Int[Tensor, "B C"]
    has_missing: Bool[Tensor, "B C"]
    missing_rate: Float[Tensor, "B C"]
    is_informative: Bool[Tensor, "B C"]

    @classmethod
    def draw(
        cls,
        is_plain: Bool[Tensor, " B"],
        size: int,
        largest: int,
        categorical: float,
        missing: float,
        generator: torch.Generator,
    ) -> Layout:
        """Draw layouts with 1 to `largest` used columns, out of `size` columns.

        Args:
            is_plain: whether a table has neither categories nor missing cells.
            size: number of columns C.
            largest: the largest number of used columns.
            categorical: probability that a column is categorical.
            missing: probability that a table may have missing cells; each column of such a table has some with
                probability 1/2.
            generator: source of randomness.
        """
        shape = len(is_plain), size
        numeric = is_plain.unsqueeze(1)
        used = 1 + integers(torch.full_like(is_plain, largest, dtype=torch.long), generator)
        has_missing = chance((shape[0], 1), missing, generator) & chance(shape, _MISSING_COLUMNS, generator) & ~numeric
        width = 1 + has_missing.long()
        end = width.cumsum(1)
        # The last column has no indicator if no place is left for the indicator.
        has_missing = has_missing & (end <= used.unsqueeze(1))
        is_used = end - width < used.unsqueeze(1)
        exponential = -10 * torch.log1p(-uniform(shape, generator)) * (MEAN_CATEGORIES / 10)
        categories = exponential.round().clamp(2, MOST_CATEGORIES).long()
        is_categorical = chance(shape, categorical, generator) & is_used & ~numeric
        return cls(
            used=used,
            columns=is_used.sum(1),
            categories=torch.where(is_categorical, categories, 0),
            has_missing=has_missing & is_used,
            missing_rate=MOST_MISSING * uniform(shape, generator),
            is_informative=chance(shape, _INFORMATIVE, generator),
        )


def inputs(values: Float[Tensor, "B N C"], layout: Layout, generator: torch.Generator) -> Float[Tensor, "B N C"]:
    """Compute the inputs of tables from the numbers in their columns."""
    size = values.shape[2]
    values = _with_categories(values, layout.categories, generator)
    observed = ~_missing(values, layout, generator)
    indicator = standardised(1.0 - observed.float(), torch.ones_like(observed))
    values = standardised(values, observed)
    width = 1 + layout.has_missing.long()
    place = (width.cumsum(1) - width).clamp_max(size)
    is_used = first(layout.columns, size)
    # Unused values are written to one further column, which is removed.
    value_place = torch.where(is_used, place, size).unsqueeze(1).expand_as(values)
    x = values.new_zeros(*values.shape[:2], size + 1).scatter(2, value_place, values)
    if bool(layout.has_missing.any()):
        indicator_place = torch.where(layout.has_missing, place + 1, size).unsqueeze(1).expand_as(values)
        x = x.scatter(2, indicator_place, indicator)
    return x[..., :size].contiguous()


def standardised(values: Float[Tensor, "B N C"], observed: Bool[Tensor, "B N C"]) -> Float[Tensor, "B N C"]:
    """Standardise columns to mean 0 and variance 1 over the observed rows. Other rows, and columns with only one value,
    are 0."""
    count = observed.sum(1, keepdim=True).clamp_min(1)
    mean = torch.where(observed, values, 0.0).sum(1, keepdim=True) / count
    offset = values - mean
    # The mean of large numbers has a rounding error, which is removed.
    offset = offset - torch.where(observed, offset, 0.0).sum(1, keepdim=True) / count
    offset = torch.where(observed, offset, 0.0)
    std = (offset.square().sum(1, keepdim=True) / count).sqrt()
    # A smaller standard deviation is due to rounding errors.
    has_spread = std > 1e-6 * mean.abs().clamp_min(1e-12)
    return torch.where(has_spread, offset / std.where(has_spread, 1.0), 0.0)


def _with_categories(
    values: Float[Tensor, "B N C"], categories: Int[Tensor, "B C"], generator: torch.Generator
) -> Float[Tensor, "B N C"]:
    """Replace the numbers of categorical columns by codes."""
    table, column = categories.nonzero(as_tuple=True)
    if not len(table):
        return values
    numbers, counts = values[table, :, column].contiguous(), categories[table, column]
    row = (values.shape[1] * uniform((len(table), MOST_CATEGORIES - 1), generator)).long()
    cuts = numbers.gather(1, row).masked_fill(~first(counts - 1, MOST_CATEGORIES - 1), torch.inf)
    interval = torch.searchsorted(cuts.sort(1).values, numbers)
    codes = random_order(counts, MOST_CATEGORIES, generator).gather(1, interval)
    values = values.clone()
    values[table, :, column] = codes.to(values.dtype)
    return values


def _missing(values: Float[Tensor, "B N C"], layout: Layout, generator: torch.Generator) -> Bool[Tensor, "B N C"]:
    """Draw the missing cells."""
    missing = torch.zeros(values.shape, dtype=torch.bool, device=values.device)
    table, column = layout.has_missing.nonzero(as_tuple=True)
    if not len(table):
        return missing
    numbers, rate = values[table, :, column], layout.missing_rate[table, column].unsqueeze(1)
    is_high = numbers > numbers.median(1, keepdim=True).values
    rate = torch.where(layout.is_informative[table, column].unsqueeze(1), 2 * rate * is_high, rate)
    missing[table, :, column] = uniform(tuple(numbers.shape), generator) < rate
    return missing
