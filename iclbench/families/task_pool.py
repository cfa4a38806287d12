"""Pools of truths: families whose training episodes each use one function of a fixed pool.

Raventós et al. 2023 (arXiv 2306.15063) train on M linear functions. Models trained with a small M approach the
posterior mean over the pool (the discrete minimum-mean-squared-error estimator, dMMSE), and models trained with a large
M approach ridge regression, which is Bayes-optimal for new functions.

The pool is drawn from a separate seed, so runs of all models and seeds share it. Under the shift `none`, truths are
drawn from the pool, as in training. The shift `fresh` draws new truths, none of which is in the pool. Without a pool,
new truths are drawn in both cases.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Annotated, Any, ClassVar

import torch
from jaxtyping import Float
from pydantic import BeforeValidator, model_validator
from torch import Tensor

from iclbench.core.errors import shorten
from iclbench.core.seeds import generator as named_generator
from iclbench.core.settings import SeedInt
from iclbench.families.base import FunctionFamily, FunctionParameters, KnownSolutions, Truth
from iclbench.families.sampling import normal
from iclbench.families.shifts import FUNCTION_KINDS, FunctionKind, Shift

FRESH = "fresh"
ORACLE = "oracle-pool"
# Largest number of weights of a pool: 1 GiB in single precision.
MAX_WEIGHTS = 2**28


def _pool_size(value: Any) -> Any:
    if value in (None, "all"):
        return None
    if type(value) is int and value > 0:
        return value
    raise ValueError(f'expected a positive number of truths, or "all" for new truths, got {shorten(repr(value))}')


def _pool_seed(value: Any) -> Any:
    return None if type(value) is int and value == 0 else value


class PoolParameters(FunctionParameters):
    """Parameters of a family with a pool.

    The defaults are stored as None, so that the configurations of runs without a pool do not contain them.

    Attributes:
        pool: number of truths in the pool; "all" (default) for new truths in each episode.
        pool_seed: seed of the pool (default: 0), independent of the seed of a run.
    """

    pool: Annotated[int | None, BeforeValidator(_pool_size)] = None
    pool_seed: Annotated[SeedInt | None, BeforeValidator(_pool_seed)] = None

    @model_validator(mode="after")
    def _check_pool(self) -> PoolParameters:
        if self.pool is None and self.pool_seed is not None:
            raise ValueError("pool_seed needs a pool; set pool to a number of truths, or remove pool_seed")
        if self.pool is not None and self.pool * self.dim > MAX_WEIGHTS:
            raise ValueError(
                f"expected pool of at most {MAX_WEIGHTS // self.dim:,} for dim = {self.dim}, got {self.pool}"
            )
        return self


class TaskPool(FunctionFamily):
    """Linear functions whose weights are drawn from N(0, I), or from a pool of such weights with replacement.

    A family derives from this class and then from a class that draws weights from N(0, I), such as `Linear`.
    """

    Parameters = PoolParameters
    shift_kinds: ClassVar[Mapping[str, FunctionKind]] = {FRESH: FunctionKind(("the functions",)), **FUNCTION_KINDS}

    @cached_property
    def pool(self) -> Float[Tensor, "M Dx"] | None:
        """The weights of all truths in the pool; None without a pool."""
        size = self.parameters.pool
        if size is None:
            return None
        return normal((size, self.x_dim), named_generator(self.parameters.pool_seed or 0, "pool"))

    def draw(self, episodes: int, generator: torch.Generator, active_dims: int | None = None) -> Truth:
        if self.pool is None:
            return super().draw(episodes, generator, active_dims)  # type: ignore[safe-super]  # the next base
        pool = self.pool.to(generator.device)
        return {"weights": pool[torch.randint(len(pool), (episodes,), generator=generator, device=generator.device)]}

    def draw_under(
        self, shift: Shift, episodes: int, generator: torch.Generator, active_dims: int | None = None
    ) -> Truth:
        if self.pool is None or not shift.part(FRESH):
            return self.draw(episodes, generator, active_dims)
        first_weights = self.pool[:, 0].to(generator.device)
        weights = super().draw(episodes, generator, active_dims)["weights"]  # type: ignore[safe-super]
        # In one dimension, two single-precision numbers may be equal by chance.
        while (is_in_pool := torch.isin(weights[:, 0], first_weights)).any():
            weights[is_in_pool] = normal((int(is_in_pool.sum()), self.x_dim), generator)
        return {"weights": weights}

    def label_factor(self, noise: float) -> float:
        """Return the factor by which labels with this noise are multiplied."""
        return 1.0

    def pool_under(self, shift: str) -> tuple[Float[Tensor, "M Dx"] | None, float]:
        """Return the weights of the pool under a shift, in double precision, and the standard deviation of the label
        noise. Both are in the units of the labels.
        """
        parsed = self.parse_shift(shift)
        noise = self.label_noise(parsed)
        factor = self.label_factor(noise)
        weights = None if self.pool is None else factor * parsed.value("weight-scale", 1.0) * self.pool.double()
        return weights, factor * noise

    @classmethod
    def further_oracles(cls, parameters: Any) -> tuple[str, ...]:
        return () if parameters.pool is None else (ORACLE,)

    def is_oracle_optimal(self, oracle: str, shift: str) -> bool:
        is_optimal = super().is_oracle_optimal(oracle, shift)
        if self.pool is None:
            return is_optimal
        is_fresh = self.parse_shift(shift).part(FRESH) is not None
        return is_optimal and is_fresh == (oracle != ORACLE)

    def known_solutions(self, shift: str) -> KnownSolutions | None:
        if self.parameters.pool is not None:
            return KnownSolutions((ORACLE, "ridge"), "pool", float(self.parameters.pool))
        return KnownSolutions(("ridge",), "pool", None) if self.parse_shift(shift).part(FRESH) else None
