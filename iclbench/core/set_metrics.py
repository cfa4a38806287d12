"""Metrics over the set of all targets of an episode, for families that list them (`Family.target_metrics`).

All other metrics are means over targets (`Prediction.scores`). To add a metric, add a function here and an entry in
`iclbench.core.metrics`. An undefined value, such as the ROC AUC if all targets have the same class, is NaN, and is
omitted from means over episodes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import torch
from jaxtyping import Bool, Float, Num
from torch import Tensor

from iclbench.core.predictions import Categorical, Gaussian, Mixture, Point, Prediction

# Number of equal-width bins of the confidence in the calibration error.
CALIBRATION_BINS = 10
# Number of samples for the CRPS of predictions without a closed form.
_CRPS_SAMPLES = 256

SetMetric = Callable[[Prediction, Tensor, Bool[Tensor, "B Q"]], Float[Tensor, " B"] | None]


def set_scores(
    answer: Prediction, y: Tensor, scored: Bool[Tensor, "B Q"], names: Sequence[str]
) -> dict[str, Float[Tensor, " B"]]:
    """Return the metrics `names` of each episode. Metrics that are not defined for this kind of prediction are left
    out.

    Args:
        answer: predictions of all targets.
        y: true outputs.
        scored: the targets that count.
        names: keys of `SET_METRICS`.
    """
    scores = {name: SET_METRICS[name](answer, y, scored) for name in names}
    return {name: values for name, values in scores.items() if values is not None}


def roc_auc(answer: Prediction, y: Num[Tensor, "B Q *Dy"], scored: Bool[Tensor, "B Q"]) -> Float[Tensor, " B"] | None:
    """Return the area under the ROC curve, averaged over the classes in the episode (each class against the rest).

    For a class, the area is the probability that a random target of this class gets a higher predicted probability than
    a random other target. Ties count as one half (Hanley and McNeil 1982).
    """
    if not isinstance(answer, Categorical):
        return None
    from scipy.stats import rankdata

    probabilities, labels, is_scored = (t.cpu().numpy() for t in (answer.logits.double().softmax(-1), y, scored))
    areas = np.full(len(labels), np.nan)
    for episode, (p, label, mask) in enumerate(zip(probabilities, labels, is_scored, strict=True)):
        p, label = p[mask], label[mask]
        is_class = label[:, None] == np.unique(label)
        positive = is_class.sum(0)
        negative = len(label) - positive
        if not np.isfinite(p).all() or not (negative > 0).all():
            continue
        ranks = rankdata(p[:, np.unique(label)], axis=0)
        rank_sums = (ranks * is_class).sum(0)
        areas[episode] = ((rank_sums - positive * (positive + 1) / 2) / (positive * negative)).mean()
    return torch.from_numpy(areas)


def calibration_error(
    answer: Prediction, y: Num[Tensor, "B Q *Dy"], scored: Bool[Tensor, "B Q"]
) -> Float[Tensor, " B"] | None:
    """Return the expected calibration error (Guo et al. 2017).

    Targets are binned by the probability of the predicted class. The error is the absolute difference between the mean
    probability and the share of correct predictions in a bin, averaged over bins with the numbers of targets as
    weights.
    """
    if not isinstance(answer, Categorical):
        return None
    confidence, predicted = answer.logits.double().softmax(-1).max(-1)
    bins = torch.ceil(confidence * CALIBRATION_BINS).long().clamp(1, CALIBRATION_BINS) - 1
    difference = ((predicted == y).to(confidence) - confidence).masked_fill(~scored, 0)
    sums = torch.zeros(len(y), CALIBRATION_BINS, dtype=confidence.dtype, device=confidence.device)
    return sums.scatter_add(1, bins, difference).abs().sum(1) / scored.sum(1)


def r_squared(answer: Prediction, y: Num[Tensor, "B Q *Dy"], scored: Bool[Tensor, "B Q"]) -> Tensor | None:
    """Return R², averaged over outputs: 1 minus the ratio of the squared error to the squared error of the targets'
    mean. It is NaN if all targets are equal."""
    if not y.is_floating_point():
        return None
    mask = scored.unsqueeze(-1)
    y, prediction = y.double(), answer.point().double()
    mean = (y * mask).sum(1, keepdim=True) / mask.sum(1, keepdim=True)
    error = ((y - prediction).square() * mask).sum(1)
    total = ((y - mean).square() * mask).sum(1)
    return torch.where(total > 0, 1 - error / total, math.nan).mean(-1)


def crps(answer: Prediction, y: Num[Tensor, "B Q *Dy"], scored: Bool[Tensor, "B Q"]) -> Tensor | None:
    """Return the continuous ranked probability score, averaged over targets and outputs, in the unit of the outputs.

    For predictions of single values, it is the absolute error (Gneiting and Raftery 2007).
    """
    if not y.is_floating_point():
        return None
    values = _crps(answer.marginals, y.double()).mean(-1)
    return values.masked_fill(~scored, 0).sum(1) / scored.sum(1)


def _crps(answer: Prediction, y: Tensor) -> Tensor:
    if isinstance(answer, Point):
        return (answer.mean.double() - y).abs()
    if isinstance(answer, Gaussian):
        mean, std = answer.mean.double(), answer.std.double()
        return _mean_distance(y - mean, std) - std / math.sqrt(math.pi)
    if isinstance(answer, Mixture):
        # E|X - y| - E|X - X'| / 2, where both expectations are sums over components (Grimit et al. 2006).
        weights = answer.logits.double().softmax(-1)
        means, stds = answer.means.double(), answer.stds.double()
        to_y = (weights.unsqueeze(-1) * _mean_distance(y.unsqueeze(-2) - means, stds)).sum(-2)
        differences = means.unsqueeze(-2) - means.unsqueeze(-3)
        spreads = (stds.square().unsqueeze(-2) + stds.square().unsqueeze(-3)).sqrt()
        pairs = (weights.unsqueeze(-1) * weights.unsqueeze(-2)).unsqueeze(-1)
        return to_y - 0.5 * (pairs * _mean_distance(differences, spreads)).sum((-3, -2))
    generator = torch.Generator(y.device).manual_seed(0)
    samples = answer.sample(_CRPS_SAMPLES, generator).double().sort(0).values
    n = len(samples)
    rank = torch.arange(1, n + 1, dtype=y.dtype, device=y.device).reshape(-1, *[1] * y.dim())
    spread = ((2 * rank - n - 1) * samples).sum(0) / n**2
    return (samples - y).abs().mean(0) - spread


def _mean_distance(difference: Tensor, std: Tensor) -> Tensor:
    """Return E|X| for a Gaussian X with mean `difference` and standard deviation `std`."""
    z = difference / std
    density = torch.exp(-0.5 * z.square()) / math.sqrt(2 * math.pi)
    return difference * (2 * torch.special.ndtr(z) - 1) + 2 * std * density


SET_METRICS: dict[str, SetMetric] = {
    "roc_auc": roc_auc,
    "calibration_error": calibration_error,
    "r_squared": r_squared,
    "crps": crps,
}
