"""GPT-2 on interleaved pairs (Radford et al. 2019; Garg et al. 2022; Grazzi et al. 2024, appendix A.1.1).

The position encoding is part of a model's name. `gpt2` has no position encoding, as in Grazzi et al., so contexts may
be longer than in training; Garg et al. learn positions (`gpt2-learned`). Learned positions restart in every related
dataset and in the context; a vector that is added to the tokens of related datasets distinguishes them from the
context. Other positions do not restart.
"""

from __future__ import annotations

from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from iclbench.backbones.base import initial_weights
from iclbench.backbones.sequence import LoopedSettings, SequenceBackbone
from iclbench.core.episodes import Points
from iclbench.core.errors import UsageError
from iclbench.core.predictions import Prediction
from iclbench.core.records import cat
from iclbench.core.settings import PositiveFloat, PositiveInt
from iclbench.core.task import TaskShape
from iclbench.layers.attention import check_heads
from iclbench.layers.causal_transformer import CausalTransformer
from iclbench.layers.positions import PositionEncoding
from iclbench.layers.sample_encoder import SampleEncoder

SIZES = {
    "tiny": {"layers": 3, "width": 64, "heads": 2},
    "small": {"layers": 6, "width": 128, "heads": 4},
    "standard": {"layers": 12, "width": 256, "heads": 8},
}

# Number of groups of episodes of similar length, which a CPU processes one after the other to avoid padding. On an
# accelerator, a single call is faster.
_CPU_GROUPS = 4


class GPT2Settings(LoopedSettings):
    """Settings of gpt2: the sizes of Garg et al., by name, or custom sizes."""

    size: Literal["tiny", "small", "standard"] = "standard"
    """Sizes by name: tiny (3 layers of width 64), small (6 of 128), standard (12 of 256)."""
    layers: PositiveInt | None = None
    """Transformer blocks; by default those of `size`."""
    width: PositiveInt | None = None
    """Width D of a token; by default that of `size`."""
    heads: PositiveInt | None = None
    """Attention heads per layer; by default those of `size`."""
    feedforward: PositiveInt | None = None
    """Hidden width of the feed-forward networks; by default four times the width of a token."""
    positions: PositionEncoding = "none"
    """Position encoding: none, learned, sinusoidal or rotary; part of the model's name."""
    max_points: PositiveInt | None = None
    """Number of points with learned positions; by default the length of the longest dataset in training."""
    init_std: PositiveFloat = 0.02
    """Standard deviation of the initial weights; with GPT-2's 0.02, attention at width 64 starts nearly uniform."""
    read_in: Literal["linear", "mlp"] | None = None
    """Embedding of a point: linear, or mlp (the two layers of CoQE's baseline); by default linear."""


class GPT2(CausalTransformer, SequenceBackbone[GPT2Settings]):
    """Causal Transformer.

    Raises:
        UsageError: the width is not a multiple of the number of heads, `read_in` is "mlp" and the task has no inputs,
            or positions are learned and a dataset is longer than `max_points`.
    """

    Settings = GPT2Settings
    head_step = 2  # sinusoidal and rotary positions require pairs of channels

    @classmethod
    def at_budget(cls, budget: int, shape: TaskShape) -> dict[str, Any]:
        return super().at_budget(budget, shape) | initial_weights(budget, shape)

    def __init__(self, settings: GPT2Settings, shape: TaskShape) -> None:
        sizes = {k: getattr(settings, k) or v for k, v in SIZES[settings.size].items()}
        check_heads(sizes["width"], sizes["heads"])
        super().__init__(settings, shape, sizes["width"])
        if settings.read_in == "mlp":
            if not self.elements.has_inputs:
                raise UsageError(
                    f"backbone.read_in=mlp is for tasks with inputs, but {self.elements.noun} have none; remove it",
                    code="not-applicable",
                )
            self.read_in = SampleEncoder(shape, sizes["width"])
        # The position table is drawn first, so its size affects the draws of all other weights. If positions are not
        # learned, the table has no other effect, and its size does not depend on related datasets.
        points = settings.max_points or (shape.longest if settings.positions == "learned" else shape.points)
        self.build(
            **sizes,
            points=self.elements.pairs_of_positions(points),
            positions=settings.positions,
            init_std=settings.init_std,
            feedforward=settings.feedforward,
        )
        self.longest = points if settings.positions == "learned" else None

    def predict_targets(
        self, context: Points, x_target: Float[Tensor, "batch targets dx"], related: Points | None = None
    ) -> Prediction:
        related = related if self.uses_related else None
        lengths = context.counts if related is None else context.counts + related.mask.sum((1, 2))
        if lengths.device.type != "cpu" or not bool((lengths != lengths[:1]).any()):
            return super().predict_targets(context, x_target, related)
        groups = torch.argsort(lengths, stable=True).chunk(_CPU_GROUPS)
        states = (self.condition(context[rows], None if related is None else related[rows]) for rows in groups)
        answers = [self.query(state, x_target[rows]) for state, rows in zip(states, groups, strict=True)]
        return cat(answers)[torch.argsort(torch.cat(groups))]
