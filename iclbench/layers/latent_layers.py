"""The layers of models with a latent bottleneck (LBANP: Feng et al. 2022; CMANP: Feng et al. 2023).

A layer consists of pre-norm attention, with separate norms for queries and data, and a pre-norm feed-forward block with
GEGLU (Shazeer 2020):

    x <- x + Attention(LN(x), LN(data))        x <- x + FF(LN(x))

In the released code of both papers, the skip connections add LN(x) instead of x: `residual="normed"`.
"""

from __future__ import annotations

from typing import Literal, Protocol, runtime_checkable

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from iclbench.layers.attention import check_heads

Residual = Literal["standard", "normed"]


@runtime_checkable
class LayerSizes(Protocol):
    """Settings of a layer.

    Attributes:
        width: width D of a token.
        heads: number of attention heads.
        hidden: width of the feed-forward block after the gate.
        residual: whether each skip connection adds x (`standard`) or LN(x) (`normed`).
    """

    @property
    def width(self) -> int: ...
    @property
    def heads(self) -> int: ...
    @property
    def hidden(self) -> int: ...
    @property
    def residual(self) -> Residual: ...


@runtime_checkable
class LatentSizes(LayerSizes, Protocol):
    """Sizes of a layer with a latent bottleneck.

    Attributes:
        latents: number of latent tokens M.
    """

    @property
    def latents(self) -> int: ...


class FeedForward(nn.Module):
    """A linear layer whose output has two halves, one of which is multiplied by the GELU of the other, and a linear
    layer back to the width of a token."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.up = nn.Linear(width, 2 * hidden)
        self.down = nn.Linear(hidden, width)

    def forward(self, x: Float[Tensor, "B M D"]) -> Float[Tensor, "B M D"]:
        value, gate = self.up(x).chunk(2, -1)
        return self.down(value * F.gelu(gate))


class _LatentLayer(nn.Module):
    """Attention and feed-forward network, as separate steps."""

    def __init__(self, sizes: LayerSizes) -> None:
        super().__init__()
        width = sizes.width
        check_heads(width, sizes.heads)
        self.heads = sizes.heads
        self.normed_residual = sizes.residual == "normed"
        self.norm = nn.LayerNorm(width)
        self.q, self.k, self.v = (nn.Linear(width, width, bias=False) for _ in range(3))
        self.out = nn.Linear(width, width)
        self.norm_feed = nn.LayerNorm(width)
        self.feed = FeedForward(width, sizes.hidden)

    def split(self, t: Float[Tensor, "*batch N D"]) -> Float[Tensor, "*batch H N Dh"]:
        """Split into heads."""
        return t.unflatten(-1, (self.heads, -1)).transpose(-2, -3)

    def attend(
        self, rows: Float[Tensor, "B M D"], tokens: Float[Tensor, "B N D"], mask: Bool[Tensor, "B 1 1 N"] | None = None
    ) -> Float[Tensor, "B H M Dh"]:
        """Return the outputs of the heads, given normalised rows and tokens."""
        q, k, v = self.split(self.q(rows)), self.split(self.k(tokens)), self.split(self.v(tokens))
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)

    def finish(
        self,
        x: Float[Tensor, "B M D"],
        normed: Float[Tensor, "B M D"],
        attended: Float[Tensor, "B H M Dh"],
        has_data: Bool[Tensor, " B"] | None = None,
    ) -> Float[Tensor, "B M D"]:
        """Apply the layers after the heads: projection, feed-forward block and residuals.

        Args:
            x: the rows.
            normed: the rows after their norm.
            attended: outputs of the heads.
            has_data: episodes that have valid tokens; in other episodes the rows are unchanged. None means all
                episodes.
        """
        y = (normed if self.normed_residual else x) + self.out(attended.transpose(1, 2).flatten(2))
        normed_output = self.norm_feed(y)
        y = (normed_output if self.normed_residual else y) + self.feed(normed_output)
        return y if has_data is None else torch.where(has_data[:, None, None], y, x)


class SelfLayer(_LatentLayer):
    """Self-attention between the rows."""

    def forward(self, x: Float[Tensor, "B M D"], mask: Bool[Tensor, "B M"] | None = None) -> Float[Tensor, "B M D"]:
        """Return the rows after attention to the valid rows in the mask."""
        allowed, has_data = _attention_mask(mask)
        normed = self.norm(x)
        return self.finish(x, normed, self.attend(normed, normed, allowed), has_data)


class CrossLayer(_LatentLayer):
    """Cross-attention from the rows to data, which have a separate norm."""

    def __init__(self, sizes: LayerSizes) -> None:
        super().__init__(sizes)
        self.norm_data = nn.LayerNorm(sizes.width)

    def forward(
        self, x: Float[Tensor, "B M D"], tokens: Float[Tensor, "B N D"], mask: Bool[Tensor, "B N"] | None = None
    ) -> Float[Tensor, "B M D"]:
        """Return the rows after attention to the data. Rows are unchanged in episodes without valid data."""
        if tokens.shape[1] == 0:
            return x
        allowed, has_data = _attention_mask(mask)
        normed = self.norm(x)
        return self.finish(x, normed, self.attend(normed, self.norm_data(tokens), allowed), has_data)


def _attention_mask(mask: Bool[Tensor, "B N"] | None) -> tuple[Tensor | None, Tensor | None]:
    """Return the attention mask, `(B, 1, 1, N)`, and the mask of episodes that have data, `(B,)`; None means all."""
    if mask is None:
        return None, None
    has_data = mask.any(1)
    # Episodes without data attend to their padding, because attention to nothing has NaN gradients.
    return (mask | ~has_data[:, None])[:, None, None], has_data
