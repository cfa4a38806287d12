"""The frames of a report: all tables of a results folder, and one slice per task, preset and training length."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import pandas as pd

from iclbench import tables
from iclbench.analysis import slices
from iclbench.analysis.comparable import retrained_runs
from iclbench.analysis.episode_scores import EpisodeScores
from iclbench.analysis.scores import comparable_rows
from iclbench.analysis.slices import rows_of
from iclbench.core.errors import UnknownNameError, UsageError
from iclbench.core.formats import canonical
from iclbench.report.language import PRESET, LanguageResults, first_answers, prepare_rows
from iclbench.report.style import Look, looks
from iclbench.tables.evaluators import DIAGNOSTICS

log = logging.getLogger("iclbench")

KINDS = ("oracle", "backbone", "baseline", "published")


@dataclass(frozen=True)
class Results(slices.Results):
    """The tables of a results folder.

    Attributes:
        examples: points and predictions of single episodes.
        language: the results of language models; the other attributes do not contain them.
        skipped_files: a message for each unreadable file.
        excluded_rows: a message for each group of rows that is excluded because it is not comparable with the others.
        cells: the cells of sweeps.
        trials: the trials of `iclbench tune`.
        folder: the results folder; None if the rows are not from a folder.
        local_runs: names of the runs that are not packed; empty if the folder has no packed results.
    """

    examples: pd.DataFrame
    language: LanguageResults
    skipped_files: tuple[str, ...] = ()
    excluded_rows: tuple[str, ...] = ()
    cells: pd.DataFrame = field(default_factory=lambda: tables.frame("cells", []))
    trials: pd.DataFrame = field(default_factory=lambda: tables.frame("trials", []))
    folder: Path | None = None
    local_runs: frozenset[str] = frozenset()

    @cached_property
    def looks(self) -> dict[str, Look]:
        """The look of every contestant, the same in all figures."""
        by_kind = self.rows.groupby("kind")["contestant"].unique()
        backbones, baselines, oracles = (by_kind.get(kind, []) for kind in ("backbone", "baseline", "oracle"))
        return looks(backbones, baselines, oracles, self.orders)

    @cached_property
    def user_backbones(self) -> frozenset[str]:
        """Backbones that are not part of the package."""
        return frozenset(name for name, look in self.looks.items() if look.is_user_defined)

    @cached_property
    def orders(self) -> dict[str, str]:
        """The context order, "causal" or "set", of every backbone for which it is known."""
        rows = self.rows.dropna(subset="context_order").drop_duplicates("contestant")
        return dict(zip(rows["contestant"], rows["context_order"], strict=True))

    def backbone_looks(self, backbones: Iterable[str]) -> dict[str, Look]:
        """The looks of backbones in figures that draw all variants of a backbone as one line."""
        is_known = self.rows["kind"].eq("backbone") & self.rows["context_order"].notna()
        rows = self.rows[is_known].drop_duplicates("backbone")
        orders = dict(zip(rows["backbone"], rows["context_order"], strict=True))
        names = sorted(backbones)
        return {name: look for name, look in looks(names, [], [], orders).items() if name in names}

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
        """The data sets from which episodes are sampled; None if the task has no data set."""
        names = self.rows.loc[self.rows["kind"] != "published", "data"].dropna().unique()
        return ", ".join(sorted(map(str, names))) or None

    @property
    def siblings(self) -> list[Slice]:
        """The slices of this task and preset, one for each training length."""
        return [s for s in self.results.slices if (s.task, s.preset) == (self.task, self.preset)]

    @cached_property
    def examples(self) -> pd.DataFrame:
        """Points and predictions of the first few episodes of this slice's prompt sets."""
        rows = self.rows
        return self._examples_of(rows[~rows["evaluator"].isin(DIAGNOSTICS)])

    @cached_property
    def features(self) -> pd.DataFrame:
        """Features of inputs: true features (role `function`) and features of a learned representation (role
        `predicted`)."""
        rows = self.rows
        return self._examples_of(rows[rows["evaluator"] == "representation"])

    def _examples_of(self, rows: pd.DataFrame) -> pd.DataFrame:
        examples = rows_of(self.results.examples, self.task, self.preset)
        return examples[examples["prompt_set"].isin(rows["prompt_set"].dropna())]

    @cached_property
    def looks(self) -> dict[str, Look]:
        """The looks of the slice's contestants. Its oracles look like oracles, even if they are baselines of other
        tasks."""
        oracles = [name for name, kind in self.kinds.items() if kind == "oracle"]
        return {name: self.results.looks[name] for name in self.kinds} | looks([], [], oracles)


