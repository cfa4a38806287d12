"""The root variables of a table, from which networks and trees compute all other variables.

The causes of half the tables are normal: cause k has the mean m_k ~ N(0, 1) and the standard deviation |z m_k| with z ~
N(0, 1). In the other tables, each cause is normal, categorical (2 to 10 codes with probabilities proportional to
uniform numbers) or a Zipf variable with an exponent between 2 and 4, capped at 10. These three are equally likely.
Categorical and Zipf variables are standardised by their mean and variance.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from iclbench.core.records import TensorRecord
from iclbench.families.sampling import normal
from iclbench.families.tabular_prior.draws import chance, first, uniform

# Number of values of a discrete cause.
VALUES = 10


@dataclass(frozen=True)
class Causes(TensorRecord):
    """The distributions of the causes of B tables.

    Attributes:
        mean, std: moments of normal causes.
        is_discrete: whether a cause is discrete, with a distribution given by `cumulative` and `values`.
        cumulative: cumulative probabilities of the discrete values.
        values: the discrete values.
    """

    mean: Float[Tensor, "B K"]
    std: Float[Tensor, "B K"]
    is_discrete: Bool[Tensor, "B K"]
    cumulative: Float[Tensor, "B K values"]
    values: Float[Tensor, "B K values"]

    @classmethod
    def draw(cls, tables: int, size: int, generator: torch.Generator) -> Causes:
        """Draw the distributions of `size` causes for every table."""
        shape = tables, size
        mean = normal(shape, generator)
        std = (normal(shape, generator) * mean).abs()
        is_mixed = chance((tables, 1), 0.5, generator)
        kind = (3 * uniform(shape, generator)).long()  # 0: normal, 1: categorical, 2: Zipf
        categories = 2 + (9 * uniform(shape, generator)).long()
        categorical = uniform((*shape, VALUES), generator) * first(categories, VALUES)
        number = torch.arange(1.0, VALUES + 1, device=mean.device)
        exponent = 2 + 2 * uniform((*shape, 1), generator)
        zipf = number.pow(-exponent)
        # The weight of all values from the cap on, by the midpoint rule.
        zipf[..., -1:] = (VALUES - 0.5) ** (1 - exponent) / (exponent - 1)
        weights = torch.where((kind == 1).unsqueeze(-1), categorical, zipf)
        probabilities = weights / weights.sum(-1, keepdim=True)
        centre = (probabilities * number).sum(-1, keepdim=True)
        variance = (probabilities * (number - centre).square()).sum(-1, keepdim=True)
        values = (number - centre) / variance.clamp_min(1e-6).sqrt()
        return cls(mean, std, is_mixed & (kind > 0), probabilities.cumsum(-1), values)

    def sample(self, rows: int, generator: torch.Generator) -> Float[Tensor, "B rows K"]:
        """Draw independent rows of causes."""
        tables, size = self.mean.shape
        causes = self.mean.unsqueeze(1) + self.std.unsqueeze(1) * normal((tables, rows, size), generator)
        table, cause = self.is_discrete.nonzero(as_tuple=True)
        quantiles = uniform((len(table), rows), generator)
        code = torch.searchsorted(self.cumulative[table, cause], quantiles).clamp_max(VALUES - 1)
        causes[table, :, cause] = self.values[table, cause].gather(1, code)
        return causes
