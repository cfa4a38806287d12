"""Scores of single episodes on some prompt sets, for paired comparisons and for bins of the context size."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pandas as pd

from iclbench.core.metrics import metric as of
from iclbench.tables.curves import AREA, has_heights, heights, ratios


class EpisodeScores:
    """What the tables of errors hold, apart by question.

    For the question `next` an episode has a score at every context size, or only the mean height of its curve over them
    (rows without a context size, as tables that are to be small have them, and as event sequences in windows of
    observation have them beside the curve); for `targets` it has one context size and a
    score for every number of related datasets.
    """

    def __init__(self, frames: Iterable[pd.DataFrame], prompt_sets: set[str]) -> None:
        self._curves: dict[tuple[str, str, str], pd.DataFrame] = {}
        self._means: dict[tuple[tuple[str, ...], str, str], pd.DataFrame | None] = {}
        self._targets: dict[tuple[str, str, str, int], pd.Series] = {}
        self._sizes: dict[str, pd.Series] = {}
        for data in frames:
            kept = data[data["prompt_set"].isin(prompt_sets) & (data["n_context"].notna() | data["n_related"].isna())]
            kept = kept.assign(n_context=kept["n_context"].fillna(AREA))
            of_targets = kept["n_related"].notna()
            for (run, prompt_set, metric), rows in kept[~of_targets].groupby(["run", "prompt_set", "metric"]):
                rows = _per_event(rows)
                # Keys are unique (the tables see to it): nothing to aggregate, which would take most of the time.
                wide = rows.set_index(["episode", "n_context"])["value"].unstack().astype(float)  # noqa: PD010
                self._curves.setdefault((str(run), str(prompt_set), str(metric)), wide)
            keys = ["run", "prompt_set", "metric", "n_related"]
            for (run, prompt_set, metric, related), rows in kept[of_targets].groupby(keys):
                by_episode = rows.set_index("episode").sort_index()
                key = (str(run), str(prompt_set), str(metric), int(str(related)))
                self._targets.setdefault(key, by_episode["value"].astype(float))
                known = self._sizes.get(str(prompt_set))
                if known is None or len(known) < len(by_episode):
                    self._sizes[str(prompt_set)] = by_episode["n_context"].astype(int)

    def curves(self, runs: Sequence[str], prompt_set: str, metric: str) -> pd.DataFrame | None:
        """Question `next`: episodes x context sizes (or a column `AREA` of mean heights), averaged over runs;
        None unless every run has its scores."""
        asked = (tuple(runs), prompt_set, metric)
        if asked not in self._means:
            self._means[asked] = self._mean(*asked)
        return self._means[asked]

    def _mean(self, runs: Sequence[str], prompt_set: str, metric: str) -> pd.DataFrame | None:
        found = [self._curves.get((run, prompt_set, metric)) for run in runs]
        wide = [frame for frame in found if frame is not None]
        if not wide or len(wide) < len(found):
            return None
        if any(has_heights(frame) for frame in wide):
            wide = [heights(frame).to_frame(AREA) for frame in wide]
        mean = wide[0] if len(wide) == 1 else pd.concat(wide).groupby(level=0).mean()
        return mean if of(metric).of_sequences else mean.dropna(axis=1)

    def targets(self, runs: Sequence[str], prompt_set: str, metric: str, related: int) -> pd.Series | None:
        """Question `targets`: the score of every episode, averaged over runs; None unless every run has its scores."""
        found = [self._targets.get((run, prompt_set, metric, related)) for run in runs]
        scores = [series for series in found if series is not None]
        if not scores or len(scores) < len(found):
            return None
        return pd.concat(scores).groupby(level=0).mean()

    def context_sizes(self, prompt_set: str) -> pd.Series | None:
        """Question `targets`: the number of context points of every episode."""
        return self._sizes.get(prompt_set)


def _per_event(rows: pd.DataFrame) -> pd.DataFrame:
    """Rows of one curve in which sums over episodes are numbers per event, see `ratios`."""
    of_sums = rows["n_events"].notna()
    if not of_sums.any():
        return rows
    totals, counts = (rows.loc[of_sums, name].to_numpy(float) for name in ("value", "n_events"))
    return pd.concat([rows[~of_sums], rows[of_sums].assign(value=ratios(totals, counts))])
