"""Areas under learning curves over the context sizes that contestants have in common.

Costly baselines are asked at a few context sizes, and their area is over these: two areas compare over the same sizes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import cached_property, reduce

import numpy as np
import pandas as pd

from iclbench import tables
from iclbench.core.metrics import metric as of
from iclbench.evaluation.bootstrap import bootstrap_interval
from iclbench.tables.curves import heights, of_few
from iclbench.tables.related import without_related

Sizes = frozenset[int]
ErrorsOf = Callable[[], pd.DataFrame]


class Areas:
    """One number per contestant, and where it is the area under a curve that of any part of it.

    Args:
        rows: a row per contestant, and for `targets` per number of related datasets.
        curves: mean curves by contestant, values by context size; of whom none is known the number is all there is.
        metric: what the curves are of.
        errors: gives the scores of single episodes, for intervals.
        seed: of the bootstrap.
    """

    def __init__(
        self,
        rows: pd.DataFrame,
        curves: dict[str, pd.Series] | None = None,
        metric: str = "",
        errors: ErrorsOf = lambda: tables.frame("errors", []),
        seed: int = 0,
    ) -> None:
        self.rows = rows
        self._curves, self._metric, self._read, self._seed = curves or {}, metric, errors, seed
        self._sizes = {run: frozenset(int(n) for n in curve.index) for run, curve in self._curves.items()}

    @classmethod
    def of_curves(cls, values: pd.DataFrame, metric: str, errors: ErrorsOf, seed: int) -> Areas:
        """The areas of the contestants that these rows of `values` are of."""
        rows = values[values["metric"] == "auc"]
        at = values[values["metric"].eq(metric) & values["n_context"].notna() & values["run"].isin(rows["run"])]
        # A shift may leave a position of some episodes undefined: no area is over it. Of sequences of different
        # lengths, which everybody is asked about alike, that is most positions.
        asked = at.groupby("run")["n_episodes"]
        ragged = of(metric).of_sequences and bool(asked.nunique().gt(1).any())
        at = at[at["n_episodes"].eq(asked.transform("max")) & (not ragged)]
        curves = {
            str(run): own.set_index("n_context")["value"].astype(float).sort_index() for run, own in at.groupby("run")
        }
        return cls(rows, curves, metric, errors, seed)

    def sizes(self, run: str) -> Sizes:
        """The context sizes that a contestant's area is over; none where they are not known."""
        return self._sizes.get(run, frozenset())

    @cached_property
    def most(self) -> Sizes:
        """Those of whoever was asked at most."""
        return max(self._sizes.values(), key=len, default=frozenset())

    def common(self, runs: Iterable[str]) -> Sizes:
        """Those that all of these have whose are known."""
        known = [sizes for run in runs if (sizes := self.sizes(run))]
        return reduce(frozenset.intersection, known) if known else frozenset()

    def value(self, run: str, sizes: Sizes) -> float:
        """A contestant's area over these of its sizes; the number in its row where they are all of them, or none is
        known."""
        own = self.sizes(run)
        if own <= sizes or not own & sizes:
            return float(self.alone["value"][run])
        return float(heights(self._curves[run][sorted(own & sizes)].to_frame().T).iloc[0])

    @cached_property
    def alone(self) -> pd.DataFrame:
        """The row of every contestant without related datasets, by name."""
        return without_related(self.rows).set_index("run")

    def over(self, sizes: Sizes) -> Iterator[tuple[Sizes, pd.DataFrame]]:
        """The rows of all contestants whose areas are over the same of these sizes, and which these are; nobody is
        there who has none of them. An area over fewer sizes than the contestant was asked at has no interval where
        single episodes are not known."""
        # Whose sizes are not known was asked at all.
        asked = {str(run): self.sizes(str(run)) or self.most for run in self.rows["run"].unique()}
        for shared in sorted({of_run & sizes for of_run in asked.values()}, key=sorted):
            if self.most and not shared:
                continue
            own = [run for run, of_run in asked.items() if of_run & sizes == shared]
            shorter = {run for run in own if not asked[run] <= sizes}
            rows = self.rows[self.rows["run"].isin(set(own) - shorter)]
            cut = [self._shortened(run, shared) for run in sorted(shorter) if self.sizes(run)]
            if len(rows) or cut:
                yield shared, tables.union("values", [rows, *cut])

    def _shortened(self, run: str, sizes: Sizes) -> pd.DataFrame:
        """The row of a contestant over fewer sizes than its own."""
        scores = self._heights(run, sizes).to_numpy(float)[:, None]
        low, high = bootstrap_interval(scores, self._seed) if len(scores) > 1 else ([np.nan], [np.nan])
        row = self.rows[self.rows["run"] == run]
        return row.assign(value=self.value(run, sizes), low=low[0], high=high[0])

    def _heights(self, run: str, sizes: Sizes) -> pd.Series:
        """The same of every episode, as far as they are known."""
        own = self._errors[self._errors["run"].eq(run) & self._errors["metric"].eq(self._metric)]
        curves = own[own["n_context"].isin(sizes)]
        if curves.empty:  # packed
            return own.loc[of_few(own), "value"]
        return heights(curves.pivot_table(values="value", index="episode", columns="n_context").astype(float))

    @cached_property
    def _errors(self) -> pd.DataFrame:
        return self._read()
