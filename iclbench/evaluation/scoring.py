"""Scores of single episodes by the question `targets`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from iclbench.core.answers import check_answer
from iclbench.core.episodes import Episodes, first_related, take
from iclbench.core.metrics import metric
from iclbench.core.predictions import Prediction
from iclbench.core.predictor import Predictor
from iclbench.evaluation.prompts import PromptSet

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
        failed: where some score of what was asked is not finite, whatever the metric, `(episodes, n_related)`.
        problem: where that is, in a line; None: nowhere.
    """

    n_related: tuple[int, ...]
    scores: dict[str, np.ndarray]
    normaliser: float
    skipped: np.ndarray
    failed: np.ndarray
    reason: str | None = None
    problem: str | None = None

    @property
    def lost(self) -> list[int]:
        """Numbers of related datasets at which some score failed."""
        return [n for n, bad in zip(self.n_related, np.asarray(self.failed.any(0)), strict=True) if bad]

    @property
    def complete_scores(self) -> dict[str, np.ndarray]:
        """The scores without those of numbers of related datasets at which some failed: no paired comparison over the
        episodes that are left."""
        return {metric: np.where(self.failed.any(0), np.nan, scores) for metric, scores in self.scores.items()}


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
    """
    family = prompts.family
    counts = tuple(range(family.related_sets + 1)) if predictor.uses_related else (0,)
    episodes = prompts.episodes
    is_requested = np.arange(len(episodes)) < (len(episodes) if episodes_at_most is None else episodes_at_most)
    reasons = [predictor.too_long(int(n)) for n in episodes.context.counts]
    skipped = is_requested & np.array([reason is not None for reason in reasons])
    is_asked = is_requested & ~skipped
    asked = episodes if is_asked.all() else episodes[torch.from_numpy(is_asked)]
    parts: dict[str, list[np.ndarray]] = {}
    groups = [(torch.arange(len(asked)), asked)] if predictor.joint == "apart" else by_targets(asked)
    for block in (block for _, group in groups for block in blocks(group)):
        on_device = block.to(device)
        informed = predictor.informed(on_device.truth)
        with torch.inference_mode():
            answers = informed.predict_by_related(on_device.context, on_device.asked.x, on_device.related, counts)
            scores = [_scores(informed, answer, on_device, n) for n, answer in zip(counts, answers, strict=True)]
        for name in scores[0]:
            by_count = [block_scores[name] for block_scores in scores]
            scale = metric(name).normaliser(family.normaliser)
            parts.setdefault(name, []).append((torch.stack(by_count, 1) / scale).cpu().numpy())
    order = torch.cat([index for index, _ in groups]).argsort().numpy()
    scores_by_name = {name: np.concatenate(blocks)[order] for name, blocks in parts.items()}
    failed = _nonfinite(scores_by_name, (int(is_asked.sum()), len(counts)))
    problem = _problem(scores_by_name, failed, counts, np.flatnonzero(is_asked))
    failed = np.asarray(_among(is_asked, failed.astype(float)) == 1)
    scores_by_name = group_scores({name: _among(is_asked, s) for name, s in scores_by_name.items()}, prompts.group_size)
    skipped = skipped.reshape(-1, prompts.group_size).any(1)
    failed = np.asarray(failed.reshape(-1, prompts.group_size, len(counts)).any(1))
    reason = next((reason for reason in reasons if reason), None)
    return TargetScores(counts, scores_by_name, family.normaliser, skipped, failed, reason, problem)


def _among(is_asked: np.ndarray, scores: np.ndarray) -> np.ndarray:
    """The scores of the episodes that were taken, `(taken, columns)`, among all of them, NaN elsewhere."""
    if is_asked.all():
        return scores
    all_scores = np.full((len(is_asked), scores.shape[1]), np.nan)
    all_scores[is_asked] = scores
    return all_scores


def group_scores(scores: dict[str, np.ndarray], size: int) -> dict[str, np.ndarray]:
    """Scores `(episodes, columns)` of every `size` neighbouring episodes as one: right only where all of them are, by
    the mean for all else."""
    if size == 1:
        return scores
    groups = {name: s.reshape(-1, size, s.shape[1]) for name, s in scores.items()}
    return {name: s.min(1) if metric(name).yes_or_no else s.mean(1) for name, s in groups.items()}


def blocks(episodes: Episodes) -> Iterator[Episodes]:
    """The episodes in the portions in which they are computed."""
    related = 0 if episodes.related is None else episodes.related.mask.shape[1:].numel()
    size = max(1, _POINTS // (episodes.context.count + episodes.asked.count + related))
    return (episodes[start : start + size] for start in range(0, len(episodes), size))


def by_targets(episodes: Episodes) -> list[tuple[Int[Tensor, " group"], Episodes]]:
    """The episodes in groups of equally many targets, without padding, and their indices: a predictor of joint answers
    would read padding, too."""
    targets, order = episodes.asked.compact()
    scored, groups = take(episodes.scored, order), []
    for count in targets.counts.unique().tolist():
        index = (targets.counts == count).nonzero().squeeze(1)
        truncated = replace(episodes, targets=targets.span(0, count), scored=scored[:, :count])
        groups.append((index, truncated[index]))
    return groups


def _scores(predictor: Predictor, answer: Prediction, episodes: Episodes, related: int) -> dict[str, Tensor]:
    """Every score of every episode: means over its targets, and joint scores."""
    y = episodes.asked.y
    check_answer(predictor, "predict_by_related", answer, y.shape, y)
    by_target = answer.scores_within(y, episodes.choices)
    joint_scores = predictor.joint_scores(
        answer, episodes.context, episodes.asked, episodes.scored, first_related(episodes.related, related)
    )
    return {name: _mean(scores, episodes.scored) for name, scores in by_target.items()} | {
        name: scores.double() for name, scores in joint_scores.items()
    }


def _mean(scores: Tensor, scored: Tensor) -> Tensor:
    """Mean over the targets that count, per episode."""
    masked = scores.double().masked_fill(~scored, 0)
    return masked.sum(1) / scored.sum(1)


def _nonfinite(all_scores: dict[str, np.ndarray], shape: tuple[int, int]) -> np.ndarray:
    """Episodes, by number of related datasets, of which some score is not finite."""
    bad = np.zeros(shape, dtype=bool)
    for scores in all_scores.values():
        bad |= ~np.isfinite(scores)
    return bad


def _problem(
    all_scores: dict[str, np.ndarray], bad: np.ndarray, counts: tuple[int, ...], numbers: np.ndarray
) -> str | None:
    """Where scores are not finite, in a line; None: nowhere. `numbers` are those of the episodes."""
    if not bad.any():
        return None
    episode, column = np.argwhere(bad)[0]
    metric, value = next((m, s[episode, column]) for m, s in all_scores.items() if not np.isfinite(s[episode, column]))
    return (
        f"{metric} is {value:g} in {int(bad.any(1).sum())} of {len(bad)} episodes, first in episode {numbers[episode]} "
        f"with {counts[column]} related datasets"
    )
