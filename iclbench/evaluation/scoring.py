"""Scores of single episodes by the question `targets`, and what an answer about class labels is scored by."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from iclbench.episodes import Episodes
from iclbench.errors import NonFiniteError
from iclbench.evaluation.prompts import PromptSet
from iclbench.predictions import Categorical, Prediction
from iclbench.predictor import Predictor

# Points of all kinds per forward pass, over all its episodes: bounds memory, and is a function of the sizes alone.
_POINTS = 16_384


@dataclass(frozen=True)
class TargetScores:
    """Scores of one contestant on one prompt set.

    Attributes:
        n_related: numbers of related datasets that were asked, ascending.
        scores: per metric `(episodes, n_related)`, divided by the normaliser where it is an error; NaN where not asked.
            Where episodes of a test count together, one row is one such group.
        normaliser: what squared errors were divided by.
        skipped: the episodes or groups, `(episodes,)`, with a longer context than the contestant takes; they
            have no scores.
        reason: why, where there are any.
    """

    n_related: tuple[int, ...]
    scores: dict[str, np.ndarray]
    normaliser: float
    skipped: np.ndarray
    reason: str | None = None


def scores_of(
    answer: Prediction, y: Tensor, choices: Bool[Tensor, "B classes"] | None
) -> dict[str, Float[Tensor, "B Q"]]:
    """Every metric of an answer; of class labels also the accuracy among those that the episode admits, which is what
    papers on few-shot classification plot."""
    scores = answer.scores(y)
    if choices is not None and isinstance(answer, Categorical):
        scores["accuracy_within_choices"] = answer.within(choices).scores(y)["accuracy"]
    return scores


def target_scores(
    predictor: Predictor, prompts: PromptSet, device: str = "cpu", episodes_at_most: int | None = None
) -> TargetScores:
    """Score a predictor on a prompt set by the question `targets`.

    Args:
        predictor: anything that fulfils the contract; backbones must already be on `device`. One that does not use
            related datasets is asked once.
        prompts: the frozen episodes.
        device: where the episodes are sent.
        episodes_at_most: ask only the first so many episodes; None: all.

    Raises:
        NonFiniteError: a score is NaN or infinite.
    """
    family = prompts.family
    counts = tuple(range(family.related_sets + 1)) if predictor.uses_related else (0,)
    episodes = prompts.episodes
    wanted = np.arange(len(episodes)) < (len(episodes) if episodes_at_most is None else episodes_at_most)
    whys = [predictor.too_long(int(n)) for n in episodes.context.counts]
    skipped = wanted & np.array([why is not None for why in whys])
    taken = wanted & ~skipped
    asked = episodes if taken.all() else episodes[torch.from_numpy(taken)]
    parts: dict[str, list[np.ndarray]] = {}
    for block in blocks(asked):
        there = block.to(device)
        informed = predictor.informed(there.truth)
        with torch.inference_mode():
            answers = informed.predict_by_related(there.context, there.asked.x, there.related, counts)
            scores = [scores_of(answer, there.asked.y, there.choices) for answer in answers]
        for metric in scores[0]:
            by_count = [_mean(each[metric], there.scored) for each in scores]
            scale = family.normaliser if metric == "squared_error" else 1.0
            parts.setdefault(metric, []).append((torch.stack(by_count, 1) / scale).cpu().numpy())
    found = {metric: np.concatenate(blocks) for metric, blocks in parts.items()}
    _refuse_nonfinite(found, counts)
    found = together({metric: _among(taken, s) for metric, s in found.items()}, prompts.together)
    skipped = skipped.reshape(-1, prompts.together).any(1)
    return TargetScores(counts, found, family.normaliser, skipped, next((why for why in whys if why), None))


def _among(taken: np.ndarray, scores: np.ndarray) -> np.ndarray:
    """The scores of the episodes that were taken, `(taken, columns)`, among all of them, NaN elsewhere."""
    if taken.all():
        return scores
    found = np.full((len(taken), scores.shape[1]), np.nan)
    found[taken] = scores
    return found


def together(scores: dict[str, np.ndarray], size: int) -> dict[str, np.ndarray]:
    """Scores `(episodes, columns)` of every `size` neighbouring episodes as one: right only where all of them are, by
    the mean for all else."""
    if size == 1:
        return scores
    groups = {metric: s.reshape(-1, size, s.shape[1]) for metric, s in scores.items()}
    return {metric: s.min(1) if metric.startswith("accuracy") else s.mean(1) for metric, s in groups.items()}


def blocks(episodes: Episodes) -> Iterator[Episodes]:
    """The episodes in the portions in which they are computed."""
    related = 0 if episodes.related is None else episodes.related.mask.shape[1:].numel()
    size = max(1, _POINTS // (episodes.context.count + episodes.asked.count + related))
    return (episodes[start : start + size] for start in range(0, len(episodes), size))


def _mean(scores: Tensor, scored: Tensor) -> Tensor:
    """Mean over the targets that count, per episode."""
    there = scores.double().masked_fill(~scored, 0)
    return there.sum(1) / scored.sum(1)


def _refuse_nonfinite(found: dict[str, np.ndarray], counts: tuple[int, ...]) -> None:
    for metric, scores in found.items():
        bad = ~np.isfinite(scores)
        if bad.any():
            episode, column = np.argwhere(bad)[0]
            raise NonFiniteError(
                f"{metric} is {scores[episode, column]:g} in {int(bad.any(1).sum())} of {len(scores)} episodes, first "
                f"in episode {episode} with {counts[column]} related datasets"
            )
