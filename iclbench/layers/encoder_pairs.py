"""Pairs of encoders of the neural processes in the code releases of BNP and TNP.

A pair first summarises the points, and then returns the representations of both encoders at Q inputs. A representation
has P rows: one row if it is the same at all inputs, and Q rows otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from iclbench.core.predictor import State
from iclbench.core.records import TensorRecord
from iclbench.layers.attention import KeysAndValues
from iclbench.layers.cross_attention_encoder import CrossAttentionEncoder
from iclbench.layers.pooling_encoder import PoolingEncoder

Representations = tuple[Float[Tensor, "B P D"], Float[Tensor, "B P2 E"]]


@runtime_checkable
class PairSizes(Protocol):
    """Settings of a pooled pair."""

    @property
    def width(self) -> int: ...
    @property
    def pre_depth(self) -> int: ...
    @property
    def post_depth(self) -> int: ...


@runtime_checkable
class AttentivePairSizes(PairSizes, Protocol):
    """Settings of an attentive pair."""

    @property
    def heads(self) -> int: ...


@dataclass(frozen=True)
class RunningSums(State):
    """Sums of the representations of points by both encoders, and the number of these points, for a set or for each of
    its prefixes."""

    total: Float[Tensor, "*sets D2"]
    count: Int[Tensor, " *sets"]

    def log_weight(self) -> Float[Tensor, " *sets"]:
        return self.total.norm(dim=-1).log()


class PooledPair(nn.Module):
    """Two pooling encoders.

    Args:
        x_dim: width of an input's features.
        inputs: width of a point's features.
        sizes: the settings.
        second_width: E, width of the second encoder's representation.
    """

    def __init__(self, x_dim: int, inputs: int, sizes: PairSizes, second_width: int) -> None:
        super().__init__()
        depths = sizes.pre_depth, sizes.post_depth
        self.first = PoolingEncoder(inputs, sizes.width, sizes.width, *depths)
        self.second = PoolingEncoder(inputs, sizes.width, second_width, *depths)

    def represent(self, features: Float[Tensor, "B N F"], mask: Bool[Tensor, "B N"]) -> Float[Tensor, "B N D2"]:
        """Return the representations of each point by both encoders; they are 0 for invalid points."""
        return torch.cat([self.first.represent(features, mask), self.second.represent(features, mask)], -1)

    def summarise(
        self, x: Float[Tensor, "B N Fx"], features: Float[Tensor, "B N F"], mask: Bool[Tensor, "B N"]
    ) -> RunningSums:
        return RunningSums(self.represent(features, mask).sum(1), mask.sum(1))

    def forward(self, x: Float[Tensor, "B Q Fx"], summary: RunningSums) -> Representations:
        """Return the representations at the inputs. The summary is that of one set for all inputs, or of one prefix of
        the set per input. The mean over an empty set is 0."""
        mean = summary.total / summary.count.clamp(min=1).unsqueeze(-1)
        first, second = (mean.unsqueeze(1) if mean.dim() == 2 else mean).chunk(2, -1)
        return self.first.post(first), self.second.post(second)


@dataclass(frozen=True)
class KeysAndMean(TensorRecord):
    """The first encoder's keys and values of the points, and the second encoder's representation of the set."""

    data: KeysAndValues
    second: Float[Tensor, "*batch E"]


class AttentivePair(nn.Module):
    """An encoder with cross-attention from targets to points, and a pooling encoder with self-attention between the
    points. The arguments are those of `PooledPair`."""

    def __init__(self, x_dim: int, inputs: int, sizes: AttentivePairSizes, second_width: int) -> None:
        super().__init__()
        depths_and_heads = sizes.pre_depth, sizes.post_depth, sizes.heads
        self.first = CrossAttentionEncoder(x_dim, inputs, sizes.width, *depths_and_heads)
        self.second = PoolingEncoder(inputs, sizes.width, second_width, *depths_and_heads)

    def summarise(
        self, x: Float[Tensor, "B N Fx"], features: Float[Tensor, "B N F"], mask: Bool[Tensor, "B N"]
    ) -> KeysAndMean:
        return KeysAndMean(self.first.keys(x, features, mask), self.second(features, mask))

    def forward(self, x: Float[Tensor, "B Q Fx"], summary: KeysAndMean) -> Representations:
        return self.first(x, summary.data), summary.second.unsqueeze(1)
