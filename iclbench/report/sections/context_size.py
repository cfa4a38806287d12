"""Log-likelihood against the size of the context; for images against the share of observed pixels."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pandas as pd

from iclbench.analysis.pairs import mean_of
from iclbench.analysis.target_scores import main_counts, overall, repeated_over_counts
from iclbench.report.blocks import Section
from iclbench.report.data import Slice
from iclbench.report.drawn_episodes import pixels
from iclbench.report.figures import targets
from iclbench.report.titles import related_title

# Bins of equally many episodes: at least so many in each, and at most so many bins.
_EPISODES, _BINS = 16, 10


def section(task: Slice) -> Section | None:
    prompt_set = task.target_prompts
    sizes = None if prompt_set is None else task.results.errors.context_sizes(prompt_set)
    if prompt_set is None or sizes is None or sizes.nunique() < 4 or len(sizes) < 3 * _EPISODES:
        return None
    lines = overall(task.targets_by_run, "log_likelihood")
    lines = lines[(lines["shift"] == "none") & lines["n_related"].isin(main_counts(lines))]
    total = pixels(task.examples)
    per_point = 100 / total if total else 1.0
    rows = pd.DataFrame(_binned(task, lines, prompt_set, sizes, per_point))
    if rows.empty:
        return None
    counts = main_counts(rows)
    beside = repeated_over_counts(rows, counts)
    along = "the share of observed pixels" if total else "the number of context points"
    across = (
        targets.XAxis("size", "observed pixels (%)", "% observed")
        if total
        else targets.XAxis("size", "context points", "context points")
    )
    figure = targets.figure(
        task,
        {related_title(n): beside[beside["n_related"] == n] for n in counts},
        across,
        name="context-size",
        title=f"{task.task}: log-likelihood against {along}",
        caption=f"Log-likelihood per target (nats, higher is better) against {along}, in bins of equal size.",
    )
    return Section(f"{task.id}-context-size", "Context size", (figure,))


def _binned(
    task: Slice, lines: pd.DataFrame, prompt_set: str, sizes: pd.Series, per_point: float
) -> Iterator[dict[str, object]]:
    """A row per run, number of related datasets and bin, with Student's t interval over the bin's episodes."""
    number = min(_BINS, len(sizes) // _EPISODES)
    edges = np.unique(np.quantile(sizes, np.linspace(0, 1, number + 1)[1:-1]))
    bins = pd.Series(np.searchsorted(edges, sizes.to_numpy(), side="left"), index=sizes.index)
    keys = ["metric", "shift", "kind", "contestant", "run", "n_related", "axis", "axis_value"]
    for line in lines[keys].to_dict("records"):
        scores = task.results.errors.targets([line["run"]], prompt_set, "log_likelihood", int(line["n_related"]))
        if scores is None:
            continue
        for _, own in scores.groupby(bins):
            if len(own) > 1:
                mean = mean_of(own.to_numpy(float))
                at = float(sizes[own.index].mean()) * per_point
                yield {str(k): v for k, v in line.items()} | {
                    "size": at,
                    "value": mean.value,
                    "low": mean.low,
                    "high": mean.high,
                    "n_episodes": len(own),
                }
