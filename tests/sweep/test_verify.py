"""Verification of stored results: equal results, changed digits, and differences within intervals."""

import json
import shutil
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import tomli_w

from iclbench import tables
from iclbench.cli.main import main
from iclbench.config.resolution import resolve_run
from iclbench.core import kernels
from iclbench.core.context import Context
from iclbench.store.cells import CellStore
from iclbench.store.outcome import Outcome
from iclbench.sweep.cells import GridCell, grid_cells
from iclbench.sweep.pack import pack
from iclbench.sweep.plan import make_plan
from iclbench.sweep.verify import (
    Workers,
    _has_data,
    first_difference,
    sample_cells,
    share_of_interval,
    share_of_spread,
    verify,
)
from iclbench.sweep.work import work
from tests.analysis.hand_made import FAILED, ZERO
from tests.conftest import small_card
from tests.refusals import refused
from tests.texts import numbers, words

RUN = "tiny-gpt2-smoke-s0"


@pytest.fixture(scope="module")
def swept_grid(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[GridCell]]:
    """Return a folder with unpacked and packed results of a run, a baseline and an oracle, and their cells."""
    folder = tmp_path_factory.mktemp("verified")
    card = small_card(baselines=["knn-3"], shifts=["orthants"])
    card["presets"]["smoke"]["train"] |= {"steps": 4, "log_every": 2}  # type: ignore[index]
    (folder / "tiny.toml").write_text(tomli_w.dumps(card))
    grid = {
        "summary": "one run",
        "tasks": [str(folder / "tiny.toml")],
        "backbones": ["gpt2"],
        "presets": ["smoke"],
        "seeds": [0],
        "evaluate": {"shifts": ["orthants"]},
    }
    (folder / "grid.toml").write_text(tomli_w.dumps(grid))
    cells, results = grid_cells([str(folder / "grid.toml")]), folder / "results"
    for cell in make_plan(cells, CellStore(results)).todo:
        work(cell, Context(results))
    pack(cells, CellStore(results), results / "reference")
    (folder / "clean").mkdir()
    (results / "reference").rename(folder / "clean" / "reference")
    return folder, cells


@pytest.fixture(scope="module")
def workers() -> Iterator[Workers]:
    with Workers(Context(Path()).threads) as workers:
        yield workers


@pytest.fixture
def shared_workers(workers: Workers, monkeypatch: pytest.MonkeyPatch) -> None:
    """Share worker processes between the tests of this module, since importing torch takes most of their time."""

    def module_workers(threads: int) -> nullcontext[Workers]:
        assert threads == workers._threads
        return nullcontext(workers)

    monkeypatch.setattr("iclbench.sweep.verify.Workers", module_workers)


@pytest.mark.usefixtures("shared_workers")
@pytest.mark.slow
@pytest.mark.parametrize("folder", ["results", "clean"])
def test_recomputed_cells_equal_unpacked_and_packed_rows(swept_grid: tuple[Path, list[GridCell]], folder: str) -> None:
    root, cells = swept_grid
    before = sorted(root.rglob("*"))
    verified = list(verify(cells, CellStore(root / folder), 9, 0, Context(root / folder)))
    assert {each.cell.run for each in verified} == {RUN, "knn-3", "least-squares"}, "all evaluations except the summary"
    assert [each.difference for each in verified] == [None] * 3
    assert {each.environment for each in verified} == {()}
    # Each of two shifts has nine context sizes and one area. The run also has two points of its training curve.
    assert {each.cell.run: each.rows for each in verified} == {RUN: 22, "knn-3": 20, "least-squares": 20}
    assert sorted(root.rglob("*")) == before, "no file is added"


@pytest.mark.slow
def test_a_damaged_file_is_reported_as_a_difference_with_its_path(
    swept_grid: tuple[Path, list[GridCell]], tmp_path: Path
) -> None:
    """The beginning and the end of the file are intact. The test starts a separate worker process."""
    root, cells = swept_grid
    shutil.copytree(root / "clean", tmp_path / "clean")
    path = tmp_path / "clean" / "reference" / "tiny-smoke.values.parquet"
    content = bytearray(path.read_bytes())
    content[4:200] = bytes(196)
    path.write_bytes(content)
    selected = [cell for cell in cells if cell.baseline == "knn-3"]
    (verified,) = verify(selected, CellStore(tmp_path / "clean"), 1, 0, Context(tmp_path))
    assert str(path) in str(verified.difference)


