"""The question `targets`: every episode's mean score over its targets, by the number of related datasets it was given.

A value row is a mean over all episodes, over those of one bin of context sizes (`axis = "n_context"`, the bin's upper
end as value) or over a part that the family names (`axis = "stratum:NAME"`). A test that the family has of its own is
scored in the same way on its own episodes, by the mean over all of them.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from iclbench import tables
from iclbench.core.measure import Measure
from iclbench.core.memory import IN_EVALUATION, advised
from iclbench.core.metrics import metric
from iclbench.core.version import provenance
from iclbench.evaluation import cells, examples
from iclbench.evaluation.bootstrap import summaries
from iclbench.evaluation.contestants import PredictorContestant
from iclbench.evaluation.prompts import PromptSet
from iclbench.evaluation.scoring import TargetScores, target_scores
from iclbench.store.runs import writing


def score_targets(contestant: PredictorContestant, prompts: PromptSet) -> cells.Tables:
    """The tables of one contestant by the question `targets`, or by the family's own test that the prompts are of."""
    prompts.episodes  # noqa: B018  (drawn before the clock starts: all contestants share them)
    with advised(IN_EVALUATION), Measure(contestant.device) as cost:
        result_scores = target_scores(contestant.predictor, prompts, contestant.device, contestant.episodes)
    if result_scores.reason and not result_scores.scores:
        return cells.skipped(prompts, cells.row(contestant, prompts, prompts.question), result_scores.reason)
    sizes = prompts.episodes.context.counts.numpy()[:: prompts.group_size, None]
    # No paired comparison over the episodes that are left, which are the short ones.
    paired_scores = {} if result_scores.reason else result_scores.complete_scores
    return {
        "examples": examples.predicted(contestant, prompts, result_scores.lost),
        "errors": cells.error_rows(
            contestant, prompts, paired_scores, n_context=sizes, n_related=np.asarray(result_scores.n_related)
        ),
        "costs": [] if result_scores.skipped.any() else cells.cost_rows(contestant, prompts, cost),
        "values": _value_rows(contestant, prompts, result_scores),
    }


def parts_of(prompts: PromptSet) -> list[tuple[dict[str, object], np.ndarray]]:
    """Parts of the episodes to average over: their columns, and a mask over all episodes or groups of them."""
    episodes = prompts.episodes
    parts: list[tuple[dict[str, object], np.ndarray]] = [({}, np.ones(len(episodes) // prompts.group_size, dtype=bool))]
    if prompts.evaluator:
        return parts
    sizes = episodes.context.counts.numpy()
    ends = np.array([bin_end(int(n)) for n in sizes])
    parts += [({"axis": "n_context", "axis_value": float(end)}, ends == end) for end in np.unique(ends)]
    for name, within in prompts.family.strata(episodes).items():
        parts.append(({"axis": f"stratum:{name}", "stratum": name}, within.cpu().numpy()))
    return parts


def bin_end(n: int) -> int:
    """Upper end of the bin of context sizes that n is in: up to 4, 5 to 16, 17 to 64, ... (empty contexts: 0)."""
    end = 4
    while end < n:
        end *= 4
    return end if n else 0


def _value_rows(contestant: PredictorContestant, prompts: PromptSet, result_scores: TargetScores) -> cells.Rows:
    rows: cells.Rows = []
    for name, scores in result_scores.scores.items():
        shared = cells.row(contestant, prompts, prompts.question) | {
            "metric": name,
            "normaliser": metric(name).normaliser(result_scores.normaliser),
        }
        rows += mean_rows(shared, prompts, result_scores.n_related, scores, result_scores)
    return rows


def mean_rows(
    shared: dict[str, object],
    prompts: PromptSet,
    n_related: tuple[int, ...],
    scores: np.ndarray,
    result_scores: TargetScores | None = None,
) -> cells.Rows:
    """Means and intervals of `(episodes, n_related)` over every part of the prompt set; a skipped row for a part with
    skipped episodes of what was `result_scores`, a failed one where one of its scores is not finite."""
    rows: cells.Rows = []
    for columns, within in parts_of(prompts):
        failed = (
            np.zeros(len(n_related), dtype=bool)
            if result_scores is None
            else np.asarray(result_scores.failed[within].any(0))
        )
        if result_scores is not None and result_scores.skipped[within].any():
            skipped = columns | {"status": "skipped", "reason": result_scores.reason}
            rows += [shared | {"n_related": n} | skipped for n in n_related]
        elif failed.any() or np.isfinite(scores[within]).any():
            for n, bad, summary in zip(n_related, failed, summaries(scores[within], prompts.seed), strict=True):
                if bad:
                    failure = {
                        "status": "failed",
                        "reason": result_scores.problem if result_scores is not None else None,
                    }
                    rows.append(shared | {"n_related": n} | columns | failure)
                elif summary["n_episodes"]:
                    rows.append(shared | {"n_related": n} | columns | summary)
    return rows


def chance_row(prompts: PromptSet) -> dict[str, object]:
    """The accuracy of guessing at a test, as a baseline of its own."""
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
    """Write the row of guessing."""
    path = results / "tables" / prompts.id / "summary" / "chance.values.parquet"
    with writing(results):
        tables.write("values", [chance_row(prompts)], path, {})
