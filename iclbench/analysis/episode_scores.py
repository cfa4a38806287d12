"""Scores of single episodes, for paired comparisons and for means over bins of context sizes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from iclbench.core.metrics import metric as metric_of
from iclbench.tables.curves import MEAN_HEIGHT, has_heights, linearised_ratios, mean_heights

_KEYS = ["run", "prompt_set", "metric"]


class EpisodeScores:
    """The scores of single episodes in tables of errors.

    For the question `next`, an episode has a score at every context size, or only the mean height of its learning curve
    (a row without a context size; see `tables.curves`). Packed tables contain only mean heights; tables of event
    sequences in observation windows contain both. For `targets`, an episode has one context size and a score for every
    number of related datasets.

    Args:
        frames: tables of errors. For each run, prompt set and metric, the first table with scores is used.
        prompt_sets: the prompt sets to read. Rows of other prompt sets are ignored.
    """

    def __init__(self, frames: Iterable[pd.DataFrame], prompt_sets: set[str]) -> None:
        # Frames are built on request, because most commands need the frames of only a few runs.
        self._curves: dict[tuple[str, str, str], _Columns] = {}
        self._means: dict[tuple[tuple[str, ...], str, str], pd.DataFrame | None] = {}
        self._targets: dict[tuple[str, str, str, int], _Columns] = {}
        for frame in frames:
            has_size = frame["n_context"].notna() | frame["n_related"].isna()
            scores = frame[frame["prompt_set"].isin(prompt_sets) & has_size]
            is_targets = scores["n_related"].notna()
            for (run, prompt_set, metric), columns in _groups(_per_event(scores[~is_targets]), _KEYS):
                self._curves.setdefault((run, prompt_set, metric), columns)
            for (run, prompt_set, metric, related), columns in _groups(scores[is_targets], [*_KEYS, "n_related"]):
                self._targets.setdefault((run, prompt_set, metric, int(related)), columns)

    def curves(self, runs: Sequence[str], prompt_set: str, metric: str) -> pd.DataFrame | None:
        """The scores for the question `next`, episodes x context sizes (or only the column `MEAN_HEIGHT`), averaged
        over runs; None if a run has no scores."""
        key = (tuple(runs), prompt_set, metric)
        if key not in self._means:
            self._means[key] = self._mean(*key)
        return self._means[key]

    def _mean(self, runs: Sequence[str], prompt_set: str, metric: str) -> pd.DataFrame | None:
        keys = [(run, prompt_set, metric) for run in runs]
        curves = [self._curves[key].by_context_size() for key in keys if key in self._curves]
        if not curves or len(curves) < len(runs):
            return None
        if any(has_heights(frame) for frame in curves):
            curves = [mean_heights(frame).to_frame(MEAN_HEIGHT) for frame in curves]
        mean = curves[0] if len(curves) == 1 else pd.concat(curves).groupby(level=0).mean()
        return mean if metric_of(metric).is_for_sequences else mean.dropna(axis=1)

    def targets(self, runs: Sequence[str], prompt_set: str, metric: str, related: int) -> pd.Series | None:
        """The score of every episode for the question `targets`, averaged over runs; None if a run has no scores."""
        keys = [(run, prompt_set, metric, related) for run in runs]
        scores = [self._targets[key].by_episode() for key in keys if key in self._targets]
        if not scores or len(scores) < len(runs):
            return None
        return pd.concat(scores).groupby(level=0).mean()

    def context_sizes(self, prompt_set: str) -> pd.Series | None:
        """The number of context points of every episode, for the question `targets`; None if the prompt set has no
        scores."""
        tables = [columns for key, columns in self._targets.items() if key[1] == prompt_set]
        longest = max(tables, key=lambda columns: len(columns.episode), default=None)
        return None if longest is None else longest.sizes_by_episode()


@dataclass(frozen=True)
class _Columns:
    """The rows of a table of errors for one run, prompt set, metric and, for the question `targets`, number of related
    datasets."""

    episode: np.ndarray
    n_context: np.ndarray
    value: np.ndarray

    def by_context_size(self) -> pd.DataFrame:
        """The values, episodes x context sizes."""
        keys = pd.MultiIndex.from_arrays([self.episode, self.n_context], names=["episode", "n_context"])
        # The tables have unique keys, so unstacking needs no aggregation, which would take most of the time.
        return pd.Series(self.value, keys).unstack()  # noqa: PD010

    def by_episode(self) -> pd.Series:
        """The value of every episode."""
        return pd.Series(self.value, pd.Index(self.episode, name="episode"))

    def sizes_by_episode(self) -> pd.Series:
        """The number of context points of every episode."""
        return pd.Series(self.n_context, pd.Index(self.episode, name="episode")).sort_index()


def _groups(rows: pd.DataFrame, keys: list[str]) -> Iterator[tuple[Any, _Columns]]:
    """Yield every combination of the values of `keys`, with the rows that have these values."""
    episode = rows["episode"].to_numpy(int)
    n_context = rows["n_context"].fillna(MEAN_HEIGHT).to_numpy(int)
    value = rows["value"].to_numpy(float, na_value=np.nan)
    for key, positions in rows.groupby(keys).indices.items():
        yield key, _Columns(episode[positions], n_context[positions], value[positions])


def _per_event(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows, with sums over events converted to values per event (see `linearised_ratios`)."""
    is_sum = rows["n_events"].notna()
    if not is_sum.any():
        return rows
    totals, counts = (rows.loc[is_sum, name].to_numpy(float) for name in ("value", "n_events"))
    return pd.concat([rows[~is_sum], rows[is_sum].assign(value=linearised_ratios(totals, counts))])
