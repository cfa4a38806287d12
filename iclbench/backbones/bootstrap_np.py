"""Bootstrapping neural processes (Lee et al. 2020): functional uncertainty from bootstraps of the context.

    1. Resample the context's pairs with replacement. From them, predict the mean mu and the standard deviation sigma of
       the context's outputs.
    2. Standardise the residuals, (y - mu) / sigma, resample them with replacement, and subtract their mean. The new
       outputs are y* = mu + sigma e with these residuals e. Steps 1 and 2 have no gradient.
    3. Encode the bootstrap (x, y*), and add a linear map of its encoding, without bias, to the first hidden layer of
       the decoder, which reads the encoding of the context.

The training loss of a point is the loss without bootstraps, minus the logarithm of the mean likelihood over bootstraps.
At prediction time, bootstraps are drawn with fixed uniform numbers (`iclbench.layers.resampling`).

If predictions have no standard deviation (single values), residuals are not standardised. Class labels and events have
no residuals: their bootstraps are the resampled pairs of step 1.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, TypeVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from iclbench.backbones.two_path_np import TwoPathNP, TwoPathSettings, samples_per_pass
from iclbench.core.episodes import Episodes, Points
from iclbench.core.joint import log_mean_exp, mix_samples
from iclbench.core.predictions import Prediction
from iclbench.core.predictor import State
from iclbench.core.records import cat
from iclbench.core.settings import PositiveInt
from iclbench.core.task import TaskShape
from iclbench.layers.perceptron import apply_to_parts
from iclbench.layers.resampling import (
    draw_indices,
    fixed_uniforms,
    resample_residuals,
    select_points,
    sort_canonically,
)


class BootstrapSettings(TwoPathSettings):
    """Settings of models with bootstraps. The defaults are the published numbers."""

    samples: PositiveInt = 50
    """Number of bootstraps in a prediction."""
    train_samples: PositiveInt = 4
    """Number of bootstraps in a training step."""


@dataclass(frozen=True)
class BootstrapState(State):
    """Encodings of the context and of its bootstraps, `(B, S, ...)`, and the points, from which an update recomputes
    the encodings."""

    summary: Any
    bootstraps: Any
    context: Points


_Settings = TypeVar("_Settings", bound=BootstrapSettings)


class BootstrapNP(TwoPathNP[_Settings], abstract=True):
    """A two-path neural process with bootstraps of the context; a subclass sets the encoders."""

    def __init__(self, settings: _Settings, shape: TaskShape) -> None:
        super().__init__(settings, shape)
        hidden = settings.decoder_width or settings.width
        self.from_bootstrap = nn.Linear(2 * settings.width, hidden, bias=False)
        self.samples = settings.samples

    def condition(self, context: Points, related: Points | None = None) -> BootstrapState:
        return self._state_from(context, fixed_uniforms(self.samples, context.count, context.x).unsqueeze(1))

    def query(self, state: BootstrapState, x: Float[Tensor, "B Q Dx"]) -> Prediction:
        return mix_samples(self._bootstrap_answers(state, x, self.samples))

    def loss(
        self, episodes: Episodes, progress: float, generator: torch.Generator
    ) -> tuple[Float[Tensor, ""], dict[str, Tensor]]:
        context, targets, weights = self.training_split(episodes, generator)
        samples = self.settings.train_samples
        size = 2, len(context), samples, context.count
        uniforms = torch.rand(size, generator=generator, device=generator.device).to(context.x)
        state = self._state_from(context, uniforms)
        context_loss = self.answer_at(state.summary, targets.x).loss(targets.y)
        y = targets.y.unsqueeze(2).expand(*targets.mask.shape, samples, *targets.y.shape[2:])
        bootstrap_loss = -log_mean_exp(-self._bootstrap_answers(state, targets.x, samples).loss(y))
        losses = ((context_loss + bootstrap_loss) * targets.mask).sum(1) / targets.counts.clamp(min=1)
        loss = weights.mean(losses)
        return loss, {"loss": loss.detach()}

    @torch.no_grad()
    def bootstraps(self, points: Points, uniforms: Float[Tensor, "2 #B S N"]) -> Points:
        """Draw bootstrapped contexts `(B, S, N, dim)` from points in canonical order, with two uniform numbers per
        point."""
        pairs, residuals = (draw_indices(uniform, points.counts) for uniform in uniforms)
        resampled = select_points(points, pairs)
        if self.shape.classes is not None or self.shape.marks is not None:
            return resampled
        samples = pairs.shape[1]
        copies = points.map(lambda t: t.unsqueeze(1).expand(-1, samples, *t.shape[1:]))
        fit = self.answer_at(self.summarise(resampled.map(lambda t: t.flatten(0, 1))), copies.x.flatten(0, 1))
        fit = fit.map(lambda t: t.unflatten(0, pairs.shape[:2]))
        mean, spread = fit.point(), getattr(fit, "std", 1.0)  # single values have no standard deviation
        centred = resample_residuals((copies.y - mean) / spread, residuals, points.mask)
        return replace(copies, y=mean + spread * centred)

    def _state_from(self, context: Points, uniforms: Float[Tensor, "2 #B S N"]) -> BootstrapState:
        points, summaries = sort_canonically(context), []
        for portion in uniforms.split(samples_per_pass(points.mask.numel()), 2):
            bootstraps = self.bootstraps(points, portion)
            summary = self.summarise(bootstraps.map(lambda t: t.flatten(0, 1)))
            summaries.append(summary.map(lambda t, shape=bootstraps.mask.shape[:2]: t.unflatten(0, shape)))
        return BootstrapState(self.summarise(points), _concatenate(summaries), context)

    def _bootstrap_answers(self, state: BootstrapState, x: Float[Tensor, "B Q Dx"], samples: int) -> Prediction:
        """Return the predictions from the bootstraps, `(B, Q, S)`."""
        features = self.x_features(x)
        encoded = [t.unsqueeze(2) for t in (*self.encoders(features, state.summary), features)]
        raws, size = [], samples_per_pass(x.shape[:-1].numel())
        for start in range(0, samples, size):
            stop = min(start + size, samples)
            bootstraps = state.bootstraps.map(lambda t, start=start, stop=stop: t[:, start:stop].flatten(0, 1))
            from_bootstraps = self.encoders(features.repeat_interleave(stop - start, 0), bootstraps)
            from_bootstraps = [t.unflatten(0, (len(x), stop - start)).transpose(1, 2) for t in from_bootstraps]
            raws.append(self.decode_parts(*encoded, added=apply_to_parts(self.from_bootstrap, *from_bootstraps)))
        return self.read(torch.cat(raws, 2))


def _concatenate(records: list[Any]) -> Any:
    """Concatenate records with the same structure, `(B, S, ...)`, along the samples."""
    if len(records) == 1:
        return records[0]
    return cat([record.map(lambda t: t.transpose(0, 1)) for record in records]).map(lambda t: t.transpose(0, 1))
