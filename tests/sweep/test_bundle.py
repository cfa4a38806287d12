"""Bundles: files that say all that a job needs, and work that goes on where it was interrupted."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from iclbench import tables
from iclbench.config.cards import load_baseline
from iclbench.config.resolution import resolve_run
from iclbench.core.context import Context
from iclbench.core.errors import IclbenchError, Interrupted
from iclbench.registry import BACKBONES, ESTIMATORS, FAMILIES, Registry
from iclbench.store.outcome import Outcome
from iclbench.sweep.bundle import Bundle, other_commit, read_outcomes, work_through, write_outcomes
from iclbench.sweep.cells import GridCell, grid_cells
from iclbench.sweep.language_grids import language_cells
from tests.conftest import raise_code
from tests.sweep.test_engine import DONE, cell


def test_a_file_holds_every_kind_of_cell_as_it_is(grid: Path, tmp_path: Path) -> None:
    cells = tuple(grid_cells([str(grid)]))
    assert {each.kind for each in cells} == {"train", "evaluate", "probe"}
    bundle = Bundle(cells, Context(tmp_path, tmp_path / "data", "cuda", 3))
    bundle.write(tmp_path / "jobs" / "one.json")
    found = Bundle.read(tmp_path / "jobs" / "one.json")
    assert found == bundle and found.name == bundle.name
    assert [each.hash for each in found.cells] == [each.hash for each in cells]


def test_a_file_holds_cells_of_language_models(tmp_path: Path) -> None:
    cells = tuple(language_cells("deep-thinking-table-1"))[:2]
    bundle = Bundle(cells, Context(tmp_path))
    bundle.write(tmp_path / "one.json")
    found = Bundle.read(tmp_path / "one.json")
    assert [(type(each), each.hash, each.work) for each in found.cells] == [
        (type(each), each.hash, "language") for each in cells
    ]


CONFIG = resolve_run("linear", "gpt2", "smoke")
TRAIN = GridCell("train", "a", "gpt2", CONFIG.task, "smoke", CONFIG)
ASKED = {"shifts": ["none"], "evaluators": [], "seed": 0}
RIDGE = GridCell("evaluate", "ridge", "ridge", CONFIG.task, "smoke", options=ASKED, baseline="ridge")


@pytest.mark.parametrize(
    ("asked", "registry", "raised", "named"),
    [
        (TRAIN, FAMILIES, "linear", "'linear'"),
        (TRAIN, BACKBONES, "gpt2", "'gpt2'"),
        (RIDGE, FAMILIES, "linear", "'evaluate ridge'"),
        (RIDGE, ESTIMATORS, load_baseline("ridge")[1].estimator, "'evaluate ridge'"),
    ],
)
def test_a_file_of_other_code_is_refused(
    asked: GridCell, registry: Registry, raised: str, named: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, bundle = tmp_path / "one.json", Bundle((asked,), Context(tmp_path))
    bundle.write(path)
    assert Bundle.read(path) == bundle
    with monkeypatch.context() as other:
        raise_code(other, BACKBONES, "mamba")
        assert Bundle.read(path) == bundle, "no part of the cell"
    raise_code(monkeypatch, registry, raised)
    with pytest.raises(IclbenchError) as error:
        Bundle.read(path)
    assert named in str(error.value) and "\n" not in str(error.value)


def changed(path: Path, **about: object) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | about))


def test_a_file_of_another_schema_is_refused_and_one_of_another_commit_is_not(tmp_path: Path) -> None:
    path = tmp_path / "one.json"
    bundle = Bundle((cell("train", "a"),), Context(tmp_path))
    bundle.write(path)
    assert other_commit(path) is None
    changed(path, code={"version": "0.0.1", "commit": "0123456789abcdef"})
    assert Bundle.read(path) == bundle
    said = other_commit(path)
    assert said is not None and "0.0.1" in said and "0123456789ab" in said
    changed(path, schema=tables.SCHEMA + 1)
    with pytest.raises(IclbenchError, match=f"schema {tables.SCHEMA} .* {tables.SCHEMA + 1} "):
        Bundle.read(path)


def test_work_goes_on_where_it_was_interrupted_and_leaves_out_what_lacks_its_needs(tmp_path: Path) -> None:
    train, other = cell("train", "a"), cell("train", "b")
    cells = (train, cell("evaluate", "a", (train,)), other, cell("evaluate", "b", (other,)))
    worked: list[str] = []

    def work(each: GridCell, context: Context) -> Outcome:
        worked.append(each.hash)
        if each is other and worked.count(each.hash) == 1:
            raise Interrupted("a signal")
        return Outcome("diverged", "NaN") if each is other else DONE

    bundle, kept = Bundle(cells, Context(tmp_path)), tmp_path / "kept.json"
    with pytest.raises(Interrupted):
        work_through(bundle, work, kept)
    assert list(read_outcomes(kept)) == [cells[0].hash, cells[1].hash]
    outcomes = work_through(bundle, work, kept)
    assert worked == [cells[0].hash, cells[1].hash, other.hash, other.hash]
    assert {name: each.status for name, each in outcomes.items()} == {
        cells[0].hash: "done", cells[1].hash: "done", other.hash: "diverged"
    }  # fmt: skip
    assert read_outcomes(kept) == outcomes


def test_outcomes_are_kept_with_all_that_they_say(tmp_path: Path) -> None:
    outcome = replace(DONE, files=("a", "b"), seconds=1.5, warnings=("careful",), reason="why")
    write_outcomes(tmp_path / "one.json", {"x": outcome})
    assert read_outcomes(tmp_path / "one.json") == {"x": outcome}
