"""Scores by number of training steps, from runs and from the shorter training runs that branch off from them.

The learning rate of a branch of N steps decays as in a run of N steps. The scores of a branch are therefore comparable
with the scores of other runs of N steps. Scores in the middle of a longer run are not, because its learning rate has
not decayed yet.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from iclbench.analysis.normalised import Contest
from iclbench.analysis.slices import is_branch
from iclbench.core.metrics import metric
from iclbench.tables.means import means_over_seeds
from iclbench.tables.related import without_related


def by_run(contest: Contest) -> pd.DataFrame:
    """Scores of single runs at the end of each branch and at the end of the run.

    Columns contestant, run, steps, share (of the run's steps) and score. The frame is empty if no run has branches or
    if the span between the scores 0 and 1 is unknown.
    """
    columns = ["contestant", "run", "steps", "share", "score"]
    scores = contest.rows[contest.rows["kind"].eq("backbone")].set_index("run")
    rows = contest.task.rows
    rows = rows[rows["evaluator"].eq(contest.evaluator) & rows["shift"].eq("none") & rows["status"].eq("ok")]
    rows = rows[rows["run"].isin(scores.index) & rows["trained_on"].isna() & rows["stratum"].isna()]
    rows = without_related(rows[rows["axis"].isna() | is_branch(rows)])
    rows = rows[rows["metric"].eq("auc" if contest.evaluator == "next" else contest.metric) & rows["n_context"].isna()]
    final_values, branches = rows[rows["axis"].isna()].set_index("run")["value"], rows[is_branch(rows)]
    last_steps = _last_steps(contest)
    branches = branches[branches["run"].isin(final_values.index) & branches["run"].isin(list(last_steps))]
    if branches.empty or np.isnan(contest.span):
        return pd.DataFrame(columns=columns)
    sign = 1.0 if metric(contest.metric).lower_is_better else -1.0
    behind = sign * (branches["value"].astype(float) - branches["run"].map(final_values)) / contest.span
    branch_scores = branches.assign(
        steps=branches["axis_value"].astype(float),
        score=branches["run"].map(scores["value"].astype(float)) - behind,
    )
    final = scores.loc[sorted(set(branch_scores["run"]))].reset_index()
    final = final.assign(steps=final["run"].map(last_steps).astype(float), score=final["value"].astype(float))
    all_scores = pd.concat([branch_scores, final])
    all_scores = all_scores.assign(share=all_scores["steps"] / all_scores["run"].map(last_steps).astype(float))[columns]
    return all_scores.sort_values(["contestant", "run", "steps"], ignore_index=True)


def _last_steps(contest: Contest) -> dict[str, float]:
    """The number of training steps of every run."""
    rows = contest.task.rows
    curve = rows[rows["evaluator"].eq("train") & rows["axis"].eq("train_step").fillna(False)]
    return {str(run): float(step) for run, step in curve.groupby("run")["axis_value"].max().items()}


def means(contest: Contest) -> pd.DataFrame:
    """Scores by number of training steps, averaged over seeds. Numbers of steps for which only some runs of a
    contestant have a score are omitted.

    Columns contestant, kind, steps, share (of the run's steps), value, low, high (the lowest and the highest score over
    seeds), runs, run.
    """
    rows = by_run(contest).rename(columns={"score": "value"}).assign(kind="backbone")
    seed_means = means_over_seeds(rows, ["contestant", "kind", "steps", "share"])
    all_runs = seed_means.groupby("contestant")["runs"].transform("max")
    seed_means = seed_means[seed_means["runs"].eq(all_runs)]
    return seed_means.assign(low=seed_means["lowest"], high=seed_means["highest"])


def kendall(a: pd.Series, b: pd.Series) -> float:
    """Kendall's tau-b between two series of scores, over the contestants in both; NaN for fewer than three
    contestants."""
    from scipy import stats

    common = a.index.intersection(b.index)
    return float(stats.kendalltau(a[common], b[common]).statistic) if len(common) > 2 else float("nan")


def ranks(scores: pd.Series) -> pd.Series:
    """The rank of each score, the highest first; equal scores share the smallest of their ranks."""
    return scores.rank(ascending=False, method="min")


def scores_at_flops(training_scores: pd.DataFrame, flops: float) -> pd.Series:
    """Scores at a given number of training FLOPs, interpolated linearly in the logarithm of FLOPs.

    Contestants are omitted if all of their training runs have fewer FLOPs, or all have more.

    Args:
        training_scores: columns contestant, flops and value, a row per training run.
        flops: floating-point operations of a training run.
    """
    scores = {}
    for name, rows in training_scores.groupby("contestant"):
        rows = rows.sort_values("flops")
        if rows["flops"].iloc[0] <= flops <= rows["flops"].iloc[-1]:
            scores[str(name)] = float(np.interp(np.log(flops), np.log(rows["flops"]), rows["value"].astype(float)))
    return pd.Series(scores, dtype=float)


def shared_flops(training_scores: pd.DataFrame) -> float:
    """The largest number of FLOPs that every contestant reaches in its longest training run."""
    return float(training_scores.groupby("contestant")["flops"].max().min())


def mean_over_contests(contest_scores: Sequence[pd.Series]) -> pd.Series:
    """The mean score over contests, for each contestant with a score in every contest."""
    return pd.concat(contest_scores, axis=1).dropna().mean(axis=1)
