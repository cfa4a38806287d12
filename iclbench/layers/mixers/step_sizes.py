"""First step sizes dt of decays e^(-A dt), as Mamba draws them (Gu and Dao 2023, section 3.6)."""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor

_LEAST, _MOST, _FLOOR = 1e-3, 1e-1, 1e-4


def first_dt(count: int) -> Float[Tensor, " count"]:
    """Biases whose softplus is log-uniform in [0.001, 0.1]."""
    dt = torch.exp(torch.rand(count) * math.log(_MOST / _LEAST) + math.log(_LEAST)).clamp(min=_FLOOR)
    return dt + torch.log(-torch.expm1(-dt))
