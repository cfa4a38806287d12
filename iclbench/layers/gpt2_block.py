"""GPT-2's block: layers, names and initial weights of `transformers.GPT2Model`, to the last digit of every draw (of
transformers 5.15 and later; before, what is added to the residual stream was not scaled down).

Its names are those of runs that were trained before, and its draws those behind their seeds; a test holds both against
transformers, which takes seconds to import and is not needed to train.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

# What the library draws in its constructors, before it draws again with the standard deviation that was asked for.
_FIRST_STD = 0.02


class Affine(nn.Module):
    """x W + b with W of `(inputs, outputs)`, as GPT-2 stores its weights; b begins at zero."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(inputs, outputs))
        self.bias = nn.Parameter(torch.zeros(outputs))
        nn.init.normal_(self.weight, std=_FIRST_STD)

    def forward(self, x: Float[Tensor, "*B inputs"]) -> Float[Tensor, "*B outputs"]:
        return torch.addmm(self.bias, x.flatten(0, -2), self.weight).unflatten(0, x.shape[:-1])


class _Attention(nn.Module):
    """Queries, keys and values side by side, and what the heads' answers become."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.c_attn = Affine(width, 3 * width)
        self.c_proj = Affine(width, width)


class _FeedForward(nn.Module):
    """A hidden layer, GPT-2's four times as wide."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.c_fc = Affine(width, hidden)
        self.c_proj = Affine(hidden, width)


class GPT2Block(nn.Module):
    """The layers of one block; in which order they are gone through says `CausalTransformer`."""

    def __init__(self, width: int, feedforward: int | None = None) -> None:
        super().__init__()
        self.ln_1 = nn.LayerNorm(width)
        self.attn = _Attention(width)
        self.ln_2 = nn.LayerNorm(width)
        self.mlp = _FeedForward(width, feedforward or 4 * width)


@dataclass(frozen=True)
class GPT2Layers:
    """Blocks, the norm behind them, and a row of the table of learned positions for each token."""

    blocks: Sequence[GPT2Block]
    norm: nn.LayerNorm
    positions: Float[Tensor, "T D"]


def gpt2_layers(layers: int, width: int, tokens: int, init_std: float, feedforward: int | None = None) -> GPT2Layers:
    """Freshly drawn layers (Radford et al. 2019, section 2.3: what is added to the residual stream is scaled down by
    the root of the number of such layers); `feedforward` is the hidden width, by default four times the width."""
    word, positions = nn.Embedding(1, width), nn.Embedding(tokens, width)
    blocks = [GPT2Block(width, feedforward) for _ in range(layers)]
    for embedding in (word, positions):
        nn.init.normal_(embedding.weight, std=init_std)
    for block in blocks:
        for first, last in ((block.attn.c_attn, block.attn.c_proj), (block.mlp.c_fc, block.mlp.c_proj)):
            nn.init.normal_(first.weight, std=init_std)
            nn.init.normal_(last.weight, std=init_std)
            nn.init.normal_(last.weight, std=init_std / math.sqrt(2 * layers))
    return GPT2Layers(blocks, nn.LayerNorm(width), positions.weight.data)