def load_results(results: Path, tasks: Sequence[str] = (), contestants: Sequence[str] = ()) -> Results:
    """Read a results folder.

    Args:
        results: the folder.
        tasks: names of the tasks to read (default: all).
        contestants: names of the contestants and runs to show (default: all). The name of a model that is not a
            contestant selects all contestants of the model. The name of a run selects only the rows of the run.

    Raises:
        UsageError: the folder has no results (code `nothing-to-do`).
        UnknownNameError: a task, contestant or run has no results.
    """
    problems: list[tables.TableError] = []
    values, packed = (tables.read_all("values", results, problems, packed) for packed in (False, True))
    if tasks:
        names = {canonical(name): str(name) for name in (*values["task"].unique(), *packed["task"].unique())}
        for name in tasks:
            if canonical(name) not in names and names:
                raise UnknownNameError("task", name, names.values(), f"(tasks with results in {results})")
        tasks = [names.get(canonical(name), name) for name in tasks]
        values, packed = (rows[rows["task"].isin(list(tasks))] for rows in (values, packed))
    retrained_names, retrained_lines = retrained_runs(packed, values)
    local_runs = frozenset[str]() if packed.empty else frozenset(values.loc[values["kind"].eq("backbone"), "run"])
    values = _union("values", values, packed, retrained_names)
    if values.empty:
        skipped = f" ({len(problems)} unreadable files were skipped)" if problems else ""
        raise UsageError(
            f"no results in {results}{skipped}; run 'iclbench demo', or 'iclbench train TASK BACKBONE' and then "
            "'iclbench eval', or pass another folder to --results",
            code="nothing-to-do",
        )
    costs, examples, cells = (
        _read(table, results, problems, retrained_names) for table in ("costs", "examples", "cells")
    )
    trials = tables.union("trials", [tables.read_all("trials", results, problems, packed) for packed in (False, True)])
    if tasks:
        costs, examples, cells = (rows[rows["task"].isin(list(tasks))] for rows in (costs, examples, cells))
    is_language = values["preset"] == PRESET
    language_rows, excluded_cells = prepare_rows(values[is_language])
    values = values[~is_language].reset_index(drop=True)
    language_costs, costs = costs[costs["preset"] == PRESET], costs[costs["preset"] != PRESET].reset_index(drop=True)
    prompt_sets = {*language_rows["prompt_set"].dropna(), *values["prompt_set"].dropna()}
    values, excluded_rows = comparable_rows(values)
    paired_sets = set(values.loc[values["shift"] == "none", "prompt_set"].dropna())
    errors = EpisodeScores(_episode_errors(results, prompt_sets - paired_sets, problems, retrained_names), paired_sets)
    # Variants and runs that were trained on another task get the same names in all tables as in `values`.
    keys = ["task", "preset", "run"]
    name_by_run = values.drop_duplicates(keys).set_index(keys)["contestant"]
    for table in (costs, examples, cells):
        row_contestants = name_by_run.reindex(pd.MultiIndex.from_frame(table[keys])).set_axis(table.index)
        table["contestant"] = row_contestants.fillna(table["contestant"])
    hidden_rows = values.iloc[:0]
    if contestants:
        selection = _Selection.of(contestants, pd.concat([values, language_rows]))
        is_selected = selection.contains(values)
        hidden_rows, values = values[~is_selected], values[is_selected]
        costs, cells, language_rows, language_costs = (
            rows[selection.contains(rows)].reset_index(drop=True)
            for rows in (costs, cells, language_rows, language_costs)
        )
        trials = trials[trials["contestant"].isin(selection.contestants)].reset_index(drop=True)
        examples = examples[examples["contestant"].isna() | selection.contains(examples)]
    # Sections select many small frames, which is faster with Python strings.
    values, hidden_rows, costs, examples, cells, language_rows, language_costs = map(
        tables.with_python_strings, (values, hidden_rows, costs, examples, cells, language_rows, language_costs)
    )
    language = LanguageResults(language_rows, language_costs, first_answers(results, language_rows, problems))
    # Paths are relative to the results folder, so that the report does not depend on the location of the folder.
    skipped_files = tuple(str(problem).replace(f"{results}/", "") for problem in problems)
    excluded_rows = (*retrained_lines, *excluded_rows, *excluded_cells)
    return Results(
        values,
        errors,
        costs,
        examples,
        language,
        skipped_files,
        excluded_rows,
        cells,
        trials,
        results,
        local_runs,
        hidden_rows=hidden_rows,
    )


