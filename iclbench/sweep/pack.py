"""Packed results: the results of a grid in a few files per task and preset, which can be committed.

The files are `OUT/TASK-PRESET.{values,costs,errors,examples,cells}.parquet` in a results folder, and are read like all
other tables in this folder. The rows of `cells` name the packed files, so all cells count as done in a checkout that
has only these files. The packed weights are in `TASK-PRESET.weights.safetensors`.

Values, costs and examples are complete. Errors are packed only if paired tests or summaries need them. Paired tests
need errors on the distribution of the task without a shift: for learning curves, the mean over context sizes in each
episode (`n_context` is missing); for targets, the compared metrics. For targets with an oracle, the errors from which
scores and gaps are computed are also packed for each shift, so that summaries can include models that are added later.
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
from iclbench.store import archives, identity
from iclbench.store.cells import CellStore, cell_row
from iclbench.store.outcome import Outcome
from iclbench.store.runs import Run, check_name, write_errors
from iclbench.sweep.cells import SUMMARY, GridCell
from iclbench.tables import TableName
from iclbench.tables.curves import mean_heights
from iclbench.tables.evaluators import DIAGNOSTICS, MAIN_ACCURACY

log = logging.getLogger("iclbench")

TABLES: tuple[TableName, ...] = ("values", "costs", "errors", "examples")
# Subfolders of a results folder to which commands write other files.
_RESERVED = {*tables.COMMAND_FOLDERS, "jobs", "report"}
# Grids whose packed results are part of a checkout, but not of an installed package.
PACKED_GRIDS = ("reference",)


@dataclass(frozen=True)
class _Source:
    """Rows of one file, and the cells that they belong to.

    Attributes:
        path: the file.
        rows: the rows.
        cells: hashes of the cells.
    """

    path: Path
    rows: pd.DataFrame
    cells: frozenset[str]


def missing_results_note(grids: Iterable[str], cells: Iterable[GridCell], results: Path) -> str | None:
    """Return a note with advice if packed results exist for one of the grids, but the results folder has none of them.
    Otherwise, return None.
    """
    if not any(canonical(name) in PACKED_GRIDS for name in grids):
        return None
    groups = {(cell.task, cell.preset) for cell in cells}
    if any(any(results.glob(f"*/{tables.packed_file_name('cells', *group)}")) for group in groups):
        return None
    return (
        f"no packed results in {results}, so all cells still have to be computed; run in the checkout, use --results, "
        "or unpack them with iclbench fetch-reference"
    )


def pack(cells: Sequence[GridCell], store: CellStore, out: Path, replace: bool = False) -> list[Path]:
    """Pack the results of all finished cells, and the rows of failed cells and of cells that are not applicable.

    The same cells give the same bytes. Existing packed results are read as well, so that repeated packing does not lose
    results that exist only in packed files.

    Args:
        cells: cells of one or several grids.
        store: the store of their rows.
        out: the folder of the packed files, in the results folder.
        replace: whether to remove finished cells and weights from `out` that these cells do not replace (default: raise
            an error if `out` has any).

    Returns:
        The written files.

    Raises:
        UsageError: `out` is not a separate folder in the results folder, or has finished cells or weights that would be
            lost.
        TableError: a file cannot be read.
    """
    results, out = store.results.resolve(), out.resolve()
    check_name(out.name, "a folder of packed results")
    if out.name in _RESERVED:
        raise UsageError(
            f"--pack {out}: iclbench writes other files to this folder; give another name", code="bad-value"
        )
    if out.parent != results:
        raise UsageError(
            f"--pack {out}: expected a folder in {store.results}; write --pack {store.results / out.name}",
            code="bad-value",
        )
    groups: dict[str, list[GridCell]] = {}
    for cell in cells:
        groups.setdefault(cell.group, []).append(cell)
    if not replace:
        for group in groups.values():
            _refuse_loss(group, store, out)
            _refuse_loss_of_weights(group, store, out)
    return [path for group in groups.values() for path in _pack_group(group, store, out)]


def _refuse_loss(cells: Sequence[GridCell], store: CellStore, out: Path) -> None:
    """Raise `UsageError` if the existing files contain finished cells that the new files would lack."""
    path = out / tables.packed_file_name("cells", cells[0].task, cells[0].preset)
    if not path.is_file():
        return
    rows = tables.read("cells", path)
    retained_cells = {cell.hash for cell in cells if store.state(cell) in ("done", "diverged")}
    lost_rows = rows[rows["status"].isin(["done", "diverged"]) & ~rows["cell"].isin(list(retained_cells))]
    summaries = [cell for cell in cells if cell.is_summary]
    if any(cell.hash in retained_cells for cell in summaries):
        # A finished summary replaces the packed one, so it is not lost.
        lost_rows = lost_rows[lost_rows["run"].ne(SUMMARY)]
    elif summaries and len(lost_rows) and lost_rows["run"].eq(SUMMARY).all():
        raise UsageError(
            f"{path}: the summary of all contestants is not done; sweep first, without --contestants",
            code="not-finished",
        )
    if len(lost_rows):
        raise UsageError(
            f"{path} holds {plural(len(lost_rows), 'finished cell')} that would be lost (such as "
            f"'{tables.short_name(lost_rows['run'].iloc[0])}'), since they are not in this grid or not done in "
            f"{store.results}: pack into another folder, or remove them with --replace",
            code="exists",
        )


def _refuse_loss_of_weights(cells: Sequence[GridCell], store: CellStore, out: Path) -> None:
    """Raise `UsageError` if the existing archive contains weights that the new archive would lack."""
    archive, entries = archives.archive_path(out, cells[0].task, cells[0].preset), dict[str, archives.PackedWeights]()
    with suppress(UsageError):  # an unreadable archive cannot lose weights
        entries |= archives.entries(archive) if archive.is_file() else {}
    packed_cells = [
        cell for cell in cells if cell.kind == "train" and cell.packs_weights and store.state(cell) == "done"
    ]
    if lost_runs := entries.keys() - {cell.run for cell in packed_cells}:
        raise UsageError(
            f"{archive} holds the weights of {plural(len(lost_runs), 'run')} that would be lost (such as "
            f"'{tables.short_name(min(lost_runs))}'), since this grid does not pack them: pack into another folder, or "
            "remove them with --replace",
            code="exists",
        )
    for cell in packed_cells:
        # A packed row belongs to the packed weights. Other weights with the same settings may give other results.
        if cell.run in entries and store.is_packed(cell.hash):
            _refuse_other_weights(cell, store, entries[cell.run])


def _refuse_other_weights(cell: GridCell, store: CellStore, packed: archives.PackedWeights) -> None:
    """Raise `UsageError` if the weights in the run's folder differ from packed weights with the same settings, which
    they would replace."""
    assert cell.config is not None
    run_weights = archives.of_run(Run(store.results / "runs" / cell.run))
    if (
        run_weights is not None
        and run_weights.training_id == packed.training_id == identity.weights_id(cell.config)
        and run_weights.digest != packed.digest
    ):
        raise UsageError(
            f"run '{cell.run}' in {run_weights.path.parent} has weights that differ from those of "
            f"'{packed.path.parent.name}/{cell.run}', whose results are packed: move it away, or replace them with "
            "--replace",
            code="exists",
        )


def _pack_group(cells: Sequence[GridCell], store: CellStore, out: Path) -> Iterator[Path]:
    """Write the files of one task at one preset. The table of cells is written last, because it marks the other files
    as complete."""
    task, preset = cells[0].task, cells[0].preset
    sources_by_table = {table: list(_sources(table, cells, store)) for table in TABLES}
    # Remove rows of runs that were trained on another task: summaries in this folder may have them, but no grid has
    # such runs. Set the column `card` to the current card: if the card has changed but the hashes of the cells have
    # not, the current card gives the same rows.
    sources_by_table["values"] = [
        replace(source, rows=source.rows[source.rows["trained_on"].isna()].assign(card=cells[0].task_config.card))
        for source in sources_by_table["values"]
    ]
    sources_by_table["values"] += _scores_before_summary(cells, store, out, sources_by_table["values"])
    values = _union("values", [source.rows for source in sources_by_table["values"]])
    paired_errors = _PairedErrors(values)
    cell_files: dict[str, list[str]] = {cell.hash: [] for cell in cells}
    packed_tables: dict[TableName, pd.DataFrame] = {}
    for table, sources in sources_by_table.items():
        parts = [
            (source, paired_errors.select(source.rows) if table == "errors" else source.rows) for source in sources
        ]
        parts = [(source, rows) for source, rows in parts if len(rows)]
        packed_tables[table] = _union(table, [rows for _, rows in parts])
        name = (out / tables.packed_file_name(table, task, preset)).relative_to(store.results.resolve()).as_posix()
        for cell in {cell for source, _ in parts for cell in source.cells}:
            cell_files[cell].append(name)
    yield from _pack_weights(cells, store, out, cell_files)
    cell_rows = [_cell_row(cell, store, cell_files[cell.hash]) for cell in sorted(cells, key=lambda cell: cell.hash)]
    packed_tables["cells"] = tables.frame("cells", [row for row in cell_rows if row is not None])
    for table, rows in packed_tables.items():
        path = out / tables.packed_file_name(table, task, preset)
        with write_errors(store.results):
            if not len(rows):
                path.unlink(missing_ok=True)
                continue
            tables.write(table, rows, path, {"packed": cells[0].group})
        yield path


def _scores_before_summary(
    cells: Sequence[GridCell], store: CellStore, out: Path, values: Sequence[_Source]
) -> Iterator[_Source]:
    """Yield the scores and gaps of finished contestants if the summary is not done yet. They depend only on the
    baselines and the oracle, which are also finished."""
    if all(store.state(cell) == "done" for cell in cells if cell.is_summary):
        return
    finished = [cell.run for cell in cells if cell.kind == "evaluate" and store.state(cell) == "done"]
    prompt_sets = {name for source in values for name in source.rows["prompt_set"].dropna().unique()}
    packed = out / tables.packed_file_name("values", cells[0].task, cells[0].preset)
    summaries = sorted(store.results.glob(f"tables/{cells[0].group}-*/summary/*.values.parquet"))
    for path in [*summaries, *([packed] if packed.is_file() else [])]:
        rows = tables.read("values", path)
        is_comparison = (
            rows["metric"].isin(tables.COMPARISON_METRICS) & rows["run"].isin(finished) & rows["trained_on"].isna()
        )
        yield _Source(path, rows[is_comparison & rows["prompt_set"].isin(sorted(prompt_sets))], frozenset())


def _pack_weights(
    cells: Sequence[GridCell], store: CellStore, out: Path, cell_files: dict[str, list[str]]
) -> Iterator[Path]:
    """Write the weights of these cells to an archive and add it to the files of the cells. If no cell has weights to
    pack, remove the existing archive."""
    archive = archives.archive_path(out, cells[0].task, cells[0].preset)
    packed_weights: dict[str, archives.PackedWeights] = {}

    @cache
    def archive_entries() -> dict[str, archives.PackedWeights]:
        if not archive.is_file():
            return {}
        archives.check(archive)
        return archives.entries(archive)

    for cell in cells:
        if cell.kind != "train" or not cell.packs_weights or store.state(cell) != "done":
            continue
        assert cell.config is not None
        packed = _weights_to_pack(cell.run, identity.weights_id(cell.config), store, archive_entries)
        if packed is None:
            log.warning("weights of run '%s' are not packed: they are not in %s", cell.run, store.results)
            continue
        packed_weights[cell.run] = packed
        cell_files[cell.hash].append(archive.relative_to(store.results.resolve()).as_posix())
    with write_errors(store.results):
        if packed_weights:
            archives.write(archive, packed_weights.values())
            yield archive
        else:
            archive.unlink(missing_ok=True)
            digest_path(archive).unlink(missing_ok=True)


def _weights_to_pack(
    run: str,
    training_id: str,
    store: CellStore,
    archive_entries: Callable[[], dict[str, archives.PackedWeights]],
) -> archives.PackedWeights | None:
    """Return the weights of a training run from its folder or from the existing archive; None if both lack them."""
    run_weights = archives.of_run(Run(store.results / "runs" / run))
    if run_weights is not None and run_weights.training_id == training_id:
        return run_weights
    packed = archive_entries().get(run)
    return packed if packed is not None and packed.training_id == training_id else None


def _cell_row(cell: GridCell, store: CellStore, files: list[str]) -> dict[str, object] | None:
    """Return the recorded row of a cell, with the packed files as its files; None if the cell has not been computed
    yet."""
    state = store.state(cell)
    if state == "todo":
        return None
    if not store.has_row(cell):
        return cell_row(cell, Outcome("skipped", cell.reason), Context(store.results))
    recorded = store.rows.loc[cell.hash]
    fields: dict[str, object] = {name: recorded[name] for name in tables.CELLS if name != "cell"}
    fields["cell"] = cell.hash
    if state in ("done", "diverged", "failed"):
        fields["files"] = json.dumps(sorted(files))
    return fields


def _sources(table: TableName, cells: Iterable[GridCell], store: CellStore) -> Iterator[_Source]:
    """Yield the rows of one table from the files of finished cells, without duplicate files and in a fixed order."""
    cells_by_path: dict[Path, list[GridCell]] = {}
    for cell in cells:
        for path in store.files(cell):
            if path.name.endswith(f"{table}.parquet"):
                cells_by_path.setdefault(path, []).append(cell)
    for path, file_cells in sorted(cells_by_path.items()):
        rows = tables.read(table, path)
        if "packed" in tables.metadata(path):
            yield from (
                _Source(path, rows[_is_row_of(table, rows, cell)], frozenset([cell.hash])) for cell in file_cells
            )
        else:
            yield _Source(path, rows, frozenset(cell.hash for cell in file_cells))


def value_rows(store: CellStore, cell: GridCell) -> pd.DataFrame:
    """Return the rows of a finished cell in the table `values`, from its own files or from packed files."""
    return _union("values", [source.rows for source in _sources("values", [cell], store)])


def _is_row_of(table: TableName, rows: pd.DataFrame, cell: GridCell) -> pd.Series:
    """Return a mask of the rows of a packed file that belong to a cell."""
    if table == "examples" and cell.is_summary:
        return rows["kind"].eq("prompts")
    if table != "values":
        return rows["run"].eq(cell.run)
    kinds = cell_kinds(rows)
    if cell.is_summary:
        return kinds.eq(SUMMARY)
    # The reference levels of probes are shared by all probes.
    return kinds.eq(cell.kind) & (rows["run"].eq(cell.run) | (kinds.eq("probe") & rows["kind"].ne("backbone")))


def cell_kinds(values: pd.DataFrame) -> pd.Series:
    """Return the kind of cell that each row of `values` belongs to: train, evaluate, probe or summary."""
    summary = (
        values["metric"].isin(tables.COMPARISON_METRICS) | values["run"].eq("chance") | values["kind"].eq("published")
    )
    trained = values["evaluator"].eq("train") | values["axis"].eq("train_step").fillna(False).astype(bool)
    masks = [summary.to_numpy(bool), trained.to_numpy(bool), values["evaluator"].isin(DIAGNOSTICS).to_numpy(bool)]
    return pd.Series(np.select(masks, [SUMMARY, "train", "probe"], "evaluate"), index=values.index)


def _union(table: TableName, frames: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """Return the rows of several files, without duplicates and in a fixed order."""
    return tables.union(table, frames).sort_values(tables.key_columns(table), kind="stable", ignore_index=True)


class _PairedErrors:
    """Selects the errors that a report needs for paired tests and that a summary needs for comparisons by episode.

    Args:
        values: rows of the table `values` of the same contestants.
    """

    def __init__(self, values: pd.DataFrame) -> None:
        unshifted = values[values["shift"].eq("none") & cell_kinds(values).isin(["evaluate", SUMMARY])]
        self._paired_prompt_sets = set(unshifted["prompt_set"].dropna())
        is_oracle = values["kind"].eq("oracle") & values["metric"].eq("log_likelihood") & values["n_related"].notna()
        self._oracle_prompt_sets = set(values.loc[is_oracle, "prompt_set"])
        self._curve_metrics = unshifted.groupby("prompt_set")["metric"].agg(curve_metric).to_dict()
        scores = values[values["metric"].eq("score")].drop_duplicates("prompt_set")
        self._score_metrics = dict(zip(scores["prompt_set"], scores["score_of"], strict=True))

    def select(self, errors: pd.DataFrame) -> pd.DataFrame:
        """Return the selected rows. There is one row for each episode and metric; for the question `targets`, also for
        each number of related datasets."""
        oracle_errors = errors[errors["prompt_set"].isin(self._oracle_prompt_sets) & errors["n_related"].notna()]
        errors = errors[errors["prompt_set"].isin(self._paired_prompt_sets)]
        # Without a summary, the metric of the scores is unknown. Squared errors are included, since scores may be
        # computed from them.
        score_metrics = [self._score_metrics.get(name, "squared_error") for name in errors["prompt_set"]]
        is_scored = errors["metric"].eq(pd.Series(score_metrics, index=errors.index, dtype="string"))
        is_curve = errors["n_related"].isna()
        targets = errors[~is_curve & (is_scored | errors["metric"].isin(["log_likelihood", MAIN_ACCURACY]))]
        is_curve_metric = errors["metric"].eq(errors["prompt_set"].map(self._curve_metrics))
        frames = [targets, *_likelihoods(oracle_errors), *_heights(errors[is_curve & is_curve_metric])]
        rows = tables.union("errors", frames).reindex(columns=list(tables.ERRORS))
        return rows.astype({name: dtype for name, (dtype, _, _) in tables.ERRORS.items()})


def _likelihoods(errors: pd.DataFrame) -> Iterator[pd.DataFrame]:
    """Yield the log-likelihoods of each contestant, or its squared errors if it predicts single values."""
    for _, rows in errors.groupby(["run", "prompt_set"]):
        likelihoods = rows[rows["metric"].isin(tables.LIKELIHOODS)]
        yield likelihoods if len(likelihoods) else rows[rows["metric"].eq("squared_error")]


def _heights(errors: pd.DataFrame) -> Iterator[pd.DataFrame]:
    """Yield the mean height of the learning curve of each episode, as in `auc`.

    Rows that are already packed do not change. If the rows of a run contain sums over the events of an episode
    (`n_events`), these sums are used instead of the heights.
    """
    yield errors[errors["n_context"].isna()]
    curves, keys = errors[errors["n_context"].notna()], ["run", "prompt_set", "metric"]
    summed = pd.MultiIndex.from_frame(errors.loc[errors["n_events"].notna(), keys])
    curves = curves[~pd.MultiIndex.from_frame(curves[keys]).isin(summed)]
    for (run, prompt_set, metric_name), rows in curves.groupby(keys):
        by_context = rows.pivot_table(values="value", index="episode", columns="n_context").astype(float)
        by_context = by_context if metric(str(metric_name)).is_for_sequences else by_context.dropna(axis=1)
        columns = {"run": str(run), "prompt_set": str(prompt_set), "metric": str(metric_name)}
        episode_heights = mean_heights(by_context).rename("value").dropna().reset_index()
        yield episode_heights.assign(**columns, n_context=None, n_related=None)
