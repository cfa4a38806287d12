"""An encoder of sets: a network is applied to each point, and a second network to the mean over points."""

from __future__ import annotations

from jaxtyping import Bool, Float
from torch import Tensor, nn

from iclbench.layers.perceptron import perceptron
from iclbench.layers.projected_attention import ProjectedAttention


class PoolingEncoder(nn.Module):
    """Linear layers before and after a mean over points. With self-attention, a ReLU and an attention layer replace two
    of the layers before the mean.

    Args:
        inputs: width of a point's features.
        width: width D of a representation.
        out: width of a set's representation.
        pre_depth: number of layers before the mean; self-attention counts as two.
        post_depth: number of linear layers after the mean.
        heads: number of heads of self-attention; None means no self-attention, so that a state can hold running sums.
    """

    def __init__(
        self, inputs: int, width: int, out: int, pre_depth: int, post_depth: int, heads: int | None = None
    ) -> None:
        super().__init__()
        self.pre = perceptron(inputs, *[width] * (pre_depth if heads is None else pre_depth - 2))
        self.among = None
        if heads is not None:
            self.pre.append(nn.ReLU())
            self.among = ProjectedAttention(width, heads)
        self.post = perceptron(*[width] * post_depth, out)

    def represent(
        self, features: Float[Tensor, "*sets N F"], mask: Bool[Tensor, "*sets N"]
    ) -> Float[Tensor, "*sets N D"]:
        """Return a vector for each point, which is 0 for invalid points."""
        vectors = self.pre(features)
        if self.among is not None:
            vectors = self.among(vectors, mask)
        return vectors * mask.unsqueeze(-1)

    def forward(self, features: Float[Tensor, "B N F"], mask: Bool[Tensor, "B N"]) -> Float[Tensor, "B out"]:
        """Return the representations of the sets. The mean over an empty set is 0."""
        total = self.represent(features, mask).sum(-2)
        return self.post(total / mask.sum(-1, keepdim=True).clamp(min=1))