@dataclass(frozen=True)
class _Selection:
    """The contestants and runs to show."""

    contestants: frozenset[str]
    runs: frozenset[str]

    @classmethod
    def of(cls, names: Sequence[str], rows: pd.DataFrame) -> _Selection:
        """Find each name among contestants, then models, then runs."""
        rows = rows.loc[rows["kind"].ne("published"), ["contestant", "model", "run"]].drop_duplicates()
        contestants = _by_canonical_name(rows["model"], rows["contestant"])
        contestants |= _by_canonical_name(rows["contestant"], rows["contestant"])
        runs = _by_canonical_name(rows["run"], rows["run"])
        selected_contestants, selected_runs = set[str](), set[str]()
        for name in names:
            if (key := canonical(name)) in contestants:
                selected_contestants |= contestants[key]
            elif key in runs:
                selected_runs |= runs[key]
            else:
                known = {*rows["contestant"], *rows["run"]}
                raise UnknownNameError("contestant or run", name, known, "(with results)")
        return cls(frozenset(selected_contestants), frozenset(selected_runs))

    def contains(self, rows: pd.DataFrame) -> pd.Series:
        return rows["contestant"].isin(self.contestants) | rows["run"].isin(self.runs)


def _by_canonical_name(names: pd.Series, values: pd.Series) -> dict[str, set[str]]:
    """The values of each name. Missing names have no values."""
    by_name: dict[str, set[str]] = {}
    for name, value in zip(names, values, strict=True):
        if pd.notna(name):
            by_name.setdefault(canonical(str(name)), set()).add(str(value))
    return by_name


def results_from_values(values: pd.DataFrame) -> Results:
    """Create results from rows of the table `values`, without a results folder.

    Raises:
        UsageError: the frame is empty (code `nothing-to-do`).
        TableError: `values` does not match the schema of the table.
    """
    if values.empty:
        raise UsageError(
            "the frame has no rows to report on; use icl.evaluate(...) or open_results(...).values()",
            code="nothing-to-do",
        )
    rows, excluded_rows = comparable_rows(tables.validate("values", values))
    empty = {table: tables.frame(table, []) for table in ("costs", "examples", "answers")}
    language = LanguageResults(rows.iloc[:0], empty["costs"], empty["answers"])
    errors = EpisodeScores(iter(()), set())
    return Results(rows, errors, empty["costs"], empty["examples"], language, (), excluded_rows)


def data_note(rows: pd.DataFrame) -> pd.Series:
    """A suffix with the data set of each published number, for the name of its contestant; empty if the data set is not
    known.

    >>> data_note(pd.DataFrame({"data": ["glyphs=omniglot", None]})).tolist()
    [', glyphs=omniglot', '']
    """
    return (", " + rows["data"].astype("string")).fillna("")


def _read(
    table: tables.TableName, results: Path, problems: list[tables.TableError], retrained_names: set[str]
) -> pd.DataFrame:
    """All rows of a table, without packed rows of retrained runs."""
    local, packed = (tables.read_all(table, results, problems, packed) for packed in (False, True))
    return _union(table, local, packed, retrained_names)


def _union(
    table: tables.TableName, local: pd.DataFrame, packed: pd.DataFrame, retrained_names: set[str]
) -> pd.DataFrame:
    return tables.union(table, [local, packed[~packed["run"].isin(list(retrained_names))]])


def _episode_errors(
    results: Path, ignored_sets: set[str], problems: list[tables.TableError], retrained_names: set[str]
) -> Iterator[pd.DataFrame]:
    """Yield the scores of single episodes file by file, because all of them may not fit into memory. Folders of ignored
    prompt sets are not read, and packed rows of retrained runs are removed."""
    for path in tables.files("errors", results):
        if path.parent.name in ignored_sets:
            continue
        try:
            rows = tables.read("errors", path)
            if tables.is_packed(path, results):
                rows = tables.with_short_names(rows)
                rows = rows[~rows["run"].isin(list(retrained_names))]
            yield rows
        except tables.TableError as error:
            log.warning("skipped: %s", error)
            problems.append(error)
