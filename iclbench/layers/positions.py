"""Position encodings of a Transformer: a vector that is added to the token, or a rotation of queries and keys.

Positions are given as a `range`, which applies to all episodes, or as a tensor of shape `(B, T)` or `(T,)`.
"""

from __future__ import annotations

from typing import ClassVar, Literal, TypeAlias

import torch
from jaxtyping import Float
from torch import Tensor, nn

from iclbench.core.errors import UsageError

PositionEncoding = Literal["none", "learned", "sinusoidal", "rotary"]
TokenPositions: TypeAlias = range | Tensor
Rotation = tuple[Tensor, Tensor]

# Bases of the wavelengths: the longest wavelength is about 2 pi times the base, in tokens. The base is 30 in Chan et
# al. 2022 (emergent_in_context_learning, modules/embedding.py), and 10,000 in Vaswani et al. 2017 and for rotary
# positions.
SINUSOIDAL_BASE, ROTARY_BASE = 30.0, 10_000.0


class AddedPositions(nn.Module):
    """Position vectors that are added to the tokens before the first layer.

    Attributes:
        restarts: whether positions start from 0 in every related dataset and in the context.
    """

    restarts: ClassVar[bool] = False

    def forward(self, token_positions: TokenPositions, device: torch.device | None = None) -> Float[Tensor, "*B T D"]:
        """Return the vectors of the positions."""
        raise NotImplementedError


class LearnedPositions(AddedPositions):
    """A table of position vectors with two rows per point. Its size limits the number of positions."""

    restarts = True

    def __init__(self, weight: Float[Tensor, "T D"]) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight)

    def forward(self, token_positions: TokenPositions, device: torch.device | None = None) -> Float[Tensor, "*B T D"]:
        """Return the vectors of the positions, on the device of the table; `device` is ignored.

        Raises:
            UsageError: a position is beyond the table.
        """
        if isinstance(token_positions, range):
            self._check(token_positions[-1] if token_positions else 0)
            return self.weight[token_positions.start : token_positions.stop : token_positions.step]
        if token_positions.numel():
            self._check(int(token_positions.max()))
        return self.weight[token_positions]

    def _check(self, last: int) -> None:
        if last >= (rows := len(self.weight)):
            raise UsageError(
                f"learned positions end at {rows} tokens, and the sequence has at least {last + 1} (a pair has two "
                "tokens, and an element of a stream has one); use a model with other positions (gpt2, gpt2-rotary; for "
                "pairs also coqe, coqe-rotary)",
                code="not-applicable",
            )


class SinusoidalPositions(AddedPositions):
    """Sines, followed by cosines, with wavelengths in geometric progression (Vaswani et al. 2017, section 3.5). The
    number of positions is not limited, and the encoding has no parameters.

    Raises:
        UsageError: the width is odd.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        if width % 2:
            raise UsageError(f"sinusoidal positions require an even backbone.width, not {width}", code="bad-value")
        self.width = width

    def forward(self, token_positions: TokenPositions, device: torch.device | None = None) -> Float[Tensor, "*B T D"]:
        angles = _angles(token_positions, self.width, SINUSOIDAL_BASE, device)
        return torch.cat([angles.sin(), angles.cos()], -1)


class RotaryPositions(nn.Module):
    """Rotations of queries and keys by angles proportional to their positions, so that attention depends on positions
    only through the distance between two tokens (Su et al. 2021, equations 14 and 15). The number of positions is not
    limited, and the encoding has no parameters. A rotation acts on channel i of the first half of a head and channel i
    of the second half, as in GPT-NeoX and Llama.

    Raises:
        UsageError: a head has an odd width.
    """

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.width = width // heads
        if self.width % 2:
            raise UsageError(
                f"rotary positions require heads of an even width, but backbone.width={width} / "
                f"backbone.heads={heads} is {self.width}",
                code="bad-value",
            )

    def forward(self, token_positions: TokenPositions, device: torch.device | None = None) -> Rotation:
        """Return cosines and sines, `(*B, 1, T, C / 2)`, which are the same for all heads."""
        angles = _angles(token_positions, self.width, ROTARY_BASE, device).unsqueeze(-3)
        return angles.cos(), angles.sin()


def rotate(t: Float[Tensor, "B H T C"], rotation: Rotation | None) -> Float[Tensor, "B H T C"]:
    """Rotate queries or keys; a `rotation` of None means no rotation."""
    if rotation is None:
        return t
    cos, sin = (wave.to(t) for wave in rotation)
    half, other_half = t.chunk(2, -1)
    return torch.cat([half * cos - other_half * sin, other_half * cos + half * sin], -1)


def _angles(
    token_positions: TokenPositions, width: int, base: float, device: torch.device | None
) -> Float[Tensor, "*B T half"]:
    """Return the angles for width / 2 frequencies in geometric progression, from 1 down to almost 1 / base. They are
    computed on the device, because copying them to the device would require a synchronisation in every step."""
    if isinstance(token_positions, range):
        first, end, step = token_positions.start, token_positions.stop, token_positions.step
        index = torch.arange(first, end, step, device=device)
    else:
        index = token_positions
    frequencies = base ** -(torch.arange(0, width, 2, device=index.device) / width)
    return index.unsqueeze(-1) * frequencies
