"""Log-likelihood against the size of the context, or against the share of observed pixels for images."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pandas as pd

from iclbench.analysis.pairs import mean_with_interval
from iclbench.analysis.target_scores import main_counts, over_all_episodes, repeat_over_counts
from iclbench.report.blocks import Section
from iclbench.report.data import Slice
from iclbench.report.drawn_episodes import pixel_count
from iclbench.report.figures import targets
from iclbench.report.titles import related_title

# Bins have about equal numbers of episodes: at least `_MIN_EPISODES` per bin on average, in at most `_MAX_BINS` bins.
_MIN_EPISODES, _MAX_BINS = 16, 10


def section(task: Slice) -> Section | None:
    prompt_set = task.target_prompt_set
    sizes = None if prompt_set is None else task.results.errors.context_sizes(prompt_set)
    if prompt_set is None or sizes is None or sizes.nunique() < 4 or len(sizes) < 3 * _MIN_EPISODES:
        return None
    lines = over_all_episodes(task.targets_by_run, "log_likelihood")
    lines = lines[(lines["shift"] == "none") & lines["n_related"].isin(main_counts(lines))]
    n_pixels = pixel_count(task.examples)
    size_of_point = 100 / n_pixels if n_pixels else 1.0
    rows = pd.DataFrame(_bin_rows(task, lines, prompt_set, sizes, size_of_point))
    if rows.empty:
        return None
    n_related = main_counts(rows)
    rows = repeat_over_counts(rows, n_related)
    quantity = "the share of observed pixels" if n_pixels else "the number of context points"
    x_axis = (
        targets.XAxis("size", "observed pixels (%)", "% observed")
        if n_pixels
        else targets.XAxis("size", "context points", "context points")
    )
    figure = targets.figure(
        task,
        {related_title(n): rows[rows["n_related"] == n] for n in n_related},
        x_axis,
        name="context-size",
        title=f"{task.task}: log-likelihood against {quantity}",
        caption=f"Log-likelihood per target (nats, higher is better) against {quantity}, in bins with about equal "
        "numbers of episodes.",
    )
    return Section(f"{task.id}-context-size", "Context size", (figure,))


def _bin_rows(
    task: Slice, lines: pd.DataFrame, prompt_set: str, sizes: pd.Series, size_of_point: float
) -> Iterator[dict[str, object]]:
    """A row per run, number of related datasets and bin, with Student's t interval over the bin's episodes.

    `sizes` contains the number of context points of each episode; `size_of_point` converts it to the unit of the x
    axis.
    """
    n_bins = min(_MAX_BINS, len(sizes) // _MIN_EPISODES)
    edges = np.unique(np.quantile(sizes, np.linspace(0, 1, n_bins + 1)[1:-1]))
    bins = pd.Series(np.searchsorted(edges, sizes.to_numpy(), side="left"), index=sizes.index)
    keys = ["metric", "shift", "kind", "contestant", "run", "n_related", "axis", "axis_value"]
    for line in lines[keys].to_dict("records"):
        scores = task.results.errors.targets([line["run"]], prompt_set, "log_likelihood", int(line["n_related"]))
        if scores is None:
            continue
        for _, in_bin in scores.groupby(bins):
            if len(in_bin) > 1:
                mean = mean_with_interval(in_bin.to_numpy(float))
                yield {str(key): value for key, value in line.items()} | {
                    "size": float(sizes[in_bin.index].mean()) * size_of_point,
                    "value": mean.value,
                    "low": mean.low,
                    "high": mean.high,
                    "n_episodes": len(in_bin),
                }
