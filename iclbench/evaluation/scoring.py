"""Scores of single episodes for the question `targets`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from iclbench.core.answers import check_answer
from iclbench.core.episodes import Episodes, first_related, take
from iclbench.core.metrics import metric
from iclbench.core.predictions import Categorical, Prediction
from iclbench.core.predictor import Predictor
from iclbench.core.set_metrics import SET_METRICS, set_scores
from iclbench.evaluation.prompts import PromptSet

# Number of points in a forward pass, summed over its episodes. It limits the use of memory and is the same on all
# machines.
_POINTS_PER_PASS = 16_384


@dataclass(frozen=True)
class TargetScores:
    """Scores of one contestant on one prompt set.

    Attributes:
        n_related: numbers of related datasets, ascending.
        scores: scores by metric, `(episodes, n_related)`, with squared errors divided by the normaliser; NaN for
            missing scores. If a test groups episodes, each row is a group.
        normaliser: the divisor of squared errors.
        skipped: mask of the episodes or groups with a context that is longer than the contestant allows,
            `(episodes,)`; they have no scores.
        failed: mask of the positions at which a score of any metric is not finite, `(episodes, n_related)`.
        skip_reason: why episodes were skipped; None if all episodes were evaluated.
        failure: a message about the first score that is not finite; None if all scores are finite.
    """

    n_related: tuple[int, ...]
    scores: dict[str, np.ndarray]
    normaliser: float
    skipped: np.ndarray
    failed: np.ndarray
    skip_reason: str | None = None
    failure: str | None = None

    @property
    def failed_counts(self) -> list[int]:
        """The numbers of related datasets at which a score failed."""
        return [n for n, failed in zip(self.n_related, np.asarray(self.failed.any(0)), strict=True) if failed]

    @property
    def complete_scores(self) -> dict[str, np.ndarray]:
        """The scores for paired comparisons, with NaN for all episodes at numbers of related datasets that failed."""
        return {name: np.where(self.failed.any(0), np.nan, scores) for name, scores in self.scores.items()}


def target_scores(
    predictor: Predictor, prompts: PromptSet, device: str = "cpu", episodes_at_most: int | None = None
) -> TargetScores:
    """Score a predictor on a prompt set for the question `targets`.

    Args:
        predictor: the predictor; backbones must already be on `device`. A predictor that does not use related datasets
            is evaluated only without them.
        prompts: the prompt set.
        device: device of the computation.
        episodes_at_most: evaluate only this number of episodes from the start of the prompt set (default: all).
    """
    family = prompts.family
    counts = tuple(range(family.related_sets + 1)) if predictor.uses_related else (0,)
    episodes = prompts.episodes
    is_requested = np.arange(len(episodes)) < (len(episodes) if episodes_at_most is None else episodes_at_most)
    reasons = [predictor.too_long(int(n)) for n in episodes.context.counts]
    skipped = is_requested & np.array([reason is not None for reason in reasons])
    is_scored = is_requested & ~skipped
    scored_episodes = episodes if is_scored.all() else episodes[torch.from_numpy(is_scored)]
    block_arrays: dict[str, list[np.ndarray]] = {}
    groups = [(torch.arange(len(scored_episodes)), scored_episodes)]
    if predictor.joint != "apart":
        groups = group_by_target_count(scored_episodes)
    for block in (block for _, group in groups for block in blocks(group)):
        block = block.to(device)
        informed = predictor.informed(block.truth)
        with torch.inference_mode():
            answers = informed.predict_by_related(block.context, block.queries.x, block.related, counts)
            names = () if prompts.evaluator else family.target_metrics
            scores = [_scores(informed, answer, block, n, names) for n, answer in zip(counts, answers, strict=True)]
        for name in scores[0]:
            by_count = [block_scores[name] for block_scores in scores]
            scale = metric(name).normaliser(family.normaliser)
            block_arrays.setdefault(name, []).append((torch.stack(by_count, 1) / scale).cpu().numpy())
    order = torch.cat([index for index, _ in groups]).argsort().numpy()
    scores_by_name = {name: np.concatenate(arrays)[order] for name, arrays in block_arrays.items()}
    failed = _nonfinite(scores_by_name, (int(is_scored.sum()), len(counts)))
    failure = _failure(scores_by_name, failed, counts, np.flatnonzero(is_scored))
    failed = np.asarray(_expand_to_all_episodes(is_scored, failed.astype(float)) == 1)
    all_scores = {name: _expand_to_all_episodes(is_scored, scores) for name, scores in scores_by_name.items()}
    scores_by_name = group_scores(all_scores, prompts.group_size)
    skipped = skipped.reshape(-1, prompts.group_size).any(1)
    failed = np.asarray(failed.reshape(-1, prompts.group_size, len(counts)).any(1))
    skip_reason = next((reason for reason in reasons if reason), None)
    return TargetScores(counts, scores_by_name, family.normaliser, skipped, failed, skip_reason, failure)


def _expand_to_all_episodes(is_scored: np.ndarray, scores: np.ndarray) -> np.ndarray:
    """Expand the scores of the scored episodes to all episodes, `(episodes, columns)`, with NaN for the others."""
    if is_scored.all():
        return scores
    all_scores = np.full((len(is_scored), scores.shape[1]), np.nan)
    all_scores[is_scored] = scores
    return all_scores


def group_scores(scores: dict[str, np.ndarray], size: int) -> dict[str, np.ndarray]:
    """Combine the scores of `size` consecutive episodes.

    The accuracy of a group is 1 only if all its episodes are answered correctly; other scores are averaged.
    """
    if size == 1:
        return scores
    groups = {name: s.reshape(-1, size, s.shape[1]) for name, s in scores.items()}
    return {name: s.min(1) if metric(name).yes_or_no else s.mean(1) for name, s in groups.items()}


def blocks(episodes: Episodes) -> Iterator[Episodes]:
    """Split the episodes into blocks of one forward pass each."""
    related = 0 if episodes.related is None else episodes.related.mask.shape[1:].numel()
    size = max(1, _POINTS_PER_PASS // (episodes.context.count + episodes.queries.count + related))
    return (episodes[start : start + size] for start in range(0, len(episodes), size))


def group_by_target_count(episodes: Episodes) -> list[tuple[Int[Tensor, " group"], Episodes]]:
    """Return groups of episodes with the same number of targets, with the indices of the episodes.

    Joint predictions depend on the inputs of all targets, so targets must not be padded.
    """
    targets, order = episodes.queries.compact()
    scored, groups = take(episodes.scored, order), []
    for count in targets.counts.unique().tolist():
        index = (targets.counts == count).nonzero().squeeze(1)
        truncated = replace(episodes, targets=targets.span(0, count), scored=scored[:, :count])
        groups.append((index, truncated[index]))
    return groups


def _scores(
    predictor: Predictor, answer: Prediction, episodes: Episodes, related: int, set_metrics: Sequence[str]
) -> dict[str, Tensor]:
    """Return all scores of each episode: means over its targets, joint scores, and metrics of sets of targets.

    With metrics of sets (real tables), all labels that a table does not have get the probability 0, as in
    `iclbench predict`.
    """
    y = episodes.queries.y
    check_answer(predictor, "predict_by_related", answer, y.shape, y)
    if set_metrics and episodes.choices is not None and isinstance(answer, Categorical):
        answer = answer.within(episodes.choices)
    by_target = answer.scores_within(y, episodes.choices)
    joint_scores = predictor.joint_scores(
        answer, episodes.context, episodes.queries, episodes.scored, first_related(episodes.related, related)
    )
    return {
        **{name: _mean(scores, episodes.scored) for name, scores in by_target.items()},
        **{name: scores.double() for name, scores in joint_scores.items()},
        **set_scores(answer, y, episodes.scored, set_metrics),
    }


def _mean(scores: Tensor, scored: Tensor) -> Tensor:
    """Return the mean over the scored targets of each episode."""
    masked = scores.double().masked_fill(~scored, 0)
    return masked.sum(1) / scored.sum(1)


def _nonfinite(all_scores: dict[str, np.ndarray], shape: tuple[int, int]) -> np.ndarray:
    """Return the mask of positions at which a score is not finite, `(episodes, n_related)`; set metrics are ignored."""
    failed = np.zeros(shape, dtype=bool)
    for name, scores in all_scores.items():
        if name not in SET_METRICS:  # set metrics may be undefined for the targets of an episode
            failed |= ~np.isfinite(scores)
    return failed


def _failure(
    all_scores: dict[str, np.ndarray], failed: np.ndarray, counts: tuple[int, ...], episode_indices: np.ndarray
) -> str | None:
    """Return a message about the first score that is not finite; None if all scores are finite.

    Row i of the scores belongs to episode `episode_indices[i]` of the prompt set.
    """
    if not failed.any():
        return None
    row, column = np.argwhere(failed)[0]
    name, value = next(
        (name, scores[row, column])
        for name, scores in all_scores.items()
        if name not in SET_METRICS and not np.isfinite(scores[row, column])
    )
    return (
        f"{name} is {value:g} in {int(failed.any(1).sum())} of {len(failed)} episodes, first in episode "
        f"{episode_indices[row]} with {counts[column]} related datasets"
    )
