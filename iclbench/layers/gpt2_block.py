"""GPT-2's block: layers, parameter names and initial weights of `transformers.GPT2Model`.

The initial weights are bit for bit those of transformers 5.15 and later; earlier versions did not scale down the layers
that add to the residual stream. Stored weights contain the parameter names, and the order of the random draws
determines the initial weights for a seed. A test compares the names and the initial weights with those of transformers;
training does not need this package.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

# Standard deviation of the first draw of weights, in the constructors of transformers; the second draw uses `init_std`.
_CONSTRUCTOR_STD = 0.02


class Affine(nn.Module):
    """The map x W + b, with W of shape `(inputs, outputs)` as in the stored weights of GPT-2. The initial b is zero."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(inputs, outputs))
        self.bias = nn.Parameter(torch.zeros(outputs))
        nn.init.normal_(self.weight, std=_CONSTRUCTOR_STD)

    def forward(self, x: Float[Tensor, "*B inputs"]) -> Float[Tensor, "*B outputs"]:
        return torch.addmm(self.bias, x.flatten(0, -2), self.weight).unflatten(0, x.shape[:-1])


class _Attention(nn.Module):
    """The joint projection to queries, keys and values, and the output projection."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.c_attn = Affine(width, 3 * width)
        self.c_proj = Affine(width, width)


class _FeedForward(nn.Module):
    """A network with one hidden layer, which is four times as wide as a token in GPT-2."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.c_fc = Affine(width, hidden)
        self.c_proj = Affine(hidden, width)


class GPT2Block(nn.Module):
    """The layers of one block; `CausalTransformer` applies them."""

    def __init__(self, width: int, feedforward: int | None = None) -> None:
        super().__init__()
        self.ln_1 = nn.LayerNorm(width)
        self.attn = _Attention(width)
        self.ln_2 = nn.LayerNorm(width)
        self.mlp = _FeedForward(width, feedforward or 4 * width)


@dataclass(frozen=True)
class GPT2Layers:
    """Blocks, the norm after them, and a learned position vector for each token."""

    blocks: Sequence[GPT2Block]
    norm: nn.LayerNorm
    positions: Float[Tensor, "T D"]


def gpt2_layers(layers: int, width: int, tokens: int, init_std: float, feedforward: int | None = None) -> GPT2Layers:
    """Create the layers with their initial weights. The weights of layers that add to the residual stream are divided
    by the square root of the number of these layers (Radford et al. 2019, section 2.3).

    Args:
        layers: number of blocks.
        width: width D of a token.
        tokens: number of learned positions.
        init_std: standard deviation of the initial weights.
        feedforward: hidden width of each block's MLP; None means four times the width.
    """
    # GPT-2's token embedding is not used; it is drawn only to keep the order of the random draws.
    token_embedding, positions = nn.Embedding(1, width), nn.Embedding(tokens, width)
    blocks = [GPT2Block(width, feedforward) for _ in range(layers)]
    for embedding in (token_embedding, positions):
        nn.init.normal_(embedding.weight, std=init_std)
    for block in blocks:
        for first, last in ((block.attn.c_attn, block.attn.c_proj), (block.mlp.c_fc, block.mlp.c_proj)):
            nn.init.normal_(first.weight, std=init_std)
            nn.init.normal_(last.weight, std=init_std)
            nn.init.normal_(last.weight, std=init_std / math.sqrt(2 * layers))
    return GPT2Layers(blocks, nn.LayerNorm(width), positions.weight.data)
