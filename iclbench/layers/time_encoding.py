"""The time encoding of the Transformer Hawkes process (Zuo et al. 2020, equation 2)."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

# The longest wavelength is almost 2 pi times this number of time units (Vaswani et al. 2017).
BASE = 10_000.0


def time_encoding(times: Float[Tensor, "*shape"], width: int) -> Float[Tensor, "*shape D"]:
    """Return sines in the even channels and cosines in the odd channels; channels 2 i and 2 i + 1 have the angle t /
    10,000^(2 i / D).

    Args:
        times: times in the data's unit, of any sign.
        width: D; if it is odd, the last wave has no cosine.
    """
    index = torch.arange(0, width, 2, device=times.device, dtype=torch.float64)
    frequencies = (BASE ** (-index / width)).to(times.dtype)
    angles = times.unsqueeze(-1) * frequencies
    return torch.stack([angles.sin(), angles.cos()], -1).flatten(-2)[..., :width]
