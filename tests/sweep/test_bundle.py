"""Bundles store all inputs of a job, and their computation continues after an interruption."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from iclbench import tables
from iclbench.config.cards import load_baseline
from iclbench.config.resolution import resolve_run
from iclbench.core.context import Context
from iclbench.core.errors import Interrupted
from iclbench.registry import BACKBONES, ESTIMATORS, FAMILIES, Registry
from iclbench.store.outcome import Outcome
from iclbench.sweep.bundle import Bundle, commit_mismatch, read_outcomes, work_through, write_outcomes
from iclbench.sweep.cells import GridCell, grid_cells
from iclbench.sweep.language_grids import language_cells
from tests.conftest import increase_code_version
from tests.refusals import refused
from tests.sweep.test_engine import DONE
from tests.sweep.test_engine import cell as make_cell


def test_cells_of_every_kind_survive_a_round_trip_through_a_file(grid: Path, tmp_path: Path) -> None:
    cells = tuple(grid_cells([str(grid)]))
    assert {cell.kind for cell in cells} == {"train", "evaluate", "probe"}
    bundle = Bundle(cells, Context(tmp_path, tmp_path / "data", "cuda", 3))
    bundle.write(tmp_path / "jobs" / "one.json")
    read_bundle = Bundle.read(tmp_path / "jobs" / "one.json")
    assert read_bundle == bundle and read_bundle.name == bundle.name
    assert [cell.hash for cell in read_bundle.cells] == [cell.hash for cell in cells]


def test_language_model_cells_survive_a_round_trip_through_a_file(tmp_path: Path) -> None:
    cells = tuple(language_cells("deep-thinking-table-1"))[:2]
    bundle = Bundle(cells, Context(tmp_path))
    bundle.write(tmp_path / "one.json")
    read_cells = Bundle.read(tmp_path / "one.json").cells
    assert [(type(cell), cell.hash, cell.work) for cell in read_cells] == [
        (type(cell), cell.hash, "language") for cell in cells
    ]


CONFIG = resolve_run("linear", "gpt2", "smoke")
TRAIN = GridCell("train", "a", "gpt2", CONFIG.task, "smoke", CONFIG)
OPTIONS = {"shifts": ["none"], "evaluators": [], "seed": 0}
RIDGE = GridCell("evaluate", "ridge", "ridge", CONFIG.task, "smoke", options=OPTIONS, baseline="ridge")


@pytest.mark.parametrize(
    ("cell", "registry", "component", "name"),
    [
        (TRAIN, FAMILIES, "linear", "'linear'"),
        (TRAIN, BACKBONES, "gpt2", "'gpt2'"),
        (RIDGE, FAMILIES, "linear", "'evaluate ridge'"),
        (RIDGE, ESTIMATORS, load_baseline("ridge")[1].estimator, "'evaluate ridge'"),
    ],
)
def test_a_bundle_written_by_a_different_code_version_is_refused(
    cell: GridCell, registry: Registry, component: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, bundle = tmp_path / "one.json", Bundle((cell,), Context(tmp_path))
    bundle.write(path)
    assert Bundle.read(path) == bundle
    with monkeypatch.context() as patch:
        increase_code_version(patch, BACKBONES, "mamba")
        assert Bundle.read(path) == bundle, "the cell does not use this backbone"
    increase_code_version(monkeypatch, registry, component)
    with refused("code-changed", name, exit_code=1):
        Bundle.read(path)


def change(path: Path, **content: object) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | content))


def test_a_bundle_with_a_different_schema_is_refused_but_a_different_commit_is_accepted(tmp_path: Path) -> None:
    path = tmp_path / "one.json"
    bundle = Bundle((make_cell("train", "a"),), Context(tmp_path))
    bundle.write(path)
    assert commit_mismatch(path) is None
    change(path, code={"version": "0.0.1", "commit": "0123456789abcdef"})
    assert Bundle.read(path) == bundle
    message = commit_mismatch(path)
    assert message is not None and "0.0.1" in message and "0123456789ab" in message
    change(path, schema=tables.SCHEMA_VERSION + 1)
    with refused("code-changed", tables.SCHEMA_VERSION, tables.SCHEMA_VERSION + 1, exit_code=1):
        Bundle.read(path)


def test_a_bundle_continues_after_an_interruption_and_skips_cells_that_need_a_diverged_run(tmp_path: Path) -> None:
    train, other = make_cell("train", "a"), make_cell("train", "b")
    cells = (train, make_cell("evaluate", "a", (train,)), other, make_cell("evaluate", "b", (other,)))
    calls: list[str] = []

    def work(cell: GridCell, context: Context) -> Outcome:
        calls.append(cell.hash)
        if cell is other and calls.count(cell.hash) == 1:
            raise Interrupted("a signal")
        return Outcome("diverged", "NaN") if cell is other else DONE

    bundle, outcomes_path = Bundle(cells, Context(tmp_path)), tmp_path / "outcomes.json"
    with pytest.raises(Interrupted):
        work_through(bundle, work, outcomes_path)
    assert list(read_outcomes(outcomes_path)) == [cells[0].hash, cells[1].hash]
    outcomes = work_through(bundle, work, outcomes_path)
    assert calls == [cells[0].hash, cells[1].hash, other.hash, other.hash]
    assert {name: outcome.status for name, outcome in outcomes.items()} == {
        cells[0].hash: "done", cells[1].hash: "done", other.hash: "diverged"
    }  # fmt: skip
    assert read_outcomes(outcomes_path) == outcomes


def test_outcomes_are_stored_with_all_fields(tmp_path: Path) -> None:
    outcome = replace(DONE, files=("a", "b"), seconds=1.5, warnings=("careful",), reason="why")
    write_outcomes(tmp_path / "one.json", {"x": outcome})
    assert read_outcomes(tmp_path / "one.json") == {"x": outcome}
