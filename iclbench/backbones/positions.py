"""What tells a Transformer where a token stands: a vector per position, added to the token."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from iclbench.errors import UsageError

# The slowest wave of Chan et al. 2022 (emergent_in_context_learning, modules/embedding.py) turns once in about
# 2 pi 30 tokens; Vaswani et al. have 10,000.
SLOWEST = 30.0


class LearnedPositions(nn.Embedding):
    """A table, two rows a point: positions end where it ends."""

    def between(self, start: int, stop: int, step: int = 1, device: torch.device | None = None) -> Float[Tensor, "T D"]:
        """Vectors of the positions start, start + step, ... below stop, where the table is, whatever the device that is
        asked for; raises `UsageError` beyond the table."""
        self._check(stop - 1)
        return self.weight[start:stop:step]

    def forward(self, index: Int[Tensor, "*shape T"]) -> Float[Tensor, "*shape T D"]:
        """Vectors of any positions; raises `UsageError` beyond the table."""
        if index.numel():
            self._check(int(index.max()))
        return super().forward(index)

    def _check(self, last: int) -> None:
        if last >= self.num_embeddings:
            raise UsageError(
                f"learned positions end at {self.num_embeddings // 2} points, asked for {last // 2 + 1}; "
                "train with -o backbone.positions=none to go beyond"
            )


class SinusoidalPositions(nn.Module):
    """Sines and, behind them, cosines of wavelengths in geometric progression (Vaswani et al. 2017, section 3.5); no
    end and no parameters.

    Raises:
        UsageError: the width is odd.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        if width % 2:
            raise UsageError(f"sinusoidal positions need an even backbone.width, not {width}")
        self.width = width

    def between(self, start: int, stop: int, step: int = 1, device: torch.device | None = None) -> Float[Tensor, "T D"]:
        """Vectors of the positions start, start + step, ... below stop, made on the device: a copy would be waited for
        in every step."""
        return self(torch.arange(start, stop, step, device=device))

    def forward(self, index: Int[Tensor, "*shape T"]) -> Float[Tensor, "*shape T D"]:
        frequencies = SLOWEST ** -(torch.arange(0, self.width, 2, device=index.device) / self.width)
        angles = index.unsqueeze(-1) * frequencies
        return torch.cat([angles.sin(), angles.cos()], -1)
