"""Joint predictions of several positions: one Gaussian over all positions, or equally likely functions.

A joint prediction also has marginal distributions. Their scores can be compared with scores of predictors that treat
positions independently.

Papers report two different likelihoods: the marginal log-likelihood averaged over points (for samples, log-mean-exp at
each point), and the joint log-likelihood (for samples, log-mean-exp of the sums over points).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import singledispatch
from typing import ClassVar, NoReturn

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from iclbench.core.bar import Bar
from iclbench.core.errors import UsageError
from iclbench.core.events import EventPrediction
from iclbench.core.predictions import (
    Categorical,
    Gaussian,
    HeadSettings,
    Mixture,
    Point,
    Prediction,
    bisect,
    masked_sum,
    normal,
)

_DEFAULT_SETTINGS = HeadSettings()


@dataclass(frozen=True)
class _JointPrediction(Prediction):
    """Base class of joint predictions. They are scored by their marginal distributions."""

    @property
    def marginals(self) -> Gaussian | Mixture:
        raise NotImplementedError

    @classmethod
    def raw_dim(cls, outputs: int, settings: HeadSettings = _DEFAULT_SETTINGS) -> NoReturn:
        raise NotImplementedError("a joint prediction is not read from the network's outputs at single positions")

    @classmethod
    def from_raw(cls, raw: Tensor, outputs: int, settings: HeadSettings = _DEFAULT_SETTINGS) -> NoReturn:
        raise NotImplementedError("a joint prediction is not read from the network's outputs at single positions")

    def log_likelihood(self, y: Float[Tensor, "B Q dy"]) -> Float[Tensor, "B Q"]:
        """Return the marginal log-likelihood of each position."""
        return self.marginals.log_likelihood(y)

    def loss(self, y: Tensor) -> Tensor:
        return self.marginals.loss(y)

    def scores(self, y: Tensor) -> dict[str, Tensor]:
        return self.marginals.scores(y)

    def point(self) -> Tensor:
        return self.marginals.point()

    def interval(self, level: float = 0.9) -> tuple[Tensor, Tensor] | None:
        return self.marginals.interval(level)

    def columns(self) -> dict[str, Tensor]:
        return self.marginals.columns()


@dataclass(frozen=True)
class JointGaussian(_JointPrediction):
    """One Gaussian over all positions and outputs of an episode.

    The covariance of output i at position q and output j at position p is sum_r factor[q, i, r] factor[p, j, r], plus
    std² on the diagonal. Selecting some positions marginalises over all others.
    """

    mean: Float[Tensor, "B Q dy"]
    factor: Float[Tensor, "B Q dy R"]
    std: Float[Tensor, "B Q dy"]

    metrics: ClassVar[tuple[str, ...]] = Gaussian.metrics

    @classmethod
    def from_tril(cls, mean: Float[Tensor, "B Q dy"], tril: Float[Tensor, "B QD QD"]) -> JointGaussian:
        """Create the Gaussian whose covariance is tril tril^T. In `tril`, the outputs of a position are adjacent."""
        return cls(mean, tril.unflatten(1, mean.shape[1:]), torch.zeros_like(mean))

    @property
    def marginals(self) -> Gaussian:
        return Gaussian(self.mean, (self.factor.square().sum(-1) + self.std.square()).sqrt())

    def covariance(self) -> Float[Tensor, "B QD QD"]:
        """Return the covariance of all outputs. The outputs of a position are adjacent."""
        rows = self.factor.flatten(1, 2)
        return rows @ rows.mT + torch.diag_embed(self.std.square().flatten(1))

    def joint_log_likelihood(self, y: Float[Tensor, "B Q dy"], mask: Bool[Tensor, "B Q"]) -> Float[Tensor, " B"]:
        """Return the joint log-likelihood in double precision; NaN if the covariance has no Cholesky factor in this
        precision."""
        is_counted = mask.unsqueeze(-1).expand(self.mean.shape).flatten(1)
        # Positions outside the mask become independent standard normal variables at their mean, which add only a
        # constant.
        counted_pairs = is_counted.unsqueeze(1) & is_counted.unsqueeze(2)
        covariance = torch.where(counted_pairs, self.to(dtype=torch.float64).covariance(), 0.0)
        covariance.diagonal(dim1=1, dim2=2).add_((~is_counted).double())
        error = torch.where(is_counted, (y - self.mean).double().flatten(1), 0.0)
        cholesky, info = torch.linalg.cholesky_ex(covariance)
        cholesky = torch.where(info[:, None, None] > 0, torch.nan, cholesky)
        z = torch.linalg.solve_triangular(cholesky, error.unsqueeze(-1), upper=False).squeeze(-1)
        half_log_determinant = cholesky.diagonal(dim1=1, dim2=2).log().sum(1)
        log_normaliser = half_log_determinant + 0.5 * math.log(2 * math.pi) * is_counted.double().sum(1)
        return -0.5 * z.square().sum(1) - log_normaliser

    def sample(self, n: int, generator: torch.Generator) -> Float[Tensor, "n B Q dy"]:
        batch, _, _, rank = self.factor.shape
        shared_noise = normal((n, batch, 1, rank, 1), self.mean, generator)
        independent_noise = normal((n, *self.mean.shape), self.mean, generator)
        return self.mean + (self.factor @ shared_noise).squeeze(-1) + self.std * independent_noise


@dataclass(frozen=True)
class Samples(_JointPrediction):
    """S equally likely functions, each with a mixture of K Gaussians with diagonal covariance at each position.

    The marginal distribution of a position is the mixture of all S K Gaussians.
    """

    logits: Float[Tensor, "B Q S K"]
    means: Float[Tensor, "B Q S K dy"]
    stds: Float[Tensor, "B Q S K dy"]

    metrics: ClassVar[tuple[str, ...]] = Mixture.metrics

    @property
    def functions(self) -> Mixture:
        """The S functions, `(B, Q, S)`."""
        return Mixture(self.logits, self.means, self.stds)

    @property
    def marginals(self) -> Mixture:
        return Mixture(self.logits.log_softmax(-1).flatten(2), self.means.flatten(2, 3), self.stds.flatten(2, 3))

    def joint_log_likelihood(self, y: Float[Tensor, "B Q dy"], mask: Bool[Tensor, "B Q"]) -> Float[Tensor, " B"] | None:
        log_likelihoods = self.functions.log_likelihood(y.unsqueeze(2)).mT
        return log_mean_exp(masked_sum(log_likelihoods, mask.unsqueeze(1)))

    def sample(self, n: int, generator: torch.Generator) -> Float[Tensor, "n B Q dy"]:
        """Draw each sample of an episode from one of its functions, selected at random."""
        batch, positions, count = self.means.shape[:3]
        function = torch.randint(count, (n, batch, 1, 1, 1, 1), generator=generator, device=self.means.device)

        def at_function(t: Tensor) -> Tensor:
            index = function.expand(n, batch, positions, 1, *t.shape[3:])
            return t.expand(n, *t.shape).gather(3, index).squeeze(3).flatten(0, 1)

        stds, means = at_function(self.stds), at_function(self.means)
        logits = at_function(self.logits.unsqueeze(-1)).squeeze(-1)
        return Mixture(logits, means, stds).sample(1, generator)[0].unflatten(0, (n, batch))


@dataclass(frozen=True)
class Paths(Samples):
    """Samples that are drawn one position after the other. The Gaussians at a position are conditional on the
    previously drawn outputs.

    The paths are samples of a joint distribution, whose density must be computed by the predictor
    (`Predictor.joint_scores`).

    Attributes:
        drawn_outputs: the outputs drawn at each position of each path.
    """

    drawn_outputs: Float[Tensor, "B Q S dy"]

    def joint_log_likelihood(self, y: Tensor, mask: Bool[Tensor, "B Q"]) -> None:
        return None

    def sample(self, n: int, generator: torch.Generator) -> Float[Tensor, "n B Q dy"]:
        """Return the paths in random order, repeated if there are fewer than n."""
        count = self.drawn_outputs.shape[2]
        order = torch.randperm(count, generator=generator, device=self.drawn_outputs.device)
        path_index = order[torch.arange(n, device=order.device) % count]
        return self.drawn_outputs[:, :, path_index].permute(2, 0, 1, 3)


@dataclass(frozen=True)
class SampledEvent(EventPrediction):
    """A mixture of S equally likely distributions of the next event.

    Attributes:
        predictions: the S distributions, stacked along the last axis.
    """

    predictions: EventPrediction

    @classmethod
    def raw_dim(cls, outputs: int, settings: HeadSettings = _DEFAULT_SETTINGS) -> NoReturn:
        raise NotImplementedError("a mixture of sampled predictions is not read from a network's outputs")

    @classmethod
    def from_raw(cls, raw: Tensor, outputs: int, settings: HeadSettings = _DEFAULT_SETTINGS) -> NoReturn:
        raise NotImplementedError("a mixture of sampled predictions is not read from a network's outputs")

    def log_density(self, gap: Tensor) -> Tensor:
        return log_mean_exp(self.predictions.log_density(gap.unsqueeze(-1)))

    def log_survival(self, gap: Tensor) -> Tensor:
        return log_mean_exp(self.predictions.log_survival(gap.unsqueeze(-1)))

    def released_log_survival(self, gap: Tensor) -> Tensor:
        return log_mean_exp(self.predictions.released_log_survival(gap.unsqueeze(-1)))

    def log_marks(self, gap: Tensor) -> Tensor:
        """Return the log-probabilities of marks. Each distribution is weighted by its density at this gap. If all
        densities are 0, the weights are equal."""
        density = self.predictions.log_density(gap.unsqueeze(-1))
        weights = density.clamp_min(torch.finfo(density.dtype).min / 2).log_softmax(-1)
        return (weights.unsqueeze(-1) + self.predictions.log_marks(gap.unsqueeze(-1))).logsumexp(-2)

    def mark_probabilities(self) -> Tensor:
        return self.predictions.mark_probabilities().mean(-2)

    def mean(self) -> Tensor:
        return self.predictions.mean().mean(-1)

    def quantile(self, level: float) -> Tensor:
        """Return the quantile of the mixture, by bisection between the smallest and the largest quantile of the S
        distributions."""
        ends = self.predictions.quantile(level)
        return bisect(lambda gap: -torch.expm1(self.log_survival(gap)) < level, ends.amin(-1), ends.amax(-1))

    def sample_gaps(self, n: int, generator: torch.Generator) -> Tensor:
        gaps = self.predictions.sample_gaps(n, generator)
        component = torch.randint(gaps.shape[-1], (*gaps.shape[:-1], 1), generator=generator, device=gaps.device)
        return gaps.gather(-1, component).squeeze(-1)


@singledispatch
def mix_samples(predictions: Prediction) -> Prediction:
    """Mix equally likely predictions `(B, Q, S)` into one prediction `(B, Q)`.

    Raises:
        UsageError: predictions of this class cannot be mixed.
    """
    raise UsageError(
        f"predictions of class {type(predictions).__name__} cannot be averaged over samples", code="not-applicable"
    )


@mix_samples.register
def _(predictions: Point) -> Point:
    return Point(predictions.mean.mean(2))


@mix_samples.register
def _(predictions: Gaussian) -> Samples:
    return Samples(
        torch.zeros_like(predictions.mean[..., :1]), predictions.mean.unsqueeze(3), predictions.std.unsqueeze(3)
    )


@mix_samples.register
def _(predictions: Mixture) -> Samples:
    return Samples(predictions.logits, predictions.means, predictions.stds)


@mix_samples.register
def _(predictions: Bar) -> Bar:
    bars = predictions.bars.log_softmax(-1).movedim(2, -1)  # all samples have the same borders
    return Bar(log_mean_exp(bars), predictions.centre[:, :, 0], predictions.scale[:, :, 0])


@mix_samples.register
def _(predictions: Categorical) -> Categorical:
    return Categorical(log_mean_exp(predictions.logits.log_softmax(-1).transpose(2, 3)))


@mix_samples.register
def _(predictions: EventPrediction) -> SampledEvent:
    return SampledEvent(predictions)


def log_mean_exp(values: Float[Tensor, "*shape S"]) -> Float[Tensor, " *shape"]:
    """Return the logarithm of the mean of exponentials over the last axis."""
    return values.logsumexp(-1) - math.log(values.shape[-1])
