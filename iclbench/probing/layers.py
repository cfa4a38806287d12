"""Probes of layers. The model's read-out decodes each layer, and a scale and a shift are fitted to its output.

The read-out is trained only for the last layer. The probe therefore fits two parameters for each layer and task, a
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

# Predictions for one task that differ by less than this fraction count as equal, since float32 rounding may explain the
# difference.
_ROUNDING = 1e-6


@dataclass(frozen=True)
class LayerProbe:
    """The results for each task and layer. Scale and shift are means over output dimensions; errors are sums over them.

    Attributes:
        scale: the factor by which the decoded output is multiplied.
        shift: the constant that is added to the scaled output.
        error: mean squared error on the test queries with scale and shift, divided by the normaliser.
        raw_error: mean squared error on the test queries without scale and shift, divided by the normaliser.
    """

    scale: Float[Tensor, "B L"]
    shift: Float[Tensor, "B L"]
    error: Float[Tensor, "B L"]
    raw_error: Float[Tensor, "B L"]


def decode_layers(backbone: Backbone, prompts: ProbeSet, device: str = "cpu") -> Float[Tensor, "L B Q Dy"]:
    """Return the mean prediction of each layer for all queries, in float64 on the CPU. Each context is read once."""
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
    """Fit a scale and a shift for each layer, task and output on the first `fit` queries, and score the predictions for
    the other queries."""
    scale, shift = fit_scale_and_shift(decoded[:, :, :fit], y[:, :fit])
    test, truth = decoded[:, :, fit:], y[:, fit:]
    adjusted = scale.unsqueeze(2) * test + shift.unsqueeze(2)

    def error(predicted: Tensor) -> Tensor:
        return (predicted - truth).square().sum(-1).mean(-1).T / normaliser

    return LayerProbe(scale.mean(-1).T, shift.mean(-1).T, error(adjusted), error(test))


def fit_scale_and_shift(
    predicted: Float[Tensor, "*layers B M Dy"], y: Float[Tensor, "B M Dy"]
) -> tuple[Float[Tensor, "*layers B Dy"], Float[Tensor, "*layers B Dy"]]:
    """Return the scale and the shift for which scale * predicted + shift is the least-squares fit of y over the M
    queries. For constant predictions, this is the solution of minimum norm."""
    centre, mean = predicted.mean(-2), y.mean(-2)
    spread = predicted - centre.unsqueeze(-2)
    varies = spread.abs().amax(-2) > _ROUNDING * predicted.abs().amax(-2)
    variance = spread.square().sum(-2).masked_fill(~varies, 1)
    # For constant predictions c, all solutions are on the line scale * c + shift = mean. Use the one nearest to 0.
    scale = torch.where(varies, (spread * y).sum(-2) / variance, centre * mean / (1 + centre.square()))
    return scale, mean - scale * centre
