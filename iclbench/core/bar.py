"""The bar head: a histogram with half-normal tails (the "Riemann distribution" of Müller et al. 2022, "Transformers Can
Do Bayesian Inference").

An output is `centre + scale u`. The range of u is divided into K buckets: K - 2 bars of constant density, and two
half-normal tails with scale parameter 1. The borders follow a fixed rule, so equal settings always give equal borders,
and a run can be loaded without a file of borders:

    border i = sqrt(3) Phi^-1(i / K) for i = 1, ..., K - 1.

The scale is the standard deviation of the task's outputs (`Family.y_scale`). (In the papers, the borders are quantiles
of a sample from the prior.)

A constant density in each bucket costs about width² / (24 s²) nats for a predictive distribution with standard
deviation s. The mean cost is smallest if the density of the borders is proportional to the cube root of the density of
the outputs (Bennett 1948; Panter and Dite 1951). For normal outputs, this is a normal density with three times the
variance. For outputs N(0, 1), s = 0.2 and K = 100, the best prediction then loses 0.0036 nats. With quantiles of
N(0, 1) as borders, it loses 0.024 nats, because the outer buckets are too wide.

The width of the tails is set by the standard deviation of the outputs, not by the width of the outermost bars, which
gives rare large outputs a higher likelihood.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from typing import ClassVar

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from iclbench.core.predictions import (
    COVERED,
    Gaussian,
    HeadSettings,
    Mixture,
    Prediction,
    checked_level,
    masked_sum,
    normal,
)

_DEFAULT_SETTINGS = HeadSettings()
# The borders are quantiles of a normal distribution with this standard deviation, in units of the scale.
_SPREAD = math.sqrt(3)
# Smallest probability of a bucket by which `quantile` divides, and smallest tail probability of a sample in
# `transport`.
_TINY, _SMALLEST_SHARE = 2.0**-120, 2.0**-24


@cache
def _borders(buckets: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return the K - 1 borders between buckets for scale 1."""
    from scipy.special import ndtri

    with torch.inference_mode(False):  # the cached tensor is also used in training
        return torch.tensor(
            [_SPREAD * float(ndtri(i / buckets)) for i in range(1, buckets)], dtype=dtype, device=device
        )


