"""The frames behind a report: what was read, and one slice per task, preset and trained length."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import pandas as pd

from iclbench import tables
from iclbench.analysis import slices
from iclbench.analysis.comparable import trained_again
from iclbench.analysis.episode_scores import EpisodeScores
from iclbench.analysis.scores import comparable_rows
from iclbench.analysis.slices import rows_of
from iclbench.core.errors import UnknownNameError, UsageError
from iclbench.core.formats import canonical
from iclbench.report.language import PRESET, Language, answers, prepared
from iclbench.report.style import Look, looks
from iclbench.tables.evaluators import INSIDE

log = logging.getLogger("iclbench")

KINDS = ("oracle", "backbone", "baseline", "published")


@dataclass(frozen=True)
class Results(slices.Results):
    """Everything that was read from a results folder; what language models did stands apart, in `language`."""

    examples: pd.DataFrame
    language: Language
    skipped: tuple[str, ...] = ()
    set_aside: tuple[str, ...] = ()
    cells: pd.DataFrame = field(default_factory=lambda: tables.frame("cells", []))
    trials: pd.DataFrame = field(default_factory=lambda: tables.frame("trials", []))
    folder: Path | None = None

    @cached_property
    def looks(self) -> dict[str, Look]:
        """The look of every contestant, the same all over the report."""
        by_kind = self.rows.groupby("kind")["contestant"].unique()
        backbones, baselines, oracles = (by_kind.get(kind, []) for kind in ("backbone", "baseline", "oracle"))
        return looks(backbones, baselines, oracles, self.orders)

    @cached_property
    def user_backbones(self) -> frozenset[str]:
        """Backbones that do not come with the package: the user's."""
        return frozenset(name for name, look in self.looks.items() if look.own)

    @cached_property
    def orders(self) -> dict[str, str]:
        """Which backbones read their context in order ("causal") or take it as a "set", as far as it is known."""
        said = self.rows.dropna(subset="context_order").drop_duplicates("contestant")
        return dict(zip(said["contestant"], said["context_order"], strict=True))

    @cached_property
    def slices(self) -> list[Slice]:
        """The slices of `analysis.slices`, with examples and looks."""
        return [Slice(self, *key) for key in self.slice_keys]


@dataclass(frozen=True)
class Slice(slices.Slice):
    """A slice with examples and looks."""

    results: Results = field(repr=False)

    @cached_property
    def data(self) -> str | None:
        """The images that episodes are made of, as far as rows say so; None: nothing is said."""
        said = self.rows.loc[self.rows["kind"] != "published", "data"].dropna().unique()
        return ", ".join(sorted(map(str, said))) or None

    @property
    def siblings(self) -> list[Slice]:
        """The slices of this task and preset, by trained length; just this one where all runs agree in it."""
        return [s for s in self.results.slices if (s.task, s.preset) == (self.task, self.preset)]

    @cached_property
    def examples(self) -> pd.DataFrame:
        """Points and predictions of the first few episodes of this slice's prompt sets."""
        v = self.rows
        return self._drawn(v[~v["evaluator"].isin(INSIDE)])

    @cached_property
    def features(self) -> pd.DataFrame:
        """True features of inputs (role `function`) and those read off a learned representation (`predicted`)."""
        v = self.rows
        return self._drawn(v[v["evaluator"] == "representation"])

    def _drawn(self, rows: pd.DataFrame) -> pd.DataFrame:
        drawn = rows_of(self.results.examples, self.task, self.preset)
        return drawn[drawn["prompt_set"].isin(rows["prompt_set"].dropna())]

    @cached_property
    def looks(self) -> dict[str, Look]:
        """The looks of the contestants met here. What is the oracle of one task may be a baseline of another."""
        oracles = [name for name, kind in self.kinds.items() if kind == "oracle"]
        return {name: self.results.looks[name] for name in self.kinds} | looks([], [], oracles)


