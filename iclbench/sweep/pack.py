"""Reference results: what a swept grid found, packed into a few files per task and preset that can be committed.

`OUT/TASK-PRESET.{values,costs,errors,examples,cells}.parquet`, inside a results folder and read like all other tables
there. The rows of `cells` name the packed files, so that a checkout which has nothing else finds every cell done.
The weights that a grid asks for stand beside them, in `TASK-PRESET.weights.safetensors`.

Values, costs and examples are all there. Errors are what paired tests need: of curves the mean height of every episode
over its context sizes (`n_context` missing), of targets the metrics that are compared, all where the distribution is
the task's own; and, under every shift, what gaps to an oracle and scores next to it are made of, so that models added
later are summed up with those that are there.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd

from iclbench import tables
from iclbench.core.context import Context
from iclbench.core.errors import UsageError
from iclbench.core.files import digest_path
from iclbench.core.formats import canonical, plural
from iclbench.core.metrics import curve_metric, metric
from iclbench.store import archives
from iclbench.store.cells import Store, evaluates, row
from iclbench.store.outcome import Outcome
from iclbench.store.runs import Run, check_name, writing
from iclbench.sweep.cells import SUMMARY, GridCell
from iclbench.tables import TableName
from iclbench.tables.curves import heights
from iclbench.tables.evaluators import HEADLINE, INSIDE

log = logging.getLogger("iclbench")

TABLES: tuple[TableName, ...] = ("values", "costs", "errors", "examples")
# Folders of results that commands write other files to.
_TAKEN = {*tables.OWN, "jobs", "report"}
# Grids whose results stand packed in a checkout; an installed package does not bring them.
PACKED = ("reference",)


@dataclass(frozen=True)
class _Source:
    """One file that cells found, as far as it is theirs.

    Attributes:
        path: the file.
        rows: its rows.
        cells: hashes of the cells that name it.
    """

    path: Path
    rows: pd.DataFrame
    cells: frozenset[str]


def missing(grids: Iterable[str], asked: Iterable[GridCell], results: Path) -> str | None:
    """That the packed results of a shipped grid are not in the folder that a sweep goes on from, and what to do; None:
    some are, or no such grid is asked for."""
    if not any(canonical(name) in PACKED for name in grids):
        return None
    groups = {(cell.task, cell.preset) for cell in asked}
    if any(any(results.glob(f"*/{tables.packed_name('cells', *group)}")) for group in groups):
        return None
    return f"no packed results in {results}, so all is to do; run in the checkout, or give --results"


def pack(cells: Sequence[GridCell], store: Store, out: Path, replace: bool = False) -> list[Path]:
    """Write what all finished cells found, and the rows of failed cells and of those that make no sense.

    The same cells give the same bytes. What is packed already and found nowhere else is taken over.

    Args:
        cells: of one or several grids.
        store: the results folder that they were swept into.
        out: folder below it.
        replace: drop finished cells and weights in it that are none of these; otherwise they are an error.

    Returns:
        The files written.

    Raises:
        UsageError: `out` is no folder of its own in the results folder, or holds finished cells or weights that these
            are not.
        TableError: a file cannot be read.
    """
    results, out = store.results.resolve(), out.resolve()
    check_name(out.name, "a folder of packed results")
    if out.name in _TAKEN:
        raise UsageError(f"--pack {out}: iclbench writes other files to this folder; give another name")
    if out.parent != results:
        raise UsageError(
            f"--pack takes a folder in {store.results}: write --pack {store.results / out.name}, got {out}"
        )
    groups: dict[str, list[GridCell]] = {}
    for cell in cells:
        groups.setdefault(cell.group, []).append(cell)
    if not replace:
        for own in groups.values():
            _refuse_loss(own, store, out)
            _refuse_loss_of_weights(own, store, out)
    return [path for own in groups.values() for path in _pack_group(own, store, out)]


def _refuse_loss(cells: Sequence[GridCell], store: Store, out: Path) -> None:
    """Raise `UsageError` where the files to be written anew hold finished cells that would not be in them."""
    path = out / tables.packed_name("cells", cells[0].task, cells[0].preset)
    if not path.is_file():
        return
    rows = tables.read("cells", path)
    kept = {cell.hash for cell in cells if store.state(cell) in ("done", "diverged")}
    lost = rows[rows["status"].isin(["done", "diverged"]) & ~rows["cell"].isin(list(kept))]
    summaries = [cell for cell in cells if cell.is_summary]
    if any(cell.hash in kept for cell in summaries):
        # One of more contestants takes its place.
        lost = lost[lost["run"].ne(SUMMARY)]
    elif summaries and len(lost) and lost["run"].eq(SUMMARY).all():
        raise UsageError(f"{path}: the summary of all contestants is to do; sweep first, without --contestants")
    if len(lost):
        raise UsageError(
            f"{path} holds {len(lost)} finished cells that would be lost ('{lost['run'].iloc[0]}' and others), since "
            f"they are not in this grid or not done in {store.results}: pack into another folder, or drop them with "
            "--replace"
        )


def _refuse_loss_of_weights(cells: Sequence[GridCell], store: Store, out: Path) -> None:
    """Raise `UsageError` where the archive to be written anew holds weights that would not be in it."""
    archive, held = archives.archive_path(out, cells[0].task, cells[0].preset), dict[str, archives.Packed]()
    with suppress(UsageError):  # of one that cannot be read nothing is lost
        held |= archives.entries(archive) if archive.is_file() else {}
    asked = [cell for cell in cells if cell.kind == "train" and cell.weights and store.state(cell) == "done"]
    if lost := held.keys() - {cell.run for cell in asked}:
        raise UsageError(
            f"{archive} holds the weights of {plural(len(lost), 'run')} that would be lost ('{min(lost)}' and others), "
            "since this grid does not ask for them: pack into another folder, or drop them with --replace"
        )
    for cell in asked:
        # A row that is packed says what the packed weights did; weights of the same settings may be others.
        if cell.run in held and store.is_packed(cell.hash):
            _refuse_other_weights(cell, store, held[cell.run])


def _refuse_other_weights(cell: GridCell, store: Store, packed: archives.Packed) -> None:
    """Raise `UsageError` where the weights of the run's folder would replace packed ones of equal settings."""
    assert cell.config is not None
    own = archives.of_run(Run(store.results / "runs" / cell.run))
    if own is not None and own.trained == packed.trained == cell.config.trained and own.digest != packed.digest:
        raise UsageError(
            f"run '{cell.run}' in {own.path.parent} has other weights than '{packed.path.parent.name}/{cell.run}', "
            "whose results are packed: move it away, or replace them with --replace"
        )


