"""Probes of layers: the read-out of the model decodes each layer, up to a scale and a shift for each task.

The read-out is trained for the last layer only. The probe therefore fits two parameters for each layer and task, a
scale and a shift, by least squares on separate queries (Geva et al. 2021; Grazzi et al. 2024, section 3.2). It has no
other degrees of freedom.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from iclbench.backbones.base import Backbone
from iclbench.core.answers import check_answer
from iclbench.probing.probe_set import ProbeSet

# Predictions of one task that differ by less than this fraction are equal up to float32 rounding.
_ROUNDING = 1e-6


@dataclass(frozen=True)
class LayerProbe:
    """Results for each task and layer. Scale and shift are means over output dimensions, and errors are sums.

    Attributes:
        scale: the factor of the decoded output.
        shift: the constant that is added to the scaled output.
        error: squared error on the test queries after scale and shift, divided by the normaliser.
        raw_error: squared error on the test queries before scale and shift, divided by the normaliser.
    """

    scale: Float[Tensor, "B L"]
    shift: Float[Tensor, "B L"]
    error: Float[Tensor, "B L"]
    raw_error: Float[Tensor, "B L"]


def decode_layers(backbone: Backbone, prompts: ProbeSet, device: str = "cpu") -> Float[Tensor, "L B Q Dy"]:
    """The mean prediction of each layer at all queries, in float64 on the CPU; each context is read once."""
    parts = []
    for block in prompts.blocks():
        episodes = block.without_truth().to(device)
        with torch.inference_mode():
            layers = list(backbone.predict_by_layer(episodes.context, episodes.queries.x, episodes.related))
        for layer in layers:
            check_answer(backbone, "predict_by_layer", layer, episodes.queries.mask.shape, episodes.queries.y)
        parts.append(torch.stack([layer.point() for layer in layers]).double().cpu())
    return torch.cat(parts, 1)


def probe_layers(
    decoded: Float[Tensor, "L B Q Dy"], y: Float[Tensor, "B Q Dy"], fit: int, normaliser: float = 1.0
) -> LayerProbe:
    """Fit scale and shift of each layer, task and output on the first `fit` queries, and score the other queries."""
    scale, shift = fit_scale_and_shift(decoded[:, :, :fit], y[:, :fit])
    test, truth = decoded[:, :, fit:], y[:, fit:]
    adjusted = scale.unsqueeze(2) * test + shift.unsqueeze(2)

    def error(predicted: Tensor) -> Tensor:
        return (predicted - truth).square().sum(-1).mean(-1).T / normaliser

    return LayerProbe(scale.mean(-1).T, shift.mean(-1).T, error(adjusted), error(test))


def fit_scale_and_shift(
    predicted: Float[Tensor, "*layers B M Dy"], y: Float[Tensor, "B M Dy"]
) -> tuple[Float[Tensor, "*layers B Dy"], Float[Tensor, "*layers B Dy"]]:
    """Least-squares fit of y by scale * predicted + shift over the M queries; for constant predictions, the solution of
    minimum norm."""
    centre, mean = predicted.mean(-2), y.mean(-2)
    spread = predicted - centre.unsqueeze(-2)
    varies = spread.abs().amax(-2) > _ROUNDING * predicted.abs().amax(-2)
    variance = spread.square().sum(-2).masked_fill(~varies, 1)
    # For constant predictions c, the point on the line scale * c + shift = mean that is nearest to the origin.
    scale = torch.where(varies, (spread * y).sum(-2) / variance, centre * mean / (1 + centre.square()))
    return scale, mean - scale * centre
