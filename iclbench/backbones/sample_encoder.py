"""The two-layer embedding of CoQE's regression part: Linear, ReLU, LayerNorm, Linear, shared by inputs and outputs."""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor, nn

from iclbench.backbones.base import TaskShape
from iclbench.backbones.sequence import PairReadIn


class SampleEncoder(PairReadIn):
    """A read-in of two layers: what `PairReadIn` reads (y as (y, 0, ..., 0), labels embedded) and behind it ReLU,
    LayerNorm and a linear layer."""

    def __init__(self, shape: TaskShape, width: int, out: int | None = None) -> None:
        """`width` of the hidden layer and, where `out` does not say otherwise, of the encoding."""
        super().__init__(shape, width)
        self.rest = nn.Sequential(nn.ReLU(), nn.LayerNorm(width), nn.Linear(width, out or width))

    def inputs(self, x: Float[Tensor, "B N Dx"]) -> Float[Tensor, "B N D"]:
        return self.rest(super().inputs(x))

    def outputs(self, y: Tensor) -> Float[Tensor, "B N D"]:
        return self.rest(super().outputs(y))
