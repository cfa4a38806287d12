"""The oracles of Gaussian-process tables.

`oracle-gp` has access to the lengthscale and the noise of every table and returns the exact posterior.
`oracle-gp-prior` has access only to their prior, a finite list of pairs: it averages the posteriors of all pairs, with
the posterior weights of the pairs. This is the Bayes-optimal prediction, so no predictor has a better expected
log-density. Both read the number of used columns from the inputs, since unused columns are 0.

Under a shift to another kind of tables, `oracle-gp` has no hyperparameters and is skipped. `oracle-gp-prior` still
assumes a Gaussian process and is only a baseline (`TabularPrior.is_oracle_optimal`).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Generic, TypeVar, cast

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from iclbench.core.episodes import Points
from iclbench.core.errors import UsageError
from iclbench.core.predictions import Gaussian, Mixture, Prediction
from iclbench.core.predictor import Oracle
from iclbench.core.records import cat
from iclbench.core.settings import NoSettings
from iclbench.core.task import TaskFacts
from iclbench.families.family_predictor import FamilyPredictor
from iclbench.families.tabular_prior import gaussian_process
from iclbench.families.tabular_prior.tabular_prior import TabularPrior

_P = TypeVar("_P", bound=Prediction)

# Largest number of entries of the covariance matrices that are in memory at once.
_NUMBERS_AT_ONCE = 1 << 24

# Means, standard deviations and log evidence of S Gaussian processes at P positions each.
Answers = tuple[Float[Tensor, "B S P"], Float[Tensor, "B S P"], Float[Tensor, "B S P"]]


class _ProcessOracle(FamilyPredictor[NoSettings], Generic[_P], abstract=True):
    """Base of the oracles.

    Raises:
        UsageError: the task is of another family, has classes, or neither the tables of the task nor the tables of the
            shift are of the kind `gp`.
    """

    family_class, family_name = TabularPrior, "tabular-prior"
    family: TabularPrior

    def __init__(self, settings: NoSettings | None = None, facts: TaskFacts | None = None, seed: int = 0) -> None:
        super().__init__(settings, facts, seed)
        if self.family.classes is not None or "gp" not in (self.family.kind(), self.family.kind(self.facts.shift)):
            raise UsageError(
                f"{type(self).__name__} requires regression on tables of Gaussian processes: the task or the shift "
                "must have the kind gp, and no classes",
                code="not-applicable",
            )

    @abstractmethod
    def _hyperparameters(
        self, tables: slice, count: int, device: torch.device
    ) -> tuple[Float[Tensor, "B S"], Float[Tensor, "B S"]]:
        """Return the lengthscales and noises of the S processes of these `count` tables, in float64."""

    @abstractmethod
    def _prediction(self, answers: Answers, dtype: torch.dtype) -> _P:
        """Return the prediction at P positions of every table."""

    def predict_next(
        self,
        points: Points,
        related: Points | None = None,
        *,
        x_query: Float[Tensor, "B N Dx"] | None = None,
        prefixes: Sequence[int] | None = None,
    ) -> _P:
        if x_query is not None and not torch.equal(x_query, points.x):
            return cast(_P, super().predict_next(points, related, x_query=x_query, prefixes=prefixes))
        lengths = list(range(points.count) if prefixes is None else prefixes)
        points = points.span(0, max([0, *lengths]) + 1)
        used = self._used(points.x, points.mask)

        def answer(tables: slice, lengthscale: Tensor, noise: Tensor, copies: int) -> list[Tensor]:
            part = points[tables].repeat_interleave(copies)
            y, columns = part.y.squeeze(2), used[tables].repeat_interleave(copies)
            return list(gaussian_process.predict_prefixes(part.x, y, part.mask, columns, lengthscale, noise))

        return self._in_parts(points, answer).at(torch.tensor(lengths, dtype=torch.long))

    def predict_targets(self, context: Points, x_target: Float[Tensor, "B Q Dx"], related: Points | None = None) -> _P:
        is_target = torch.ones_like(x_target[..., 0], dtype=torch.bool)
        used = self._used(torch.cat([context.x, x_target], 1), torch.cat([context.mask, is_target], 1))

        def answer(tables: slice, lengthscale: Tensor, noise: Tensor, copies: int) -> list[Tensor]:
            part, x = context[tables].repeat_interleave(copies), x_target[tables].repeat_interleave(copies, 0)
            y, columns = part.y.squeeze(2), used[tables].repeat_interleave(copies)
            mean, std, evidence = gaussian_process.predict_targets(part.x, y, part.mask, x, columns, lengthscale, noise)
            return [mean, std, evidence.unsqueeze(1).expand_as(mean)]

        return self._in_parts(context, answer)

    def _in_parts(self, points: Points, answer: Callable[[slice, Tensor, Tensor, int], list[Tensor]]) -> _P:
        """Return the predictions of all tables. They are computed in parts whose matrices fit into memory."""
        processes = self._hyperparameters(slice(0, 1), 1, points.x.device)[0].shape[1]
        at_once = max(1, _NUMBERS_AT_ONCE // (processes * max(1, points.count) ** 2))
        parts = []
        for start in range(0, max(1, len(points)), at_once):
            tables = slice(start, start + at_once)
            count = len(points.mask[tables])
            lengthscale, noise = self._hyperparameters(tables, count, points.x.device)
            flat = answer(tables, lengthscale.flatten(), noise.flatten(), processes)
            mean, std, evidence = (t.unflatten(0, (count, processes)) for t in flat)
            parts.append(self._prediction((mean, std, evidence), points.x.dtype))
        return cat(parts)

    def _used(self, x: Float[Tensor, "B N Dx"], mask: Bool[Tensor, "B N"]) -> Float[Tensor, " B"]:
        """Return the number of used columns, which are the columns that are not 0 in a valid row. With `rescale`,
        inputs are larger by the factor `dim` / used. The result is then `dim`² / used, which does not change the mean
        of squared differences."""
        used = (x.masked_fill(~mask.unsqueeze(2), 0) != 0).any(1).sum(1).clamp_min(1).double()
        return self.family.parameters.dim**2 / used if self.family.parameters.rescale else used


class OracleGP(_ProcessOracle[Gaussian], Oracle):
    """The exact posterior under the true lengthscale and noise."""

    heads = ("gaussian",)

    def too_long(self, examples: int) -> str | None:
        if self.family.kind(self.facts.shift) != "gp":
            return "the tables of this shift are not Gaussian processes"
        return super().too_long(examples)

    def _hyperparameters(
        self, tables: slice, count: int, device: torch.device
    ) -> tuple[Float[Tensor, "B 1"], Float[Tensor, "B 1"]]:
        if self.truth is None:
            raise UsageError(
                "oracle-gp needs the hyperparameters; call informed(episodes.truth) first", code="missing-value"
            )
        lengthscale, noise = (self.truth[name][tables].unsqueeze(1).double() for name in ("lengthscale", "noise"))
        return lengthscale, noise

    def _prediction(self, answers: Answers, dtype: torch.dtype) -> Gaussian:
        mean, std, _ = (t[:, 0].to(dtype).unsqueeze(-1) for t in answers)
        return Gaussian(mean, std)


class OracleGPPrior(_ProcessOracle[Mixture]):
    """The posterior averaged over all pairs of lengthscale and noise."""

    heads = ("mixture",)

    @cached_property
    def _pairs(self) -> tuple[Float[Tensor, " S"], Float[Tensor, " S"]]:
        parameters = self.family.parameters
        lengthscale, noise = torch.meshgrid(
            torch.tensor(parameters.lengthscales, dtype=torch.float64),
            torch.tensor(parameters.noises, dtype=torch.float64),
            indexing="ij",
        )
        return lengthscale.flatten(), noise.flatten()

    def _hyperparameters(
        self, tables: slice, count: int, device: torch.device
    ) -> tuple[Float[Tensor, "B S"], Float[Tensor, "B S"]]:
        lengthscale, noise = (t.to(device).expand(count, -1) for t in self._pairs)
        return lengthscale, noise

    def _prediction(self, answers: Answers, dtype: torch.dtype) -> Mixture:
        mean, std, evidence = (t.mT for t in answers)
        # The log-weights are normalised in float64, since long contexts have large log-densities.
        logits = evidence.log_softmax(2).to(dtype)
        return Mixture(logits, mean.to(dtype).unsqueeze(-1), std.to(dtype).unsqueeze(-1))
