"""Scores of single episodes on some prompt sets, for paired comparisons and for bins of the context size."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pandas as pd

from iclbench.core.metrics import metric as metric_of
from iclbench.tables.curves import MEAN_HEIGHT, has_heights, heights, ratios


class EpisodeScores:
    """Scores of single episodes from tables of errors, by question.

    For the question `next` an episode has a score at every context size, or only the mean height of its curve (a row
    without a context size). Packed tables have mean heights only; event sequences in observation windows have both. For
    `targets` an episode has one context size and a score for every number of related datasets.

    Args:
        frames: tables of errors; for each run, prompt set and metric, the first table with scores is used.
        prompt_sets: the prompt sets to read; rows of others are ignored.
    """

    def __init__(self, frames: Iterable[pd.DataFrame], prompt_sets: set[str]) -> None:
        self._curves: dict[tuple[str, str, str], pd.DataFrame] = {}
        self._means: dict[tuple[tuple[str, ...], str, str], pd.DataFrame | None] = {}
        self._targets: dict[tuple[str, str, str, int], pd.Series] = {}
        self._sizes: dict[str, pd.Series] = {}
        for frame in frames:
            has_size = frame["n_context"].notna() | frame["n_related"].isna()
            scores = frame[frame["prompt_set"].isin(prompt_sets) & has_size]
            scores = scores.assign(n_context=scores["n_context"].fillna(MEAN_HEIGHT))
            is_targets = scores["n_related"].notna()
            for (run, prompt_set, metric), rows in scores[~is_targets].groupby(["run", "prompt_set", "metric"]):
                rows = _per_event(rows)
                # The tables have unique keys, so unstacking needs no aggregation, which would take most of the time.
                wide = rows.set_index(["episode", "n_context"])["value"].unstack().astype(float)  # noqa: PD010
                self._curves.setdefault((str(run), str(prompt_set), str(metric)), wide)
            keys = ["run", "prompt_set", "metric", "n_related"]
            for (run, prompt_set, metric, related), rows in scores[is_targets].groupby(keys):
                by_episode = rows.set_index("episode").sort_index()
                key = (str(run), str(prompt_set), str(metric), int(str(related)))
                self._targets.setdefault(key, by_episode["value"].astype(float))
                sizes = self._sizes.get(str(prompt_set))
                if sizes is None or len(sizes) < len(by_episode):
                    self._sizes[str(prompt_set)] = by_episode["n_context"].astype(int)

    def curves(self, runs: Sequence[str], prompt_set: str, metric: str) -> pd.DataFrame | None:
        """Question `next`: episodes x context sizes (or only the column `MEAN_HEIGHT`), averaged over runs; None unless
        every run has scores."""
        key = (tuple(runs), prompt_set, metric)
        if key not in self._means:
            self._means[key] = self._mean(*key)
        return self._means[key]

    def _mean(self, runs: Sequence[str], prompt_set: str, metric: str) -> pd.DataFrame | None:
        curves = [frame for run in runs if (frame := self._curves.get((run, prompt_set, metric))) is not None]
        if not curves or len(curves) < len(runs):
            return None
        if any(has_heights(frame) for frame in curves):
            curves = [heights(frame).to_frame(MEAN_HEIGHT) for frame in curves]
        mean = curves[0] if len(curves) == 1 else pd.concat(curves).groupby(level=0).mean()
        return mean if metric_of(metric).of_sequences else mean.dropna(axis=1)

    def targets(self, runs: Sequence[str], prompt_set: str, metric: str, related: int) -> pd.Series | None:
        """Question `targets`: the score of every episode, averaged over runs; None unless every run has scores."""
        keys = [(run, prompt_set, metric, related) for run in runs]
        scores = [series for key in keys if (series := self._targets.get(key)) is not None]
        if not scores or len(scores) < len(runs):
            return None
        return pd.concat(scores).groupby(level=0).mean()

    def context_sizes(self, prompt_set: str) -> pd.Series | None:
        """Question `targets`: the number of context points of every episode."""
        return self._sizes.get(prompt_set)


def _per_event(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows of a curve with sums over events converted to values per event, see `ratios`."""
    is_sum = rows["n_events"].notna()
    if not is_sum.any():
        return rows
    totals, counts = (rows.loc[is_sum, name].to_numpy(float) for name in ("value", "n_events"))
    return pd.concat([rows[~is_sum], rows[is_sum].assign(value=ratios(totals, counts))])
