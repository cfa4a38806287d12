"""Base class of the neural processes of the BNP (Lee et al. 2020) and TNP (Nguyen and Grover 2022) releases: a decoder
reads the concatenation of the outputs of two encoders and the target's input.

The encoders are pooling (CNP, NP, BNP) or attentive (CANP, ANP, BANP): `iclbench.layers.encoder_pairs`. The defaults
are the published sizes for Gaussian processes. The published sizes are `pre_depth` 5, `post_depth` 3 and
`decoder_depth` 4 for EMNIST, and 6, 3 and 5 for CelebA. The published standard deviation is `spread=bounded-0.1`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, TypeVar

import torch
from jaxtyping import Float, Int
from pydantic import Field
from torch import Tensor

from iclbench.backbones.set_backbone import SetBackbone, SetSettings
from iclbench.core.episodes import Points
from iclbench.core.predictions import Prediction
from iclbench.core.predictor import State, join_positions
from iclbench.core.settings import PositiveInt
from iclbench.core.task import TaskShape
from iclbench.layers.encoder_pairs import AttentivePair, PooledPair, Representations
from iclbench.layers.perceptron import apply_to_parts, perceptron

# Largest number of hidden vectors per pass over several samples, to limit memory use.
_MAX_ROWS = 65_536


class TwoPathSettings(SetSettings):
    """Settings of two-path neural processes. The defaults are the published sizes for Gaussian processes."""

    pre_depth: PositiveInt = 4
    """Linear layers from a point to its representation."""
    post_depth: PositiveInt = 2
    """Linear layers after the mean over points."""
    decoder_depth: PositiveInt = 3
    """Linear layers of the decoder."""
    decoder_width: PositiveInt | None = None
    """Hidden width of the decoder; by default the width of a representation."""


class AttentiveSettings(TwoPathSettings):
    """Settings of two encoders that both use attention."""

    pre_depth: Annotated[int, Field(ge=3, le=1000)] = 4
    """Layers from a point to its representation; self-attention counts as the last two."""
    post_depth: PositiveInt = 2
    """Linear layers after the mean over points, and from an input to its query or key."""
    heads: PositiveInt = 8
    """Attention heads per layer."""


@dataclass(frozen=True)
class SummaryState(State):
    """Summary of the context, and its points, from which an update recomputes the summary."""

    summary: Any
    context: Points


_Settings = TypeVar("_Settings", bound=TwoPathSettings)


class TwoPathNP(SetBackbone[_Settings], abstract=True):
    """A neural process with two encoders of the context and one decoder.

    Args:
        settings: settings of the subclass.
        shape: the task.
        second_width: output width of the second encoder; None means the width of a representation.
        read_width: width of the decoder's input from the second encoder; None means the encoder's output width.

    Attributes:
        Pair: class of the encoders.
        samples: number of sampled functions per prediction.
    """

    Pair: ClassVar[type[PooledPair] | type[AttentivePair]] = PooledPair
    grows = ("width", "decoder_width")
    samples: int = 1

    def __init__(
        self, settings: _Settings, shape: TaskShape, second_width: int | None = None, read_width: int | None = None
    ) -> None:
        super().__init__(settings, shape)
        width = settings.width
        second_width = second_width or width
        features = self.x_features_dim + self.y_features_dim
        self.encoders: Any = self.Pair(self.x_features_dim, features, settings, second_width)  # type: ignore[arg-type]
        hidden = [settings.decoder_width or width] * (settings.decoder_depth - 1)
        self.decoder = perceptron(width + (read_width or second_width) + self.x_features_dim, *hidden, shape.raw_dim)

    def predict_next(
        self,
        points: Points,
        related: Points | None = None,
        *,
        x_query: Float[Tensor, "B P Dx"] | None = None,
        prefixes: Sequence[int] | None = None,
    ) -> Prediction:
        """Predict after each prefix with later points masked, in batches that limit memory use."""
        x = points.x if x_query is None else x_query
        lengths = torch.tensor(range(x.shape[1]) if prefixes is None else list(prefixes), device=x.device)
        size = samples_per_pass(len(points) * points.count * self.samples)
        return join_positions([self._predict_after(points, x, chunk) for chunk in lengths.split(size)])

    def _predict_after(
        self, points: Points, x: Float[Tensor, "B P Dx"], prefixes: Int[Tensor, " prefixes"]
    ) -> Prediction:
        """Return the predictions after prefixes of these lengths."""
        batch, count, longest = len(points), len(prefixes), int(prefixes.max())
        in_prefix = torch.arange(longest, device=x.device) < prefixes.repeat(batch).unsqueeze(1)
        copies = points.span(0, longest).repeat_interleave(count)
        context = replace(copies, mask=copies.mask & in_prefix)
        answer = self.predict_targets(context, x[:, prefixes].flatten(0, 1).unsqueeze(1)).marginals
        return answer.map(lambda t: t.reshape(batch, count, *t.shape[2:]))

    def features(self, points: Points) -> Float[Tensor, "*sets N F"]:
        """Concatenate inputs and outputs."""
        return torch.cat([self.x_features(points.x), self.y_features(points.y)], -1)

    def summarise(self, points: Points) -> Any:
        """Summarise the points with both encoders."""
        return self.encoders.summarise(self.x_features(points.x), self.features(points), points.mask)

    def condition(self, context: Points, related: Points | None = None) -> State:
        return SummaryState(self.summarise(context), context)

    def query(self, state: Any, x: Float[Tensor, "B Q Dx"]) -> Prediction:
        return self.answer_at(state.summary, x)

    def update(self, state: Any, points: Points) -> State:
        return self.condition(state.context.append(points))

    def answer_at(self, summary: Any, x: Float[Tensor, "B Q Dx"]) -> Prediction:
        """Return the prediction at inputs from a summary of the points."""
        features = self.x_features(x)
        return self.answer(self.encoders(features, summary), features)

    def answer(self, encoded: Representations, x: Float[Tensor, "B Q Fx"]) -> Prediction:
        """Return the prediction from the outputs of both encoders and features of inputs."""
        return self.read(self.decode_parts(*encoded, x))

    def decode_parts(
        self, *parts: Float[Tensor, "... _"], added: Float[Tensor, "... H"] | None = None
    ) -> Float[Tensor, "... raw"]:
        """Return the raw outputs of the decoder for the concatenation of `parts`; `added` is added to the output of the
        first layer."""
        hidden = apply_to_parts(self.decoder[0], *parts)  # type: ignore[arg-type]
        return self.decoder[1:](hidden if added is None else hidden + added)


def samples_per_pass(rows: int) -> int:
    """Return the number of samples per pass if each sample has this many rows."""
    return max(1, _MAX_ROWS // max(1, rows))
