"""Gaussian noise on logits, whose mean and standard deviation grow during training (CoQE, section 4.2, appendix C.2).

Without this noise, training converges to predictions that depend only on the static class vectors. Adding the same
number to all logits does not change their softmax, so the mean has an effect only if the noise is added to some of the
logits: the lowest static logits (released code) or the logits of the classes in the context.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor

NoisyLogits = Literal["all", "present", "lowest"]

# Prevents a quotient that should be an integer from being rounded down.
_ROUNDING = 1e-9


@dataclass(frozen=True)
class LogitNoise:
    """Noise N(mean, std²) whose mean and standard deviation grow in steps.

    Attributes:
        mean: mean at the start.
        std: standard deviation at the start.
        growth: increment of the mean and of the standard deviation at each step.
        every: fraction of training between two steps.
        first: fraction of training before the first step.
        where: logits to which noise is added: `all` logits, the logits of classes `present` in the context, or the
            `lowest` static logits.
        share: fraction of the static logits that counts as the lowest.
    """

    mean: float
    std: float
    growth: float
    every: float
    first: float
    where: NoisyLogits
    share: float

    def at(self, progress: float) -> tuple[float, float]:
        """Return the mean and standard deviation at `progress`, which is 0 at the start of training and 1 at its
        end."""
        steps = max(0, 1 + math.floor((progress - self.first) / self.every + _ROUNDING))
        return self.mean + self.growth * steps, self.std + self.growth * steps

    def draw(
        self,
        static: Float[Tensor, "B Q classes"],
        present: Bool[Tensor, " B #Q classes"],
        progress: float,
        generator: torch.Generator,
    ) -> Float[Tensor, "B Q classes"]:
        """Draw the noise that is added to the logits; it is 0 for logits without noise."""
        mean, std = self.at(progress)
        noise = mean + std * torch.randn(static.shape, generator=generator, device=static.device)
        if self.where == "all":
            return noise
        if self.where == "present":
            return noise * present
        lowest = static.detach().topk(round(self.share * static.shape[-1]), largest=False).indices
        return torch.zeros_like(noise).scatter(-1, lowest, noise.gather(-1, lowest))
