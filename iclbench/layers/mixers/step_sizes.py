"""Initial step sizes dt of decays e^(-A dt), as in Mamba (Gu and Dao 2023, section 3.6)."""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor

_MIN_DT, _MAX_DT, _DT_FLOOR = 1e-3, 1e-1, 1e-4


def initial_dt_bias(count: int) -> Float[Tensor, " count"]:
    """Draw biases whose softplus is log-uniform in [0.001, 0.1]."""
    dt = torch.exp(torch.rand(count) * math.log(_MAX_DT / _MIN_DT) + math.log(_MIN_DT)).clamp(min=_DT_FLOOR)
    return dt + torch.log(-torch.expm1(-dt))