def _pack_group(cells: Sequence[GridCell], store: Store, out: Path) -> Iterator[Path]:
    """The files of one task at one preset, that of the cells last: they are done when all else is there."""
    task, preset = cells[0].task, cells[0].preset
    found = {table: list(_sources(table, cells, store)) for table in TABLES}
    # No grid asks for runs of another task; summaries of this folder hold theirs too. Where a card has changed in what
    # none of these cells depends on, they have kept their hashes: the card as it is now gives these very rows.
    found["values"] = [
        replace(source, rows=source.rows[source.rows["trained_on"].isna()].assign(card=cells[0].frozen.card))
        for source in found["values"]
    ]
    found["values"] += _standing(cells, store, out, found["values"])
    values = _together("values", [source.rows for source in found["values"]])
    compared = _Compared(values)
    named: dict[str, list[str]] = {cell.hash: [] for cell in cells}
    whole: dict[TableName, pd.DataFrame] = {}
    for table, sources in found.items():
        kept = [(source, compared.of(source.rows) if table == "errors" else source.rows) for source in sources]
        kept = [(source, rows) for source, rows in kept if len(rows)]
        whole[table] = _together(table, [rows for _, rows in kept])
        name = (out / tables.packed_name(table, task, preset)).relative_to(store.results.resolve()).as_posix()
        for cell in {cell for source, _ in kept for cell in source.cells}:
            named[cell].append(name)
    yield from _pack_weights(cells, store, out, named)
    about = [_about(cell, store, named[cell.hash]) for cell in sorted(cells, key=lambda cell: cell.hash)]
    whole["cells"] = tables.frame("cells", [each for each in about if each is not None])
    for table, rows in whole.items():
        path = out / tables.packed_name(table, task, preset)
        with writing(store.results):
            if not len(rows):
                path.unlink(missing_ok=True)
                continue
            tables.write(table, rows, path, {"packed": cells[0].group})
        yield path


