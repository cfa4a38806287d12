"""Cells of a table as tokens, with attention over columns, then over rows: nanoTabPFN (Pfefferle et al. 2025), a small
TabPFN v2 (Hollmann et al. 2025), written from the equations.

Every cell of a row is a token. The columns of x are standardised with the mean and the standard deviation of the column
over the rows of the context, and clipped at ±100. The last column is y; in the rows of targets, it holds the mean of y
over the context. As in nanoTabPFN, labels are the numbers 0, 1, ... Two linear layers 1 -> D embed x and y. In every
block, the columns of a row attend to each other, the rows of a column attend to the context rows of this column, and a
network with one hidden layer follows; all norms come after the residual connections. The prediction is read from the
y-cell of a target. The model has no position encoding, so the order of rows and columns does not affect predictions. A
model reads any number of columns, including more than in training. `tnp` (TabPFN v1) has rows as tokens, and its
targets attend only to the context.

Only the y-cells are read after the last block, so this block computes no other cells, which does not change the
outputs. Differences from both versions of nanoTabPFN, the published repository and TFM-Playground (compared with equal
weights):

- Cells do not attend to columns that are constant in the context. Predictions therefore do not depend on constant
  columns, including the values of targets in these columns. If the context has fewer than two rows, all columns of x
  are constant. nanoTabPFN maps constant columns to 0, and the values of targets that differ from the constant to ±100.
- Without context, the attention to rows returns the bias of its output layer, and the y of targets is 0; in nanoTabPFN
  they are NaN.
- Rows may be masked, so that a batch can hold contexts of different sizes.
- No constant (1e-20 or 1e-8) is added to the standard deviation.

In TFM-Playground, the y of a regression task is standardised with the mean and standard deviation of the context before
the model reads it; here, the task or the encoding of a table does this. Several outputs form one y-cell, which a linear
layer Dy -> D embeds.

With one output column and R raw outputs of the read-out (for classification, the number of classes), the model has
L (8 D² + 2 D M + 15 D + M) + 4 D + (D + 1) M + (M + 1) R parameters: 356,066 at the default sizes for two classes, as
in nanoTabPFN.
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
    """Settings of cells. The defaults are the sizes of nanoTabPFN."""

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
    """In every block, each cell attends to the columns of its row and then to the context rows of its column, and is
    updated by an MLP; norms come after the residual connections."""

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
        layers, used_columns = [], scale.with_outputs()
        for block, first_column in self._blocks(cells):
            cells = block.mix_columns(cells, used_columns, first_column)
            layers.append(block.rows.keys(cells, context.mask))
            if not first_column:
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
        """Yield the y-cells of the targets after each block."""
        scale = ColumnScale.of(state.context)
        y = self._mean_output(state.context).unsqueeze(1).expand(-1, x.shape[1], -1)
        cells, used_columns = self._embed(scale.apply(x), y), scale.with_outputs()
        for (block, first_column), memory in zip(self._blocks(cells), state.layers, strict=True):
            cells = block.mix_rows(block.mix_columns(cells, used_columns, first_column), memory)
            yield cells[:, :, -1]

    def _blocks(self, cells: Float[Tensor, "B R C D"]) -> Iterator[tuple[CellBlock, int]]:
        """Yield the blocks, each with the index of the first column that it computes: the y-cells in the last block,
        and all columns in the others."""
        for i, block in enumerate(self.blocks):
            yield block, cells.shape[2] - 1 if i == len(self.blocks) - 1 else 0  # type: ignore[misc]

    def _embed(self, x: Float[Tensor, "B R Dx"], y: Float[Tensor, "B R Dy"]) -> Float[Tensor, "B R C D"]:
        """Return the cells of all columns, with y last."""
        return torch.cat([self.embed_x(self.fourier_features(x.unsqueeze(-1))), self.embed_y(y).unsqueeze(2)], 2)

    def _numbers(self, points: Points) -> Float[Tensor, "B N Dy"]:
        """Return the outputs; labels become the numbers 0, 1, ..."""
        return points.y if self.shape.classes is None else points.y.unsqueeze(-1).to(points.x.dtype)

    def _mean_output(self, context: Points) -> Float[Tensor, "B Dy"]:
        y = torch.where(context.mask.unsqueeze(-1), self._numbers(context), 0.0)
        return y.sum(1) / context.counts.clamp(min=1).unsqueeze(-1)
