"""Scores over training: those of the shorter trainings that branched off from a run, and of the run itself.

A branch of N steps ends as a training of N steps would, its rate brought down, so that it may be compared with others
at N steps; a training in progress may not.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from iclbench.analysis.normalised import Contest
from iclbench.analysis.slices import of_branches
from iclbench.core.metrics import metric
from iclbench.tables.means import over_seeds
from iclbench.tables.related import without_related


def by_run(contest: Contest) -> pd.DataFrame:
    """Scores of single runs, columns contestant, run, steps, share (of all steps) and score: of every branch, and of
    the whole training. Empty where nobody has branches, or nobody knows by what line scores are made."""
    columns = ["contestant", "run", "steps", "share", "score"]
    scores = contest.rows[contest.rows["kind"].eq("backbone")].set_index("run")
    v = contest.task.rows
    v = v[v["evaluator"].eq(contest.evaluator) & v["shift"].eq("none") & v["status"].eq("ok")]
    v = v[v["run"].isin(scores.index) & v["trained_on"].isna() & v["stratum"].isna()]
    v = without_related(v[v["axis"].isna() | of_branches(v)])
    v = v[v["metric"].eq("auc" if contest.evaluator == "next" else contest.metric) & v["n_context"].isna()]
    ends, branches = v[v["axis"].isna()].set_index("run")["value"].astype(float), v[of_branches(v)]
    lasts = _last_steps(contest)
    branches = branches[branches["run"].isin(ends.index) & branches["run"].isin(list(lasts))]
    if branches.empty or np.isnan(contest.span):
        return pd.DataFrame(columns=columns)
    sign = 1.0 if metric(contest.metric).lower_is_better else -1.0
    behind = sign * (branches["value"].astype(float) - branches["run"].map(ends)) / contest.span
    shorter = branches.assign(
        steps=branches["axis_value"].astype(float),
        score=branches["run"].map(scores["value"].astype(float)) - behind,
        contestant=branches["run"].map(scores["contestant"]),
    )
    whole = scores.loc[sorted(set(shorter["run"]))].reset_index()
    whole = whole.assign(steps=whole["run"].map(lasts).astype(float), score=whole["value"].astype(float))
    found = pd.concat([shorter, whole])
    found = found.assign(share=found["steps"] / found["run"].map(lasts).astype(float))[columns]
    return found.sort_values(["contestant", "run", "steps"], ignore_index=True)


def _last_steps(contest: Contest) -> dict[str, float]:
    """The steps of every run's training."""
    v = contest.task.rows
    curve = v[v["evaluator"].eq("train") & v["axis"].eq("train_step").fillna(False)]
    return {str(run): float(step) for run, step in curve.groupby("run")["axis_value"].max().items()}


def means(contest: Contest) -> pd.DataFrame:
    """The same averaged over seeds, at numbers of steps that all runs of a contestant have: columns contestant, kind,
    steps, share (of the whole training), value, low, high (the lowest and highest seed), runs, run."""
    rows = by_run(contest)
    if rows.empty:
        return rows
    rows = rows.rename(columns={"score": "value"}).assign(kind="backbone")
    found = over_seeds(rows, ["contestant", "kind", "steps", "share"])
    most = found.groupby("contestant")["runs"].transform("max")
    found = found[found["runs"].eq(most)]
    return found.assign(low=found["lowest"], high=found["highest"])


def kendall(a: pd.Series, b: pd.Series) -> float:
    """Kendall's tau-b of two scorings of the same contestants; NaN for fewer than three."""
    from scipy import stats

    both = a.index.intersection(b.index)
    return float(stats.kendalltau(a[both], b[both]).statistic) if len(both) > 2 else float("nan")


def at_compute(trained: pd.DataFrame, flops: float) -> pd.Series:
    """Scores of contestants after so many operations: on the straight line, over their logarithm, between two trainings
    that have taken fewer and more. Nobody is there whose shortest training takes more.

    Args:
        trained: columns contestant, flops and value, a row per training.
        flops: at most what every contestant's longest training has taken.
    """
    found = {}
    for name, own in trained.groupby("contestant"):
        own = own.sort_values("flops")
        if own["flops"].iloc[0] <= flops <= own["flops"].iloc[-1]:
            found[str(name)] = float(np.interp(np.log(flops), np.log(own["flops"]), own["value"].astype(float)))
    return pd.Series(found, dtype=float)


def shared_compute(trained: pd.DataFrame) -> float:
    """The most operations that every contestant's longest training has taken."""
    return float(trained.groupby("contestant")["flops"].max().min())


def mean_over(parts: Sequence[pd.Series]) -> pd.Series:
    """The mean over contests of the scores of those who have one in all of them."""
    wide = pd.concat(parts, axis=1)
    return wide.dropna().mean(axis=1)
