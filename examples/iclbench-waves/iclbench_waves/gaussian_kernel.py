"""Kernel regression (Nadaraya 1964, Watson 1964): a mean of the outputs, weighted by a Gaussian of the distance."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from iclbench.core.settings import BaseSettings, PositiveFloat
from iclbench.estimators.base import Estimator


class GaussianKernelSettings(BaseSettings):
    """The settings of `GaussianKernel`: `bandwidth` is the standard deviation of the Gaussian."""

    bandwidth: PositiveFloat = 0.5


class GaussianKernel(Estimator):
    """Kernel regression on all prefixes at once. Points after a prefix have weight 0."""

    Settings = GaussianKernelSettings

    def answer(
        self,
        x: Float[Tensor, "B N Dx"],
        y: Float[Tensor, "B N"],
        lengths: Int[Tensor, "#B P"],
        queries: Float[Tensor, "B P Q Dx"],
    ) -> Float[Tensor, "B P Q"]:
        distance = torch.cdist(queries.flatten(1, 2), x).unflatten(1, queries.shape[1:3])
        later = torch.arange(x.shape[1], device=x.device) >= lengths.unsqueeze(-1)
        logits = -0.5 * (distance / self.settings.bandwidth).square()
        # With -inf, the weights of an empty prefix, whose answer is not used, would be NaN.
        weights = logits.masked_fill(later.unsqueeze(2), torch.finfo(logits.dtype).min).softmax(-1)
        return (weights @ y[:, None, :, None]).squeeze(-1)
