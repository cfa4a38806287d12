"""The store: a cell is done if its row has the status `done` and all files in the row are intact."""

import json
import logging
from pathlib import Path

import pytest
import torch

from iclbench import tables
from iclbench.config.resolution import resolve_run
from iclbench.core.context import Context
from iclbench.core.errors import UsageError
from iclbench.store.cells import CellStore, cell_row, record
from iclbench.store.outcome import Outcome
from iclbench.sweep.cells import GridCell
from iclbench.sweep.plan import make_plan
from iclbench.sweep.work import work

CONFIG = resolve_run("linear", "gpt2", "smoke")
VALUES = {
    "run": "a",
    "task": "linear",
    "family": "linear",
    "contestant": "gpt2",
    "kind": "backbone",
    "preset": "smoke",
    "shift": "none",
    "evaluator": "next",
    "metric": "auc",
    "value": 0.5,
    "status": "ok",
    "card": "c",
    "version": "0",
}


def cell(run: str = "linear-gpt2-smoke-s0", reason: str | None = None) -> GridCell:
    return GridCell("train", run, "gpt2", CONFIG.task, "smoke", CONFIG, reason=reason)


def write_tables(results: Path, *names: str) -> Outcome:
    """Write tables with one row, and return the outcome of a cell with these files."""
    for name in names:
        tables.write("values", [VALUES], results / name, {})
    return Outcome("done", files=names, seconds=2.0)


