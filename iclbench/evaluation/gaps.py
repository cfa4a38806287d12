"""The gap to the oracle: the log-likelihood of the oracle minus the log-likelihood of a contestant, paired by episode.

For events (question `next`), a gap is computed after each number of events.

The oracle has access to latent variables that contestants must infer. The gap of a contestant is therefore the sum of
two parts: the value of this information, and the contestant's own error. The gap of a Bayes-optimal predictor without
access to the latent variables is the first part. To make these gaps comparable, all gaps on a prompt set are computed
on the episodes that all oracles predicted.

The gap of the joint log-likelihood (`gap_joint`) also includes the loss from predicting the targets independently.

The oracle's mean likelihood on a prompt set differs from its expected likelihood over the task, the ceiling. If the
family provides the ceiling (`Family.ceiling`), adjusted scores are computed as the ceiling minus the gap. They can be
compared with published numbers, which were computed on other samples.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from iclbench import tables
from iclbench.core.files import remove
from iclbench.evaluation.bootstrap import summaries
from iclbench.evaluation.prompt_set_rows import PromptSetRows
from iclbench.evaluation.prompts import PromptSet
from iclbench.evaluation.targets import mean_rows
from iclbench.families.base import Ceiling
from iclbench.store.runs import write_errors
from iclbench.tables.curves import mean_heights

ADJUSTED = "log_likelihood_adjusted"
# For the question `targets`: for each likelihood, the name of the gap that is computed from it.
GAPS = dict(zip(tables.LIKELIHOODS, ("gap", "gap_joint"), strict=True))
_SHARED_COLUMNS = [
    "run",
    "task",
    "family",
    "data",
    "trained_data",
    "contestant",
    "model",
    "method",
    "kind",
    "preset",
    "seed",
    "variant",
    "tuned",
    "trained_on",
    "context_order",
    "shift",
    "distribution",
    "extrapolated_to",
    "related_from",
    "evaluator",
    "prompt_set",
    "card",
    "status",
    "version",
    "commit",
]


def write_gaps(prompt_rows: PromptSetRows) -> None:
    """Write the gaps of all contestants on a prompt set, or remove the file of gaps if no contestant has a gap."""
    results, prompts = prompt_rows.results, prompt_rows.prompts
    path = results / "tables" / prompts.id / "summary" / "gaps.values.parquet"
    rows_of = next_gap_rows if prompts.task.question == "next" else gap_rows
    rows = rows_of(prompt_rows.values, prompt_rows.errors, prompts) if prompts.task.oracles else []
    frames = [tables.frame("values", rows)]
    if prompts.task.question == "next" and prompts.task.oracles:
        # Gaps after single events cannot be computed from packed errors.
        frames.append(prompt_rows.packed_values[prompt_rows.packed_values["metric"].eq("gap")])
    gaps = tables.union("values", frames)
    if gaps.empty:
        remove(path)
        return
    with write_errors(results):
        tables.write("values", gaps, path, {"oracle": prompts.task.oracles[0]})


def gap_rows(values: pd.DataFrame, errors: pd.DataFrame, prompts: PromptSet) -> list[dict[str, object]]:
    """Return rows `gap`, `gap_joint` and `log_likelihood_adjusted` for all contestants on a prompt set.

    The gap is the mean log-likelihood of the task's first oracle minus the mean log-likelihood of the contestant, on
    the episodes that all oracles predicted. If the oracle uses related datasets, it is compared with contestants that
    have the same number of them. The result is empty if the task has no oracle or if the oracle was not evaluated. It
    has no adjusted rows if the family does not provide the expected score of the oracle.

    Args:
        values: rows of the table `values` for all contestants on these prompts.
        errors: the contestants' scores of single episodes.
        prompts: the prompt set.
    """
    if not _has_oracle(values, prompts):
        return []
    rows = [row for metric in GAPS for row in _likelihood_gap_rows(values, errors, prompts, metric)]
    return rows if any(row["metric"] == "gap" for row in rows) else []


def _likelihood_gap_rows(
    values: pd.DataFrame, errors: pd.DataFrame, prompts: PromptSet, likelihood: str
) -> list[dict[str, object]]:
    """Return the rows of gaps in one likelihood; for the marginal likelihood, also the adjusted rows."""
    errors = errors[errors["metric"] == likelihood]
    oracle = prompts.task.oracles[0]
    all_oracle_scores = _by_episode(errors[errors["run"] == oracle], len(prompts.episodes))
    if not len(all_oracle_scores.columns):
        return []
    task_ceiling = prompts.family.ceiling(oracle, prompts.context_points, prompts.shift)
    if likelihood != "log_likelihood":
        task_ceiling = None
    is_common = _is_predicted_by_all_oracles(errors, prompts)
    values = values[values["status"].eq("ok") & values["metric"].eq(likelihood)]
    rows: list[dict[str, object]] = []
    for run, run_errors in errors.groupby("run"):
        run_values = values[values["run"] == run]
        if run_values.empty:
            continue
        shared = {str(name): value for name, value in run_values.iloc[0][_SHARED_COLUMNS].dropna().items()} | {
            "normaliser": 1.0
        }
        if run == oracle:
            rows += [] if task_ceiling is None else [shared | _ceiling_row(task_ceiling)]
            continue
        scores = _by_episode(run_errors, len(prompts.episodes))
        counts = tuple(int(n) for n in scores.columns)
        has_counts = len(all_oracle_scores.columns) > 1
        oracle_scores = all_oracle_scores.reindex(columns=counts) if has_counts else all_oracle_scores
        gaps = np.where(is_common[:, None], oracle_scores.to_numpy() - scores.to_numpy(), np.nan)
        gap_means = mean_rows(shared | {"metric": GAPS[likelihood]}, prompts, counts, gaps)
        rows += gap_means
        if task_ceiling is not None:
            rows += [_adjusted_row(row, task_ceiling) for row in gap_means if "axis" not in row]
    return rows


def next_gap_rows(values: pd.DataFrame, errors: pd.DataFrame, prompts: PromptSet) -> list[dict[str, object]]:
    """Return rows `gap` for all contestants on a prompt set of events; the arguments are as in `gap_rows`.

    The gap after n events is the negative log-likelihood of the contestant minus that of the task's first oracle. For
    each contestant, an additional row contains the mean height of this curve. If the oracle comes from packed results,
    this row is the only one. The result has no rows for packed contestants, because packed results already contain
    their gaps.
    """
    curves = errors[errors["metric"].eq("nll") & errors["n_context"].notna()]
    run_values = values[values["status"].eq("ok") & values["metric"].eq("nll")].drop_duplicates("run").set_index("run")
    if not _has_oracle(values, prompts):
        return []
    oracle = prompts.task.oracles[0]
    episodes, rows = range(len(prompts.episodes)), []
    nll_by_run = {
        str(run): run_rows.pivot_table(values="value", index="episode", columns="n_context")
        .reindex(episodes)
        .astype(float)
        for run, run_rows in curves.groupby("run")
    }
    packed_oracle = errors[errors["run"].eq(oracle) & errors["metric"].eq("nll") & errors["n_context"].isna()]
    for run in sorted(nll_by_run.keys() & set(run_values.index) - {oracle}):
        row: Any = run_values.loc[run]
        shared = {name: row[name] for name in _SHARED_COLUMNS if name in row and pd.notna(row[name])}
        shared |= {"run": run, "metric": "gap", "normaliser": 1.0}
        if oracle in nll_by_run:
            gaps = nll_by_run[run] - nll_by_run[oracle]
            columns = zip(gaps.columns, summaries(gaps.to_numpy(float), prompts.seed), strict=True)
            rows += [shared | {"n_context": int(n)} | summary for n, summary in columns if summary["n_episodes"]]
            height = mean_heights(gaps)
        else:
            height = mean_heights(nll_by_run[run]) - packed_oracle.set_index("episode")["value"].astype(float).reindex(
                episodes
            )
        height_summaries = summaries(height.to_numpy(float)[:, None], prompts.seed)
        rows += [shared | summary for summary in height_summaries if summary["n_episodes"]]
    return rows


def _has_oracle(values: pd.DataFrame, prompts: PromptSet) -> bool:
    """Return whether the task's first oracle was evaluated, and counts as an oracle on these prompts."""
    is_first = values["run"].isin(prompts.task.oracles[:1])
    return bool((is_first & values["kind"].eq("oracle")).any())