def load(results: Path, tasks: Sequence[str] = ()) -> Results:
    """Read a results folder, of some tasks alone if any are named; raises `UsageError` when there is nothing to report,
    and `UnknownNameError` for a task without rows."""
    problems: list[tables.TableError] = []
    values, packed = (tables.read_all("values", results, problems, packed) for packed in (False, True))
    if tasks:
        spelt = {canonical(name): str(name) for name in (*values["task"].unique(), *packed["task"].unique())}
        for name in tasks:
            if canonical(name) not in spelt and spelt:
                raise UnknownNameError("task", name, spelt.values(), f"(tasks with results in {results})")
        tasks = [spelt.get(canonical(name), name) for name in tasks]
        values, packed = (rows[rows["task"].isin(list(tasks))] for rows in (values, packed))
    again, passed_over = trained_again(packed, values)
    values = _beside("values", values, packed, again)
    if values.empty:
        skipped = f" ({len(problems)} unreadable files were skipped)" if problems else ""
        raise UsageError(
            f"no results in {results}{skipped}; run 'iclbench demo', or 'iclbench train TASK BACKBONE' and then "
            "'iclbench eval', or name another folder with --results"
        )
    costs, examples, cells = (_all(table, results, problems, again) for table in ("costs", "examples", "cells"))
    trials = tables.read_all("trials", results, problems)
    if tasks:
        costs, examples, cells = (rows[rows["task"].isin(list(tasks))] for rows in (costs, examples, cells))
    language_rows, values = (
        values[values["preset"] == PRESET],
        values[values["preset"] != PRESET].reset_index(drop=True),
    )
    language_rows, unknown_models = prepared(language_rows)
    language = Language(language_rows, costs[costs["preset"] == PRESET], answers(results, language_rows, problems))
    costs = costs[costs["preset"] != PRESET].reset_index(drop=True)
    known = {*language_rows["prompt_set"].dropna(), *values["prompt_set"].dropna()}
    values, set_aside = comparable_rows(values)
    paired = set(values.loc[values["shift"] == "none", "prompt_set"].dropna())
    errors = EpisodeScores(_errors(results, known - paired, problems, again), paired)
    # Variants of one backbone have names of their own there too, and runs on another task's prompts.
    keys = ["task", "preset", "run"]
    names = values.drop_duplicates(keys).set_index(keys)["contestant"]
    for table in (costs, examples, cells):
        named = names.reindex(pd.MultiIndex.from_frame(table[keys])).set_axis(table.index)
        table["contestant"] = named.fillna(table["contestant"])
    # Paths relative to the folder: the same tables give the same page wherever they lie.
    skipped_lines = tuple(str(problem).replace(f"{results}/", "") for problem in problems)
    set_aside = (*passed_over, *set_aside, *unknown_models)
    return Results(values, errors, costs, examples, language, skipped_lines, set_aside, cells, trials, results)


def of_values(values: pd.DataFrame) -> Results:
    """What a report can say of rows of the table `values` alone, without a folder; raises `UsageError` where there are
    none."""
    if values.empty:
        raise UsageError("there are no rows to report on; icl.evaluate(...) and open_results(...).values() give some")
    rows, set_aside = comparable_rows(tables.validate("values", values))
    empty = {table: tables.frame(table, []) for table in ("costs", "examples", "answers")}
    language = Language(rows.iloc[:0], empty["costs"], empty["answers"])
    errors = EpisodeScores(iter(()), set())
    return Results(rows, errors, empty["costs"], empty["examples"], language, (), set_aside)


def data_note(rows: pd.DataFrame) -> pd.Series:
    """For the name of a published contestant: the data that its number is for, behind a comma; empty: no data set.

    >>> data_note(pd.DataFrame({"data": ["glyphs=omniglot", None]})).tolist()
    [', glyphs=omniglot', '']
    """
    return (", " + rows["data"].astype("string")).fillna("")


def _all(table: tables.TableName, results: Path, problems: list[tables.TableError], again: set[str]) -> pd.DataFrame:
    """All rows of a table; of runs that the user has trained again, those that are not packed."""
    own, packed = (tables.read_all(table, results, problems, packed) for packed in (False, True))
    return _beside(table, own, packed, again)


def _beside(table: tables.TableName, own: pd.DataFrame, packed: pd.DataFrame, again: set[str]) -> pd.DataFrame:
    return tables.union(table, [own, packed[~packed["run"].isin(list(again))]])


def _errors(
    results: Path, passed_over: set[str], problems: list[tables.TableError], again: set[str]
) -> Iterator[pd.DataFrame]:
    """One file at a time: the errors of all episodes together may not fit into memory. Those in the folders of some
    prompt sets are not read at all, and packed ones are passed over of runs that the user has trained again."""
    for path in tables.files("errors", results):
        if path.parent.name in passed_over:
            continue
        try:
            rows = tables.read("errors", path)
            yield rows[~rows["run"].isin(list(again))] if tables.is_packed(path, results) else rows
        except tables.TableError as error:
            log.warning("skipped: %s", error)
            problems.append(error)