def test_a_cell_is_done_until_one_of_its_files_is_removed_or_truncated(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    names = ("tables/a.values.parquet", "tables/b.values.parquet")
    record(tmp_path, cell(), write_tables(tmp_path, *names), Context(tmp_path))
    assert CellStore(tmp_path).state(cell()) == "done"
    assert CellStore(tmp_path).files(cell()) == tuple(tmp_path / name for name in names)
    content = (tmp_path / names[1]).read_bytes()
    for damaged in (b"", b"PAR", content[: len(content) // 2], content[:-1]):
        (tmp_path / names[1]).write_bytes(damaged)
        caplog.clear()
        assert CellStore(tmp_path).state(cell()) == "todo"
        assert [str(tmp_path / names[1]) in line for line in caplog.messages] == [True]
        assert CellStore(tmp_path).files(cell()) == ()
    (tmp_path / names[1]).unlink()
    caplog.clear()
    assert CellStore(tmp_path).state(cell()) == "todo" and not caplog.messages


def test_if_a_row_file_is_truncated_only_its_cell_is_repeated(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for run in ("a", "b"):
        record(tmp_path, cell(run), write_tables(tmp_path, f"tables/{run}.values.parquet"), Context(tmp_path))
    (path,) = tmp_path.glob("cells/*/a.train-*.parquet")
    path.write_bytes(path.read_bytes()[:-20])
    with caplog.at_level(logging.WARNING):
        todo = make_plan([cell("a"), cell("b")], CellStore(tmp_path)).todo
    assert [each.run for each in todo] == ["a"]
    assert str(path) in caplog.text
    record(tmp_path, cell("a"), write_tables(tmp_path, "tables/a.values.parquet"), Context(tmp_path))
    assert not make_plan([cell("a"), cell("b")], CellStore(tmp_path)).todo


@pytest.mark.parametrize("files", ["tables/a.parquet", '{"a": 1', "3", "[3]", '["../a.parquet"]', '["/a.parquet"]'])
def test_a_cell_with_an_invalid_list_of_files_is_not_done(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, files: str
) -> None:
    row = {
        "cell": cell().hash,
        "kind": "train",
        "run": "a",
        "task": "linear",
        "contestant": "gpt2",
        "preset": "smoke",
        "status": "done",
        "files": files,
        "version": "0",
    }
    tables.write("cells", [row], tmp_path / "cells" / "a.cells.parquet", {})
    assert CellStore(tmp_path).state(cell()) == "todo"
    assert not CellStore(tmp_path).is_packed(cell().hash)
    assert cell().hash in caplog.text


def test_if_a_cell_has_two_rows_the_row_with_existing_files_is_used(tmp_path: Path) -> None:
    """One row was written by a sweep, and the other one is packed."""
    packed = {
        "cell": cell().hash,
        "kind": "train",
        "run": cell().run,
        "task": "linear",
        "contestant": "gpt2",
        "preset": "smoke",
        "status": "done",
        "seconds": 1.0,
        "files": json.dumps(["reference/x.values.parquet"]),
        "version": "0",
    }
    write_tables(tmp_path, "reference/x.values.parquet")
    tables.write("cells", [packed], tmp_path / "reference" / "x.cells.parquet", {})
    outcome = write_tables(tmp_path, "tables/single.values.parquet")
    record(tmp_path, cell(), outcome, Context(tmp_path))
    assert CellStore(tmp_path).rows.loc[cell().hash, "seconds"] == 2.0, "unpacked rows take precedence over packed rows"
    (tmp_path / "tables/single.values.parquet").unlink()
    assert CellStore(tmp_path).state(cell()) == "done"
    assert CellStore(tmp_path).rows.loc[cell().hash, "seconds"] == 1.0
    (tmp_path / "reference/x.values.parquet").unlink()
    assert CellStore(tmp_path).state(cell()) == "todo"


@pytest.mark.parametrize(
    ("weaker", "stronger"),
    [("failed", "done"), ("failed", "diverged"), ("removed", "failed")],
)
@pytest.mark.parametrize("folders", [("cells", "reference"), ("another", "reference")])
def test_a_failed_row_does_not_hide_a_result_in_another_folder(
    tmp_path: Path, folders: tuple[str, str], weaker: str, stronger: str
) -> None:
    """If recomputing a packed cell fails, its packed result still counts."""
    write_tables(tmp_path, "tables/x.values.parquet")
    for folder, status in zip(folders, (weaker, stronger), strict=True):
        files = {"removed": ["tables/none.values.parquet"], "done": ["tables/x.values.parquet"]}.get(status, [])
        outcome = Outcome("done" if status == "removed" else status, "why", tuple(files))  # type: ignore[arg-type]
        path = tmp_path / folder / "x.cells.parquet"
        tables.write("cells", [cell_row(cell(), outcome, Context(tmp_path))], path, {})
    assert CellStore(tmp_path).rows.loc[cell().hash, "status"] == stronger
    assert CellStore(tmp_path).state(cell()) == stronger


def test_unpacked_rows_take_precedence_over_packed_rows_for_every_folder_name(tmp_path: Path) -> None:
    tables.write("cells", [], tmp_path / "tables" / "x.values.parquet", {})
    record(tmp_path, cell(), Outcome("failed", "a reason"), Context(tmp_path))
    (row,) = (tmp_path / "cells").rglob("*.parquet")
    (tmp_path / "archive").mkdir()
    row.rename(tmp_path / "archive" / row.name)
    record(tmp_path, cell(), Outcome("done", files=("tables/x.values.parquet",)), Context(tmp_path))
    assert CellStore(tmp_path).state(cell()) == "done"


def test_reference_results_take_precedence_over_other_packed_results(tmp_path: Path) -> None:
    for folder in ("another", "reference", "zebra"):
        outcome = write_tables(tmp_path, f"{folder}/x.values.parquet")
        rows = [cell_row(cell(), outcome, Context(tmp_path))]
        tables.write("cells", rows, tmp_path / folder / "x.cells.parquet", {})
    assert CellStore(tmp_path).files(cell()) == (tmp_path / "reference" / "x.values.parquet",)


def test_a_row_records_the_hardware_and_libraries_of_its_computation(tmp_path: Path) -> None:
    record(tmp_path, cell(), Outcome("failed", "a reason", seconds=3.0), Context(tmp_path, threads=2))
    row = CellStore(tmp_path).rows.loc[cell().hash]
    columns = ("kind", "task", "contestant", "seed", "status", "reason", "device", "threads", "seconds")
    assert [row[name] for name in columns] == ["train", "linear", "gpt2", 0, "failed", "a reason", "cpu", 2, 3.0]
    cpu_info = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").is_file() else ""
    assert "cores" in row["hardware"]
    assert ("(family " in row["hardware"]) == ("cpu family" in cpu_info), "processor generations may share a name"
    assert row["kernels"] == torch.backends.cpu.get_cpu_capability().lower().replace("no avx", "default")
    assert {"python", "torch", "numpy"} <= json.loads(row["libraries"]).keys()


def test_an_inapplicable_cell_is_pending_until_its_reason_is_recorded(tmp_path: Path) -> None:
    skipped = cell(reason="no related datasets")
    assert CellStore(tmp_path).state(skipped) == "skipped"
    assert make_plan([skipped], CellStore(tmp_path)).todo == (skipped,)
    record(tmp_path, skipped, Outcome("skipped", skipped.reason), Context(tmp_path))
    assert not make_plan([skipped], CellStore(tmp_path)).todo
    assert CellStore(tmp_path).rows.loc[skipped.hash, "reason"] == "no related datasets"
    assert make_plan([cell(reason="another reason")], CellStore(tmp_path)).todo


def test_the_error_for_an_unwritable_results_folder_names_the_folder(tmp_path: Path) -> None:
    (tmp_path / "cells").write_text("a file")
    with pytest.raises(UsageError) as error:
        record(tmp_path, cell(), Outcome("done"), Context(tmp_path))
    assert str(tmp_path) in str(error.value) and "--results" in str(error.value)
    (tmp_path / "runs").write_text("a file")
    with pytest.raises(UsageError) as error:
        work(cell(), Context(tmp_path))
    assert str(tmp_path) in str(error.value) and "--results" in str(error.value)


def test_empty_and_missing_folders_have_no_rows(tmp_path: Path) -> None:
    assert CellStore(tmp_path).state(cell()) == "todo"
    assert CellStore(tmp_path / "none").state(cell()) == "todo"
    assert len(CellStore(tmp_path / "none").rows) == 0
