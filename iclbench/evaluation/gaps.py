"""The gap to the oracle: how much log-likelihood a contestant leaves on the table, paired per episode. Of events
(question `next`) after every number of them.

The oracle knows what the contestants have to infer, so the gap is what its knowledge is worth plus what the contestant
makes of the data; the gap of a Bayes-optimal predictor that has to infer it, too, is its first part. So that the two
can be set off against each other, all gaps of a prompt set are over the episodes that every oracle was asked.

A joint log-likelihood has a gap of its own (`gap_joint`): what is lost by predictors whose targets are independent of
one another, too.

A prompt set has a ceiling of its own, which strays from that of the task. Where the family knows the latter, a score
is also given adjusted to it, minus the set's ceiling plus the task's: it can be compared with a number that was
published for other draws. That is the task's ceiling minus the gap.
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
from iclbench.store.runs import writing
from iclbench.tables.curves import heights

ADJUSTED = "log_likelihood_adjusted"
# Likelihoods of the question `targets`, and what the gap to the oracle's is called.
GAPS = dict(zip(tables.LIKELIHOODS, ("gap", "gap_joint"), strict=True))
_SHARED = [
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
    """Write the gaps of all contestants of a prompt set; no file where there are none."""
    results, prompts = prompt_rows.results, prompt_rows.prompts
    path = results / "tables" / prompts.id / "summary" / "gaps.values.parquet"
    rows_of = next_gap_rows if prompts.task.question == "next" else gap_rows
    rows = rows_of(prompt_rows.values, prompt_rows.errors, prompts) if prompts.task.oracles else []
    if not rows:
        remove(path)
        return
    frames = [tables.frame("values", rows)]
    if prompts.task.question == "next":
        frames.append(prompt_rows.packed_values[prompt_rows.packed_values["metric"].eq("gap")])
    with writing(results):
        tables.write("values", tables.union("values", frames), path, {"oracle": prompts.task.oracles[0]})


def gap_rows(values: pd.DataFrame, errors: pd.DataFrame, prompts: PromptSet) -> list[dict[str, object]]:
    """Rows `gap` of all contestants of a prompt set: mean log-likelihood of the task's first oracle minus theirs, on
    the episodes that all oracles were asked; none where the task has no oracle or it was not asked. An oracle that
    uses related datasets is compared at the same number of them. Rows `gap_joint` by the joint log-likelihood.

    Rows `log_likelihood_adjusted` where the family knows what the oracle scores on average over the whole task.

    Args:
        values: the rows of all contestants on these prompts.
        errors: their scores of single episodes.
        prompts: the prompt set.
    """
    if not _is_oracle(values, prompts):
        return []
    rows = [row for metric in GAPS for row in _gap_rows(values, errors, prompts, metric)]
    return rows if any(row["metric"] == "gap" for row in rows) else []


def _gap_rows(
    values: pd.DataFrame, errors: pd.DataFrame, prompts: PromptSet, likelihood: str
) -> list[dict[str, object]]:
    """The gaps by one likelihood, and the adjusted rows of marginal ones."""
    errors = errors[errors["metric"] == likelihood]
    oracle = prompts.task.oracles[0]
    ceiling = _by_episode(errors[errors["run"] == oracle], len(prompts.episodes))
    if not len(ceiling.columns):
        return []
    known_on_average = prompts.family.ceiling(oracle, prompts.context_points, prompts.shift)
    if likelihood != "log_likelihood":
        known_on_average = None
    asked_of_all = _asked_of_all(errors, prompts)
    values = values[values["status"].eq("ok") & values["metric"].eq(likelihood)]
    rows: list[dict[str, object]] = []
    for run, run_errors in errors.groupby("run"):
        run_values = values[values["run"] == run]
        if run_values.empty:
            continue
        shared = {str(name): value for name, value in run_values.iloc[0][_SHARED].dropna().items()} | {
            "normaliser": 1.0
        }
        if run == oracle:
            rows += [] if known_on_average is None else [shared | _of_the_task(known_on_average)]
            continue
        scores = _by_episode(run_errors, len(prompts.episodes))
        counts = tuple(int(n) for n in scores.columns)
        best = ceiling.reindex(columns=counts) if len(ceiling.columns) > 1 else ceiling
        gaps = np.where(asked_of_all[:, None], best.to_numpy() - scores.to_numpy(), np.nan)
        gap_means = mean_rows(shared | {"metric": GAPS[likelihood]}, prompts, counts, gaps)
        rows += gap_means
        if known_on_average is not None:
            rows += [_adjusted(row, known_on_average) for row in gap_means if "axis" not in row]
    return rows


def next_gap_rows(values: pd.DataFrame, errors: pd.DataFrame, prompts: PromptSet) -> list[dict[str, object]]:
    """Rows `gap` of all contestants of a prompt set of events: their negative log-likelihood after n events minus that
    of the task's first oracle, and the mean height of this curve; the other arguments as in `gap_rows`.

    Of an oracle that is packed the mean height alone is known. Contestants that are packed have no rows here: their
    gaps are packed, too, and do not depend on contestants that are evaluated later.
    """
    curves = errors[errors["metric"].eq("nll") & errors["n_context"].notna()]
    run_values = values[values["status"].eq("ok") & values["metric"].eq("nll")].drop_duplicates("run").set_index("run")
    if not _is_oracle(values, prompts):
        return []
    oracle = prompts.task.oracles[0]
    episodes, rows = range(len(prompts.episodes)), []
    wide = {
        str(run): run_rows.pivot_table(values="value", index="episode", columns="n_context")
        .reindex(episodes)
        .astype(float)
        for run, run_rows in curves.groupby("run")
    }
    packed = errors[errors["run"].eq(oracle) & errors["metric"].eq("nll") & errors["n_context"].isna()]
    for run in sorted(wide.keys() & set(run_values.index) - {oracle}):
        row: Any = run_values.loc[run]
        shared = {name: row[name] for name in _SHARED if name in row and pd.notna(row[name])}
        shared |= {"run": run, "metric": "gap", "normaliser": 1.0}
        if oracle in wide:
            gaps = wide[run] - wide[oracle]
            columns = zip(gaps.columns, summaries(gaps.to_numpy(float), prompts.seed), strict=True)
            rows += [shared | {"n_context": int(n)} | run_rows for n, run_rows in columns if run_rows["n_episodes"]]
            height = heights(gaps)
        else:
            height = heights(wide[run]) - packed.set_index("episode")["value"].astype(float).reindex(episodes)
        rows += [
            shared | run_rows
            for run_rows in summaries(height.to_numpy(float)[:, None], prompts.seed)
            if run_rows["n_episodes"]
        ]
    return rows


def _is_oracle(values: pd.DataFrame, prompts: PromptSet) -> bool:
    """Whether the task's first oracle was asked, and is one on these prompts."""
    is_first = values["run"].isin(prompts.task.oracles[:1])
    return bool((is_first & values["kind"].eq("oracle")).any())


