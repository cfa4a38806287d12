"""The channel MLP in a layer of a sequence model."""

from __future__ import annotations

import math

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from iclbench.layers.activations import gelu_tanh
from iclbench.layers.mixers.mixer import Mlp

# Default hidden widths, over the width.
_EXPANSION = {"gelu": 4.0, "relu2": 4.0, "swiglu": 8 / 3}


class ChannelMLP(nn.Module):
    """Two linear layers with a nonlinearity: tanh-GELU with biases (GPT-2), relu² (RWKV), or SwiGLU, a gate on the
    hidden layer (Llama), both without biases.

    Args:
        kind: which.
        width: D.
        hidden: of the layer between; None: 4 D, SwiGLU's 8/3 D.
        residuals: of the model, by whose root outputs are shrunk.
    """

    def __init__(self, kind: Mlp, width: int, hidden: int | None, residuals: int) -> None:
        super().__init__()
        hidden = hidden or round(_EXPANSION[kind] * width)
        self.kind, bias = kind, kind == "gelu"
        self.up = nn.Linear(width, 2 * hidden if kind == "swiglu" else hidden, bias=bias)
        self.down = nn.Linear(hidden, width, bias=bias)
        self.down.weight.data /= math.sqrt(residuals)

    def forward(self, x: Float[Tensor, "*B D"]) -> Float[Tensor, "*B D"]:
        hidden = self.up(x)
        if self.kind == "swiglu":
            gate, hidden = hidden.chunk(2, -1)
            return self.down(F.silu(gate) * hidden)
        return self.down(gelu_tanh(hidden) if self.kind == "gelu" else F.relu(hidden).square())