@pytest.mark.slow
@pytest.mark.usefixtures("shared_workers")
def test_the_random_choice_of_cells_depends_only_on_the_seed(swept_grid: tuple[Path, list[GridCell]]) -> None:
    root, cells = swept_grid
    store, context = CellStore(root / "clean"), Context(root / "clean")
    baseline_cells = [cell for cell in cells if cell.baseline]

    def choice(seed: int) -> str:
        (cell,) = sample_cells(baseline_cells, store, 1, seed, context)
        return cell.run

    assert choice(3) == choice(3)
    assert {choice(seed) for seed in range(6)} == {"knn-3", "least-squares"}
    assert [each.cell.run for each in verify(baseline_cells, store, 1, 3, context)] == [choice(3)]


@pytest.mark.slow
@pytest.mark.usefixtures("shared_workers")
def test_a_changed_digit_and_a_different_environment_are_reported(
    swept_grid: tuple[Path, list[GridCell]], tmp_path: Path
) -> None:
    root, cells = swept_grid
    reference = tmp_path / "reference"
    for path in (root / "clean" / "reference").iterdir():
        table = path.name.split(".")[1]
        rows = tables.read(table, path)  # type: ignore[arg-type]
        if table == "values":
            changed = rows["run"].eq("knn-3") & rows["n_context"].eq(5) & rows["shift"].eq("orthants")
            rows.loc[changed, "low"] = np.nextafter(float(rows.loc[changed, "low"].iloc[0]), 1)
        if table == "cells":
            rows = rows.assign(hardware="another processor", threads=2)
        tables.write(table, rows, reference / path.name, tables.metadata(path))  # type: ignore[arg-type]
    baseline_cells = [cell for cell in cells if cell.baseline]
    verified = {each.cell.run: each for each in verify(baseline_cells, CellStore(tmp_path), 2, 0, Context(tmp_path))}
    assert verified["least-squares"].is_equal
    changed_cell = verified["knn-3"]
    assert not changed_cell.is_equal and changed_cell.agrees and 0 < float(changed_cell.share or 0) < 1e-9
    difference = str(changed_cell.difference)
    assert difference.startswith("low ")
    assert "orthants" in difference and "n_context 5" in difference
    assert [line.split(":")[0] for line in changed_cell.environment] == ["hardware", "threads"]


@pytest.mark.slow
@pytest.mark.usefixtures("shared_workers")
@pytest.mark.skipif(kernels.current() not in ("default", "avx2", "avx512"), reason="instruction sets of x86")
@pytest.mark.parametrize(
    ("recorded_kernels", "used_kernels"),
    [pytest.param("default", "default", marks=pytest.mark.slow), ("avx4096", None), (None, None)],
)
def test_a_cell_is_recomputed_with_the_kernels_of_its_row(
    swept_grid: tuple[Path, list[GridCell]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    recorded_kernels: str | None,
    used_kernels: str | None,
) -> None:
    """The kernels are used only if the processor supports them."""
    root, cells = swept_grid
    kernels_of_cells: list[str] = []
    work = Workers.work

    def record_kernels(self: Workers, cell: GridCell, context: Context, instruction_set: str) -> Outcome:
        outcome = work(self, cell, context, instruction_set)
        kernels_of_cells.append(CellStore(context.results).rows.loc[cell.hash, "kernels"])
        return outcome

    monkeypatch.setattr(Workers, "work", record_kernels)
    shutil.copytree(root / "clean", tmp_path / "clean")
    path = tmp_path / "clean" / "reference" / "tiny-smoke.cells.parquet"
    tables.write("cells", tables.read("cells", path).assign(kernels=recorded_kernels), path, tables.metadata(path))
    selected = [cell for cell in cells if cell.baseline == "knn-3"]
    (verified,) = verify(selected, CellStore(tmp_path / "clean"), 1, 0, Context(tmp_path))
    assert kernels_of_cells == [used_kernels or kernels.current()]
    is_different = recorded_kernels and not used_kernels
    assert [line.split(":")[0] for line in verified.environment] == (["kernels"] if is_different else [])


def test_verification_without_finished_cells_is_refused(
    swept_grid: tuple[Path, list[GridCell]], tmp_path: Path
) -> None:
    with refused("nothing-to-do", tmp_path, exit_code=1):
        list(verify(swept_grid[1], CellStore(tmp_path), 3, 0, Context(tmp_path)))


def rows(**changes: object) -> pd.DataFrame:
    row = ZERO | {"evaluator": "next", "metric": "auc", "value": 0.1, "n_context": 3}
    return tables.frame("values", [row | changes, row | FAILED | {"n_context": 4}])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, None),
        ({"card": "d", "version": "1"}, None),
        ({"value": 0.1 + 2**-56}, "value 0.1 became 0.10000000000000002: "),
        ({"low": 0.0}, "low <NA> became 0.0: "),
        ({"n_context": 5}, "1 row only recomputed, the first: run zero, "),
        ({"normaliser": 2.0}, "normaliser <NA> became 2.0: "),
    ],
)
def test_the_first_difference_is_described(changes: dict[str, object], expected: str | None) -> None:
    difference = first_difference(rows(), rows(**changes))
    assert difference == expected if expected is None else str(difference).startswith(expected)
    assert (first_difference(rows(**changes), rows()) is None) == (expected is None)


