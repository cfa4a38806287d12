"""The frames behind the section on pretrained language models.

Their rows (preset `language`) are no slices of the other sections: a cell is one contestant on one set of
demonstrations, and its numbers are averaged over these. Means are made here from the cells, so that a page on an
evaluation that was interrupted shows what is there.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import product
from pathlib import Path

import numpy as np
import pandas as pd

from iclbench import tables
from iclbench.core.formats import plural
from iclbench.report.style import DASHES, MUTED, STRONG, ZERO, Look
from iclbench.tables.means import over_seeds, unfailed

log = logging.getLogger("iclbench")

PRESET = "language"
# So many answers of a cell are shown.
SAMPLES = 3
MAJORITY = "majority"
SHUFFLED = "shuffled-labels"
HEADLINE = "accuracy"
GAIN = "accuracy_gain"
_SAME = ["task", "n_context", "shift"]
_CELL = [*_SAME, "demo_seed", "order"]
# How prompt sets end that differ in nothing but seed and order of their demonstrations; older ones do not say it.
_KIND = r"-q([0-9a-f]+)$"
WHO = ["family", "task", "kind", "contestant", "model", "method"]


@dataclass(frozen=True)
class Language:
    """All that was read of language models.

    Attributes:
        rows: their values, failed and published ones too, with the columns `model`, `method` ("" for plain in-context
            learning), `demo_seed` and `order`.
        costs: seconds and bytes of their cells.
        answers: what a few of them were asked and said.
    """

    rows: pd.DataFrame
    costs: pd.DataFrame
    answers: pd.DataFrame
    looks: dict[str, Look] = field(init=False)

    def __post_init__(self) -> None:
        own = self.rows[self.rows["kind"] == "backbone"]
        object.__setattr__(self, "looks", looks(zip(own["model"], own["method"], strict=True)))

    @cached_property
    def _ok(self) -> pd.DataFrame:
        return self.rows[(self.rows["status"] == "ok") & (self.rows["kind"] != "published")]

    @cached_property
    def cells(self) -> pd.DataFrame:
        """Scores of the test split cell by cell: a row per task, contestant, set of demonstrations and metric."""
        v = self._ok
        of_cell = v["axis"].isna() | v["axis"].isin(["demo_seed", "order"])
        return v[of_cell & v["prompt_set"].notna() & v["evaluator"].ne("development")]

    @cached_property
    def scores(self) -> pd.DataFrame:
        """Means over demonstration seeds, in the order as drawn.

        Columns `WHO`, n_context, shift, evaluator, metric, and those of `over_seeds`.
        """
        drawn = self._whole(self.cells[self.cells["order"] == 0])
        return over_seeds(drawn, [*WHO, "n_context", "shift", "evaluator", "metric"], "demo_seed")

    def _whole(self, rows: pd.DataFrame) -> pd.DataFrame:
        """Those of the rows that means may be taken of: nothing like them failed on another set of demonstrations."""
        v = self.rows
        failed = v[v["status"].eq("failed") & v["prompt_set"].notna() & v["order"].eq(0)]
        of_pass = failed["axis"].eq("passes").fillna(False).astype(bool)
        keys = ["task", "contestant", "n_context", "shift"]
        for holes, at in ((failed[~of_pass], keys), (failed[of_pass], [*keys, "evaluator", "axis", "axis_value"])):
            rows = unfailed(rows, holes, at)
        return rows

    @cached_property
    def shots(self) -> dict[str, int]:
        """The number of demonstrations at which a task is tabulated: that of its published numbers, else the one that
        most cells have, of equal ones the highest; none only where models were asked without any alone."""
        printed = self.rows[self.rows["kind"] == "published"].groupby("task")["n_context"].unique()
        found = {}
        for task, rows in self.cells.groupby("task"):
            own = rows[rows["kind"] == "backbone"]
            asked = next(part for part in (own[own["n_context"] > 0], own, rows) if len(part))
            counts = Counter(int(n) for n in asked["n_context"].dropna())
            known = {n: size for n, size in counts.items() if n in printed.get(task, [])}
            found[str(task)] = max(known or counts, key=lambda n: (counts[n], n))
        return found

    def at_main(self, rows: pd.DataFrame) -> pd.DataFrame:
        """Those of the rows that have the number of demonstrations at which their task is tabulated."""
        return rows[rows["n_context"].eq(rows["task"].map(self.shots)).fillna(False).astype(bool)]

    @cached_property
    def trace(self) -> pd.DataFrame:
        """Accuracy, `kl_to_icl` and `memory_change` after every pass of Deep-Thinking, averaged like `scores`.

        Columns `WHO`, n_context, shift, evaluator, metric, axis_value (the pass), and those of `over_seeds`.
        """
        v = self._ok
        of_pass = v["axis"].eq("passes").fillna(False).astype(bool)
        passes = self._whole(v[of_pass & v["prompt_set"].notna() & v["order"].eq(0)])
        return over_seeds(passes, [*WHO, "n_context", "shift", "evaluator", "metric", "axis_value"], "demo_seed")

    @cached_property
    def majority(self) -> pd.DataFrame:
        """What always giving the most frequent answer gets on the queries behind the demonstrations at whose number a
        task is tabulated, where it was not asked these without any: columns family, task, metric, value."""
        own = self.cells[(self.cells["contestant"] == MAJORITY) & (self.cells["shift"] == "none")]
        main = self.at_main(own)
        own = pd.concat([main, own[~own["task"].isin(main["task"]) & own["n_context"].eq(0)]])
        return own.groupby(["family", "task", "metric"], as_index=False).agg(value=("value", "mean"))

    @cached_property
    def gains(self) -> pd.DataFrame:
        """Paired differences to plain in-context learning on the same queries, with their interval."""
        return self._ok[self._ok["metric"] == GAIN].sort_values(["family", "task", "contestant", "n_context"])

    @cached_property
    def published(self) -> pd.DataFrame:
        """Published accuracies of tasks and of groups of tasks."""
        v = self.rows
        return v[(v["kind"] == "published") & (v["metric"] == HEADLINE) & (v["status"] == "ok")]

    @cached_property
    def families(self) -> dict[str, list[str]]:
        """The tasks of every family, by name."""
        pairs = self.cells[["family", "task"]].drop_duplicates().sort_values(["family", "task"])
        return {str(family): [str(t) for t in own["task"]] for family, own in pairs.groupby("family")}

    @property
    def contestants(self) -> list[str]:
        """Models, each before what a method makes of it."""
        asked = self.cells[self.cells["kind"] == "backbone"].drop_duplicates("contestant")
        return [str(name) for name in asked.sort_values(["model", "method"])["contestant"]]


def prepared(values: pd.DataFrame) -> tuple[pd.DataFrame, tuple[str, ...]]:
    """Rows of language models with the columns that `Language.rows` has, those that cannot be compared left out."""
    values = values.assign(
        method=values["method"].fillna(""),
        demo_seed=values["demo_seed"].fillna(0).astype(int),
        order=values["demo_order"].fillna(0).astype(int),
    )
    for column in ("value", "low", "high", "axis_value"):
        values[column] = values[column].astype(float)
    values, left_out = _comparable(values)
    values, unlike = _of_these_cells(values)
    return values, (*left_out, *unlike)


def _comparable(values: pd.DataFrame) -> tuple[pd.DataFrame, tuple[str, ...]]:
    """The prompt sets that most contestants were asked, for every task, number of demonstrations and shift, of equal
    ones the longest: of one kind, so that no mean is over other queries after some seeds than after others."""
    asked = values[
        values["prompt_set"].notna() & values["evaluator"].ne("development") & values["kind"].ne("published")
    ]
    asked = asked.assign(alike=asked["prompt_set"].str.extract(_KIND, expand=False).fillna("older"))
    kinds, users = (_most_asked(asked, keys) for keys in ([*_SAME, "alike"], [*_CELL, "alike", "prompt_set"]))
    chosen = kinds.drop_duplicates(_SAME)[[*_SAME, "alike"]].rename(columns={"alike": "chosen"})
    users = users.merge(chosen, "left", _SAME)
    others = users[users["alike"].ne(users["chosen"]) | users.duplicated([*_CELL, "alike"])]
    lines = [
        f"{task} · {plural(int(str(n)), 'demonstration')}{'' if shift == 'none' else f' · {shift}'}: "
        f"{plural(len(own), 'prompt set')} of other episodes or data left out ({own['prompt_set'].min()}"
        f"{', ...' if len(own) > 1 else ''}); evaluate again"
        for (task, n, shift), own in others.groupby(["task", "n_context", "shift"])
    ]
    return values[~values["prompt_set"].isin(others["prompt_set"])].reset_index(drop=True), tuple(lines)


def _most_asked(asked: pd.DataFrame, keys: list[str]) -> pd.DataFrame:
    """A row per key, what most contestants were asked first, of equal ones the longest."""
    users = asked.groupby(keys, as_index=False).agg(run=("run", "nunique"), episodes=("n_episodes", "max"))
    order = {"run": False, "episodes": False, keys[-1]: True}
    return users.fillna({"episodes": 0}).sort_values(list(order), ascending=list(order.values()))


def _of_these_cells(values: pd.DataFrame) -> tuple[pd.DataFrame, tuple[str, ...]]:
    """Without gains over other sets of demonstrations than those over which the accuracies beside them are averaged:
    the summary is of the last evaluation, the cells are of all. Of older tables, which do not name the sets, all."""
    gains = values[values["metric"].eq(GAIN) & values["status"].eq("ok") & values["mean_of"].notna()]
    if gains.empty:
        return values, ()
    cells = values[values["prompt_set"].notna() & values["metric"].eq(HEADLINE) & values["evaluator"].ne("development")]
    known = cells.groupby(["run", *_SAME, "order"])["prompt_set"].agg(frozenset).to_dict()
    orders = dict(zip(cells["prompt_set"], cells["order"], strict=True))
    unlike = []
    for index, row in gains.iterrows():
        sets = frozenset(str(row["mean_of"]).split(", "))
        at = (*(row[key] for key in _SAME), orders.get(min(sets)))
        if any(known.get((run, *at)) != sets for run in (row["run"], row["model"])):
            unlike.append(index)
    lines = [
        f"{task} · {plural(int(str(n)), 'demonstration')}{'' if shift == 'none' else f' · {shift}'}: "
        f"{plural(len(own), 'gain')} over other sets of demonstrations than the accuracies left out "
        f"({own['contestant'].min()}{', ...' if len(own) > 1 else ''}); evaluate the method again on all of them"
        for (task, n, shift), own in gains.loc[unlike].groupby(_SAME)
    ]
    return values.drop(index=unlike).reset_index(drop=True), tuple(lines)


def answers(results: Path, rows: pd.DataFrame, problems: list[tables.TableError]) -> pd.DataFrame:
    """The first answers of every run on every task, with its task and contestant: of the lowest demonstration seed and
    the most demonstrations. The other files, thousands of whole prompts, are not opened."""
    cells = rows[rows["kind"].eq("backbone") & rows["shift"].eq("none") & rows["evaluator"].ne("development")]
    cells = cells[cells["status"].eq("ok") & cells["prompt_set"].notna() & cells["order"].eq(0)]
    cells = cells.sort_values(["demo_seed", "n_context"], ascending=[True, False]).drop_duplicates(["task", "run"])
    wanted = {(c["prompt_set"], c["run"]): (c["task"], c["contestant"]) for c in cells.to_dict("records")}
    found = [tables.frame("answers", []).assign(task=[], contestant=[])]
    for path in tables.files("answers", results):
        known = wanted.get((path.parent.name, path.name.removesuffix(".answers.parquet")))
        if known is None:
            continue
        try:
            first = tables.read("answers", path).sort_values("episode").head(SAMPLES)
        except tables.TableError as error:
            log.warning("skipped: %s", error)
            problems.append(error)
            continue
        found.append(first.assign(task=known[0], contestant=known[1]))
    return pd.concat(found[1:] or found, ignore_index=True)


def mean_over_tasks(rows: pd.DataFrame, tasks: Sequence[str], keys: Sequence[str]) -> pd.DataFrame:
    """Means over tasks, of those who have a value on each of them; the tasks' intervals in quadrature.

    Columns `keys`, value, low, high.
    """
    own = rows[rows["task"].isin(tasks)]
    own = own.assign(below=(own["value"] - own["low"]) ** 2, above=(own["high"] - own["value"]) ** 2)
    found = own.groupby(list(keys), as_index=False, dropna=False).agg(
        value=("value", "mean"),
        below=("below", _root),
        above=("above", _root),
        tasks=("task", "nunique"),
    )
    found = found[found["tasks"] == len(tasks)]
    found = found.assign(low=found["value"] - found["below"], high=found["value"] + found["above"])
    return found.drop(columns=["below", "above", "tasks"]).reset_index(drop=True)


def _root(squares: pd.Series) -> float:
    """Half of the interval of a mean, from the squared halves of the intervals of what is averaged."""
    return float(np.sqrt(squares.to_numpy(float).sum()) / len(squares))


def looks(contestants: Iterable[tuple[str, str]]) -> dict[str, Look]:
    """Looks of models with methods: a colour per model (of a single one, per method), a dash per method, plain ICL
    solid. Where there are more than colours or dashes, whatever is free, of the same colour first."""
    colours, dashes = (*STRONG, *MUTED), ((), *DASHES)
    pairs = sorted(set(contestants), key=lambda pair: (pair[1] != "", pair[1], pair[0]))
    models, methods = sorted({model for model, _ in pairs}), sorted({"", *(method for _, method in pairs)})
    free = [Look(colour, dash, 2.2) for dash, colour in product(dashes, colours)]
    found = {MAJORITY: ZERO}
    for model, method in pairs:
        colour = colours[(models.index(model) if len(models) > 1 else methods.index(method)) % len(colours)]
        want = Look(colour, dashes[methods.index(method) % len(dashes)], 2.2)
        others = [look for look in free if look.colour == colour] + free
        look = want if want in free or not others else others[0]
        found[f"{model}{method}"] = look
        free = [other for other in free if other != look]
    return found
