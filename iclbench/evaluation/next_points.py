"""The question `next`: every episode's score at every context size, and the area under its learning curve."""

from __future__ import annotations

import numpy as np

from iclbench.core.measure import Measure
from iclbench.core.memory import IN_EVALUATION, advised
from iclbench.core.metrics import metric
from iclbench.evaluation import cells
from iclbench.evaluation.bootstrap import summaries
from iclbench.evaluation.contestants import PredictorContestant
from iclbench.evaluation.curves import Curve, learning_curve
from iclbench.evaluation.prompts import PromptSet
from iclbench.tables.curves import pooled


def score_next(contestant: PredictorContestant, prompts: PromptSet) -> cells.Tables:
    """The tables of one contestant by the question `next`."""
    prompts.episodes  # noqa: B018  (drawn before the clock starts: everyone shares them)
    with advised(IN_EVALUATION), Measure(contestant.device) as cost:
        curve = learning_curve(contestant.predictor, prompts, contestant.prefixes, contestant.device)
    # No paired comparison with a curve that has holes: it would be over the sizes that are left.
    kept = {} if curve.failed.any() or curve.skipped else curve.scores
    return {
        "errors": cells.error_rows(contestant, prompts, kept, n_context=np.asarray(curve.prefixes)),
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
        found = zip(curve.prefixes, curve.failed, summaries(scores, prompts.seed), strict=True)
        rows += [
            (failed if bad else shared | summary) | {"metric": name, "n_context": n}
            for n, bad, summary in found
            if bad or summary["n_episodes"]
        ]
        skipped = shared | {"status": "skipped", "reason": curve.reason}
        rows += [skipped | {"metric": name, "n_context": n} for n in curve.skipped]
        if area and (curve.failed & (curve.sizes | curve.ragged)).any():
            rows.append(failed | {"metric": area})
        elif area and curve.skipped:
            rows.append(skipped | {"metric": area})
        elif area:
            areas = curve.area(name)[:, None]
            rows += [shared | {"metric": area} | s for s in summaries(areas, prompts.seed) if s["n_episodes"]]
    # Sequences are of different lengths: what a metric is per event is a sum over all of them, too.
    whole: dict[str, np.ndarray] = {}
    if curve.sequences and curve.asked is not None and not curve.failed.any():
        sizes = np.asarray(curve.prefixes)
        there = {name: np.where(curve.asked, scores, np.nan) for name, scores in curve.scores.items()}
        whole = {name: pooled(scores, sizes) for name, scores in there.items()} | curve.sequences
    for name, scores in whole.items():
        shared = cells.row(contestant, prompts, "next") | {"normaliser": metric(name).normaliser(curve.normaliser)}
        rows += [shared | {"metric": name} | s for s in summaries(scores[:, None], prompts.seed) if s["n_episodes"]]
    return rows