def _standing(cells: Sequence[GridCell], store: Store, out: Path, values: Sequence[_Source]) -> Iterator[_Source]:
    """Scores and gaps of those who are there while others are not yet, which the summary waits for: they depend on
    nobody but the baselines and the oracle, who are summed up with them."""
    if all(store.state(cell) == "done" for cell in cells if cell.is_summary):
        return
    there = [cell.run for cell in cells if cell.kind == "evaluate" and store.state(cell) == "done"]
    prompt_sets = {name for source in values for name in source.rows["prompt_set"].dropna().unique()}
    packed = out / tables.packed_name("values", cells[0].task, cells[0].preset)
    own = sorted(store.results.glob(f"tables/{cells[0].group}-*/summary/*.values.parquet"))
    for path in [*own, *([packed] if packed.is_file() else [])]:
        rows = tables.read("values", path)
        scored = rows["metric"].isin(tables.COMPARING) & rows["run"].isin(there) & rows["trained_on"].isna()
        yield _Source(path, rows[scored & rows["prompt_set"].isin(sorted(prompt_sets))], frozenset())


def _pack_weights(cells: Sequence[GridCell], store: Store, out: Path, named: dict[str, list[str]]) -> Iterator[Path]:
    """The archive of weights that cells ask for, which their rows then name; none where there are none."""
    archive = archives.archive_path(out, cells[0].task, cells[0].preset)
    found: dict[str, archives.Packed] = {}

    @cache
    def there() -> dict[str, archives.Packed]:
        if not archive.is_file():
            return {}
        archives.check(archive)
        return archives.entries(archive)

    for cell in cells:
        if cell.kind != "train" or not cell.weights or store.state(cell) != "done":
            continue
        assert cell.config is not None
        packed = _packed(cell.run, cell.config.trained, store, there)
        if packed is None:
            log.warning("weights of run '%s' are not packed: they are not in %s", cell.run, store.results)
            continue
        found[cell.run] = packed
        named[cell.hash].append(archive.relative_to(store.results.resolve()).as_posix())
    with writing(store.results):
        if found:
            archives.write(archive, found.values())
            yield archive
        else:
            archive.unlink(missing_ok=True)
            digest_path(archive).unlink(missing_ok=True)


def _packed(
    run: str, trained: dict[str, object], store: Store, there: Callable[[], dict[str, archives.Packed]]
) -> archives.Packed | None:
    """Weights that were trained like this, those of the run's folder before those that are packed already."""
    own = archives.of_run(Run(store.results / "runs" / run))
    if own is not None and own.trained == trained:
        return own
    packed = there().get(run)
    return packed if packed is not None and packed.trained == trained else None


def _about(cell: GridCell, store: Store, files: list[str]) -> dict[str, object] | None:
    """The cell's row: as it was recorded, but for the files; None as long as nothing has become of it."""
    state = store.state(cell)
    if state == "todo":
        return None
    if not store.has_row(cell):
        return row(cell, Outcome("skipped", cell.reason), Context(store.results))
    recorded = store.rows.loc[cell.hash]
    about: dict[str, object] = {name: recorded[name] for name in tables.CELLS if name != "cell"}
    about["cell"] = cell.hash
    if state in ("done", "diverged", "failed"):
        about["files"] = json.dumps(sorted(files))
    if state == "done" and evaluates(cell):
        about["metrics"] = " ".join(sorted(store.metrics(cell))) or None
    return about


def _sources(table: TableName, cells: Iterable[GridCell], store: Store) -> Iterator[_Source]:
    """The files of one table that finished cells name, each once, in a fixed order."""
    users: dict[Path, list[GridCell]] = {}
    for cell in cells:
        for path in store.files(cell):
            if path.name.endswith(f"{table}.parquet"):
                users.setdefault(path, []).append(cell)
    for path, own in sorted(users.items()):
        rows = tables.read(table, path)
        if "packed" in tables.metadata(path):
            yield from (_Source(path, rows[_is_of(table, rows, cell)], frozenset([cell.hash])) for cell in own)
        else:
            yield _Source(path, rows, frozenset(cell.hash for cell in own))


def value_rows(store: Store, cell: GridCell) -> pd.DataFrame:
    """The rows of `values` that a finished cell found, from its own files or from packed ones."""
    return _together("values", [source.rows for source in _sources("values", [cell], store)])


def _is_of(table: TableName, rows: pd.DataFrame, cell: GridCell) -> pd.Series:
    """Which rows of a packed file are a cell's."""
    if table == "examples" and cell.is_summary:
        return rows["kind"].eq("prompts")
    if table != "values":
        return rows["run"].eq(cell.run)
    sort = _sort(rows)
    if cell.is_summary:
        return sort.eq(SUMMARY)
    # The reference levels beside a probe are of all probes together.
    return sort.eq(cell.kind) & (rows["run"].eq(cell.run) | (sort.eq("probe") & rows["kind"].ne("backbone")))


