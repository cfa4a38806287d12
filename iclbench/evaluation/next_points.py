"""The question `next`: every episode's score at every context size, and the area under its learning curve."""

from __future__ import annotations

import numpy as np
import pandas as pd

from iclbench import tables
from iclbench.core.measure import Measure
from iclbench.core.memory import IN_EVALUATION, advised
from iclbench.core.metrics import metric
from iclbench.evaluation import cells
from iclbench.evaluation.bootstrap import ratio_summary, summaries
from iclbench.evaluation.contestants import PredictorContestant
from iclbench.evaluation.curves import Curve, learning_curve
from iclbench.evaluation.prompts import PromptSet


def score_next(contestant: PredictorContestant, prompts: PromptSet) -> cells.Tables:
    """The tables of one contestant by the question `next`."""
    prompts.episodes  # noqa: B018  (drawn before the clock starts: all contestants share them)
    with advised(IN_EVALUATION), Measure(contestant.device) as cost:
        curve = learning_curve(contestant.predictor, prompts, device=contestant.device)
    # No paired comparison with a curve that has holes: it would be over the sizes that are left.
    complete_scores = {} if curve.failed.any() or curve.skipped else curve.scores
    errors = cells.error_rows(contestant, prompts, complete_scores, n_context=np.asarray(curve.prefixes))
    if complete_scores and curve.opened is not None:
        errors = tables.union("errors", [tables.frame("errors", errors), _totals(contestant, prompts, curve)])
    return {
        "errors": errors,
        # What was asked up to some size costs less than the whole.
        "costs": [] if curve.skipped else cells.cost_rows(contestant, prompts, cost),
        "values": _value_rows(contestant, prompts, curve),
    }


def _value_rows(contestant: PredictorContestant, prompts: PromptSet, curve: Curve) -> cells.Rows:
    rows: cells.Rows = []
    for name, scores in curve.scores.items():
        normaliser = metric(name).normaliser(curve.normaliser)
        area = metric(name).area if name == prompts.headline else ""
        shared = cells.row(contestant, prompts, "next") | {"normaliser": normaliser}
        failed = shared | {"status": "failed", "reason": curve.problem}
        columns = zip(curve.prefixes, curve.failed, summaries(scores, prompts.seed), strict=True)
        rows += [
            (failed if bad else shared | summary) | {"metric": name, "n_context": n}
            for n, bad, summary in columns
            if bad or summary["n_episodes"]
        ]
        skipped = shared | {"status": "skipped", "reason": curve.reason}
        rows += [skipped | {"metric": name, "n_context": n} for n in curve.skipped]
        if area and (curve.failed & (curve.sizes | curve.ragged)).any():
            rows.append(failed | {"metric": area})
        elif area and curve.skipped:
            rows.append(skipped | {"metric": area})
        elif area:
            means = curve.area(name)[:, None]
            height = _ratio(curve, name, prompts) if curve.ragged else summaries(means, prompts.seed)
            rows += [shared | {"metric": area} | s for s in height if s["n_episodes"]]
    # Sequences are of different lengths: what a metric is per event is a ratio of sums over all of them, too.
    if curve.sequences and curve.asked is not None and not curve.failed.any():
        counts = curve.asked.sum(1)
        of_all = {name: _ratio(curve, name, prompts) for name in curve.scores}
        for name, scores in curve.sequences.items():
            per_event = metric(name).per_event
            of_all[name] = (
                [ratio_summary(scores, counts, prompts.seed)] if per_event else summaries(scores[:, None], prompts.seed)
            )
        for name, summary in of_all.items():
            shared = cells.row(contestant, prompts, "next") | {"normaliser": metric(name).normaliser(curve.normaliser)}
            rows += [shared | {"metric": name} | s for s in summary if s["n_episodes"]]
    return rows


def _ratio(curve: Curve, name: str, prompts: PromptSet) -> list[dict[str, object]]:
    """Summary of a metric over all events."""
    return [ratio_summary(*curve.totals(name), prompts.seed)]


def _totals(contestant: PredictorContestant, prompts: PromptSet, curve: Curve) -> pd.DataFrame:
    """Rows of the table `errors` with the sum of the headline over every episode, open interval included, and the
    number of its events."""
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
