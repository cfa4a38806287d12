"""The frames of the report's section on pretrained language models.

Rows of language models have the preset `language` and are not in the slices of other sections. A cell is the evaluation
of one contestant on one set of demonstrations. Means over sets are computed from the cells, so that the report of an
interrupted evaluation includes all finished cells.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from iclbench import tables
from iclbench.core.formats import plural
from iclbench.report.style import DASHES, MUTED, STRONG, ZERO, Look
from iclbench.tables.means import means_over_seeds, without_failed

log = logging.getLogger("iclbench")

PRESET = "language"
# Number of answers shown for each run and task.
MAX_ANSWERS = 3
MAJORITY = "majority"
SHUFFLED = "shuffled-labels"
ACCURACY = "accuracy"
GAIN = "accuracy_gain"
_SETTING_KEYS = ["task", "n_context", "shift"]
_CELL_KEYS = [*_SETTING_KEYS, "demo_seed", "order"]
# The end of a prompt set's name, which is the same for sets that differ only in seed and order of the demonstrations.
_QUERIES_ID = r"-q([0-9a-f]+)$"
CONTESTANT_KEYS = ["family", "task", "kind", "contestant", "model", "method"]


@dataclass(frozen=True)
class LanguageResults:
    """The results of language models.

    Attributes:
        rows: rows of `values`, including failed and published rows, with the columns `model`, `method` ("" for plain
            in-context learning), `demo_seed` and `order`.
        costs: seconds and bytes of the cells.
        answers: prompts and answers of a few cells.
        looks: the look of every contestant.
    """

    rows: pd.DataFrame
    costs: pd.DataFrame
    answers: pd.DataFrame
    looks: dict[str, Look] = field(init=False)

    def __post_init__(self) -> None:
        models = self.rows[self.rows["kind"] == "backbone"]
        object.__setattr__(self, "looks", looks(zip(models["model"], models["method"], strict=True)))

    @cached_property
    def _successful_rows(self) -> pd.DataFrame:
        return self.rows[(self.rows["status"] == "ok") & (self.rows["kind"] != "published")]

    @cached_property
    def cells(self) -> pd.DataFrame:
        """Scores of single cells on the test split: a row per task, contestant, set of demonstrations and metric."""
        rows = self._successful_rows
        is_cell = rows["axis"].isna() | rows["axis"].isin(["demo_seed", "order"])
        return rows[is_cell & rows["prompt_set"].notna() & rows["evaluator"].ne("development")]

    @cached_property
    def scores(self) -> pd.DataFrame:
        """Means over demonstration seeds, with demonstrations in the sampled order.

        Columns `CONTESTANT_KEYS`, n_context, shift, evaluator, metric, and the columns that `means_over_seeds` adds.
        """
        cells = self._without_failed(self.cells[self.cells["order"] == 0])
        return means_over_seeds(cells, [*CONTESTANT_KEYS, "n_context", "shift", "evaluator", "metric"], "demo_seed")

    def _without_failed(self, rows: pd.DataFrame) -> pd.DataFrame:
        """The rows of contestants that did not fail on any set of demonstrations in the same setting."""
        failed = self.rows[self.rows["status"].eq("failed")]
        failed = failed[failed["prompt_set"].notna() & failed["order"].eq(0)]
        is_pass = failed["axis"].eq("passes").fillna(False).astype(bool)
        keys = ["task", "contestant", "n_context", "shift"]
        rows = without_failed(rows, failed[~is_pass], keys)
        return without_failed(rows, failed[is_pass], [*keys, "evaluator", "axis", "axis_value"])

    @cached_property
    def main_shots(self) -> dict[str, int]:
        """The main number of demonstrations of each task, which tables show.

        It is the number with the most cells; of several, the largest. If a task has published results at some of the
        evaluated numbers, only these numbers are candidates. The main number is 0 only if no model was evaluated with
        demonstrations.
        """
        published_counts = self.rows[self.rows["kind"] == "published"].groupby("task")["n_context"].unique()
        main_counts = {}
        for task, rows in self.cells.groupby("task"):
            models = rows[rows["kind"] == "backbone"]
            cells = next(frame for frame in (models[models["n_context"] > 0], models, rows) if len(frame))
            counts = Counter(int(n) for n in cells["n_context"].dropna())
            candidates = [n for n in counts if n in published_counts.get(task, [])] or counts
            main_counts[str(task)] = max(candidates, key=lambda n: (counts[n], n))
        return main_counts

    def at_main_shots(self, rows: pd.DataFrame) -> pd.DataFrame:
        """The rows with the main number of demonstrations of their task."""
        return rows[rows["n_context"].eq(rows["task"].map(self.main_shots)).fillna(False).astype(bool)]

    @cached_property
    def pass_scores(self) -> pd.DataFrame:
        """Accuracy, `kl_to_icl` and `memory_change` after every pass of Deep-Thinking, averaged like `scores`.

        Columns `CONTESTANT_KEYS`, n_context, shift, evaluator, metric, axis_value (the pass) and the columns that
        `means_over_seeds` adds.
        """
        rows = self._successful_rows
        is_pass = rows["axis"].eq("passes").fillna(False).astype(bool)
        passes = self._without_failed(rows[is_pass & rows["prompt_set"].notna() & rows["order"].eq(0)])
        keys = [*CONTESTANT_KEYS, "n_context", "shift", "evaluator", "metric", "axis_value"]
        return means_over_seeds(passes, keys, "demo_seed")

    @cached_property
    def majority(self) -> pd.DataFrame:
        """Scores of a method that always gives the most frequent answer, at the main number of demonstrations or, if
        missing, without demonstrations. Columns family, task, metric, value."""
        cells = self.cells[(self.cells["contestant"] == MAJORITY) & (self.cells["shift"] == "none")]
        main = self.at_main_shots(cells)
        cells = pd.concat([main, cells[~cells["task"].isin(main["task"]) & cells["n_context"].eq(0)]])
        return cells.groupby(["family", "task", "metric"], as_index=False).agg(value=("value", "mean"))

    @cached_property
    def gains(self) -> pd.DataFrame:
        """Paired differences from plain in-context learning on the same queries, with intervals."""
        rows = self._successful_rows
        return rows[rows["metric"] == GAIN].sort_values(["family", "task", "contestant", "n_context"])

    @cached_property
    def published_rows(self) -> pd.DataFrame:
        """Published accuracies of tasks and of groups of tasks."""
        rows = self.rows
        return rows[(rows["kind"] == "published") & (rows["metric"] == ACCURACY) & (rows["status"] == "ok")]

    @cached_property
    def families(self) -> dict[str, list[str]]:
        """The tasks of every family, by name."""
        pairs = self.cells[["family", "task"]].drop_duplicates().sort_values(["family", "task"])
        return {str(family): [str(task) for task in rows["task"]] for family, rows in pairs.groupby("family")}

    @property
    def contestants(self) -> list[str]:
        """The models, each followed by the same model with each method."""
        models = self.cells[self.cells["kind"] == "backbone"].drop_duplicates("contestant")
        return [str(name) for name in models.sort_values(["model", "method"])["contestant"]]


def prepare_rows(values: pd.DataFrame) -> tuple[pd.DataFrame, tuple[str, ...]]:
    """The comparable rows of language models with the columns of `LanguageResults.rows`, and a message for each group
    of removed rows."""
    values = values.assign(
        method=values["method"].fillna(""),
        demo_seed=values["demo_seed"].fillna(0).astype(int),
        order=values["demo_order"].fillna(0).astype(int),
    )
    for column in ("value", "low", "high", "axis_value"):
        values[column] = values[column].astype(float)
    values, excluded_sets = _drop_other_queries(values)
    values, excluded_gains = _drop_unmatched_gains(values)
    return values, (*excluded_sets, *excluded_gains)


def _drop_other_queries(values: pd.DataFrame) -> tuple[pd.DataFrame, tuple[str, ...]]:
    """Remove rows on queries other than the main queries, because all cells of a mean over demonstration seeds must
    have the same queries.

    The main queries of a task, number of demonstrations and shift are the queries with the most runs; of several, the
    largest set.
    """
    is_measured = values["evaluator"].ne("development") & values["kind"].ne("published")
    cells = values[values["prompt_set"].notna() & is_measured]
    cells = cells.assign(queries=cells["prompt_set"].str.extract(_QUERIES_ID, expand=False))
    main = _usage_counts(cells, [*_SETTING_KEYS, "queries"]).drop_duplicates(_SETTING_KEYS)
    main = main[[*_SETTING_KEYS, "queries"]].rename(columns={"queries": "main_queries"})
    sets = _usage_counts(cells, [*_CELL_KEYS, "queries", "prompt_set"]).merge(main, "left", _SETTING_KEYS)
    excluded_sets = sets[sets["queries"].ne(sets["main_queries"]) | sets.duplicated([*_CELL_KEYS, "queries"])]
    lines = [
        f"{_setting_title(setting)}: {plural(len(rows), 'prompt set')} of other episodes or data cannot "
        f"be used ({_first_name(rows['prompt_set'])}); evaluate again"
        for setting, rows in excluded_sets.groupby(_SETTING_KEYS)
    ]
    return values[~values["prompt_set"].isin(excluded_sets["prompt_set"])].reset_index(drop=True), tuple(lines)


def _usage_counts(cells: pd.DataFrame, keys: list[str]) -> pd.DataFrame:
    """A row per key, sorted by the number of runs and then by the number of episodes, the largest first."""
    counts = cells.groupby(keys, as_index=False).agg(run=("run", "nunique"), episodes=("n_episodes", "max"))
    order = {"run": False, "episodes": False, keys[-1]: True}
    return counts.fillna({"episodes": 0}).sort_values(list(order), ascending=list(order.values()))


def _drop_unmatched_gains(values: pd.DataFrame) -> tuple[pd.DataFrame, tuple[str, ...]]:
    """Remove gains that were computed on other sets of demonstrations than the accuracies. The sets can differ because
    a gain is a mean over the sets of the last evaluation, while an accuracy is a mean over the sets of all
    evaluations."""
    gains = values[values["metric"].eq(GAIN) & values["status"].eq("ok")]
    cells = values[values["prompt_set"].notna() & values["metric"].eq(ACCURACY) & values["evaluator"].ne("development")]
    sets_by_setting = cells.groupby(["run", *_SETTING_KEYS, "order"])["prompt_set"].agg(frozenset).to_dict()
    orders = dict(zip(cells["prompt_set"], cells["order"], strict=True))
    excluded_indices = []
    for index, row in gains.iterrows():
        sets = frozenset(str(row["mean_of"]).split(", "))
        setting = (*(row[key] for key in _SETTING_KEYS), orders.get(min(sets)))
        if any(sets_by_setting.get((run, *setting)) != sets for run in (row["run"], row["model"])):
            excluded_indices.append(index)
    lines = [
        f"{_setting_title(setting)}: {plural(len(rows), 'gain')} over other sets of demonstrations than the "
        f"accuracies cannot be used ({_first_name(rows['contestant'])}); evaluate the method again on all sets"
        for setting, rows in gains.loc[excluded_indices].groupby(_SETTING_KEYS)
    ]
    return values.drop(index=excluded_indices).reset_index(drop=True), tuple(lines)


def _setting_title(setting: Any) -> str:
    task, n_context, shift = setting
    return f"{task} · {plural(int(n_context), 'demonstration')}{'' if shift == 'none' else f' · {shift}'}"


def _first_name(names: pd.Series) -> str:
    return f"{names.min()}{', ...' if len(names) > 1 else ''}"


def first_answers(results: Path, rows: pd.DataFrame, problems: list[tables.TableError]) -> pd.DataFrame:
    """The first answers of every run on every task, with the columns task and contestant.

    Only the files of the lowest demonstration seed and the largest number of demonstrations are read.
    """
    cells = rows[rows["kind"].eq("backbone") & rows["shift"].eq("none") & rows["evaluator"].ne("development")]
    cells = cells[cells["status"].eq("ok") & cells["prompt_set"].notna() & cells["order"].eq(0)]
    cells = cells.sort_values(["demo_seed", "n_context"], ascending=[True, False]).drop_duplicates(["task", "run"])
    names = {(cell["prompt_set"], cell["run"]): (cell["task"], cell["contestant"]) for cell in cells.to_dict("records")}
    frames = [tables.frame("answers", []).assign(task=[], contestant=[])]
    for path in tables.files("answers", results):
        task_and_contestant = names.get((path.parent.name, path.name.removesuffix(".answers.parquet")))
        if task_and_contestant is None:
            continue
        try:
            rows = tables.read("answers", path).sort_values("episode").head(MAX_ANSWERS)
        except tables.TableError as error:
            log.warning("skipped: %s", error)
            problems.append(error)
            continue
        task, contestant = task_and_contestant
        frames.append(rows.assign(task=task, contestant=contestant))
    return pd.concat(frames[1:] or frames, ignore_index=True)


def mean_over_tasks(rows: pd.DataFrame, tasks: Sequence[str], keys: Sequence[str]) -> pd.DataFrame:
    """Means over tasks, for each combination of `keys` with a value on all tasks.

    Columns `keys`, value, low, high. The half-widths of the tasks' intervals are added in quadrature and divided by the
    number of tasks.
    """
    rows = rows[rows["task"].isin(tasks)]
    rows = rows.assign(below=(rows["value"] - rows["low"]) ** 2, above=(rows["high"] - rows["value"]) ** 2)
    means = rows.groupby(list(keys), as_index=False, dropna=False).agg(
        value=("value", "mean"),
        below=("below", _mean_half_width),
        above=("above", _mean_half_width),
        tasks=("task", "nunique"),
    )
    means = means[means["tasks"] == len(tasks)]
    means = means.assign(low=means["value"] - means["below"], high=means["value"] + means["above"])
    return means.drop(columns=["below", "above", "tasks"]).reset_index(drop=True)


def _mean_half_width(squares: pd.Series) -> float:
    """The half-width of the interval of a mean of independent values, from their squared half-widths."""
    return float(np.sqrt(squares.to_numpy(float).sum()) / len(squares))


def looks(contestants: Iterable[tuple[str, str]]) -> dict[str, Look]:
    """The looks of pairs of model and method ("" for plain in-context learning, which has a solid line).

    Each model has a colour, and each method a dash. If there is only one model, its methods differ in colour, too. If a
    look is already used, an unused look replaces it, preferably one with the same colour.
    """
    colours, dashes = (*STRONG, *MUTED), ((), *DASHES)
    pairs = sorted(set(contestants), key=lambda pair: (pair[1] != "", pair[1], pair[0]))
    models, methods = sorted({model for model, _ in pairs}), sorted({"", *(method for _, method in pairs)})
    free_looks = [Look(colour, dash, 2.2) for dash, colour in product(dashes, colours)]
    looks = {MAJORITY: ZERO}
    for model, method in pairs:
        colour = colours[(models.index(model) if len(models) > 1 else methods.index(method)) % len(colours)]
        preferred_look = Look(colour, dashes[methods.index(method) % len(dashes)], 2.2)
        alternatives = [look for look in free_looks if look.colour == colour] + free_looks
        look = preferred_look if preferred_look in free_looks or not alternatives else alternatives[0]
        looks[f"{model}{method}"] = look
        free_looks = [other for other in free_looks if other != look]
    return looks
