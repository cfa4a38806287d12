"""The store: a cell is done as long as a row says so and all files that it names can be opened."""

import json
import logging
from pathlib import Path

import pytest
import torch

from iclbench import tables
from iclbench.config.resolution import resolve_run
from iclbench.core.context import Context
from iclbench.core.errors import UsageError
from iclbench.store.cells import Store, record, row
from iclbench.store.outcome import Outcome
from iclbench.sweep.cells import GridCell
from iclbench.sweep.plan import plan
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


def done(results: Path, *names: str) -> Outcome:
    for name in names:
        tables.write("values", [VALUES], results / name, {})
    return Outcome("done", files=names, seconds=2.0)


def test_a_cell_is_done_until_one_of_its_files_is_gone_or_cut_short(tmp_path: Path) -> None:
    names = ("tables/a.values.parquet", "tables/b.values.parquet")
    record(tmp_path, cell(), done(tmp_path, *names), Context(tmp_path))
    assert Store(tmp_path).state(cell()) == "done"
    assert Store(tmp_path).files(cell()) == tuple(tmp_path / name for name in names)
    whole = (tmp_path / names[1]).read_bytes()
    for broken in (b"", b"PAR", whole[: len(whole) // 2], whole[:-1]):
        (tmp_path / names[1]).write_bytes(broken)
        assert Store(tmp_path).state(cell()) == "todo"
        assert Store(tmp_path).files(cell()) == ()
    (tmp_path / names[1]).unlink()
    assert Store(tmp_path).state(cell()) == "todo"


def test_a_row_cut_short_makes_its_cell_to_do_and_no_other(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for run in ("a", "b"):
        record(tmp_path, cell(run), done(tmp_path, f"tables/{run}.values.parquet"), Context(tmp_path))
    (path,) = tmp_path.glob("cells/*/a.train-*.parquet")
    path.write_bytes(path.read_bytes()[:-20])
    with caplog.at_level(logging.WARNING):
        found = plan([cell("a"), cell("b")], Store(tmp_path))
    assert [each.run for each in found.todo] == ["a"]
    assert str(path) in caplog.text
    record(tmp_path, cell("a"), done(tmp_path, "tables/a.values.parquet"), Context(tmp_path))
    assert not plan([cell("a"), cell("b")], Store(tmp_path)).todo


@pytest.mark.parametrize("files", ["tables/a.parquet", '{"a": 1', "3"])
def test_files_that_are_no_list_are_a_cell_to_do(tmp_path: Path, caplog: pytest.LogCaptureFixture, files: str) -> None:
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
    assert Store(tmp_path).state(cell()) == "todo"
    assert not Store(tmp_path).is_packed(cell().hash)
    assert "its files cannot be read off its row" in caplog.text


def test_of_two_rows_of_a_cell_the_one_whose_files_are_there_counts(tmp_path: Path) -> None:
    """An own sweep beside reference results: neither hides what the other has."""
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
    done(tmp_path, "reference/x.values.parquet")
    tables.write("cells", [packed], tmp_path / "reference" / "x.cells.parquet", {})
    own = done(tmp_path, "tables/own.values.parquet")
    record(tmp_path, cell(), own, Context(tmp_path))
    assert Store(tmp_path).rows.loc[cell().hash, "seconds"] == 2.0, "the own one comes first where both have theirs"
    (tmp_path / "tables/own.values.parquet").unlink()
    assert Store(tmp_path).state(cell()) == "done"
    assert Store(tmp_path).rows.loc[cell().hash, "seconds"] == 1.0
    (tmp_path / "reference/x.values.parquet").unlink()
    assert Store(tmp_path).state(cell()) == "todo"


@pytest.mark.parametrize(
    ("weaker", "stronger"),
    [("failed", "done"), ("failed", "diverged"), ("gone", "failed")],
)
@pytest.mark.parametrize("folders", [("cells", "reference"), ("another", "reference")])
def test_what_failed_in_one_folder_hides_nothing_that_another_has_found(
    tmp_path: Path, folders: tuple[str, str], weaker: str, stronger: str
) -> None:
    """A repeat that failed beside packed results is no reason to compute them again, nor to pack them away."""
    done(tmp_path, "tables/x.values.parquet")
    for folder, status in zip(folders, (weaker, stronger), strict=True):
        files = {"gone": ["tables/none.values.parquet"], "done": ["tables/x.values.parquet"]}.get(status, [])
        outcome = Outcome("done" if status == "gone" else status, "why", tuple(files))  # type: ignore[arg-type]
        path = tmp_path / folder / "x.cells.parquet"
        tables.write("cells", [row(cell(), outcome, Context(tmp_path))], path, {})
    assert Store(tmp_path).rows.loc[cell().hash, "status"] == stronger
    assert Store(tmp_path).state(cell()) == stronger


def test_own_rows_come_before_packed_ones_whatever_their_folder_is_called(tmp_path: Path) -> None:
    tables.write("cells", [], tmp_path / "tables" / "x.values.parquet", {})
    record(tmp_path, cell(), Outcome("failed", "no luck"), Context(tmp_path))
    (row,) = (tmp_path / "cells").rglob("*.parquet")
    (tmp_path / "archive").mkdir()
    row.rename(tmp_path / "archive" / row.name)
    record(tmp_path, cell(), Outcome("done", files=("tables/x.values.parquet",)), Context(tmp_path))
    assert Store(tmp_path).state(cell()) == "done"


def test_a_row_says_where_and_with_what_the_cell_was_computed(tmp_path: Path) -> None:
    record(tmp_path, cell(), Outcome("failed", "no luck", seconds=3.0), Context(tmp_path, threads=2))
    row = Store(tmp_path).rows.loc[cell().hash]
    told = ("kind", "task", "contestant", "seed", "status", "reason", "device", "threads", "seconds")
    assert [row[name] for name in told] == ["train", "linear", "gpt2", 0, "failed", "no luck", "cpu", 2, 3.0]
    told = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").is_file() else ""
    assert "cores" in row["hardware"]
    assert ("(family " in row["hardware"]) == ("cpu family" in told), "generations share a name"
    assert row["kernels"] == torch.backends.cpu.get_cpu_capability().lower().replace("no avx", "default")
    assert {"python", "torch", "numpy"} <= json.loads(row["libraries"]).keys()


def test_what_makes_no_sense_is_settled_by_a_row_with_the_reason(tmp_path: Path) -> None:
    none = cell(reason="no related datasets")
    assert Store(tmp_path).state(none) == "skipped"
    assert plan([none], Store(tmp_path)).todo == (none,)
    record(tmp_path, none, Outcome("skipped", none.reason), Context(tmp_path))
    assert not plan([none], Store(tmp_path)).todo
    assert Store(tmp_path).rows.loc[none.hash, "reason"] == "no related datasets"
    assert plan([cell(reason="another reason")], Store(tmp_path)).todo


def test_a_results_folder_that_cannot_be_written_to_is_one_line_with_its_name(tmp_path: Path) -> None:
    (tmp_path / "cells").write_text("in the way")
    with pytest.raises(
        UsageError, match=r"cannot write to the results folder .*choose another with --results"
    ) as error:
        record(tmp_path, cell(), Outcome("done"), Context(tmp_path))
    assert str(tmp_path) in str(error.value)
    (tmp_path / "runs").write_text("in the way")
    with pytest.raises(UsageError, match="cannot write to the results folder"):
        work(cell(), Context(tmp_path))


def test_an_empty_folder_and_none_know_of_nothing(tmp_path: Path) -> None:
    assert Store(tmp_path).state(cell()) == "todo"
    assert Store(tmp_path / "none").state(cell()) == "todo"
    assert len(Store(tmp_path / "none").rows) == 0