def _asked_of_all(errors: pd.DataFrame, prompts: PromptSet) -> np.ndarray:
    """Which episodes every oracle was asked that has any likelihood."""
    episodes = range(len(prompts.episodes))
    episodes_of_oracles = [
        run_errors["episode"] for run, run_errors in errors.groupby("run") if run in prompts.task.oracles
    ]
    return np.all([np.isin(episodes, run_errors) for run_errors in episodes_of_oracles], axis=0)


def _of_the_task(ceiling: Ceiling) -> dict[str, object]:
    """The row of the oracle itself: what it scores on average over the whole task."""
    half = 1.96 * ceiling.error
    ends = {"value": ceiling.value, "low": ceiling.value - half, "high": ceiling.value + half}
    return {"metric": ADJUSTED, "n_related": 0, **ends}


def _adjusted(gap: Mapping[str, Any], ceiling: Ceiling) -> dict[str, object]:
    """The score that has this gap under the task's ceiling."""
    ends = {"value": gap["value"], "low": gap["high"], "high": gap["low"]}
    return {**gap, "metric": ADJUSTED, **{name: ceiling.value - end for name, end in ends.items()}}


def _by_episode(errors: pd.DataFrame, episodes: int) -> pd.DataFrame:
    """Episodes x numbers of related datasets; NaN where not asked."""
    wide = errors.pivot_table(values="value", index="episode", columns="n_related")
    return wide.reindex(range(episodes)).astype(float)
