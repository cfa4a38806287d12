"""The question `targets`: every episode's mean score over its targets, by the number of related datasets it was given.

A value row is a mean over all episodes, over those of one bin of context sizes (`axis = "n_context"`, the bin's upper
end as value) or over a part that the family names (`axis = "stratum:NAME"`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from iclbench.episodes import Episodes
from iclbench.errors import IclbenchError
from iclbench.evaluation import cells, examples
from iclbench.evaluation.contestants import Contestant
from iclbench.evaluation.measure import Measure
from iclbench.evaluation.prompts import PromptSet
from iclbench.predictor import Predictor

# Points of all kinds per forward pass, over all its episodes: bounds memory, and is a function of the sizes alone.
_POINTS = 16_384


@dataclass(frozen=True)
class TargetScores:
    """Scores of one contestant on one prompt set.

    Attributes:
        n_related: numbers of related datasets that were asked, ascending.
        scores: per metric `(episodes, n_related)`, divided by the normaliser where it is an error; NaN where not asked.
        normaliser: what squared errors were divided by.
    """

    n_related: tuple[int, ...]
    scores: dict[str, np.ndarray]
    normaliser: float


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
        IclbenchError: a score is NaN or infinite. A mean over the other episodes would flatter whoever fails at some.
    """
    family = prompts.family
    counts = tuple(range(family.related_sets + 1)) if predictor.uses_related else (0,)
    episodes = prompts.episodes
    asked = episodes if episodes_at_most is None else episodes[:episodes_at_most]
    parts: dict[str, list[np.ndarray]] = {}
    for block in blocks(asked):
        there = block.to(device)
        informed = predictor.informed(there.truth)
        with torch.inference_mode():
            answers = informed.predict_by_related(there.context, there.asked.x, there.related, counts)
            scores = [answer.scores(there.asked.y) for answer in answers]
        for metric in scores[0]:
            by_count = [_mean(each[metric], there.scored) for each in scores]
            scale = family.normaliser if metric == "squared_error" else 1.0
            parts.setdefault(metric, []).append((torch.stack(by_count, 1) / scale).cpu().numpy())
    found = {metric: np.concatenate(blocks) for metric, blocks in parts.items()}
    _refuse_nonfinite(found, counts)
    unasked = len(episodes) - len(asked)
    if unasked:
        found = {metric: np.pad(s, ((0, unasked), (0, 0)), constant_values=np.nan) for metric, s in found.items()}
    return TargetScores(counts, found, family.normaliser)


def _refuse_nonfinite(found: dict[str, np.ndarray], counts: tuple[int, ...]) -> None:
    for metric, scores in found.items():
        bad = ~np.isfinite(scores)
        if bad.any():
            episode, column = np.argwhere(bad)[0]
            raise IclbenchError(
                f"{metric} is {scores[episode, column]:g} in {int(bad.any(1).sum())} of {len(scores)} episodes, first "
                f"in episode {episode} with {counts[column]} related datasets"
            )


def blocks(episodes: Episodes) -> Iterator[Episodes]:
    """The episodes in the portions in which they are computed."""
    related = 0 if episodes.related is None else episodes.related.mask[0].numel()
    size = max(1, _POINTS // (episodes.context.count + episodes.asked.count + related))
    return (episodes[start : start + size] for start in range(0, len(episodes), size))


def evaluate_targets(results: Path, contestant: Contestant, prompts: PromptSet) -> str | None:
    """Score one contestant by the question `targets` and keep its cell; returns the reason if it failed."""

    def work() -> cells.Tables:
        prompts.episodes  # noqa: B018  (drawn before the clock starts: everyone shares them)
        with Measure(contestant.device) as cost:
            found = target_scores(contestant.predictor, prompts, contestant.device, contestant.episodes)
        sizes = prompts.episodes.context.counts.numpy()[:, None]
        return {
            "examples": examples.predicted(contestant, prompts),
            "errors": cells.error_rows(
                contestant, prompts, found.scores, n_context=sizes, n_related=np.asarray(found.n_related)
            ),
            "costs": cells.cost_rows(contestant, prompts, cost),
            "values": _value_rows(contestant, prompts, found),
        }

    shared = cells.row(contestant, prompts, "targets")
    return cells.compute_cell(results, contestant, prompts, shared, work)


def parts_of(prompts: PromptSet) -> list[tuple[dict[str, object], np.ndarray]]:
    """What episodes are averaged over: the columns that say so, and a mask over all episodes."""
    episodes = prompts.episodes
    sizes = episodes.context.counts.numpy()
    found: list[tuple[dict[str, object], np.ndarray]] = [({}, np.ones(len(episodes), dtype=bool))]
    ends = np.array([bin_end(int(n)) for n in sizes])
    found += [({"axis": "n_context", "axis_value": float(end)}, ends == end) for end in np.unique(ends)]
    for name, within in prompts.family.strata(episodes).items():
        found.append(({"axis": f"stratum:{name}"}, within.cpu().numpy()))
    return found


def bin_end(n: int) -> int:
    """Upper end of the bin of context sizes that n is in: up to 4, 5 to 16, 17 to 64, ... (empty contexts: 0)."""
    end = 4
    while end < n:
        end *= 4
    return end if n else 0


def _mean(scores: torch.Tensor, scored: torch.Tensor) -> torch.Tensor:
    """Mean over the targets that count, per episode."""
    there = scores.double().masked_fill(~scored, 0)
    return there.sum(1) / scored.sum(1)


def _value_rows(contestant: Contestant, prompts: PromptSet, found: TargetScores) -> cells.Rows:
    rows: cells.Rows = []
    for metric, scores in found.scores.items():
        normaliser = found.normaliser if metric == "squared_error" else 1.0
        shared = cells.row(contestant, prompts, "targets") | {"metric": metric, "normaliser": normaliser}
        rows += mean_rows(shared, prompts, found.n_related, scores)
    return rows


def mean_rows(
    shared: dict[str, object], prompts: PromptSet, n_related: tuple[int, ...], scores: np.ndarray
) -> cells.Rows:
    """Means and intervals of `(episodes, n_related)` over every part of the prompt set."""
    return [
        shared | {"n_related": n} | columns | summary
        for columns, within in parts_of(prompts)
        if np.isfinite(scores[within]).any()
        for n, summary in zip(n_related, cells.summaries(scores[within], prompts.seed), strict=True)
        if summary["n_episodes"]
    ]
