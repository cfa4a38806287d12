"""Random decision trees that are full and axis-aligned, with all thresholds at 0 (Garg et al. 2022)."""

from __future__ import annotations

from typing import Annotated

import torch
from jaxtyping import Float
from pydantic import Field
from torch import Tensor

from iclbench.families.base import FunctionFamily, FunctionParameters, Truth
from iclbench.families.sampling import normal


class DecisionTreeParameters(FunctionParameters):
    """Parameters of decision trees; `depth` is the number of splits from the root to a leaf."""

    depth: Annotated[int, Field(gt=0, le=16)] = 4


class DecisionTree(FunctionFamily):
    """Trees with 2^depth leaf values ~ N(0, 1) and split coordinates drawn uniformly with replacement. Points with a
    positive split coordinate are in the right subtree. The outputs have variance 1.

    A curriculum sets inputs to 0 and does not change the splits, as in Garg's code: at a split on a coordinate that is
    not active yet, every point is in the left subtree. The number of reachable leaves therefore grows with the number
    of active dimensions.
    """

    Parameters = DecisionTreeParameters

    def draw(self, episodes: int, generator: torch.Generator, active_dims: int | None = None) -> Truth:
        depth = self.parameters.depth
        splits = torch.randint(self.x_dim, (episodes, 2**depth - 1), generator=generator, device=generator.device)
        return {"splits": splits, "leaves": normal((episodes, 2**depth), generator)}

    def apply(self, truth: Truth, x: Float[Tensor, "B N Dx"]) -> Float[Tensor, "B N"]:
        # Nodes in heap order: the children of i are 2i + 1 and 2i + 2.
        node = torch.zeros(x.shape[:2], dtype=torch.long, device=x.device)
        for _ in range(self.parameters.depth):
            split = truth["splits"].gather(1, node)
            coordinate = x.gather(2, split.unsqueeze(-1)).squeeze(-1)
            node = 2 * node + 1 + (coordinate > 0).long()
        return truth["leaves"].gather(1, node - (2**self.parameters.depth - 1))
