"""Greedy regression trees (scikit-learn) and gradient-boosted trees (XGBoost), fitted once per episode and prefix.

Nothing is shared between prefixes, so the answers are those of the library called alone. One thread per fit.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, ClassVar

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from iclbench.cards import PositiveFloat, PositiveInt, Strict
from iclbench.estimators.base import Estimator
from iclbench.estimators.workers import fit_prefixes, over_episodes


class LibraryEstimator(Estimator, abstract=True):
    """A method of a library with `fit` and `predict`.

    Splits of equal gain are told apart by rounding, which depends on the order of the points: hence "causal".

    Attributes:
        seconds: what one fit takes, roughly; decides whether worker processes are worth starting.
    """

    order = "causal"
    costly = True
    dtype = torch.float32
    episodes_at_once = 1 << 20
    seconds: ClassVar[float]

    @abstractmethod
    def model(self) -> Any:
        """An unfitted model of the library."""

    def features(self, x: Float[Tensor, "*shape Dx"]) -> Float[Tensor, "*shape Dx"]:
        """What the model sees of the inputs."""
        return x

    def answer(
        self,
        x: Float[Tensor, "B N Dx"],
        y: Float[Tensor, "B N"],
        lengths: Int[Tensor, "#B P"],
        queries: Float[Tensor, "B P Q Dx"],
    ) -> Float[Tensor, "B P Q"]:
        model = self.model()
        arrays = (self.features(x), y, lengths.expand(len(x), -1), self.features(queries))
        jobs = [(model, *episode) for episode in zip(*(a.cpu().numpy() for a in arrays), strict=True)]
        answers = over_episodes(fit_prefixes, jobs, self.seconds * len(x) * lengths.shape[1])
        return torch.as_tensor(np.stack(answers), device=x.device).to(y.dtype)


class TreeSettings(Strict):
    """`max_depth`: unlimited when not given. `random_state`: the order in which coordinates are tried."""

    max_depth: PositiveInt | None = None
    random_state: int = 0


class GreedyTree(LibraryEstimator):
    """`sklearn.tree.DecisionTreeRegressor`: squared error, best splits."""

    Settings = TreeSettings
    libraries = ("scikit-learn",)
    seconds = 5e-4

    def model(self) -> Any:
        from sklearn.tree import DecisionTreeRegressor

        return DecisionTreeRegressor(max_depth=self.settings.max_depth, random_state=self.settings.random_state)


class BoostingSettings(Strict):
    """What is not given is left to the library. `sign`: see sign(x) only, for functions with thresholds at 0."""

    n_estimators: PositiveInt | None = None
    max_depth: PositiveInt | None = None
    learning_rate: PositiveFloat | None = None
    sign: bool = False


class XGBoost(LibraryEstimator):
    """`xgboost.XGBRegressor`, nothing subsampled."""

    Settings = BoostingSettings
    libraries = ("xgboost",)
    seconds = 1e-2

    def model(self) -> Any:
        from xgboost import XGBRegressor

        given = self.settings.model_dump(exclude={"sign"}, exclude_none=True)
        return XGBRegressor(**given, n_jobs=1, random_state=0)

    def features(self, x: Float[Tensor, "*shape Dx"]) -> Float[Tensor, "*shape Dx"]:
        return x.sign() if self.settings.sign else x
