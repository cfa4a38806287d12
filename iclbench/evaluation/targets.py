"""Evaluation of the question `targets`: the mean score over the targets of each episode, by number of related datasets.

A row of the table `values` is a mean over all episodes, over the episodes in a bin of context sizes
(`axis = "n_context"`, with the upper end of the bin in `axis_value`), or over a stratum of the family
(`axis = "stratum:NAME"`). The family's own tests sample their own episodes, and their rows are means over all episodes.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from iclbench import tables
from iclbench.core.measure import Measure
from iclbench.core.memory import EVALUATION_REMEDY, memory_advice
from iclbench.core.metrics import metric
from iclbench.core.version import provenance
from iclbench.evaluation import cells, examples
from iclbench.evaluation.bootstrap import summaries
from iclbench.evaluation.contestants import PredictorContestant
from iclbench.evaluation.prompts import PromptSet
from iclbench.evaluation.scoring import TargetScores, target_scores
from iclbench.store.runs import write_errors


def score_targets(contestant: PredictorContestant, prompts: PromptSet) -> cells.Tables:
    """Compute the tables of one contestant for the question `targets`, or for the family's own test
    `prompts.evaluator`."""
    prompts.episodes  # noqa: B018  (all contestants share the episodes, so their sampling is not measured)
    with memory_advice(EVALUATION_REMEDY), Measure(contestant.device) as cost:
        result = target_scores(contestant.predictor, prompts, contestant.device, contestant.episodes)
    if result.skip_reason and not result.scores:
        shared = cells.shared_columns(contestant, prompts, prompts.question)
        return cells.skipped_tables(prompts, shared, result.skip_reason)
    sizes = prompts.episodes.context.counts.numpy()[:: prompts.group_size, None]
    # If long episodes were skipped, the remaining episodes are not a fair sample for paired comparisons.
    paired_scores = {} if result.skip_reason else result.complete_scores
    if (clusters := clusters_of(prompts)) is not None:
        paired_scores = {name: _cluster_means(scores, clusters) for name, scores in paired_scores.items()}
        sizes = np.round(_cluster_means(sizes.astype(float), clusters)).astype(int)
    return {
        "examples": examples.prediction_rows(contestant, prompts, result.failed_counts),
        "errors": cells.error_rows(
            contestant, prompts, paired_scores, n_context=sizes, n_related=np.asarray(result.n_related)
        ),
        "costs": [] if result.skipped.any() else cells.cost_rows(contestant, prompts, cost),
        "values": _value_rows(contestant, prompts, result),
    }


def subsets_of(prompts: PromptSet) -> list[tuple[dict[str, object], np.ndarray]]:
    """Return the subsets of episodes to average over: the columns of each subset and a mask of episodes or groups."""
    episodes = prompts.episodes
    subsets: list[tuple[dict[str, object], np.ndarray]] = [
        ({}, np.ones(len(episodes) // prompts.group_size, dtype=bool))
    ]
    if prompts.evaluator:
        return subsets
    sizes = episodes.context.counts.numpy()
    ends = np.array([bin_end(int(n)) for n in sizes])
    subsets += [({"axis": "n_context", "axis_value": float(end)}, ends == end) for end in np.unique(ends)]
    for name, mask in prompts.family.strata(episodes).items():
        subsets.append(({"axis": f"stratum:{name}", "stratum": name}, mask.cpu().numpy()))
    return subsets


def clusters_of(prompts: PromptSet) -> np.ndarray | None:
    """Return the cluster of each episode; None if the episodes are independent."""
    clusters = None if prompts.evaluator else prompts.family.clusters(prompts.episodes)
    return None if clusters is None else clusters.cpu().numpy()


def _cluster_means(scores: np.ndarray, clusters: np.ndarray) -> np.ndarray:
    """Return means over the episodes of each cluster, `(clusters, columns)`; missing scores are ignored."""
    members = np.unique(clusters) == clusters[:, None]
    finite = np.isfinite(scores)
    counts = members.T.astype(float) @ finite
    sums = members.T.astype(float) @ np.where(finite, scores, 0.0)
    with np.errstate(invalid="ignore"):
        return np.where(counts > 0, sums / counts, np.nan)


def bin_end(n: int) -> int:
    """Return the upper end of the bin of a context size: 1 to 4, 5 to 16, 17 to 64, ... (0 for empty contexts)."""
    end = 4
    while end < n:
        end *= 4
    return end if n else 0


def _value_rows(contestant: PredictorContestant, prompts: PromptSet, result: TargetScores) -> cells.Rows:
    rows: cells.Rows = []
    for name, scores in result.scores.items():
        shared = cells.shared_columns(contestant, prompts, prompts.question) | {
            "metric": name,
            "normaliser": metric(name).normaliser(result.normaliser),
        }
        rows += mean_rows(shared, prompts, result.n_related, scores, result)
    return rows


def mean_rows(
    shared: dict[str, object],
    prompts: PromptSet,
    n_related: tuple[int, ...],
    scores: np.ndarray,
    result: TargetScores | None = None,
) -> cells.Rows:
    """Return rows with means and intervals of scores over each subset of the episodes (`subsets_of`).

    Args:
        shared: columns that all rows share.
        prompts: the prompt set.
        n_related: numbers of related datasets.
        scores: `(episodes, n_related)`.
        result: the result from which `scores` were computed. If it is given, subsets with skipped episodes have rows
            with status "skipped", and subsets with a score that is not finite have rows with status "failed".
    """
    rows: cells.Rows = []
    clusters = clusters_of(prompts)
    for columns, mask in subsets_of(prompts):
        failed = np.zeros(len(n_related), dtype=bool) if result is None else np.asarray(result.failed[mask].any(0))
        if result is not None and result.skipped[mask].any():
            skipped_columns = columns | {"status": "skipped", "reason": result.skip_reason}
            rows += [shared | {"n_related": n} | skipped_columns for n in n_related]
        elif failed.any() or np.isfinite(scores[mask]).any():
            cluster = None if clusters is None else clusters[mask]
            subset_summaries = summaries(scores[mask], prompts.seed, cluster)
            for n, has_failed, summary in zip(n_related, failed, subset_summaries, strict=True):
                if has_failed:
                    failure = {"status": "failed", "reason": result.failure if result is not None else None}
                    rows.append(shared | {"n_related": n} | columns | failure)
                elif summary["n_episodes"]:
                    rows.append(shared | {"n_related": n} | columns | summary)
    return rows


def chance_row(prompts: PromptSet) -> dict[str, object]:
    """Return the row of the baseline `chance`: the accuracy of random guessing on a family's own test."""
    test = prompts.family.evaluators()[prompts.evaluator]
    return {
        "run": "chance",
        "task": prompts.task.name,
        "family": prompts.task.family,
        "data": prompts.data,
        "trained_data": prompts.trained_data,
        "contestant": "chance",
        "model": "chance",
        "kind": "baseline",
        "preset": prompts.preset,
        "shift": "none",
        "distribution": "none",
        "evaluator": prompts.evaluator,
        "n_related": 0,
        "metric": "accuracy_within_choices",
        "value": test.chance,
        "normaliser": 1.0,
        "status": "ok",
        "prompt_set": prompts.id,
        "card": prompts.task.card,
        **provenance(),
    }


def write_chance(results: Path, prompts: PromptSet) -> None:
    """Write the row of the baseline `chance` to its file."""
    path = results / "tables" / prompts.id / "summary" / "chance.values.parquet"
    with write_errors(results):
        tables.write("values", [chance_row(prompts)], path, {})
