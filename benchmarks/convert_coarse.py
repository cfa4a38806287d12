"""Convert packed results in which some baselines have only a few context sizes to results with all context sizes.

    ICLBENCH_DATA=DATA python benchmarks/convert_coarse.py results/reference WORK

The packs are those of the commits from 3a658a3f to 90195c37. The script recomputes the cells of these baselines in the
results folder WORK, where a second call continues. It replaces their rows in `values`, `errors` and `costs`, the scores
of all models on the same prompt sets, and the gaps of these baselines. It removes the column `coarse` and, from
`errors`, the duplicate means over a few context sizes. All other rows are compared with the old packs and are
unchanged.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from iclbench import tables
from iclbench.core import digests
from iclbench.core.context import Context
from iclbench.evaluation.gaps import next_gap_rows
from iclbench.evaluation.prompts import PromptSet
from iclbench.evaluation.scores import scores_of
from iclbench.store.cells import CellStore
from iclbench.sweep.cells import GridCell, grid_cells
from iclbench.sweep.pack import _PairedErrors
from iclbench.sweep.work import share_cores, work

DATA = Path(os.environ.get("ICLBENCH_DATA", "data"))
TABLES: tuple[tables.TableName, ...] = ("values", "errors", "costs", "cells")
# Columns of a cell that describe its computation.
COMPUTED = ["seconds", "device", "hardware", "kernels", "threads", "libraries", "version"]
Packs = dict[tables.TableName, pd.DataFrame]


def convert(packs: Path, folder: Path) -> None:
    """Convert all files of a folder of packed results, as described at the top of the module."""
    share_cores(1)
    of_group: dict[str, list[GridCell]] = {}
    for cell in grid_cells(["reference"]):
        if cell.baseline is not None and cell.kind == "evaluate":
            of_group.setdefault(cell.group, []).append(cell)
    for path in sorted(packs.glob("*.cells.parquet")):
        group = path.name.removesuffix(".cells.parquet")
        paths = {name: packs / f"{group}.{name}.parquet" for name in TABLES}
        old = {name: pq.read_table(path).to_pandas() for name, path in paths.items() if path.is_file()}
        new = {name: rows.drop(columns="coarse", errors="ignore") for name, rows in old.items()}
        if "coarse" in old.get("errors", ()):
            new["errors"] = new["errors"][~_is_duplicate_height(old["errors"])]
        if few := baselines_with_few_sizes(old["values"]):
            cells = {cell.run: cell for cell in of_group[group]}
            new = recompute(new, [cells[run] for run in sorted(few)], cells, folder)
            compare(old, new, few)
        for name, rows in new.items():
            columns = [column for column in old[name].columns if column != "coarse"]
            if not rows[columns].equals(old[name]):
                write(name, rows[columns], paths[name])
        print(f"{group}: {', '.join(sorted(few)) or 'no baseline'} recomputed", flush=True)


def _is_duplicate_height(errors: pd.DataFrame) -> pd.Series:
    """Return a mask of mean errors over a few context sizes, for contestants that also have mean errors over all
    sizes.
    """
    coarse, keys = errors["coarse"].fillna(False).astype(bool), ["run", "prompt_set", "metric"]
    duplicate_keys = pd.MultiIndex.from_frame(errors.loc[~coarse, keys])
    return coarse & pd.MultiIndex.from_frame(errors[keys]).isin(duplicate_keys)


def baselines_with_few_sizes(values: pd.DataFrame) -> set[str]:
    """Return the baselines with fewer context sizes than others."""
    baselines = values[values["kind"].isin(["baseline", "oracle"]) & values["evaluator"].eq("next")]
    sizes = baselines[baselines["axis"].isna()].groupby(["prompt_set", "metric", "run"])["n_context"].nunique()
    most = sizes.groupby(level=["prompt_set", "metric"]).transform("max")
    return {str(run) for run in sizes[sizes.between(1, most - 1)].reset_index()["run"]}


def recompute(packs: Packs, few: list[GridCell], of_name: dict[str, GridCell], folder: Path) -> Packs:
    """Return the packs with all changes that follow from the recomputed cells."""
    values, errors, runs = packs["values"], packs["errors"], {cell.run for cell in few}
    rows = {name: [_computed_rows(cell, name, folder) for cell in few] for name in TABLES[:3]}
    new_frames = {name: tables.union(name, frames) for name, frames in rows.items()}
    new = dict(packs)
    others = values[~(values["run"].isin(runs) & values["evaluator"].eq("next"))]
    full = tables.union("values", [tables.validate("values", others), new_frames["values"].assign(commit=pd.NA)])
    heights = _PairedErrors(full).select(new_frames["errors"])
    new["errors"] = _sort_as_packed("errors", errors[~errors["run"].isin(runs)], heights)
    if "costs" in packs and packs["costs"]["run"].isin(runs).any():
        of_runs = packs["costs"]["run"].isin(runs) & packs["costs"]["phase"].eq("evaluate")
        new["costs"] = _sort_as_packed("costs", packs["costs"][~of_runs], new_frames["costs"])
    prompt_sets = _prompt_sets(few[0])
    gaps = full[full["metric"].eq("gap") & full["n_related"].isna()]
    full = full[~(full["metric"].eq("score") & full["prompt_set"].isin(list(prompt_sets)))]
    frames = [full]
    for prompt_set, prompts in prompt_sets.items():
        of_prompts = full[full["prompt_set"].eq(prompt_set) & ~full["metric"].isin(tables.COMPARISON_METRICS)]
        scores = scores_of(of_prompts, lambda: tables.frame("errors", []), prompts)
        frames.append(scores if scores is not None else tables.frame("values", []))
        if len(gaps) and prompts.task.oracles:
            oracle = _computed_rows(of_name[prompts.task.oracles[0]], "errors", folder)
            errors_on_prompts = pd.concat([new_frames["errors"], oracle])
            errors_on_prompts = errors_on_prompts[errors_on_prompts["prompt_set"].eq(prompt_set)]
            frames.append(tables.frame("values", next_gap_rows(of_prompts, errors_on_prompts, prompts)))
    new["values"] = tables.union("values", frames).sort_values(
        tables.key_columns("values"), kind="stable", ignore_index=True
    )
    new["cells"] = _cells(packs["cells"], few, folder)
    return new


def _computed_rows(cell: GridCell, table: tables.TableName, folder: Path) -> pd.DataFrame:
    """Return the rows of a cell in one table of the results folder. Compute them if they are missing."""
    if CellStore(folder).state(cell) != "done":
        outcome = work(cell, Context(folder, data_dir=DATA))
        assert outcome.status == "done", (cell.group, cell.run, outcome)
    files = [path for path in CellStore(folder).files(cell) if path.name.endswith(f"{table}.parquet")]
    return tables.union(table, [tables.read(table, path) for path in files])


def _prompt_sets(cell: GridCell) -> dict[str, PromptSet]:
    """Return the prompt sets of a cell, by identity."""
    prompt_sets = [
        PromptSet(cell.task_config, cell.preset, shift, cell.options["seed"], DATA) for shift in cell.options["shifts"]
    ]
    return {prompts.id: prompts for prompts in prompt_sets}


def _sort_as_packed(table: tables.TableName, *frames: pd.DataFrame) -> pd.DataFrame:
    """Return the rows in the order of packed files."""
    rows = tables.union(table, [tables.validate(table, frame) for frame in frames])
    return rows.sort_values(tables.key_columns(table), kind="stable", ignore_index=True)


def _cells(cells: pd.DataFrame, few: list[GridCell], folder: Path) -> pd.DataFrame:
    """Return the rows of the table `cells`, in which those of recomputed cells are replaced."""
    computed = CellStore(folder).rows.loc[[cell.hash for cell in few], COMPUTED]
    by_hash = cells.set_index("cell")
    assert by_hash.loc[computed.index, "status"].eq("done").all()
    by_hash.loc[computed.index, COMPUTED] = computed
    return by_hash.reset_index()[cells.columns].astype(cells.dtypes.to_dict())


def compare(old: Packs, new: Packs, few: set[str]) -> None:
    """Raise `AssertionError` if a value at an old context size or a row of another contestant has changed."""
    for name in ("values", "errors", "costs"):
        if name not in old:
            continue
        unchanged_rows = [_rows_that_must_not_change(name, rows, few) for rows in (old[name], new[name])]
        pd.testing.assert_frame_equal(*unchanged_rows, check_exact=True)
    keys = [key for key in tables.key_columns("values") if key in old["values"]]
    at = [rows[rows["run"].isin(few) & rows["n_context"].notna()] for rows in (old["values"], new["values"])]
    assert at[0]["metric"].ne("score").all() and len(at[1]) > len(at[0])
    both = at[0].merge(at[1], on=keys, suffixes=("", "_new"), how="left", validate="one_to_one")
    ends = [both[[f"{end}{which}" for end in ("value", "low", "high")]].to_numpy(float) for which in ("", "_new")]
    # The networks of `mlp` differ slightly between processors.
    assert np.allclose(*ends, rtol=1e-3, atol=0, equal_nan=True), both[~np.isclose(*ends, rtol=1e-3).all(1)].to_string()
    far = ~np.isclose(*ends, rtol=1e-6, atol=0, equal_nan=True).all(axis=1)
    runs = both.loc[far, "run"].value_counts().to_dict()
    print(f"  values at the old sizes: {len(both)}, different by more than 1e-6: {runs or 'none'}")
    scores = [
        rows[rows["metric"].eq("score")].set_index(["run", "prompt_set"]) for rows in (old["values"], new["values"])
    ]
    same = scores[0]["coarse"].isna() & ~scores[0].index.isin(few, level="run")
    moved = (scores[0].loc[same, "value"] - scores[1]["value"].reindex(scores[0].index[same])).abs()
    assert scores[0].index.isin(scores[1].index).all()
    print(f"  scores: {len(scores[0])} before, {len(scores[1])} now; other scores changed by up to {moved.max():.1e}")


def _rows_that_must_not_change(name: str, rows: pd.DataFrame, few: set[str]) -> pd.DataFrame:
    """Return the rows that must not change."""
    if name == "errors" and "coarse" in rows:
        rows = rows[~_is_duplicate_height(rows)]
    rows = rows.drop(columns=["coarse", "commit", "n_events"], errors="ignore")
    rows = rows[~rows["run"].isin(few)]
    rows = rows[rows["metric"].ne("score")] if name == "values" else rows
    rows = rows.dropna(axis=1, how="all").reset_index(drop=True)
    return rows.astype({column: rows[column].dtype.name for column in rows}).sort_index(axis=1)


def write(table: tables.TableName, rows: pd.DataFrame, path: Path) -> None:
    """Write a packed table with its metadata."""
    metadata = {k: v for k, v in (pq.read_schema(path).metadata or {}).items() if k.startswith(b"iclbench.")}
    arrow = pa.Table.from_pandas(rows.reset_index(drop=True), preserve_index=False)
    arrow = arrow.replace_schema_metadata({**(arrow.schema.metadata or {}), **metadata})
    sink = pa.BufferOutputStream()
    with pq.ParquetWriter(sink, arrow.schema, compression="zstd") as writer:
        writer.write_table(arrow)
        writer.add_key_value_metadata({digests.KEY: digests.BLANK})
    path.write_bytes(digests.with_digest(sink.getvalue().to_pybytes()))
    tables.read(table, path)


if __name__ == "__main__":
    convert(Path(sys.argv[1]).resolve(), Path(sys.argv[2]).resolve())
