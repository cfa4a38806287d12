"""Neural processes with a latent variable z ~ N(mu, sigma²), drawn once for all targets (Garnelo et al. 2018b).

The second encoder outputs mu and sigma = 0.1 + 0.9 sigmoid(.). The loss is importance-weighted (as in the releases of
BNP and TNP; Burda et al. 2016): q is the encoder's distribution of z given context and targets, p is its distribution
given only the context, and

    loss = -(1 / N) log mean_s exp(sum over points log p(y | z_s) + log p(z_s) - log q(z_s)),    z_s ~ q.

With one sample, the loss uses the evidence lower bound with the Kullback-Leibler divergence in closed form. If a
prediction is not a density, its negative loss replaces the log-likelihood. Predictions use samples of p from a fixed
table of normal numbers, which is the same for every episode.
"""

from __future__ import annotations

from typing import Literal, TypeVar

import torch
from jaxtyping import Float
from torch import Tensor
from torch.distributions import Normal, kl_divergence

from iclbench.backbones.two_path_np import TwoPathNP, TwoPathSettings, samples_per_pass
from iclbench.core.episodes import Episodes
from iclbench.core.events import events_of
from iclbench.core.joint import log_mean_exp, mix_samples
from iclbench.core.predictions import Prediction
from iclbench.core.seeds import generator as stream
from iclbench.core.settings import PositiveInt
from iclbench.core.task import TaskShape
from iclbench.layers.encoder_pairs import Representations


class LatentNPSettings(TwoPathSettings):
    """Settings of models with a latent variable. The defaults are the published numbers of samples."""

    latent: PositiveInt | None = None
    """Dimension of z; by default the width."""
    samples: PositiveInt = 50
    """Number of samples of z in a prediction."""
    train_samples: PositiveInt = 4
    """Number of samples of z in a training step; 1 means the evidence lower bound."""
    reconstruct: Literal["targets", "all"] = "targets"
    """Points that the loss scores: targets, or all (the context too, as published; with a floor of 0 the model then
    learns to repeat the context)."""


_Settings = TypeVar("_Settings", bound=LatentNPSettings)


class LatentNP(TwoPathNP[_Settings], abstract=True):
    """A two-path neural process whose second encoder gives the distribution of a latent variable."""

    own_context_targets = "reconstruct=all"
    normals: Tensor

    def __init__(self, settings: _Settings, shape: TaskShape) -> None:
        latent = settings.latent or settings.width
        super().__init__(settings, shape, second_width=2 * latent, read_width=latent)
        self.samples = settings.samples
        table = torch.randn(self.samples, latent, generator=stream(0, "latents"), device="cpu")
        self.register_buffer("normals", table, persistent=False)

    def answer(self, encoded: Representations, x: Float[Tensor, "B Q Fx"]) -> Prediction:
        first, latent = encoded[0], latent_distribution(encoded[1].unsqueeze(2))
        portions = self.normals.split(samples_per_pass(x.shape[:-1].numel()))
        chunks = [self._decode_samples(first, latent.mean + latent.stddev * portion, x) for portion in portions]
        return mix_samples(self.read(torch.cat(chunks, 2)))

    def loss(
        self, episodes: Episodes, progress: float, generator: torch.Generator
    ) -> tuple[Float[Tensor, ""], dict[str, Tensor]]:
        context, targets, weights = self.training_split(episodes, generator)
        all_points, samples = context.append(targets), self.settings.train_samples
        scored_points = targets if self.settings.reconstruct == "targets" else all_points
        encoded_points = all_points if self.shape.marks is None else events_of(all_points)
        x = self.x_features(scored_points.x)
        first, second = self.encoders(x, self.summarise(context))
        p, q = (
            latent_distribution(second),
            latent_distribution(self.encoders.second(self.features(encoded_points), encoded_points.mask).unsqueeze(1)),
        )
        noise = torch.randn(len(x), samples, p.mean.shape[-1], generator=generator, device=generator.device)
        z = q.mean + q.stddev * noise.to(x)
        y = scored_points.y.unsqueeze(2).expand(*scored_points.mask.shape, samples, *scored_points.y.shape[2:])
        losses = self.read(self._decode_samples(first, z.unsqueeze(1), x)).loss(y)
        likelihood = -(losses * scored_points.mask.unsqueeze(-1)).sum(1)
        if samples == 1:
            bound = likelihood.squeeze(1) - kl_divergence(q, p).sum((1, 2))
        else:
            bound = log_mean_exp(likelihood + (p.log_prob(z) - q.log_prob(z)).sum(-1))
        loss = weights.mean(-bound / scored_points.counts.clamp(min=1))
        return loss, {"loss": loss.detach()}

    def _decode_samples(
        self, first: Float[Tensor, "B P D"], z: Float[Tensor, "B P2 S latent"], x: Float[Tensor, "B Q Fx"]
    ) -> Float[Tensor, "B Q S raw"]:
        return self.decode_parts(first.unsqueeze(2), z, x.unsqueeze(2))


def latent_distribution(raw: Float[Tensor, "*shape raw"]) -> Normal:
    """Return the distribution of z from the output of the second encoder, which holds the mean and the raw standard
    deviation."""
    mean, spread = raw.chunk(2, -1)
    return Normal(mean, 0.1 + 0.9 * spread.sigmoid(), validate_args=False)
