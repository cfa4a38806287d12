"""Learning curves: the scores of each episode at each context size, with areas under the curves and totals."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import torch

from iclbench.core.episodes import Episodes
from iclbench.core.events import EventPrediction, open_intervals
from iclbench.core.metrics import metric
from iclbench.core.predictions import Prediction
from iclbench.core.predictor import Predictor
from iclbench.evaluation.prompts import PromptSet
from iclbench.tables.curves import complete_curve_heights, curve_sums, linearised_ratios

# Number of queries in a forward pass, summed over its episodes. It limits the use of memory and is the same on all
# machines. A single episode may have more queries, which sequence models process in segments.
_QUERIES_PER_PASS = 64 * 41


@dataclass(frozen=True)
class Curve:
    """Scores of one contestant on one prompt set.

    Attributes:
        prefixes: context sizes, ascending.
        scores: scores by metric, `(episodes, prefixes)`, with squared errors divided by the normaliser; NaN for missing
            scores.
        normaliser: the divisor of squared errors.
        scored: mask of the scored positions, `(episodes, prefixes)`; None if all positions are scored. Some
            streams score only some positions, and some shifts do not define the queries at all positions.
        skipped: context sizes that the contestant does not allow.
        skip_reason: why these sizes were skipped.
        sequence_scores: scores of complete sequences by metric, `(episodes,)`; for metrics per event, sums over the
            events. Empty if only some context sizes were evaluated.
        open_nll: for event sequences in observation windows, minus the log-survival of the open interval at the
            position of this interval, `(episodes, prefixes)`, NaN elsewhere; None without open intervals.
    """

    prefixes: tuple[int, ...]
    scores: dict[str, np.ndarray]
    normaliser: float
    scored: np.ndarray | None = None
    skipped: tuple[int, ...] = ()
    skip_reason: str | None = None
    sequence_scores: dict[str, np.ndarray] = field(default_factory=dict)
    open_nll: np.ndarray | None = None

    def totals(self, name: str) -> tuple[np.ndarray, np.ndarray]:
        """Return the sum of a metric over the events of each sequence, and the number of events, `(episodes,)` each.

        The value of the metric on a prompt set is the total of these sums over all episodes, divided by the total
        number of events. Open intervals contribute to the sums of `nll` and `nll_time`, but do not count as events.
        """
        assert self.scored is not None
        values = np.where(self.scored, self.scores[name], np.nan)
        if self.open_nll is not None and metric(name).includes_open_interval:
            values = np.where(self.scored, values, self.open_nll)
        return curve_sums(values, self.scored, np.asarray(self.prefixes))

    def area(self, name: str) -> np.ndarray:
        """Return the mean height of each episode's curve, `(episodes,)`: its area per unit of context (trapezoid rule).

        The area covers the context sizes at which all episodes have a score. It is NaN if no size has a score in all
        episodes, or if a score is not finite. Sequences of different lengths have few sizes in common, so their mean
        height is computed from `totals` instead, where all events have equal weight.
        """
        values, is_used, n = self.scores[name], self.is_in_area, np.asarray(self.prefixes, dtype=np.float64)
        if self.is_ragged and self.scored is not None:
            failed = (self.scored & ~np.isfinite(values)).any(1)
            return np.where(failed, np.nan, linearised_ratios(*self.totals(name)))
        return complete_curve_heights(values[:, is_used], n[is_used])

    @property
    def is_ragged(self) -> bool:
        """Whether the episodes are event sequences of different lengths."""
        if self.scored is None or self.scored.all():
            return False
        return any(metric(name).is_for_sequences for name in self.scores)

    @property
    def is_in_area(self) -> np.ndarray:
        """Mask of the context sizes that areas cover, at which all episodes have a score, `(prefixes,)`."""
        return np.ones(len(self.prefixes), dtype=bool) if self.scored is None else np.asarray(self.scored.all(0))

    @cached_property
    def failed(self) -> np.ndarray:
        """Mask of the context sizes at which a score of any metric is not finite, `(prefixes,)`.

        It considers all metrics, because some hide failures: the accuracy of an answer with NaN is 0.
        """
        return np.asarray(self._nonfinite.any(0))

    @property
    def failure(self) -> str | None:
        """A message about the first score that is not finite; None if all scores are finite."""
        failed = self._nonfinite
        if not failed.any():
            return None
        episode, position = np.argwhere(failed)[0]
        all_scores = self.scores if self.open_nll is None else {**self.scores, "nll_open": self.open_nll}
        name, value = next(
            (name, scores[episode, position])
            for name, scores in all_scores.items()
            if not np.isfinite(scores[episode, position])
        )
        return (
            f"{name} is {value:g} in {int(failed.any(1).sum())} of {len(failed)} episodes, at "
            f"{int(failed.any(0).sum())} of {len(self.prefixes)} context sizes; first in episode {episode} after "
            f"{self.prefixes[position]} examples"
        )

    @cached_property
    def _nonfinite(self) -> np.ndarray:
        """Mask of the scored positions with a score that is not finite, `(episodes, prefixes)`."""
        failed = ~np.all([np.isfinite(scores) for scores in self.scores.values()], axis=0)
        failed = failed if self.scored is None else failed & self.scored
        return failed if self.open_nll is None else failed | np.isinf(self.open_nll)


def answered_blocks(
    predictor: Predictor, episodes: Episodes, prefixes: Sequence[int] | None = None, device: str = "cpu"
) -> Iterator[tuple[Episodes, Prediction]]:
    """Yield the episodes in blocks of one forward pass each, on `device`, with the answers to the question `next`."""
    size = max(1, _QUERIES_PER_PASS // episodes.context.count)
    for start in range(0, len(episodes), size):
        block = episodes[start : start + size].to(device)
        informed = predictor.informed(block.truth)
        with torch.inference_mode():
            prediction = informed.ask(block.without_truth(), "next", prefixes)
        yield block, prediction


def learning_curve(
    predictor: Predictor, prompts: PromptSet, prefixes: Sequence[int] | None = None, device: str = "cpu"
) -> Curve:
    """Score a predictor on a prompt set for the question `next`.

    Args:
        predictor: the predictor; backbones must already be on `device`.
        prompts: the prompt set.
        prefixes: context sizes, ascending (default: all). Sizes that the predictor does not allow are skipped.
        device: device of the computation.
    """
    episodes = prompts.episodes
    positions = episodes.context.count
    requested = tuple(range(positions)) if prefixes is None else tuple(prefixes)
    allowed = tuple(n for n in requested if predictor.too_long(n) is None)
    skipped = requested[len(allowed) :]
    if skipped:
        positions = allowed[-1] + 1
        episodes, prefixes = episodes.first_points(positions), None if prefixes is None else allowed
    normaliser = prompts.family.normaliser
    score_blocks: dict[str, list[np.ndarray]] = {}
    scored_blocks: list[np.ndarray] = []
    open_blocks: list[np.ndarray] = []
    sequence_scores: dict[str, list[np.ndarray]] = {}
    for block, prediction in answered_blocks(predictor, episodes, None if prefixes is None else allowed, device):
        y, scored = block.queries.y[:, list(allowed)], block.scored[:, list(allowed)]
        scored_blocks.append(scored.cpu().numpy())
        if isinstance(prediction, EventPrediction):
            survival = prediction.loss(y).double().nan_to_num(nan=torch.inf, posinf=torch.inf)
            is_open = open_intervals(block.queries)[:, list(allowed)]
            open_blocks.append(survival.masked_fill(~is_open, torch.nan).cpu().numpy())
        if prefixes is None and not skipped:
            for name, values in prediction.sequence_scores(y, scored, block.queries.mask).items():
                sequence_scores.setdefault(name, []).append(values.double().cpu().numpy())
        for name, values in prediction.scores_within(y, block.choices).items():
            values = values.double().masked_fill(~scored, torch.nan)
            scale = metric(name).normaliser(normaliser)
            score_blocks.setdefault(name, []).append((values / scale).cpu().numpy())
    scores = {name: np.concatenate(blocks) for name, blocks in score_blocks.items()}
    in_windows = bool(open_blocks) and not all(np.isnan(values).all() for values in open_blocks)
    if in_windows:
        scores = {name: values for name, values in scores.items() if not metric(name).describes_intervals}
    return Curve(
        allowed,
        scores,
        normaliser,
        scored=np.concatenate(scored_blocks),
        skipped=skipped,
        skip_reason=predictor.too_long(skipped[0]) if skipped else None,
        sequence_scores={name: np.concatenate(blocks) for name, blocks in sequence_scores.items()},
        open_nll=np.concatenate(open_blocks) if in_windows else None,
    )