def _sort(values: pd.DataFrame) -> pd.Series:
    """The kind of cell that every row of `values` is of: train, evaluate, probe, or the summary."""
    summary = values["metric"].isin(tables.COMPARING) | values["run"].eq("chance") | values["kind"].eq("published")
    trained = values["evaluator"].eq("train") | values["axis"].eq("train_step").fillna(False).astype(bool)
    sorts = [summary.to_numpy(bool), trained.to_numpy(bool), values["evaluator"].isin(INSIDE).to_numpy(bool)]
    return pd.Series(np.select(sorts, [SUMMARY, "train", "probe"], "evaluate"), index=values.index)


def _together(table: TableName, frames: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """Rows of several files in an order of their own, each once."""
    return tables.union(table, frames).sort_values(tables.keys(table), kind="stable", ignore_index=True)


class _Compared:
    """The errors that paired tests of a report need, and a summary that compares by episode.

    Args:
        values: value rows of the same contestants.
    """

    def __init__(self, values: pd.DataFrame) -> None:
        own = values[values["shift"].eq("none") & _sort(values).isin(["evaluate", SUMMARY])]
        self._paired = set(own["prompt_set"].dropna())
        oracles = values["kind"].eq("oracle") & values["metric"].eq("log_likelihood") & values["n_related"].notna()
        self._beside_oracle = set(values.loc[oracles, "prompt_set"])
        self._curve_of = own.groupby("prompt_set")["metric"].agg(curve_metric).to_dict()
        scores = values[values["metric"].eq("score")].drop_duplicates("prompt_set")
        self._scored_by = dict(zip(scores["prompt_set"], scores["score_of"], strict=True))

    def of(self, errors: pd.DataFrame) -> pd.DataFrame:
        """A row per episode and metric, for `targets` and number of related datasets."""
        beside_oracle = errors[errors["prompt_set"].isin(self._beside_oracle) & errors["n_related"].notna()]
        errors = errors[errors["prompt_set"].isin(self._paired)]
        # Where nothing is summed up yet, scores may turn out to be made of errors.
        scored = [self._scored_by.get(name, "squared_error") for name in errors["prompt_set"]]
        by_score = errors["metric"].eq(pd.Series(scored, index=errors.index, dtype="string"))
        curves = errors["n_related"].isna()
        targets = errors[~curves & (by_score | errors["metric"].isin(["log_likelihood", HEADLINE]))]
        of_curve = errors["metric"].eq(errors["prompt_set"].map(self._curve_of))
        frames = [targets, *_likelihoods(beside_oracle), *_heights(errors[curves & of_curve])]
        found = tables.union("errors", frames).reindex(columns=list(tables.ERRORS))
        return found.astype({name: dtype for name, (dtype, _, _) in tables.ERRORS.items()})


def _likelihoods(errors: pd.DataFrame) -> Iterator[pd.DataFrame]:
    """Log-likelihoods, and the squared errors of those who predict single values."""
    for _, rows in errors.groupby(["run", "prompt_set"]):
        likelihoods = rows[rows["metric"].isin(tables.LIKELIHOODS)]
        yield likelihoods if len(likelihoods) else rows[rows["metric"].eq("squared_error")]


def _heights(errors: pd.DataFrame) -> Iterator[pd.DataFrame]:
    """The mean height of every episode's curve, as `auc` has it; what is packed already stays as it is, and so do sums
    over episodes (`n_events`), which stand for the curves of their run."""
    yield errors[errors["n_context"].isna()]
    curves, keys = errors[errors["n_context"].notna()], ["run", "prompt_set", "metric"]
    summed = pd.MultiIndex.from_frame(errors.loc[errors["n_events"].notna(), keys])
    curves = curves[~pd.MultiIndex.from_frame(curves[keys]).isin(summed)]
    for (run, prompt_set, of), rows in curves.groupby(keys):
        wide = rows.pivot_table(values="value", index="episode", columns="n_context").astype(float)
        wide = wide if metric(str(of)).of_sequences else wide.dropna(axis=1)
        of_run = {"run": str(run), "prompt_set": str(prompt_set), "metric": str(of)}
        found = heights(wide).rename("value").dropna().reset_index()
        yield found.assign(**of_run, n_context=None, n_related=None)
