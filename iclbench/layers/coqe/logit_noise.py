"""Gaussian noise on logits in training, whose mean and deviation grow (CoQE, section 4.2 and appendix C.2).

Without it the static class vectors answer everything in the end. Softmax does not change if all logits are shifted
equally, so that a mean matters only for a part of them: the lowest of the static ones (released code) or the
classes in the context.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor

Where = Literal["all", "present", "lowest"]

# A whole number of intervals, written as a sum of fractions, must not end just below itself.
_ROUNDING = 1e-9


@dataclass(frozen=True)
class LogitNoise:
    """Noise N(mean, std), both of which grow.

    Attributes:
        mean: at the start.
        std: at the start.
        growth: what both grow by, each time.
        every: this fraction of training lies between two times.
        first: the first time.
        where: the logits that get it: `all`, those of the classes `present` in the context, or the `lowest` of the
            static ones.
        share: of all classes, those that count as lowest.
    """

    mean: float
    std: float
    growth: float
    every: float
    first: float
    where: Where
    share: float

    def at(self, progress: float) -> tuple[float, float]:
        """Mean and standard deviation, `progress` being 0 at the start of training and 1 at its end."""
        times = max(0, 1 + math.floor((progress - self.first) / self.every + _ROUNDING))
        return self.mean + self.growth * times, self.std + self.growth * times

    def draw(
        self,
        static: Float[Tensor, "B Q classes"],
        present: Bool[Tensor, " B #Q classes"],
        progress: float,
        generator: torch.Generator,
    ) -> Float[Tensor, "B Q classes"]:
        """What is added to the logits, zero where there is no noise."""
        mean, std = self.at(progress)
        noise = mean + std * torch.randn(static.shape, generator=generator, device=static.device)
        if self.where == "all":
            return noise
        if self.where == "present":
            return noise * present
        lowest = static.detach().topk(round(self.share * static.shape[-1]), largest=False).indices
        return torch.zeros_like(noise).scatter(-1, lowest, noise.gather(-1, lowest))
