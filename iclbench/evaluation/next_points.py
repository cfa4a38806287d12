"""Evaluation of the question `next`: scores at each context size, and the area under the learning curve."""

from __future__ import annotations

import numpy as np
import pandas as pd

from iclbench import tables
from iclbench.core.measure import Measure
from iclbench.core.memory import EVALUATION_REMEDY, memory_advice
from iclbench.core.metrics import metric
from iclbench.evaluation import cells
from iclbench.evaluation.bootstrap import ratio_summary, summaries
from iclbench.evaluation.contestants import PredictorContestant
from iclbench.evaluation.curves import Curve, learning_curve
from iclbench.evaluation.prompts import PromptSet
from iclbench.evaluation.solutions import distance_rows


def score_next(contestant: PredictorContestant, prompts: PromptSet) -> cells.Tables:
    """Compute the tables of one contestant for the question `next`."""
    # Under some shifts, a predictor cannot answer even without a context.
    if reason := contestant.predictor.too_long(0):
        return cells.skipped_tables(prompts, cells.shared_columns(contestant, prompts, "next"), reason)
    prompts.episodes  # noqa: B018  (all contestants share the episodes, so their sampling is not measured)
    with memory_advice(EVALUATION_REMEDY), Measure(contestant.device) as cost:
        curve = learning_curve(contestant.predictor, prompts, device=contestant.device)
    # Incomplete curves are excluded from paired comparisons, because their areas cover other context sizes.
    complete_scores = {} if curve.failed.any() or curve.skipped else curve.scores
    errors = cells.error_rows(contestant, prompts, complete_scores, n_context=np.asarray(curve.prefixes))
    if complete_scores and curve.open_nll is not None:
        errors = tables.union("errors", [tables.frame("errors", errors), _total_rows(contestant, prompts, curve)])
    values = _value_rows(contestant, prompts, curve)
    known_solutions = prompts.family.known_solutions(prompts.shift)
    if known_solutions is not None and contestant.kind == "backbone" and complete_scores:
        values += distance_rows(contestant, prompts, known_solutions)
    return {
        "errors": errors,
        # Costs of incomplete curves are not comparable, because the largest context sizes cost most.
        "costs": [] if curve.skipped else cells.cost_rows(contestant, prompts, cost),
        "values": values,
    }


def _value_rows(contestant: PredictorContestant, prompts: PromptSet, curve: Curve) -> cells.Rows:
    rows: cells.Rows = []
    for name, scores in curve.scores.items():
        normaliser = metric(name).normaliser(curve.normaliser)
        area_metric = metric(name).area if name == prompts.headline else ""
        shared = cells.shared_columns(contestant, prompts, "next") | {"normaliser": normaliser}
        failed = shared | {"status": "failed", "reason": curve.failure}
        columns = zip(curve.prefixes, curve.failed, summaries(scores, prompts.seed), strict=True)
        rows += [
            (failed if has_failed else shared | summary) | {"metric": name, "n_context": n}
            for n, has_failed, summary in columns
            if has_failed or summary["n_episodes"]
        ]
        skipped = shared | {"status": "skipped", "reason": curve.skip_reason}
        rows += [skipped | {"metric": name, "n_context": n} for n in curve.skipped]
        if area_metric and (curve.failed & (curve.is_in_area | curve.is_ragged)).any():
            rows.append(failed | {"metric": area_metric})
        elif area_metric and curve.skipped:
            rows.append(skipped | {"metric": area_metric})
        elif area_metric:
            means = curve.area(name)[:, None]
            area_summaries = (
                _summary_over_events(curve, name, prompts) if curve.is_ragged else summaries(means, prompts.seed)
            )
            rows += [shared | {"metric": area_metric} | s for s in area_summaries if s["n_episodes"]]
    # For streams, also add means over all scored elements, and scores of complete sequences. Sequences differ in the
    # number of scored elements, so each mean over elements is a ratio of sums over the sequences.
    is_complete_stream = not prompts.family.x_dim and not curve.skipped
    if is_complete_stream and curve.scored is not None and not curve.failed.any():
        counts = curve.scored.sum(1)
        sequence_summaries = {name: _summary_over_events(curve, name, prompts) for name in curve.scores}
        for name, scores in curve.sequence_scores.items():
            if metric(name).per_event:
                sequence_summaries[name] = [ratio_summary(scores, counts, prompts.seed)]
            else:
                sequence_summaries[name] = summaries(scores[:, None], prompts.seed)
        for name, summary in sequence_summaries.items():
            shared = cells.shared_columns(contestant, prompts, "next") | {
                "normaliser": metric(name).normaliser(curve.normaliser)
            }
            rows += [shared | {"metric": name} | s for s in summary if s["n_episodes"]]
    return rows


def _summary_over_events(curve: Curve, name: str, prompts: PromptSet) -> list[dict[str, object]]:
    """Return the summary of a metric over all events."""
    return [ratio_summary(*curve.totals(name), prompts.seed)]


def _total_rows(contestant: PredictorContestant, prompts: PromptSet, curve: Curve) -> pd.DataFrame:
    """Return rows of the table `errors` with the number of events of each episode and the sum of the headline metric.

    The sum includes the open interval of the episode.
    """
    totals, counts = curve.totals(prompts.headline)
    columns = {
        "run": contestant.run,
        "prompt_set": prompts.id,
        "metric": prompts.headline,
        "episode": np.arange(len(totals)),
        "value": totals,
        "n_events": counts,
    }
    return tables.frame("errors", pd.DataFrame(columns))
