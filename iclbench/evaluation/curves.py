"""Learning curves: the score of every episode at every context size, and what is summed up from them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import torch

from iclbench.core.events import EventPrediction, open_intervals
from iclbench.core.metrics import metric
from iclbench.core.predictor import Predictor
from iclbench.evaluation.prompts import PromptSet
from iclbench.tables.curves import ratios, sums

# Query positions per forward pass, over all its episodes: bounds memory, and is a function of the sizes alone so that
# results do not depend on the machine. A single episode may be longer; what that needs is the predictor's own business
# (sequence models walk through it in segments).
_POSITIONS = 64 * 41


@dataclass(frozen=True)
class Curve:
    """Scores of one contestant on one prompt set.

    Attributes:
        prefixes: context sizes, ascending.
        scores: per metric `(episodes, prefixes)`, divided by the normaliser where it is an error; NaN where not asked.
        normaliser: what squared errors were divided by.
        asked: which positions were asked, `(episodes, prefixes)`; None: all. A shift leaves some of them undefined.
        skipped: context sizes beyond what the contestant takes.
        reason: why.
        sequences: scores of whole sequences by metric, `(episodes,)`, sums where they are per event; none where not
            every position was asked.
        opened: of event sequences in windows of observation, minus the log-survival of the open interval where it is
            asked, `(episodes, prefixes)`, NaN elsewhere; None: the prompt set has no such interval.
    """

    prefixes: tuple[int, ...]
    scores: dict[str, np.ndarray]
    normaliser: float
    asked: np.ndarray | None = None
    skipped: tuple[int, ...] = ()
    reason: str | None = None
    sequences: dict[str, np.ndarray] = field(default_factory=dict)
    opened: np.ndarray | None = None

    def totals(self, name: str) -> tuple[np.ndarray, np.ndarray]:
        """Of event sequences the sum of a metric and the number of events, `(episodes,)` each; the ratio of their sums
        over episodes is what the prompt set has. Open intervals count in the likelihood of the time, so in the sum of
        `nll` and `nll_time`; they are not events."""
        assert self.asked is not None
        values = np.where(self.asked, self.scores[name], np.nan)
        if self.opened is not None and metric(name).of_windows:
            values = np.where(self.asked, values, self.opened)
        return sums(values, self.asked, np.asarray(self.prefixes))

    def area(self, metric: str) -> np.ndarray:
        """Area under each episode's curve over the context sizes that all episodes were asked at, per unit of context:
        the mean height, `(episodes,)`; NaN where there are none, and where a score is not finite.

        Of sequences of different lengths, which have hardly any size in common, every event counts as much: their mean
        over episodes is the ratio of `totals`, on a grid of sizes by the trapezoid rule."""
        values, keep, n = self.scores[metric], self.sizes, np.asarray(self.prefixes, dtype=np.float64)
        if self.ragged and self.asked is not None:
            failed = (self.asked & ~np.isfinite(values)).any(1)
            return np.where(failed, np.nan, ratios(*self.totals(metric)))
        if keep.sum() < 2:
            return values[:, keep].mean(1) if keep.any() else np.full(len(values), np.nan)
        return np.trapezoid(values[:, keep], n[keep], axis=1) / (n[keep][-1] - n[keep][0])

    @property
    def ragged(self) -> bool:
        """Whether these are event sequences of different lengths."""
        return (
            self.asked is not None and not self.asked.all() and any(metric(name).of_sequences for name in self.scores)
        )

    @property
    def sizes(self) -> np.ndarray:
        """Which context sizes an area is over, `(prefixes,)`: those that all episodes were asked at."""
        return np.ones(len(self.prefixes), dtype=bool) if self.asked is None else np.asarray(self.asked.all(0))

    @cached_property
    def failed(self) -> np.ndarray:
        """The context sizes at which some score of an asked position is not finite, whatever the metric: an answer that
        is no number may be counted as wrong by one and be no number by another; `(prefixes,)`."""
        return np.asarray(self._nonfinite.any(0))

    @property
    def problem(self) -> str | None:
        """Where scores are not finite, in a line; None: nowhere."""
        bad = self._nonfinite
        if not bad.any():
            return None
        episode, at = np.argwhere(bad)[0]
        all_scores = self.scores if self.opened is None else {**self.scores, "nll_open": self.opened}
        metric, value = next((m, s[episode, at]) for m, s in all_scores.items() if not np.isfinite(s[episode, at]))
        return (
            f"{metric} is {value:g} in {int(bad.any(1).sum())} of {len(bad)} episodes, at {int(bad.any(0).sum())} of "
            f"{len(self.prefixes)} context sizes; first in episode {episode} after {self.prefixes[at]} examples"
        )

    @cached_property
    def _nonfinite(self) -> np.ndarray:
        """Asked positions of which some score is not finite, `(episodes, prefixes)`."""
        bad = ~np.all([np.isfinite(scores) for scores in self.scores.values()], axis=0)
        bad = bad if self.asked is None else bad & self.asked
        return bad if self.opened is None else bad | np.isinf(self.opened)


def learning_curve(
    predictor: Predictor, prompts: PromptSet, prefixes: Sequence[int] | None = None, device: str = "cpu"
) -> Curve:
    """Score a predictor on a prompt set by the question `next`.

    Args:
        predictor: anything that fulfils the contract; backbones must already be on `device`.
        prompts: the frozen episodes.
        prefixes: context sizes to ask; None: all. Those that the predictor does not take are skipped.
        device: where the episodes are sent.
    """
    episodes = prompts.episodes
    positions = episodes.context.count
    requested = tuple(range(positions)) if prefixes is None else tuple(prefixes)
    asked = tuple(n for n in requested if predictor.too_long(n) is None)
    skipped = requested[len(asked) :]
    if skipped:
        positions = asked[-1] + 1
        episodes, prefixes = episodes.begun(positions), None if prefixes is None else asked
    chunk = max(1, _POSITIONS // positions)
    normaliser = prompts.family.normaliser
    parts: dict[str, list[np.ndarray]] = {}
    counted: list[np.ndarray] = []
    opened: list[np.ndarray] = []
    sequence_scores: dict[str, list[np.ndarray]] = {}
    for start in range(0, len(episodes), chunk):
        block = episodes[start : start + chunk].to(device)
        informed = predictor.informed(block.truth)
        with torch.inference_mode():
            prediction = informed.ask(block.without_truth(), "next", None if prefixes is None else asked)
        y, scored = block.asked.y[:, list(asked)], block.scored[:, list(asked)]
        counted.append(scored.cpu().numpy())
        if isinstance(prediction, EventPrediction):
            survival = prediction.loss(y).double().nan_to_num(nan=torch.inf, posinf=torch.inf)
            intervals = open_intervals(block.asked)[:, list(asked)]
            opened.append(survival.masked_fill(~intervals, torch.nan).cpu().numpy())
        if prefixes is None and not skipped:
            for name, values in prediction.sequence_scores(y, scored, block.asked.mask).items():
                sequence_scores.setdefault(name, []).append(values.double().cpu().numpy())
        for name, values in prediction.scores_within(y, block.choices).items():
            values = values.double().masked_fill(~scored, torch.nan)
            scale = metric(name).normaliser(normaliser)
            parts.setdefault(name, []).append((values / scale).cpu().numpy())
    scores = {metric: np.concatenate(blocks) for metric, blocks in parts.items()}
    in_windows = bool(opened) and not all(np.isnan(values).all() for values in opened)
    if in_windows:
        scores = {name: values for name, values in scores.items() if not metric(name).of_intervals}
    reason = predictor.too_long(skipped[0]) if skipped else None
    asked_positions = np.concatenate(counted)
    sequences = {name: np.concatenate(blocks) for name, blocks in sequence_scores.items()}
    return Curve(
        asked,
        scores,
        normaliser,
        asked_positions,
        skipped,
        reason,
        sequences,
        np.concatenate(opened) if in_windows else None,
    )
