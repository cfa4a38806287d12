"""The gap to the oracle: how much log-likelihood a contestant leaves on the table, paired per episode.

The oracle knows what the contestants have to infer, so the gap is what its knowledge is worth plus what the contestant
makes of the data; the gap of a Bayes-optimal predictor that has to infer it, too, is its first part.
"""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from iclbench import tables
from iclbench.evaluation.prompts import PromptSet
from iclbench.evaluation.targets import mean_rows
from iclbench.files import remove
from iclbench.runs import writing

_SHARED = [
    "run", "task", "family", "contestant", "kind", "preset", "seed", "variant", "shift", "evaluator", "prompt_set",
    "card", "status", "version",
]  # fmt: skip


def write_gaps(results: Path, prompts: PromptSet) -> None:
    """Rows `gap` of all contestants of a prompt set: mean log-likelihood of the task's first oracle minus theirs, on
    the same episodes; no file where the task has no oracle or it was not asked. An oracle that uses related datasets
    stands beside who was given as many."""
    folder = results / "tables" / prompts.id
    path = folder / "summary" / "gaps.values.parquet"
    errors = tables.read_all("errors", folder).query("metric == 'log_likelihood'")
    oracle = prompts.task.oracles[0] if prompts.task.oracles else ""
    ceiling = _by_episode(errors[errors["run"] == oracle], len(prompts.episodes))
    if not len(ceiling.columns):
        remove(path)
        return
    values = tables.read_all("values", folder).query("status == 'ok' and metric == 'log_likelihood'")
    rows: list[dict[str, object]] = []
    for run, own in errors.groupby("run"):
        known = values[values["run"] == run]
        if run == oracle or known.empty:
            continue
        scores = _by_episode(own, len(prompts.episodes))
        counts = tuple(int(n) for n in scores.columns)
        best = ceiling.reindex(columns=counts) if len(ceiling.columns) > 1 else ceiling
        gaps = best.to_numpy() - scores.to_numpy()
        shared = {str(name): value for name, value in known.iloc[0][_SHARED].dropna().items()}
        rows += mean_rows(shared | {"metric": "gap", "normaliser": 1.0}, prompts, counts, gaps)
    if not rows:
        remove(path)
        return
    with writing(results):
        tables.write("values", rows, path, {"oracle": oracle})


def _by_episode(errors: pd.DataFrame, episodes: int) -> pd.DataFrame:
    """Episodes x numbers of related datasets; NaN where not asked."""
    wide = errors.pivot_table(values="value", index="episode", columns="n_related")
    return wide.reindex(range(episodes)).astype(float)