@pytest.mark.parametrize(("task", "is_available"), [("tabular", False), ("linear", True)])
def test_cells_of_tasks_with_missing_data_are_not_available(tmp_path: Path, task: str, is_available: bool) -> None:
    task_config = resolve_run(task, "gpt2", "smoke").task
    cell = GridCell("evaluate", "zero", "zero", task_config, "smoke", baseline="zero")
    assert _has_data(cell, Context(tmp_path)) == is_available


def test_the_largest_difference_is_described() -> None:
    assert str(first_difference(rows(), rows(value=0.35))).endswith("; at most 2.5e-01 apart")


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, 0.0),
        ({"value": 0.1008}, 0.08),  # the half-width of the interval is 0.01
        ({"low": 0.0885}, 0.15),
        ({"value": 0.1008, "high": 0.108}, 0.2),
        ({"normaliser": 2.0}, None),
        ({"n_context": 5}, None),
        ({"value": None, "low": None, "high": None, "status": "failed", "reason": "r"}, None),
    ],
)
def test_differences_are_relative_to_the_half_width_of_the_interval(
    changes: dict[str, object], expected: float | None
) -> None:
    ends = {"low": 0.09, "high": 0.11}
    assert share_of_interval(rows(**ends), rows(**ends | changes)) == (expected and pytest.approx(expected))


def test_without_an_interval_every_difference_is_a_disagreement() -> None:
    assert share_of_interval(rows(), rows()) == 0
    assert share_of_interval(rows(), rows(value=np.nextafter(0.1, 1))) is None
    assert share_of_interval(rows(low=0.1, high=0.1), rows(low=0.1, high=0.1, value=np.nextafter(0.1, 1))) is None


def test_differences_in_a_training_curve_are_relative_to_its_standard_deviation() -> None:
    def curve(*losses: float) -> pd.DataFrame:
        steps = [rows(axis="train_step", axis_value=float(step), value=loss) for step, loss in enumerate(losses)]
        return pd.concat(steps, ignore_index=True)

    computed = curve(3.0, 1.0, 1.0, 3.0)  # the standard deviation is 1
    assert share_of_spread(computed, computed) == 0
    assert share_of_spread(curve(3.0, 1.25, 1.0, 3.0), computed) == pytest.approx(0.25)
    assert share_of_spread(computed.assign(normaliser=2.0), computed) is None
    assert share_of_spread(curve(1.0, 1.5), curve(1.0, 1.0)) is None, "the curve does not vary"


def test_stored_rows_that_are_not_recomputed_count_as_a_difference() -> None:
    not_recomputed = str(first_difference(rows(), rows().iloc[:1]))
    assert numbers(not_recomputed)[0] == 1 and {"zero", "auc"} <= words(not_recomputed)
    assert str(first_difference(rows().iloc[:1], rows())) != not_recomputed


@pytest.mark.slow
@pytest.mark.usefixtures("shared_workers")
def test_the_sweep_command_packs_and_verifies_results(
    swept_grid: tuple[Path, list[GridCell]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = swept_grid[0]
    results = Path(shutil.copytree(root / "results", tmp_path / "results"))
    grid = [str(root / "grid.toml"), "--results", str(results), "--device", "cpu"]
    assert main(["sweep", *grid, "--pack", str(tmp_path / "other")]) == 2
    assert "--pack" in capsys.readouterr().err
    assert main(["sweep", *grid, "--pack", str(results / "reference")]) == 0
    assert f"6 files in {results / 'reference'}" in capsys.readouterr().out
    for folder in ("runs", "tables", "cells"):
        shutil.rmtree(results / folder)
    assert main(["sweep", *grid, "--verify", "1", "--only", "train"]) == 2
    assert main(["sweep", *grid, "--verify", "1", "--json"]) == 0
    (line,) = json.loads(capsys.readouterr().out)
    assert (line["equal"], line["difference"], line["elsewhere"]) == (True, None, [])
    path = results / "reference" / "tiny-smoke.values.parquet"
    rows = tables.read("values", path)
    for factor, code in ((1 + 1e-9, 0), (1.5, 1)):
        tables.write("values", rows.assign(value=rows["value"] * factor), path, tables.metadata(path))
        assert main(["sweep", *grid, "--verify", "1"]) == code
        out, err = capsys.readouterr()
        assert RUN in err or "knn-3" in err or "least-squares" in err
        assert ("differs" in out) == (code == 1)
        assert ("agrees" in out) == ("1 of 1 cells" in err) == (code == 0)
