"""Two-path neural processes with pooling encoders. Their state consists of two sums and a count, so points can be added
and removed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import torch
from jaxtyping import Float
from torch import Tensor

from iclbench.backbones.two_path_np import TwoPathNP, TwoPathSettings
from iclbench.core.episodes import Points
from iclbench.core.predictions import Prediction
from iclbench.layers.encoder_pairs import PooledPair, RunningSums

_Settings = TypeVar("_Settings", bound=TwoPathSettings)


class PooledNP(TwoPathNP[_Settings], abstract=True):
    """A two-path neural process with constant memory, which predicts after all prefixes of a sequence in one pass."""

    Pair = PooledPair
    removes_points = True

    def condition(self, context: Points, related: Points | None = None) -> RunningSums:
        return self.summarise(context)

    def query(self, state: RunningSums, x: Float[Tensor, "B Q Dx"]) -> Prediction:
        return self.answer_at(state, x)

    def update(self, state: RunningSums, points: Points) -> RunningSums:
        new_sums = self.summarise(points)
        return RunningSums(state.total + new_sums.total, state.count + new_sums.count)

    def remove(self, state: RunningSums, points: Points) -> RunningSums:
        """Return the state without these points, which must have been added before (not checked)."""
        removed_sums = self.summarise(points)
        return RunningSums(state.total - removed_sums.total, state.count - removed_sums.count)

    def predict_next(
        self,
        points: Points,
        related: Points | None = None,
        *,
        x_query: Float[Tensor, "B P Dx"] | None = None,
        prefixes: Sequence[int] | None = None,
    ) -> Prediction:
        """Predict after all prefixes in one pass, with running sums."""
        x = points.x if x_query is None else x_query
        vectors = self.encoders.represent(self.features(points), points.mask)
        total, count = vectors.cumsum(1) - vectors, points.mask.cumsum(1) - points.mask.long()
        n_queries = x.shape[1]
        answer = self.answer_at(RunningSums(total[:, :n_queries], count[:, :n_queries]), x).marginals
        return answer if prefixes is None else answer.at(torch.tensor(list(prefixes)))