@dataclass(frozen=True)
class Bar(Prediction):
    """A histogram with half-normal tails for each output. Outputs are independent.

    Attributes:
        bars: logits of the K buckets.
        centre: the median of the borders.
        scale: the unit of the borders.
    """

    bars: Float[Tensor, "*shape dy k"]
    centre: Float[Tensor, "*shape dy"]
    scale: Float[Tensor, "*shape dy"]

    metrics: ClassVar[tuple[str, ...]] = Mixture.metrics

    @classmethod
    def raw_dim(cls, outputs: int, settings: HeadSettings = _DEFAULT_SETTINGS) -> int:
        return settings.buckets * outputs

    @classmethod
    def from_raw(cls, raw: Tensor, outputs: int, settings: HeadSettings = _DEFAULT_SETTINGS) -> Bar:
        bars = raw.unflatten(-1, (outputs, settings.buckets))
        centre = raw.new_zeros(bars.shape[:-1])
        return cls(bars, centre, torch.full_like(centre, settings.scale))

    @property
    def borders(self) -> Float[Tensor, " k1"]:
        """The K - 1 borders between the buckets, in units of `scale` around `centre`."""
        return _borders(self.bars.shape[-1], self.bars.dtype, self.bars.device)

    @property
    def mean(self) -> Tensor:
        means, _ = self._bucket_moments()
        return self.centre + self.scale * (self.bars.softmax(-1) * means).sum(-1)

    @property
    def std(self) -> Tensor:
        """Standard deviation, per output."""
        means, variances = self._bucket_moments()
        masses = self.bars.softmax(-1)
        offsets = means - (masses * means).sum(-1, keepdim=True)
        return self.scale * (masses * (variances + offsets.square())).sum(-1).sqrt()

    @property
    def moments(self) -> Gaussian:
        """The Gaussian with the same mean and standard deviation."""
        return Gaussian(self.mean, self.std)

    def log_likelihood(self, y: Tensor) -> Tensor:
        u = (y - self.centre) / self.scale
        bucket, excess = self._locate(u)
        log_mass = _take(self.bars.log_softmax(-1), bucket)
        log_tail = 0.5 * math.log(2 / math.pi) - 0.5 * excess.square()
        is_tail = (bucket == 0) | (bucket == self.bars.shape[-1] - 1)
        log_density = torch.where(is_tail, log_tail, -self._bucket_edges(bucket)[1].log())
        return (log_mass + log_density - self.scale.log()).sum(-1)

    def cumulative(self, y: Tensor) -> Tensor:
        """Return the probability of values below `y`, per output."""
        u = (y - self.centre) / self.scale
        bucket, excess = self._locate(u)
        masses = self.bars.softmax(-1)
        mass, below = (_take(t, bucket) for t in (masses, F.pad(masses.cumsum(-1), (1, 0))))
        low, width = self._bucket_edges(bucket)
        tail = 2 * mass * torch.special.ndtr(-excess)  # beyond u
        inside = below + mass * (u - low) / width
        return torch.where(bucket == 0, tail, torch.where(bucket == masses.shape[-1] - 1, 1 - tail, inside))

    def quantile(self, level: float | Tensor) -> Float[Tensor, "*shape dy"]:
        """Return the quantile of each output, in closed form.

        Args:
            level: a probability, or a tensor with one probability for each output (and any number of leading axes).
        """
        masses = self.bars.softmax(-1)
        level = torch.as_tensor(level, dtype=masses.dtype, device=masses.device)
        up_to = masses.cumsum(-1)
        bucket = (up_to[..., :-1] < level.unsqueeze(-1)).sum(-1)
        mass, below = _take(masses, bucket).clamp_min(_TINY), _take(F.pad(up_to, (1, 0)), bucket)
        low, width = self._bucket_edges(bucket)
        inside = low + width * ((level - below) / mass).clamp(0, 1)
        lower = self.borders[0] + torch.special.ndtri((level / (2 * mass)).clamp(0, 0.5))
        upper = self.borders[-1] - torch.special.ndtri(((1 - level) / (2 * mass)).clamp(0, 0.5))
        u = torch.where(bucket == 0, lower, torch.where(bucket == masses.shape[-1] - 1, upper, inside))
        return self.centre + self.scale * u

    def point(self) -> Tensor:
        return self.mean

    def interval(self, level: float = 0.9) -> tuple[Tensor, Tensor]:
        level = checked_level(level)
        return self.quantile(0.5 - level / 2), self.quantile(0.5 + level / 2)

    def sample(self, n: int, generator: torch.Generator) -> Tensor:
        return self.transport(normal((n, *self.centre.shape), self.bars, generator))

    def transport(self, z: Tensor) -> Float[Tensor, "*any dy"]:
        """Map standard normal numbers to outputs with the same cumulative probabilities. Numbers beyond 5.3 standard
        deviations are clamped."""
        return self.quantile(torch.special.ndtr(z).clamp(_SMALLEST_SHARE, 1 - _SMALLEST_SHARE))

    def columns(self) -> dict[str, Tensor]:
        low, high = self.interval(0.9)
        return {"mean": self.mean, "std": self.std, "low": low, "high": high}

    def joint_log_likelihood(self, y: Tensor, mask: Bool[Tensor, "B Q"]) -> Tensor:
        return masked_sum(self.log_likelihood(y), mask)

    def loss(self, y: Tensor) -> Tensor:
        return -self.log_likelihood(y)

    def scores(self, y: Tensor) -> dict[str, Tensor]:
        distance_from_median = (self.cumulative(y) - 0.5).abs()  # in probability
        return {
            "log_likelihood": self.log_likelihood(y),
            "log_likelihood_gaussian": self.moments.log_likelihood(y),
            "squared_error": (self.mean - y).square().sum(-1),
            **{name: (distance_from_median <= level / 2).to(y.dtype).mean(-1) for name, level in COVERED.items()},
        }

    def _locate(self, u: Tensor) -> tuple[Int[Tensor, "*shape dy"], Float[Tensor, "*shape dy"]]:
        """Return the bucket of each value, and how far the value is beyond the border of a tail (0 between the
        tails)."""
        borders = self.borders
        bucket = torch.searchsorted(borders, u.detach().contiguous())
        return bucket, F.relu(borders[0] - u) + F.relu(u - borders[-1])

    def _bucket_edges(self, bucket: Tensor) -> tuple[Tensor, Tensor]:
        """Return the lower border and the width of each bucket. For a tail, return its inner border and 1."""
        borders = self.borders
        return torch.cat([borders[:1], borders])[bucket], F.pad(borders.diff(), (1, 1), value=1.0)[bucket]

    def _bucket_moments(self) -> tuple[Float[Tensor, " k"], Float[Tensor, " k"]]:
        """Return the means and variances of the uniform and half-normal distributions in the buckets, in units of the
        scale."""
        borders = self.borders
        tail_mean = math.sqrt(2 / math.pi)
        centres = (borders[1:] + borders[:-1]) / 2
        means = torch.cat([borders[:1] - tail_mean, centres, borders[-1:] + tail_mean])
        return means, F.pad(borders.diff().square() / 12, (1, 1), value=1 - 2 / math.pi)


def _take(t: Float[Tensor, "*shape k"], bucket: Int[Tensor, "*any"]) -> Float[Tensor, "*any"]:
    """Select the entries of these buckets along the last axis. `bucket` may have additional leading axes."""
    return t.expand(*bucket.shape, t.shape[-1]).gather(-1, bucket.unsqueeze(-1)).squeeze(-1)
