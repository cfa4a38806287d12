"""The encoder of attentive neural processes: each target attends to the points, with queries and keys that depend only
on the inputs (Kim et al. 2019)."""

from __future__ import annotations

from jaxtyping import Bool, Float
from torch import Tensor, nn

from iclbench.layers.attention import KeysAndValues
from iclbench.layers.perceptron import perceptron
from iclbench.layers.projected_attention import ProjectedAttention


class CrossAttentionEncoder(nn.Module):
    """Cross-attention from targets to points. The values are representations of the points after self-attention. One
    network maps inputs to queries and keys.

    Args:
        x_dim: width of an input's features.
        inputs: width of a point's features.
        width: width D of a token.
        pre_depth: number of layers that compute the values; self-attention counts as two.
        post_depth: number of linear layers that compute queries and keys.
        heads: number of heads of both attentions.
    """

    def __init__(self, x_dim: int, inputs: int, width: int, pre_depth: int, post_depth: int, heads: int) -> None:
        super().__init__()
        self.values = perceptron(inputs, *[width] * (pre_depth - 2))
        self.among = ProjectedAttention(width, heads)
        self.places = perceptron(x_dim, *[width] * post_depth)
        self.attention = ProjectedAttention(width, heads)

    def keys(
        self, x: Float[Tensor, "B N Fx"], features: Float[Tensor, "B N F"], mask: Bool[Tensor, "B N"]
    ) -> KeysAndValues:
        """Compute the keys and values of the points, to which targets attend."""
        return self.attention.keys(self.places(x), self.among(self.values(features), mask), mask)

    def forward(self, x: Float[Tensor, "B Q Fx"], memory: KeysAndValues) -> Float[Tensor, "B Q D"]:
        """Return a representation of the points for each target."""
        return self.attention.attend(self.places(x), memory)
