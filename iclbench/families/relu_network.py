"""Two-layer ReLU networks y = sqrt(2/h) sum_j a_j relu(w_j·x) (Garg et al. 2022); CoQE's variant shares the hidden
weights."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from iclbench.core.settings import PositiveInt, SeedInt
from iclbench.families.base import FunctionFamily, FunctionParameters, Truth
from iclbench.families.sampling import fixed_normal, normal


class ReluNetworkParameters(FunctionParameters):
    """Parameters of two-layer networks.

    Attributes:
        hidden: number of hidden units h.
        shared_hidden: whether all episodes have the same hidden weights.
        hidden_seed: seed of the shared hidden weights.
    """

    hidden: PositiveInt = 100
    shared_hidden: bool = False
    hidden_seed: SeedInt = 0


class ReluNetwork(FunctionFamily):
    """Networks with a_j ~ N(0, 1), w_j ~ N(0, I) and no biases, so y has variance d.

    With `shared_hidden`, all episodes have the same w_j, drawn from `hidden_seed` (CoQE: d = 5, h = 10, output weights
    N(0, 2/h), which is the same scale). The variance of y then depends on these w_j (see `normaliser`).
    """

    Parameters = ReluNetworkParameters
    oracles = frozenset({"oracle-features"})

    @property
    def normaliser(self) -> float:
        """E y² for x ~ N(0, I). This is d on average over hidden weights, and sum_j |w_j|² / h with `shared_hidden`,
        since E relu(w·x)² = |w|² / 2."""
        if not self.parameters.shared_hidden:
            return float(self.x_dim)
        return float(self._shared_weights().double().square().sum()) / int(self.parameters.hidden)

    @property
    def hidden_width(self) -> int:
        return int(self.parameters.hidden)

    @property
    def weight_variance(self) -> float:
        """Prior variance of an output weight with `shared_hidden`, otherwise 1."""
        return 2 / int(self.parameters.hidden) if self.parameters.shared_hidden else 1.0

    def draw(self, episodes: int, generator: torch.Generator, active_dims: int | None = None) -> Truth:
        hidden, dim = self.parameters.hidden, self.x_dim
        if self.parameters.shared_hidden:
            # A copy per episode, so that the truth has one row per episode.
            hidden_weights = self._shared_weights().repeat(episodes, 1, 1).to(generator.device)
        else:
            hidden_weights = normal((episodes, hidden, dim), generator)
        return {"hidden": hidden_weights, "output": normal((episodes, hidden), generator)}

    def apply(self, truth: Truth, x: Float[Tensor, "B N Dx"]) -> Float[Tensor, "B N"]:
        hidden_units = torch.einsum("bnd,bhd->bnh", x, truth["hidden"]).relu()
        return math.sqrt(2 / self.parameters.hidden) * torch.einsum("bnh,bh->bn", hidden_units, truth["output"])

    def features(self, x: Float[Tensor, "N Dx"]) -> Float[Tensor, "N h"] | None:
        """Return the hidden units with `shared_hidden`, otherwise None."""
        return (x @ self._shared_weights()[0].to(x).T).relu() if self.parameters.shared_hidden else None

    def feature_directions(self) -> Float[Tensor, "h Dx"] | None:
        return F.normalize(self._shared_weights()[0], dim=-1) if self.parameters.shared_hidden else None

    def _shared_weights(self) -> Float[Tensor, "1 h Dx"]:
        """Return the hidden weights that all episodes have with `shared_hidden`."""
        return fixed_normal((1, self.parameters.hidden, self.x_dim), self.parameters.hidden_seed, torch.device("cpu"))
