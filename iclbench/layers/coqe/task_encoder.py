"""CoQE's task encoder: a causal Transformer over pairs of input and label tokens; outputs are read at the labels."""

from __future__ import annotations

from collections.abc import Iterator

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from iclbench.layers.causal_transformer import OUTPUT_TOKENS, CausalTransformer
from iclbench.layers.positions import PositionEncoding


class TaskEncoder(CausalTransformer):
    """A causal Transformer over tokens that CoQE embeds. To read the outputs at the labels, CoQE calls
    `resume_with_hidden` with `OUTPUT_TOKENS`."""

    def __init__(
        self,
        layers: int,
        width: int,
        heads: int,
        points: int,
        positions: PositionEncoding,
        init_std: float,
        feedforward: int | None = None,
    ) -> None:
        super().__init__()
        self.build(
            layers=layers,
            width=width,
            heads=heads,
            points=points,
            positions=positions,
            init_std=init_std,
            feedforward=feedforward,
        )

    def outputs_by_layer(self, tokens: Float[Tensor, "B T D"]) -> Iterator[Float[Tensor, "B N D"]]:
        """Yield the outputs at the labels of a complete sequence after each layer, normalised by the final norm."""

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return F.scaled_dot_product_attention(q, k, v, is_causal=True)

        return (
            self.norm(hidden[:, OUTPUT_TOKENS]) for hidden in self._layers(tokens, [range(tokens.shape[1])], attend)
        )
