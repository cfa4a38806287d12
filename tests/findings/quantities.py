"""What sentences are about, computed from packed results: scores, paired differences, costs, cells, cards.

Scores, differences and ranks are those of the report. A task is named as in its heat map (`linear`, `bursty · ICL`).
What has no rows, because its cells await recomputation or never were, is an error that says so.
"""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from iclbench.cards import load_task
from iclbench.config import RunConfig, resolve_run
from iclbench.report.data import Results, load
from iclbench.report.normalised import Contest, contests
from iclbench.report.pairs import Difference
from iclbench.report.sections.ranking import ranking

ROOT = Path(__file__).parents[2]


@contextmanager
def nothing_but(packed: Path, tasks: Sequence[str] = ()) -> Iterator[Path]:
    """A results folder that holds packed results alone, of some tasks if any are named."""
    with tempfile.TemporaryDirectory() as folder:
        alone = Path(folder) / packed.name
        alone.mkdir()
        for name in [f"{task}-*.parquet" for task in tasks] or ["*.parquet"]:
            for path in packed.resolve().glob(name):
                (alone / path.name).symlink_to(path)
        yield alone.parent


class Reference:
    """The packed results of a folder.

    Args:
        packed: the folder, `results/reference`; what a user has computed beside it does not count.
        tasks: read these alone; all by default.
    """

    def __init__(self, packed: Path = ROOT / "results" / "reference", tasks: Sequence[str] = ()) -> None:
        self.packed, self.tasks = packed, tasks

    @cached_property
    def results(self) -> Results:
        with nothing_but(self.packed, self.tasks) as folder:
            return load(folder, self.tasks)

    @cached_property
    def quantities(self) -> dict[str, Any]:
        """What entries are written in: the public methods by name, and some of Python's functions."""
        own: list[Callable[..., Any]] = [
            self.score, self.scores, self.lead, self.ahead, self.behind, self.tied, self.least, self.most, self.mean,
            self.mean_rank, self.told_apart, self.accuracy, self.beyond, self.value, self.cost, self.ratio, self.cells,
            self.libraries, self.contestants, self.tasks_at, self.trained, self.parameters, card, benchmark,
        ]  # fmt: skip
        python = [abs, all, any, len, max, min, round, set, sorted, sum]
        return {f.__name__: f for f in (*own, *python)} | {
            "CLASSES": [c.title for c in self._contests("grid") if c.evaluator == "next"],
            "BACKBONES": self.contestants("grid"),
        }

    def contestants(self, preset: str = "grid") -> list[str]:
        """Backbones with cells at a preset, whatever became of them."""
        cells = self.results.cells
        trained = cells[cells["kind"].eq("train") & cells["preset"].eq(preset)]
        return sorted(trained["contestant"].unique())

    def tasks_at(self, preset: str = "grid") -> list[str]:
        """Tasks with cells at a preset, whatever became of them."""
        cells = self.results.cells
        return sorted(cells.loc[cells["preset"].eq(preset), "task"].unique())

    def _contests(self, preset: str) -> list[Contest]:
        return contests(self.results, preset)

    def _contest(self, task: str, preset: str) -> Contest:
        found = [contest for contest in self._contests(preset) if contest.title == task]
        if not found:
            raise LookupError(f"{task} has no scores at {preset}")
        return found[0]

    def score(self, who: str, task: str, preset: str = "grid") -> float:
        """The score, averaged over seeds."""
        return float(np.mean(self.scores(who, task, preset)))

    def scores(self, who: str, task: str, preset: str = "grid") -> list[float]:
        """The score of every seed."""
        rows = self._contest(task, preset).rows
        rows = rows[rows["contestant"].eq(who)].sort_values("seed")
        if rows.empty:
            raise LookupError(f"{who} has no score on {task} at {preset}")
        return rows["value"].astype(float).tolist()

    def mean(self, values: Iterable[float]) -> float:
        return float(np.mean(list(values)))

    def lead(self, a: str, b: str, task: str, preset: str = "grid") -> Difference:
        """By how much a's score is above b's, paired by episode, with its 95 % interval."""
        found = self._contest(task, preset).difference(a, b)
        if found is None:
            raise LookupError(f"{a} and {b} have no single episodes on {task} at {preset}")
        return found

    def ahead(self, a: str, b: str, tasks: Sequence[str] = (), preset: str = "grid") -> list[str]:
        """On which tasks (function classes by default) a's lead has an interval above 0."""
        return [t for t in tasks or self.quantities["CLASSES"] if self.lead(a, b, t, preset).low > 0]

    def behind(self, a: str, b: str, tasks: Sequence[str] = (), preset: str = "grid") -> list[str]:
        return self.ahead(b, a, tasks, preset)

    def tied(self, a: str, b: str, tasks: Sequence[str] = (), preset: str = "grid") -> list[str]:
        return [t for t in tasks or self.quantities["CLASSES"] if self.lead(a, b, t, preset).tied]

    def least(self, a: str, b: str, tasks: Sequence[str] = (), preset: str = "grid") -> str:
        """The task where a's lead is smallest."""
        return min(tasks or self.quantities["CLASSES"], key=lambda t: self.lead(a, b, t, preset).value)

    def most(self, a: str, b: str, tasks: Sequence[str] = (), preset: str = "grid") -> str:
        """The task where a's lead is largest."""
        return max(tasks or self.quantities["CLASSES"], key=lambda t: self.lead(a, b, t, preset).value)

    @cached_property
    def _ranking(self) -> pd.DataFrame:
        frame, _ = ranking(self._contests("grid"))
        if frame.empty:
            raise LookupError("there is no ranking")
        return frame.set_index("contestant")

    def mean_rank(self, who: str) -> float:
        """At `grid`, among all that are ranked."""
        return float(self._ranking.loc[who, "mean_rank"])

    def told_apart(self) -> list[str]:
        """Those ranked at `grid` that are told apart from the one above them, in order."""
        return self._ranking.index[self._ranking["tied"].eq("told apart")].tolist()

    def value(self, who: str, task: str, preset: str, metric: str, shift: str = "none", **where: Any) -> float:
        """A measured value, averaged over seeds: `evaluator`, `n_context`, `n_related`, `axis` name a row; a summary of
        all episodes and context sizes by default."""
        v = self.results.rows
        mine = v["contestant"].eq(who) & v["task"].eq(task) & v["preset"].eq(preset) & v["status"].eq("ok")
        rows = v[mine & v["metric"].eq(metric) & v["shift"].eq(shift)]
        for column in ("n_context", "n_related", "axis"):
            wanted = where.get(column)
            rows = rows[rows[column].isna() if wanted is None else rows[column].eq(wanted).fillna(False)]
        if "evaluator" in where:
            rows = rows[rows["evaluator"].eq(where["evaluator"])]
        if rows.empty or rows["run"].duplicated().any():
            said = ", ".join([shift, *(f"{k} {v}" for k, v in where.items())])
            raise LookupError(f"{who} has {len(rows)} values of {metric} on {task} at {preset} ({said})")
        return float(rows["value"].mean())

    def accuracy(self, who: str, test: str, preset: str = "grid", seed: int | None = None) -> float:
        """On a test of `bursty`, among the labels that it admits; of one seed or averaged over all."""
        v = self.results.rows
        rows = v[v["task"].eq("bursty") & v["preset"].eq(preset) & v["contestant"].eq(who) & v["evaluator"].eq(test)]
        rows = rows[rows["metric"].eq("accuracy_within_choices") & rows["axis"].isna() & rows["status"].eq("ok")]
        rows = rows if seed is None else rows[rows["seed"].eq(seed)]
        if rows.empty:
            raise LookupError(f"{who} has no accuracy on {test} at {preset}")
        return float(rows["value"].mean())

    def beyond(self, who: str, times: int = 4, tasks: Sequence[str] = ()) -> float:
        """The error with so many times as many examples as trained with over that at the trained length, at `grid`, on
        the same prompts; geometric mean over tasks."""
        ratios = []
        for task in tasks or self.quantities["CLASSES"]:
            trained = trained_length(task)
            at = [
                self.value(who, task, "grid", "squared_error", f"points-{times * trained}", n_context=n)
                for n in (trained, times * trained)
            ]
            ratios.append(at[1] / at[0])
        return float(np.exp(np.mean(np.log(ratios))))

    def cost(
        self, who: str, task: str, phase: str, metric: str, n: int | None = None, preset: str = "grid"
    ) -> float:  # fmt: skip
        """What a run of the contestant costs, averaged over seeds: FLOPs, bytes or seconds of a phase at n points."""
        c = self.results.costs
        rows = c[c["contestant"].eq(who) & c["task"].eq(task) & c["preset"].eq(preset) & c["phase"].eq(phase)]
        rows = rows[rows["metric"].eq(metric)]
        rows = rows if n is None else rows[rows["n_points"].eq(n).fillna(False)]
        if rows.empty:
            raise LookupError(f"{who} has no {metric} of {phase} on {task} at {preset}")
        return float(rows["value"].mean())

    def ratio(self, a: str, b: str, task: str, phase: str, metric: str, n: int | None = None) -> float:
        """a's cost over b's at `grid`."""
        return self.cost(a, task, phase, metric, n) / self.cost(b, task, phase, metric, n)

    def parameters(self, who: str, task: str, preset: str = "grid") -> float:
        return self.cost(who, task, "model", "parameters", preset=preset)

    def cells(self, *statuses: str, **where: str) -> pd.DataFrame:
        """Cells of some status (all by default) and of a `kind`, `preset`, `task`, `kernels`."""
        cells = self.results.cells
        cells = cells[cells["status"].isin(statuses)] if statuses else cells
        for column, wanted in where.items():
            cells = cells[cells[column].eq(wanted).fillna(False)]
        return cells

    def libraries(self) -> dict[str, str]:
        """Versions that all cells were computed with."""
        said = [json.loads(text) for text in self.results.cells["libraries"].dropna().unique()]
        if any(each != said[0] for each in said):
            raise LookupError("cells were computed with several versions")
        return {name: version.partition("+")[0] for name, version in said[0].items()}

    def trained(self, task: str, backbone: str, preset: str = "grid") -> RunConfig:
        """How a run is trained, as its card says."""
        return resolve_run(task, backbone, preset)


def trained_length(task: str, preset: str = "grid") -> int:
    """Examples that a task is trained with."""
    return card(task).presets[preset].points


def card(task: str) -> Any:
    return load_task(task)[1]


def benchmark(file: str, row: str, column: str, folder: Path = ROOT / "benchmarks") -> float:
    """The number in a table of `benchmarks/FILE`, by the first cell of its row and the head of its column."""
    head: list[str] = []
    for line in (folder / file).read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")] if line.startswith("|") else []
        if not cells:
            head = []
        elif not head:
            head = cells
        elif cells[0] == row and column in head:
            return float(re.sub(r"(?<=\d),(?=\d)", "", cells[head.index(column)]).replace("−", "-").rstrip(" x%*"))
    raise LookupError(f"benchmarks/{file} has no '{row}' with '{column}'")