def _is_predicted_by_all_oracles(errors: pd.DataFrame, prompts: PromptSet) -> np.ndarray:
    """Return the mask of the episodes for which all oracles have a likelihood. Oracles without any likelihoods are
    ignored."""
    episodes = range(len(prompts.episodes))
    episodes_of_oracles = [
        run_errors["episode"] for run, run_errors in errors.groupby("run") if run in prompts.task.oracles
    ]
    return np.all([np.isin(episodes, oracle_episodes) for oracle_episodes in episodes_of_oracles], axis=0)


def _ceiling_row(ceiling: Ceiling) -> dict[str, object]:
    """Return the columns of the oracle's adjusted row, which contains its expected score over the task."""
    half_width = 1.96 * ceiling.error
    ends = {"value": ceiling.value, "low": ceiling.value - half_width, "high": ceiling.value + half_width}
    return {"metric": ADJUSTED, "n_related": 0, **ends}


def _adjusted_row(gap: Mapping[str, Any], ceiling: Ceiling) -> dict[str, object]:
    """Return the row of the adjusted score that corresponds to the row of a gap."""
    ends = {"value": gap["value"], "low": gap["high"], "high": gap["low"]}
    return {**gap, "metric": ADJUSTED, **{name: ceiling.value - end for name, end in ends.items()}}


def _by_episode(errors: pd.DataFrame, episodes: int) -> pd.DataFrame:
    """Return scores by episode and number of related datasets; NaN for missing scores."""
    wide = errors.pivot_table(values="value", index="episode", columns="n_related")
    return wide.reindex(range(episodes)).astype(float)
