"""The Transformer of Chan et al. 2022 ("Data distributional properties drive emergent in-context learning").

It has a residual network for images, embedded labels, sinusoidal positions, twelve causal pre-norm layers of width 64
with eight heads and GELU networks of four times the width, and a linear head to all classes. It is also the baseline
for classification in the CoQE paper.

The layers are those of `gpt2`, whose initial weights of projections to the residual stream are smaller than those of
Chan et al. by a factor of sqrt(2 L). As in CoQE's implementation, a linear read-in is applied to the tokens before the
first layer, and positions are added after it. On tasks whose inputs are vectors, the model is a GPT-2 with these sizes
and positions.
"""

from __future__ import annotations

from iclbench.backbones.base import BackboneSettings
from iclbench.backbones.sequence import SequenceBackbone
from iclbench.core.settings import PositiveFloat, PositiveInt
from iclbench.core.task import TaskShape
from iclbench.layers.causal_transformer import CausalTransformer
from iclbench.layers.feature_read_in import FeatureReadIn


class TransformerSettings(BackboneSettings):
    """Settings of transformer. The defaults are the sizes of Chan et al."""

    layers: PositiveInt = 12
    """Transformer blocks."""
    width: PositiveInt = 64
    """Width D of a token."""
    heads: PositiveInt = 8
    """Attention heads per layer."""
    feedforward: PositiveInt | None = None
    """Hidden width of the feed-forward networks; by default four times the width of a token."""
    init_std: PositiveFloat | None = None
    """Standard deviation of the layers' initial weights; by default 1 / sqrt(width), as in Chan et al."""


class Transformer(CausalTransformer, SequenceBackbone[TransformerSettings]):
    """Causal Transformer with sinusoidal positions."""

    Settings = TransformerSettings
    head_step = 2  # sinusoidal positions require pairs of channels

    def __init__(self, settings: TransformerSettings, shape: TaskShape) -> None:
        width = settings.width
        super().__init__(settings, shape, width)
        if shape.encoded and shape.classes is not None:
            self.read_in = FeatureReadIn(shape.x_dim, shape.classes, width)
        self.build(
            layers=settings.layers,
            width=width,
            heads=settings.heads,
            points=shape.points,
            positions="sinusoidal",
            init_std=settings.init_std or width**-0.5,
            feedforward=settings.feedforward,
        )
