"""Tables from random ensembles of trees instead of networks.

An ensemble is a sum of oblivious trees: all nodes of one depth split the same variable at the same threshold, the value
of the variable in a random row, so a tree of depth d has d splits and 2^d leaves. The leaves of T trees have values
from N(0, 1/T). There are 1 to 16 trees (log-uniform) of depth 1 to 5.

- A causal table has two layers of ensembles: the ensembles of the first layer read the causes, and the ensembles of the
  second layer read the first layer. Every ensemble has noise. Columns and target are different ensembles. In half of
  the tables, the target is in the second layer; in the others, it can be in either layer.
- In a table that is not causal, the columns are the causes, and the target is an ensemble that reads them.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from iclbench.core.records import TensorRecord
from iclbench.families.sampling import normal
from iclbench.families.tabular_prior.causes import Causes
from iclbench.families.tabular_prior.draws import (
    chance,
    first,
    integers,
    log_uniform,
    log_uniform_integers,
    truncated_normal_integers,
    uniform,
)
from iclbench.families.tabular_prior.networks import MOST_CAUSES, NOISE

TREES = (1, 16)
MOST_DEPTH = 5
# Number of rows from whose values thresholds are drawn.
_THRESHOLD_ROWS = 32


@dataclass(frozen=True)
class Ensembles(TensorRecord):
    """U ensembles for each of B tables, in descending order of depth.

    Attributes:
        depth: depth of the trees of each table.
        variables: index of the variable of each split.
        thresholds: thresholds of the splits. A row is on the right of a split if its value is larger.
        leaves: values of the leaves; 0 for padding.
    """

    depth: Int[Tensor, " B"]
    variables: Int[Tensor, "B U T depth"]
    thresholds: Float[Tensor, "B U T depth"]
    leaves: Float[Tensor, "B U T leaves"]

    @classmethod
    def draw(
        cls,
        trees: Int[Tensor, " B"],
        depth: Int[Tensor, " B"],
        variables: Int[Tensor, " B"],
        units: int,
        rows: Float[Tensor, "B R K"],
        generator: torch.Generator,
    ) -> Ensembles:
        """Draw ensembles that split the first `variables` columns of `rows`. Each threshold is the value of a random
        row."""
        tables, most_trees, most_depth = len(trees), int(trees.max()), int(depth.max())
        shape = tables, units, most_trees, most_depth
        variable = integers(variables.view(-1, 1, 1, 1).expand(shape), generator)
        row = (rows.shape[1] * uniform(shape, generator)).long()
        threshold = rows.flatten(1).gather(1, (row * rows.shape[2] + variable).flatten(1)).view(shape)
        leaves = normal((*shape[:3], 2**most_depth), generator) / trees.sqrt().view(-1, 1, 1, 1)
        leaves = leaves * first(trees, most_trees).view(tables, 1, -1, 1)
        return cls(depth, variable, threshold, leaves)

    def __call__(self, x: Float[Tensor, "B N K"]) -> Float[Tensor, "B N U"]:
        """Return the values of all ensembles in all rows."""
        tables, units, trees, depth = self.variables.shape
        columns, table = x.mT.contiguous(), torch.arange(tables, device=x.device).unsqueeze(1)
        leaf = torch.zeros((tables, units * trees, x.shape[1]), dtype=torch.long, device=x.device)
        for level in range(depth):
            deep = int((self.depth > level).sum())
            values = columns[table[:deep], self.variables[:deep, ..., level].flatten(1)]
            is_right = values > self.thresholds[:deep, ..., level].flatten(1).unsqueeze(2)
            leaf[:deep].mul_(2).add_(is_right)
        values = self.leaves.flatten(1, 2).gather(2, leaf)
        return values.view(tables, units, trees, -1).sum(2).mT


@dataclass(frozen=True)
class TreeTables(TensorRecord):
    """The ensembles of B tables with at most C columns.

    Attributes:
        is_causal: whether columns are ensembles.
        noise: standard deviation of the noise of every ensemble.
        lower, upper: the two layers. A table that is not causal has its target in the first layer.
        target, columns: indices of the target and the columns among the ensembles of both layers.
        causes: the distributions of the causes.
    """

    is_causal: Bool[Tensor, " B"]
    noise: Float[Tensor, " B"]
    lower: Ensembles
    upper: Ensembles
    target: Int[Tensor, " B"]
    columns: Int[Tensor, "B C"]
    causes: Causes

    def sample(self, rows: int, generator: torch.Generator) -> tuple[Float[Tensor, "B N C"], Float[Tensor, "B N"]]:
        """Sample the columns and targets of independent rows."""
        causes = self.causes.sample(rows, generator)
        lower = _with_noise(self.lower(causes), self.noise, generator)
        upper = _with_noise(self.upper(lower), self.noise, generator)
        ensembles = torch.cat([lower, upper], 2)
        columns = ensembles.gather(2, self.columns.unsqueeze(1).expand(-1, rows, -1))
        target = ensembles.gather(2, self.target.view(-1, 1, 1).expand(-1, rows, 1)).squeeze(2)
        is_causal = self.is_causal.view(-1, 1, 1)
        return torch.where(is_causal, columns, causes[..., : columns.shape[2]]), target


def draw_trees(
    is_causal: Bool[Tensor, " B"], columns: Int[Tensor, " B"], size: int, generator: torch.Generator
) -> list[tuple[Int[Tensor, " G"], TreeTables]]:
    """Draw ensembles for tables with these numbers of columns, which are at most `size`, in groups, each with the
    indices of its tables.

    Tables that are not causal form a separate group, which has one ensemble per layer.
    """
    groups = (is_causal.nonzero().squeeze(1), (~is_causal).nonzero().squeeze(1))
    return [
        (
            index,
            _draw_group(
                is_causal[index], columns[index], size, size + 1 if bool(is_causal[index[0]]) else 1, generator
            ),
        )
        for index in groups
        if len(index)
    ]


def _draw_group(
    is_causal: Bool[Tensor, " B"], columns: Int[Tensor, " B"], size: int, units: int, generator: torch.Generator
) -> TreeTables:
    tables = len(columns)
    causes = torch.where(is_causal, truncated_normal_integers(tables, MOST_CAUSES, generator), columns)
    distributions = Causes.draw(tables, max(size, int(causes.max())), generator)
    trees = log_uniform_integers((tables,), TREES, generator)
    depth = (1 + (MOST_DEPTH * uniform((tables,), generator)).long()).sort(descending=True).values
    noise = log_uniform((tables,), NOISE, generator)
    rows = distributions.sample(_THRESHOLD_ROWS, generator)
    lower = Ensembles.draw(trees, depth, causes, units, rows, generator)
    rows = _with_noise(lower(rows), noise, generator)
    upper = Ensembles.draw(trees, depth, torch.full_like(trees, units), units, rows, generator)
    scores = uniform((tables, 2 * units), generator)
    in_second_layer = chance((tables, 1), 0.5, generator) & is_causal.unsqueeze(1)
    is_second = torch.arange(2 * units, device=scores.device) >= units
    is_candidate = torch.where(is_causal.unsqueeze(1), is_second | ~in_second_layer, ~is_second)
    target = scores.masked_fill(~is_candidate, -1).argmax(1)
    column_scores = scores.scatter(1, target.unsqueeze(1), -1)
    column_ensembles = column_scores.topk(min(size, 2 * units), 1).indices
    column_ensembles = torch.nn.functional.pad(column_ensembles, (0, size - column_ensembles.shape[1]))
    return TreeTables(is_causal, noise, lower, upper, target, column_ensembles, distributions)


def _with_noise(
    values: Float[Tensor, "B N U"], noise: Float[Tensor, " B"], generator: torch.Generator
) -> Float[Tensor, "B N U"]:
    return torch.addcmul(values, normal(tuple(values.shape), generator), noise.view(-1, 1, 1))
