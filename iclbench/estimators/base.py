"""Base classes of estimators: predictors without trained weights that are fitted to each prefix of each episode.

The base classes handle masks, prefixes, shifted queries and several outputs. A subclass implements one function,
`answer`, which fits the first points of each episode. If the fit is a weight vector, the subclass implements `weights`
instead.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from typing import ClassVar, Generic, TypeVar, cast

import torch
from jaxtyping import Float, Int
from torch import Tensor

from iclbench.core.episodes import Points
from iclbench.core.errors import UsageError
from iclbench.core.predictions import Point, Prediction
from iclbench.core.predictor import Predictor
from iclbench.core.settings import BaseSettings, NoSettings
from iclbench.core.task import TaskFacts

_Settings = TypeVar("_Settings", bound=BaseSettings)


class FittedPredictor(Predictor, Generic[_Settings], abstract=True):
    """A classical method that predicts numbers, class labels or events.

    Attributes:
        Settings: class of the settings in a baseline card.
        libraries: libraries whose versions may affect the answers.
        reads_streams: whether the method reads only streams of tokens or vectors, whose elements have no x.
        dtype: dtype of the computation; None for the dtype of the points.
        episodes_at_once: number of episodes that are fitted together. It limits the use of memory and keeps the arrays
            in the processor's cache.
    """

    Settings: ClassVar[type[BaseSettings]] = NoSettings
    libraries: ClassVar[tuple[str, ...]] = ()
    reads_streams: ClassVar[bool] = False
    dtype: ClassVar[torch.dtype | None] = torch.float64
    episodes_at_once: ClassVar[int] = 64

    def __init__(self, settings: _Settings | None = None, facts: TaskFacts | None = None, seed: int = 0) -> None:
        self.settings: _Settings = cast(_Settings, self.Settings()) if settings is None else settings
        self.facts = facts or TaskFacts()
        self.seed = seed

    @abstractmethod
    def _predict_prefixes(
        self, points: Points, is_unmasked: bool, lengths: Int[Tensor, "#B P"], queries: Float[Tensor, "B P Q Dx"]
    ) -> Prediction:
        """Return the answers `(B, P, Q)` of P fits per episode, each on the first `lengths[:, p]` valid points.

        If `is_unmasked`, no point is masked, and one row of lengths applies to all episodes.
        """

    def predict_next(
        self,
        points: Points,
        related: Points | None = None,
        *,
        x_query: Float[Tensor, "B N Dx"] | None = None,
        prefixes: Sequence[int] | None = None,
    ) -> Prediction:
        queries = points.x if x_query is None else x_query
        is_unmasked = bool(points.mask.all())
        lengths = torch.arange(points.count, device=points.x.device).unsqueeze(0)
        if not is_unmasked:
            lengths = points.mask.cumsum(1) - points.mask.long()
        if prefixes is not None:
            positions = torch.as_tensor(prefixes, dtype=torch.long, device=points.x.device)
            queries, lengths = queries[:, positions], lengths[:, positions]
        return self._predict_prefixes(points, is_unmasked, lengths, queries.unsqueeze(2)).map(lambda t: t.squeeze(2))

    def predict_targets(
        self, context: Points, x_target: Float[Tensor, "B Q Dx"], related: Points | None = None
    ) -> Prediction:
        is_unmasked = bool(context.mask.all())
        lengths = context.counts[:1] if is_unmasked else context.counts
        return self._predict_prefixes(context, is_unmasked, lengths.unsqueeze(1), x_target.unsqueeze(1)).map(
            lambda t: t.squeeze(1)
        )


class Estimator(FittedPredictor[_Settings], abstract=True):
    """A method that predicts numbers; for an empty context, it predicts 0 unless it has a prior.

    Attributes:
        needs_inputs: whether the method reads x, which the elements of streams do not have.
        has_prior: whether `answer` also answers queries after 0 points.
    """

    needs_inputs: ClassVar[bool] = True
    has_prior: ClassVar[bool] = False

    @abstractmethod
    def answer(
        self,
        x: Float[Tensor, "B N Dx"],
        y: Float[Tensor, "B N"],
        lengths: Int[Tensor, "#B P"],
        queries: Float[Tensor, "B P Q Dx"],
    ) -> Float[Tensor, "B P Q"]:
        """Fit each episode P times, on its first `lengths[:, p]` points, and answer Q queries with each fit.

        If no point is masked, one row of lengths applies to all episodes. Without a prior, N >= 1, and answers for
        length 0 are not used.
        """

    def _predict_prefixes(
        self, points: Points, is_unmasked: bool, lengths: Int[Tensor, "#B P"], queries: Float[Tensor, "B P Q Dx"]
    ) -> Point:
        if not points.y.is_floating_point():
            raise UsageError(
                f"{type(self).__name__} predicts numbers; this task requires class labels", code="not-applicable"
            )
        if self.needs_inputs and not points.x.shape[-1]:
            raise UsageError(
                f"{type(self).__name__} needs inputs; the elements of this stream have none", code="not-applicable"
            )
        mean = points.y.new_zeros(*queries.shape[:3], points.y.shape[-1])
        if mean.numel() == 0 or (points.count == 0 and not self.has_prior):
            return Point(mean)
        points = points if is_unmasked else move_valid_first(points)
        dtype = self.dtype or points.y.dtype
        x, y, queries = points.x.to(dtype), points.y.to(dtype), queries.to(dtype)
        for chunk in slices(len(points), self.episodes_at_once):
            chunk_lengths = lengths if is_unmasked else lengths[chunk]
            for output in range(y.shape[-1]):
                mean[chunk, ..., output] = self.answer(x[chunk], y[chunk, :, output], chunk_lengths, queries[chunk])
        return Point(mean if self.has_prior else mean.masked_fill_((lengths == 0)[..., None, None], 0))


class LinearEstimator(Estimator[_Settings], abstract=True):
    """A method whose fit is a weight vector without intercept."""

    @abstractmethod
    def weights(self, x: Float[Tensor, "B N Dx"], y: Float[Tensor, "B N"]) -> Float[Tensor, "B N Dx"]:
        """Return the weight vectors fitted to the first 1, 2, ..., N points."""

    def answer(
        self,
        x: Float[Tensor, "B N Dx"],
        y: Float[Tensor, "B N"],
        lengths: Int[Tensor, "#B P"],
        queries: Float[Tensor, "B P Q Dx"],
    ) -> Float[Tensor, "B P Q"]:
        selected_weights = select_lengths(self.weights(x, y), lengths)
        return (selected_weights.unsqueeze(2) * queries).sum(-1)


def select_lengths(fitted: Float[Tensor, "B N *K"], lengths: Int[Tensor, "#B P"]) -> Float[Tensor, "B P *K"]:
    """Select the fits on `lengths` points from the fits on 1 to N points; for length 0, the fit is arbitrary."""
    index = (lengths - 1).clamp_min(0)
    if len(index) == 1:
        return fitted.index_select(1, index[0])
    return fitted[torch.arange(len(fitted), device=fitted.device).unsqueeze(1), index]


def move_valid_first(points: Points) -> Points:
    """Return the points with the valid points of each episode first, followed by zeros."""
    points, _ = points.compact()
    valid = points.mask
    invalid = ~valid.reshape(*valid.shape, *[1] * (points.y.dim() - 2))
    return Points(points.x.masked_fill(~valid.unsqueeze(-1), 0), points.y.masked_fill(invalid, 0), valid)


def slices(total: int, size: int) -> Iterator[slice]:
    """Return consecutive slices of at most `size` items that cover `total` items."""
    return (slice(start, start + size) for start in range(0, total, size))
