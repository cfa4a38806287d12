"""Cells of a table as tokens, with attention over columns, then over rows: nanoTabPFN (Pfefferle et al. 2025), a small
TabPFN v2 (Hollmann et al. 2025), written from the equations.

Every cell of a row is a token: a number x of a column, standardised by the context (mean and standard deviation of the
column over the rows of the context) and clipped at ±100, and as the last column y, with the mean of the context in the
rows of targets. Labels are the numbers 0, 1, ... in nanoTabPFN too. Two linear layers 1 -> D embed x and y. In every
block, the columns of a row attend to each other, the rows of a column attend to the context in this column, and a
network with one hidden layer follows; all norms are after the residuals. The prediction is read from the y-cell of a
target. There are no positions: the order of rows and of columns changes nothing. A model reads any number of columns,
also more than in training. With rows as tokens, targets that attend to the context only are `tnp` (TabPFN v1).

Only y-cells are read, so the last block computes no others: the outputs are the same. Differences from nanoTabPFN (both
versions, compared at equal weights):

- Columns that are constant in the context are not attended to, so padding with constant columns changes nothing, nor
  does the value of a target in them. This holds for all columns if the context has fewer than two rows: then x has no
  scale. nanoTabPFN maps such columns to 0, and to ±100 for targets with other values.
- The attention output without context is 0, and y is 0 there; in nanoTabPFN they are NaN.
- Rows may be masked, so that a batch can hold contexts of different sizes.
- The standard deviation has no constant (1e-20 or 1e-8) added to it.

In TFM-Playground, y of a regression is standardised by the context before the model reads it; here, the task or the
encoding of a table does this. Several outputs are one y-cell, embedded by a linear layer Dy -> D.

There are L (8 D² + 2 D M + 15 D + M) + 4 D + (D + 1) M + (M + 1) out parameters for one output: 356,066 at the default
sizes for two classes, as in nanoTabPFN.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from iclbench.backbones.set_backbone import SetBackbone, SetSettings
from iclbench.core.episodes import Points
from iclbench.core.predictions import Prediction
from iclbench.core.predictor import State
from iclbench.core.settings import PositiveInt
from iclbench.core.task import InputKind, TaskShape
from iclbench.layers.attention import KeysAndValues
from iclbench.layers.cell_block import CellBlock
from iclbench.layers.column_scale import ColumnScale


class CellsSettings(SetSettings):
    """The sizes of nanoTabPFN."""

    layers: PositiveInt = 3
    """Blocks."""
    width: PositiveInt = 96
    """Width D of a token."""
    heads: PositiveInt = 4
    """Heads of each attention."""
    hidden: PositiveInt = 192
    """Hidden width M of the feed-forward networks and of the read-out."""


@dataclass(frozen=True)
class CellMemory(State):
    """Keys and values of the context in every block, by column, and the points, from which an update recomputes
    them."""

    layers: tuple[KeysAndValues, ...]
    context: Points


class Cells(SetBackbone[CellsSettings]):
    """Per block and cell: z <- columns of the row; z <- rows of the context; z <- MLP(z); norms after residuals."""

    Settings = CellsSettings
    input_kinds: ClassVar[frozenset[InputKind]] = frozenset({"features"})
    heads = ("point", "gaussian", "mixture", "bar", "categorical")
    reads_any_columns = True

    def __init__(self, settings: CellsSettings, shape: TaskShape) -> None:
        super().__init__(settings, shape)
        width, hidden = settings.width, settings.hidden
        self.embed_x = nn.Linear(settings.x_features_dim(1), width)
        self.embed_y = nn.Linear(shape.y_dim if shape.classes is None else 1, width)
        self.blocks = nn.ModuleList(CellBlock(width, settings.heads, hidden) for _ in range(settings.layers))
        self.decoder = nn.Sequential(nn.Linear(width, hidden), nn.GELU(), nn.Linear(hidden, shape.raw_dim))

    def condition(self, context: Points, related: Points | None = None) -> CellMemory:
        scale = ColumnScale.of(context)
        cells = self._embed(scale.apply(context.x), self._numbers(context))
        layers, used = [], scale.with_outputs()
        for block, first in self._blocks(cells):
            cells = block.mix_columns(cells, used, first)
            layers.append(block.rows.keys(cells, context.mask))
            if not first:
                cells = block.mix_rows(cells, layers[-1])
        return CellMemory(tuple(layers), context)

    def query(self, state: CellMemory, x: Float[Tensor, "B Q Dx"]) -> Prediction:
        *_, hidden = self._read_layers(state, x)
        return self.decode(hidden)

    def update(self, state: CellMemory, points: Points) -> CellMemory:
        return self.condition(state.context.append(points))

    def predict_by_layer(
        self, context: Points, x_target: Float[Tensor, "B Q Dx"], related: Points | None = None
    ) -> list[Prediction]:
        return [self.decode(hidden) for hidden in self._read_layers(self.condition(context), x_target)]

    def _read_layers(self, state: CellMemory, x: Float[Tensor, "B Q Dx"]) -> Iterator[Float[Tensor, "B Q D"]]:
        """The y-cells of the targets after each block."""
        scale = ColumnScale.of(state.context)
        y = self._mean_output(state.context).unsqueeze(1).expand(-1, x.shape[1], -1)
        cells, used = self._embed(scale.apply(x), y), scale.with_outputs()
        for (block, first), memory in zip(self._blocks(cells), state.layers, strict=True):
            cells = block.mix_rows(block.mix_columns(cells, used, first), memory)
            yield cells[:, :, -1]

    def _blocks(self, cells: Float[Tensor, "B R C D"]) -> Iterator[tuple[CellBlock, int]]:
        """The blocks, each with the first column that it computes: the y-cells in the last one, else all."""
        for i, block in enumerate(self.blocks):
            yield block, cells.shape[2] - 1 if i == len(self.blocks) - 1 else 0  # type: ignore[misc]

    def _embed(self, x: Float[Tensor, "B R Dx"], y: Float[Tensor, "B R Dy"]) -> Float[Tensor, "B R C D"]:
        """The cells of all columns, y last."""
        return torch.cat([self.embed_x(self.fourier_features(x.unsqueeze(-1))), self.embed_y(y).unsqueeze(2)], 2)

    def _numbers(self, points: Points) -> Float[Tensor, "B N Dy"]:
        """The outputs; labels as the numbers 0, 1, ..."""
        return points.y if self.shape.classes is None else points.y.unsqueeze(-1).to(points.x.dtype)

    def _mean_output(self, context: Points) -> Float[Tensor, "B Dy"]:
        y = torch.where(context.mask.unsqueeze(-1), self._numbers(context), 0.0)
        return y.sum(1) / context.counts.clamp(min=1).unsqueeze(-1)
