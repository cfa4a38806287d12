"""Probes of layers: each output, decoded by the model's own read-out, up to a scale and a shift per task.

The read-out was trained for the last layer alone, so each task gets two free numbers per layer, a scale and a shift,
fitted by least squares on queries of their own (Geva et al. 2021; Grazzi et al. 2024, section 3.2). These are all the
degrees of freedom of the probe.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from iclbench.backbones.base import Backbone
from iclbench.core.answers import check_answer
from iclbench.probing.probe_set import ProbeSet

# Predictions of one task that differ by less than this fraction are the same number up to float32's rounding.
_ROUNDING = 1e-6


@dataclass(frozen=True)
class LayerProbe:
    """Results per task and layer, `(tasks, layers)` each; several output dimensions are averaged (scale,
    shift) or summed (errors).

    Attributes:
        scale: what the decoded output is multiplied by.
        shift: what is then added.
        error: squared error on the test queries after scale and shift, over the normaliser.
        raw_error: the same before scale and shift.
    """

    scale: Float[Tensor, "B L"]
    shift: Float[Tensor, "B L"]
    error: Float[Tensor, "B L"]
    raw_error: Float[Tensor, "B L"]


def decode_layers(backbone: Backbone, prompts: ProbeSet, device: str = "cpu") -> Float[Tensor, "L B Q Dy"]:
    """The mean prediction of every layer at all queries, each context taken in once, in float64 on the CPU."""
    parts = []
    for block in prompts.blocks():
        episodes = block.without_truth().to(device)
        with torch.inference_mode():
            layers = list(backbone.predict_by_layer(episodes.context, episodes.asked.x, episodes.related))
        for layer in layers:
            check_answer(backbone, "predict_by_layer", layer, episodes.asked.mask.shape, episodes.asked.y)
        parts.append(torch.stack([layer.point() for layer in layers]).double().cpu())
    return torch.cat(parts, 1)


def probe_layers(
    decoded: Float[Tensor, "L B Q Dy"], y: Float[Tensor, "B Q Dy"], fit: int, normaliser: float = 1.0
) -> LayerProbe:
    """Fit scale and shift per layer, task and output on the first `fit` queries, and score the others."""
    scale, shift = fit_scale_and_shift(decoded[:, :, :fit], y[:, :fit])
    test, truth = decoded[:, :, fit:], y[:, fit:]
    adjusted = scale.unsqueeze(2) * test + shift.unsqueeze(2)

    def error(predicted: Tensor) -> Tensor:
        return (predicted - truth).square().sum(-1).mean(-1).T / normaliser

    return LayerProbe(scale.mean(-1).T, shift.mean(-1).T, error(adjusted), error(test))


def fit_scale_and_shift(
    predicted: Float[Tensor, "*layers B M Dy"], y: Float[Tensor, "B M Dy"]
) -> tuple[Float[Tensor, "*layers B Dy"], Float[Tensor, "*layers B Dy"]]:
    """Least squares of y on (predicted, 1) over the M queries; the solution of minimum norm where the predictions are
    constant."""
    centre, mean = predicted.mean(-2), y.mean(-2)
    spread = predicted - centre.unsqueeze(-2)
    varies = spread.abs().amax(-2) > _ROUNDING * predicted.abs().amax(-2)
    variance = spread.square().sum(-2).masked_fill(~varies, 1)
    # Constant predictions c ask for scale * c + shift = mean: the point of that line nearest to the origin.
    scale = torch.where(varies, (spread * y).sum(-2) / variance, centre * mean / (1 + centre.square()))
    return scale, mean - scale * centre
