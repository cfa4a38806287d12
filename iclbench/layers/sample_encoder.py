"""Read-ins that encode each sample separately, with the same layers for inputs and outputs (CoQE, sections 4.1 and
4.2)."""

from __future__ import annotations

from jaxtyping import Float, Int
from torch import Tensor, nn

from iclbench.core.task import TaskShape
from iclbench.layers.label_embedding import label_embedding
from iclbench.layers.pair_read_in import PairReadIn


class SampleEncoder(PairReadIn):
    """Two layers: `PairReadIn`, and a linear layer after ReLU and LayerNorm.

    Args:
        shape: the task.
        width: width of the hidden layer.
        out: width of the encoding; None means the width of the hidden layer.
    """

    def __init__(self, shape: TaskShape, width: int, out: int | None = None) -> None:
        super().__init__(shape, width)
        self.rest = nn.Sequential(nn.ReLU(), nn.LayerNorm(width), nn.Linear(width, out or width))

    def inputs(self, x: Float[Tensor, "B N Dx"]) -> Float[Tensor, "B N D"]:
        return self.rest(super().inputs(x))

    def outputs(self, y: Tensor) -> Float[Tensor, "B N D"]:
        return self.rest(super().outputs(y))


class FeatureEncoder(PairReadIn):
    """One layer for image features and for label embeddings of the same width."""

    def __init__(self, shape: TaskShape, width: int) -> None:
        super().__init__(shape, width)
        assert shape.classes is not None
        self.labels = label_embedding(shape.classes, shape.x_dim)

    def outputs(self, y: Int[Tensor, "B N"]) -> Float[Tensor, "B N D"]:
        return self.inputs(super().outputs(y))
