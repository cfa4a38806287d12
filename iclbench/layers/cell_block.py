"""The block of the backbone `cells`: attention between the columns of a row, attention between the rows of a column,
and a feed-forward network.

    x <- LN(x + Attention(x, columns of the row))
    x <- LN'(x + Attention(x, rows of the context in the column))
    x <- LN''(x + MLP(x))

In each column, all rows attend only to the rows of the context. Targets therefore do not affect the context, and keys
and values of the context are computed only once.
"""

from __future__ import annotations

import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from iclbench.layers.attention import KeysAndValues, check_heads
from iclbench.layers.encoder_layer import attention


class CellAttention(nn.Module):
    """Attention with the biases and initial weights of `nn.MultiheadAttention`; it has 4 D² + 4 D parameters.

    Args:
        width: width D of a token.
        heads: number of attention heads.

    Raises:
        UsageError: the width is not a multiple of the number of heads.
    """

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        check_heads(width, heads)
        self.heads = heads
        self.q, self.k, self.v, self.out = (nn.Linear(width, width) for _ in range(4))
        bound = (6 / (4 * width)) ** 0.5  # as in PyTorch, where one matrix with 3 D rows gives queries, keys and values
        for linear in (self.q, self.k, self.v):
            nn.init.uniform_(linear.weight, -bound, bound)
        for linear in (self.q, self.k, self.v, self.out):
            nn.init.zeros_(linear.bias)

    def among_columns(
        self, rows: Float[Tensor, "B R C D"], used: Bool[Tensor, "B C"], first: int = 0
    ) -> Float[Tensor, "B R C2 D"]:
        """Return the output for the columns from index `first` on. Each cell attends to the used columns of its row."""
        batch, count = rows.shape[:2]
        cells = rows.flatten(0, 1)
        q, k, v = (
            linear(t).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for linear, t in ((self.q, cells[:, first:]), (self.k, cells), (self.v, cells))
        )
        visible = used[:, None].expand(-1, count, -1).flatten(0, 1)[:, None, None]
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=visible)
        return self.out(mixed.transpose(1, 2).flatten(2)).unflatten(0, (batch, count))

    def keys(self, rows: Float[Tensor, "B N C D"], mask: Bool[Tensor, "B N"]) -> KeysAndValues:
        """Return keys and values of the context, with C H heads: H heads for each of the C columns."""
        return KeysAndValues(self._by_column(self.k(rows)), self._by_column(self.v(rows)), mask)

    def to_context(self, rows: Float[Tensor, "B R C D"], memory: KeysAndValues) -> Float[Tensor, "B R C D"]:
        """Return the output for all cells. Each cell attends to the context rows of its column. If no context row is
        valid, the output is the bias of the output layer."""
        visible = None if memory.mask is None else memory.mask[:, None, None]
        mixed = attention(self._by_column(self.q(rows)), memory, visible)
        return self.out(mixed.transpose(1, 2).unflatten(2, (rows.shape[2], -1)).flatten(3))

    def _by_column(self, t: Float[Tensor, "B R C D"]) -> Float[Tensor, "B CH R E"]:
        return t.unflatten(-1, (self.heads, -1)).flatten(2, 3).transpose(1, 2)


class CellBlock(nn.Module):
    """One block, with 8 D² + 2 D M + 15 D + M parameters.

    Args:
        width: width D of a token.
        heads: number of heads of both attentions.
        hidden: M, the hidden width of the feed-forward network.
    """

    def __init__(self, width: int, heads: int, hidden: int) -> None:
        super().__init__()
        self.columns, self.rows = CellAttention(width, heads), CellAttention(width, heads)
        self.up, self.down = nn.Linear(width, hidden), nn.Linear(hidden, width)
        self.norm_columns, self.norm_rows, self.norm_feed = (nn.LayerNorm(width) for _ in range(3))

    def mix_columns(
        self, cells: Float[Tensor, "B R C D"], used: Bool[Tensor, "B C"], first: int = 0
    ) -> Float[Tensor, "B R C2 D"]:
        """Return the cells of the columns from index `first` on, after attention to the used columns of their row."""
        return self.norm_columns(cells[:, :, first:] + self.columns.among_columns(cells, used, first))

    def mix_rows(self, cells: Float[Tensor, "B R C D"], memory: KeysAndValues) -> Float[Tensor, "B R C D"]:
        """Return the cells after attention to the context and the feed-forward network. `cells` is the output of
        `mix_columns`."""
        cells = self.norm_rows(cells + self.rows.to_context(cells, memory))
        return self.norm_feed(cells + self.down(F.gelu(self.up(cells))))
