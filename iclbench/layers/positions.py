"""Positions of tokens in a Transformer: a vector added to the token, or a rotation of queries and keys.

Positions are a `range`, the same for all episodes, or a tensor, `(B, T)` or `(T,)`.
"""

from __future__ import annotations

from typing import ClassVar, Literal, TypeAlias

import torch
from jaxtyping import Float
from torch import Tensor, nn

from iclbench.core.errors import UsageError

Positions = Literal["none", "learned", "sinusoidal", "rotary"]
Places: TypeAlias = range | Tensor
Turn = tuple[Tensor, Tensor]

# The slowest wave of Chan et al. 2022 (emergent_in_context_learning, modules/embedding.py) turns once in about
# 2 pi 30 tokens; Vaswani et al. have 10,000, and so have rotary positions.
SLOWEST, SLOWEST_ROTARY = 30.0, 10_000.0


class AddedPositions(nn.Module):
    """Positions that are vectors, added to the tokens before the first layer.

    Attributes:
        restarts: whether they are counted from 0 in every related dataset and in the context, or through all of them.
    """

    restarts: ClassVar[bool] = False

    def forward(self, places: Places, device: torch.device | None = None) -> Float[Tensor, "*B T D"]:
        """The vectors of positions."""
        raise NotImplementedError


class LearnedPositions(AddedPositions):
    """A table, two rows a point: positions end where it ends."""

    restarts = True

    def __init__(self, weight: Float[Tensor, "T D"]) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight)

    def forward(self, places: Places, device: torch.device | None = None) -> Float[Tensor, "*B T D"]:
        """Where the table is, whatever the device; raises `UsageError` beyond the table."""
        if isinstance(places, range):
            self._check(places[-1] if places else 0)
            return self.weight[places.start : places.stop : places.step]
        if places.numel():
            self._check(int(places.max()))
        return self.weight[places]

    def _check(self, last: int) -> None:
        if last >= len(self.weight):
            raise UsageError(
                f"learned positions end at {len(self.weight) // 2} points, asked for {last // 2 + 1}; a contestant "
                "with other positions goes beyond (gpt2, gpt2-rotary, coqe, coqe-rotary)"
            )


class SinusoidalPositions(AddedPositions):
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

    def forward(self, places: Places, device: torch.device | None = None) -> Float[Tensor, "*B T D"]:
        angles = _angles(places, self.width, SLOWEST, device)
        return torch.cat([angles.sin(), angles.cos()], -1)


class RotaryPositions(nn.Module):
    """Queries and keys turned by angles in proportion to their positions, so that attention sees only the distance of
    two tokens (Su et al. 2021, equations 14 and 15); no end and no parameters. Turned together are
    a head's i-th channel and the i-th of its second half, as in GPT-NeoX and Llama.

    Raises:
        UsageError: a head has an odd width.
    """

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.width = width // heads
        if self.width % 2:
            raise UsageError(
                f"rotary positions need heads of an even width, and backbone.width={width} / backbone.heads={heads} "
                f"is {self.width}"
            )

    def forward(self, places: Places, device: torch.device | None = None) -> Turn:
        """Cosines and sines, `(*B, 1, T, C / 2)`: the same for all heads."""
        angles = _angles(places, self.width, SLOWEST_ROTARY, device).unsqueeze(-3)
        return angles.cos(), angles.sin()


def turned(t: Float[Tensor, "B H T C"], turn: Turn | None) -> Float[Tensor, "B H T C"]:
    """Queries or keys, turned (None: as they are)."""
    if turn is None:
        return t
    cos, sin = (part.to(t) for part in turn)
    half, other_half = t.chunk(2, -1)
    return torch.cat([half * cos - other_half * sin, other_half * cos + half * sin], -1)


def _angles(places: Places, width: int, slowest: float, device: torch.device | None) -> Float[Tensor, "*B T half"]:
    """Angles of width / 2 frequencies, from 1 in geometric progression almost down to 1 / slowest, made on the device:
    a copy would be waited for in every step."""
    index = torch.arange(places.start, places.stop, places.step, device=device) if isinstance(places, range) else places
    frequencies = slowest ** -(torch.arange(0, width, 2, device=index.device) / width)
    return index.unsqueeze(-1) * frequencies
