"""The channel MLP in a layer of a sequence model."""

from __future__ import annotations

import math

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from iclbench.layers.activations import gelu_tanh
from iclbench.layers.mixers.mixer import Mlp

# Default ratios of the hidden width to the width.
_EXPANSION = {"gelu": 4.0, "relu2": 4.0, "swiglu": 8 / 3}


class ChannelMLP(nn.Module):
    """Two linear layers with a nonlinearity between them: tanh-GELU (with biases, as in GPT-2), relu² (without biases,
    as in RWKV) or SwiGLU (a gated hidden layer without biases, as in Llama).

    Args:
        nonlinearity: name of the nonlinearity.
        width: number of channels D.
        hidden: width of the hidden layer; None means 4 D, or 8/3 D for SwiGLU.
        residuals: number of terms that the model adds to the residual stream; the initial output weights are divided by
            its square root.
    """

    def __init__(self, nonlinearity: Mlp, width: int, hidden: int | None, residuals: int) -> None:
        super().__init__()
        hidden = hidden or round(_EXPANSION[nonlinearity] * width)
        self.nonlinearity, bias = nonlinearity, nonlinearity == "gelu"
        self.up = nn.Linear(width, 2 * hidden if nonlinearity == "swiglu" else hidden, bias=bias)
        self.down = nn.Linear(hidden, width, bias=bias)
        self.down.weight.data /= math.sqrt(residuals)

    def forward(self, x: Float[Tensor, "*B D"]) -> Float[Tensor, "*B D"]:
        hidden = self.up(x)
        if self.nonlinearity == "swiglu":
            gate, hidden = hidden.chunk(2, -1)
            return self.down(F.silu(gate) * hidden)
        return self.down(gelu_tanh(hidden) if self.nonlinearity == "gelu" else F.relu(hidden).square())
