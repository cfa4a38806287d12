"""The computation of one cell: files, rows and errors."""

import re
import shutil
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
import tomli_w

from iclbench import tables
from iclbench.core.context import Context
from iclbench.evaluation.contestants import backbone
from iclbench.evaluation.costs.costs import CostSizes, measure_costs
from iclbench.report.blocks import Figure
from iclbench.report.data import load_results
from iclbench.report.sections import report_sections
from iclbench.store.cells import CellStore, record
from iclbench.store.runs import create, find
from iclbench.sweep.cells import GridCell, grid_cells
from iclbench.sweep.order import Order
from iclbench.sweep.pack import pack
from iclbench.sweep.plan import make_plan
from iclbench.sweep.work import work
from tests.conftest import small_card

RUN = "tiny-gpt2-smoke-s0"


def cells_of(
    folder: Path, lr: float = 1e-3, notes: str = "", cost: list[int] | None = None, **train: object
) -> dict[str, GridCell]:
    """Return the cells of a training run of four steps, by kind."""
    card = small_card(notes=notes, baselines=["zero"], oracles=[], shifts=[])
    card["presets"]["smoke"]["train"] |= {"steps": 4, "lr": lr, "log_every": 2, "checkpoint_every": 2, **train}  # type: ignore[index]
    (folder / "tiny.toml").write_text(tomli_w.dumps(card))
    grid = {
        "summary": "one run",
        "tasks": [str(folder / "tiny.toml")],
        "backbones": ["gpt2"],
        "presets": ["smoke"],
        "seeds": [0],
        "evaluate": {},
        **({"cost": {"points": cost}} if cost else {}),
    }
    (folder / "grid.toml").write_text(tomli_w.dumps(grid))
    return {cell.kind: cell for cell in grid_cells([str(folder / "grid.toml")]) if cell.run == RUN}


def compute(results: Path, cells: dict[str, GridCell]) -> dict[str, str | None]:
    """Compute the cells that are not done, and return the reason for failure (None for success) by kind."""
    todo = make_plan(list(cells.values()), CellStore(results)).todo
    return {cell.kind: work(cell, Context(results)).reason for cell in todo}


@pytest.fixture
def finished_run(tmp_path: Path) -> tuple[Path, dict[str, GridCell]]:
    cells = cells_of(tmp_path)
    assert compute(tmp_path / "results", cells) == {"train": None, "evaluate": None}
    return tmp_path / "results", cells


def test_a_row_lists_the_files_of_its_cell_and_the_total_training_time(
    finished_run: tuple[Path, dict[str, GridCell]],
) -> None:
    results, cells = finished_run
    store = CellStore(results)
    file_names = {path.relative_to(results).as_posix() for path in store.files(cells["train"])}
    assert file_names == {
        f"runs/{RUN}/{name}" for name in ("config.toml", "model.safetensors", "values.parquet", "costs.parquet")
    }
    table_names = {path.name for path in store.files(cells["evaluate"])}
    assert table_names == {f"{RUN}.{table}.parquet" for table in ("values", "costs", "errors")}
    costs = tables.read("costs", results / "runs" / RUN / "costs.parquet").set_index(["phase", "metric"])["value"]
    assert store.rows.loc[cells["train"].hash, "seconds"] == costs["train", "seconds"]
    repeated = work(cells["train"], Context(results))
    assert repeated.seconds == costs["train", "seconds"], "the finished run is not trained again"


@pytest.mark.slow
def test_context_sizes_beyond_learned_positions_give_skipped_rows_in_finished_cells(tmp_path: Path) -> None:
    card = small_card(baselines=["zero"], oracles=[], shifts=[])
    card["presets"]["smoke"]["train"] |= {"steps": 2}  # type: ignore[index]
    (tmp_path / "tiny.toml").write_text(tomli_w.dumps(card))
    grid = {
        "summary": "one run",
        "tasks": [str(tmp_path / "tiny.toml")],
        "backbones": ["gpt2-learned"],
        "presets": ["smoke"],
        "seeds": [0],
        "evaluate": {"extrapolate": {"smoke": "2x"}},
        "probe": {"contexts": {"smoke": ["2x"]}},
    }
    (tmp_path / "grid.toml").write_text(tomli_w.dumps(grid))
    cells = grid_cells([str(tmp_path / "grid.toml")])
    assert {work(cell, Context(tmp_path)).status for cell in cells} == {"done"}
    assert not make_plan(cells, CellStore(tmp_path)).todo
    values = tables.read_all("values", tmp_path / "tables")
    run_values = values[values["run"].eq("tiny-gpt2-learned-smoke-s0")]
    contexts = run_values.dropna(subset="n_context").groupby(["evaluator", "shift", "status"])["n_context"]
    assert {key: (sizes.min(), sizes.max()) for key, sizes in contexts} == {
        ("next", "none", "ok"): (0, 8),
        ("next", "points-16", "ok"): (0, 8),
        ("next", "points-16", "skipped"): (9, 16),
        ("probe", "none", "skipped"): (16, 16),
    }


# tests/probing/test_hidden_states.py covers the targets of recall.
SLOW_STREAMS = [pytest.param(name, marks=pytest.mark.slow) for name in ("recall", "recall-vectors")]


@pytest.mark.parametrize("task", ["markov", "linear-system", *SLOW_STREAMS])
def test_probes_of_stream_models_are_computed_and_drawn_in_the_report(task: str, tmp_path: Path) -> None:
    grid = {
        "summary": "one run",
        "tasks": [task],
        "backbones": ["gru"],
        "presets": ["smoke"],
        "seeds": [0],
        "probe": {},
        "overrides": {"smoke": {"short": ["train.steps=1"]}},
    }
    (tmp_path / "grid.toml").write_text(tomli_w.dumps(grid))
    cells = grid_cells([str(tmp_path / "grid.toml")])
    assert [cell.kind for cell in cells] == ["train", "probe"]
    assert {work(cell, Context(tmp_path)).status for cell in cells} == {"done"}
    assert not make_plan(cells, CellStore(tmp_path)).todo
    (section,) = report_sections(load_results(tmp_path), {"probing"})
    drawn = [block for block in section.walk() if isinstance(block, Figure)]
    assert len(drawn) == 2 and all(len(figure.data) == 4 for figure in drawn), (
        "each figure shows two layers of two models"
    )


def test_notes_of_a_card_do_not_change_cells(finished_run: tuple[Path, dict[str, GridCell]]) -> None:
    results, _ = finished_run
    assert compute(results, cells_of(results.parent, notes="a word")) == {}


def test_a_cell_is_repeated_if_another_configuration_has_overwritten_its_table(tmp_path: Path) -> None:
    """The card of a baseline is changed and changed back. Both versions write the same file."""
    results, card = tmp_path / "results", tmp_path / "mine.toml"
    (tmp_path / "tiny.toml").write_text(tomli_w.dumps(small_card(baselines=[str(card)], oracles=[], shifts=[])))
    common = {"tasks": [str(tmp_path / "tiny.toml")], "backbones": ["gpt2"], "presets": ["smoke"], "seeds": [0]}
    (tmp_path / "grid.toml").write_text(tomli_w.dumps({"summary": "one", **common, "evaluate": {}}))

    def compute_with(k: int) -> bool:
        """Compute the cells that are not done, and return whether there were any."""
        card.write_text(tomli_w.dumps({"estimator": "knn", "summary": "mine", "settings": {"k": k}}))
        cells = [cell for cell in grid_cells([str(tmp_path / "grid.toml")]) if cell.run == "mine"]
        todo = make_plan(cells, CellStore(results)).todo
        assert [work(cell, Context(results)).reason for cell in todo] == [None] * len(todo)
        return bool(todo)

    assert compute_with(3) and not compute_with(3)
    (path,) = results.glob("tables/*/mine.values.parquet")
    values = tables.read("values", path)
    assert compute_with(7) and not values.equals(tables.read("values", path))
    assert compute_with(3) and values.equals(tables.read("values", path))


def test_a_run_with_another_learning_rate_is_not_overwritten(finished_run: tuple[Path, dict[str, GridCell]]) -> None:
    """The reason names the folder of the old run, the difference and a command that removes the run."""
    results, old_cells = finished_run
    weights = (results / "runs" / RUN / "model.safetensors").read_bytes()
    changed = cells_of(results.parent, lr=2e-3)
    reasons = compute(results, changed)
    assert reasons.keys() == {"train", "evaluate"}
    for reason in reasons.values():
        assert reason is not None
        assert str(results / "runs" / RUN) in reason
        assert f"iclbench rm {RUN}" in reason
        assert "train.lr: 0.001 -> 0.002" in reason
        assert len(reason.splitlines()) == 1
    assert (results / "runs" / RUN / "model.safetensors").read_bytes() == weights
    assert make_plan(list(old_cells.values()), CellStore(results)).todo == (), "the old cells are still done"
    (results / "runs" / RUN).rename(results / "old")
    assert compute(results, changed) == {"train": None, "evaluate": None}
    assert make_plan(list(changed.values()), CellStore(results)).todo == ()


@pytest.mark.parametrize("name", ["values.parquet", "costs.parquet", "model.safetensors"])
def test_a_truncated_file_of_a_training_run_is_rewritten(
    finished_run: tuple[Path, dict[str, GridCell]], name: str
) -> None:
    results, cells = finished_run
    path = results / "runs" / RUN / name
    weights, content = (results / "runs" / RUN / "model.safetensors").read_bytes(), path.read_bytes()
    path.write_bytes(content[:-10])
    assert compute(results, cells) == {"train": None}
    assert make_plan(list(cells.values()), CellStore(results)).todo == ()
    assert (results / "runs" / RUN / "model.safetensors").read_bytes() == weights
    if name != "costs.parquet":
        assert path.read_bytes() == content


def test_weights_are_not_removed_if_another_file_of_the_run_cannot_be_read(
    finished_run: tuple[Path, dict[str, GridCell]],
) -> None:
    """A temporary file-system error does not cause the run to be retrained."""
    results, cells = finished_run
    costs = results / "runs" / RUN / "costs.parquet"
    costs.unlink()
    costs.mkdir()
    assert work(cells["train"], Context(results)).status == "failed"
    assert (results / "runs" / RUN / "model.safetensors").is_file()


def test_missing_weights_are_retrained_with_the_same_results(
    finished_run: tuple[Path, dict[str, GridCell]],
) -> None:
    results, cells = finished_run
    before = tables.read_all("values", results / "tables")
    (results / "runs" / RUN / "model.safetensors").unlink()
    assert compute(results, cells) == {"train": None}
    (results / "runs" / RUN / "model.safetensors").unlink()
    for path in results.glob(f"tables/*/{RUN}.errors.parquet"):
        path.unlink()
    assert compute(results, cells) == {"train": None, "evaluate": None}
    assert tables.read_all("values", results / "tables").equals(before)


def test_a_cell_waits_while_another_process_trains_its_run(tmp_path: Path) -> None:
    """If two identical sweeps run in parallel, each run is trained once and no cell fails."""
    cells, results = cells_of(tmp_path), tmp_path / "results"
    assert cells["train"].config is not None
    run = create(results, cells["train"].config, RUN)
    with ThreadPoolExecutor(1) as executor:
        with run.lock():
            second_sweep = executor.submit(compute, results, cells)
            with pytest.raises(TimeoutError):
                second_sweep.result(1.0)
            assert not run.checkpoint_step, "a locked run is not trained"
        assert second_sweep.result(60) == {"train": None, "evaluate": None}
    assert run.is_finished


@pytest.mark.slow
def test_costs_are_measured_without_weights(tmp_path: Path) -> None:
    """The untrained backbone has the same parameters, state and operations as the trained one."""
    cells, results = cells_of(tmp_path, cost=[4]), tmp_path / "results"
    assert work(cells["cost"], Context(results)).status == "done"
    assert not (results / "runs").exists(), "no run folder is created"
    (file,) = CellStore(results).files(cells["cost"])
    untrained = tables.read("costs", file)
    assert compute(results, cells) == {"train": None, "evaluate": None}
    run, sizes = find(results, RUN), CostSizes(cells["cost"].options["points"])
    train, task_config = run.config.train, cells["cost"].task_config
    measured = measure_costs(Context(results), backbone(run), task_config, "smoke", sizes, train=train)
    assert measured == (file, [], 0), "rows of the same configuration are in one file"
    columns = ["phase", "metric", "n_points", "n_episodes", "run", "value"]
    exact = ("parameters", "state_bytes", "flops")
    before, after = [rows.loc[rows["metric"].isin(exact), columns] for rows in (untrained, tables.read("costs", file))]
    assert len(before) == 11, (
        "rows: the parameters, the FLOPs of one step and of all steps, and at each of two sizes the state bytes and "
        "the FLOPs of three phases"
    )
    assert before.reset_index(drop=True).equals(after.reset_index(drop=True))


@pytest.mark.slow
def test_sizes_whose_costs_cannot_be_measured_give_a_warning(tmp_path: Path) -> None:
    """A model with learned positions does not extrapolate."""
    cell = cells_of(tmp_path, cost=[4, 9])["cost"]
    assert cell.config is not None
    settings = cell.config.backbone.settings | {"positions": "learned"}
    backbone_config = cell.config.backbone.model_copy(update={"settings": settings})
    cell = replace(cell, config=cell.config.model_copy(update={"backbone": backbone_config}))
    outcome = work(cell, Context(tmp_path / "results"))
    assert outcome.status == "done"
    (warning,) = [line for line in outcome.warnings if RUN in line]
    assert "9 points" in warning
    assert not work(cells_of(tmp_path, cost=[4])["cost"], Context(tmp_path / "other")).warnings


def test_a_failed_cell_is_recorded_with_its_reason_and_repeated(tmp_path: Path) -> None:
    cells = cells_of(tmp_path)
    outcome = work(cells["evaluate"], Context(tmp_path / "results"))
    assert outcome.status == "failed"
    assert outcome.reason and f"'{RUN}'" in outcome.reason and "iclbench train" in outcome.reason
    store = CellStore(tmp_path / "results")
    assert store.state(cells["evaluate"]) == "failed"
    assert store.rows.loc[cells["evaluate"].hash, "reason"] == outcome.reason
    assert compute(tmp_path / "results", cells) == {"train": None, "evaluate": None}
    assert CellStore(tmp_path / "results").state(cells["evaluate"]) == "done"


def diverging_cells(folder: Path) -> dict[str, GridCell]:
    """Return a training cell with a learning rate that is too high, and its evaluation."""
    return cells_of(folder, lr=1e12, clip=0.0, schedule="constant", warmup=0, log_every=1)


def test_a_diverged_run_is_not_repeated(tmp_path: Path) -> None:
    cells, results = diverging_cells(tmp_path), tmp_path / "results"
    outcome = work(cells["train"], Context(results))
    assert outcome.status == "diverged"
    assert re.search(r"step \d\b.*\b(nan|inf)\b", outcome.reason or "")
    open_plan = make_plan(list(cells.values()), CellStore(results))
    assert open_plan.todo == (cells["evaluate"],), "the evaluation is recorded without computation"
    ((cell, cell_outcome),) = Order(open_plan, 1).cells_without_work()
    assert (cell, cell_outcome.status) == (cells["evaluate"], "diverged")
    record(results, cell, cell_outcome, Context(results))
    final_plan = make_plan(list(cells.values()), CellStore(results))
    assert final_plan.todo == ()
    assert set(final_plan.states.values()) == {"diverged"}
    rows = CellStore(results).rows["reason"]
    assert rows[cells["train"].hash] == outcome.reason
    assert f"'{RUN}'" in rows[cells["evaluate"].hash]


@pytest.mark.parametrize("name", ["diverged.json", "values.parquet"])
def test_a_diverged_run_with_a_missing_file_is_repeated_with_its_evaluation(tmp_path: Path, name: str) -> None:
    cells, results = diverging_cells(tmp_path), tmp_path / "results"
    for cell in cells.values():
        assert work(cell, Context(results)).status == "diverged"
    assert make_plan(list(cells.values()), CellStore(results)).todo == ()
    (results / "runs" / RUN / name).unlink()
    assert make_plan(list(cells.values()), CellStore(results)).todo == tuple(cells.values())


def test_a_diverged_run_is_packed_with_its_curve(tmp_path: Path) -> None:
    """The last row of the curve has the status `failed` and the reason."""
    cells, results = diverging_cells(tmp_path), tmp_path / "results"
    for cell in cells.values():
        work(cell, Context(results))
    pack(list(cells.values()), CellStore(results), results / "reference")
    for folder in ("runs", "cells"):
        shutil.rmtree(results / folder)
    store = CellStore(results)
    assert make_plan(list(cells.values()), store).todo == ()
    curve = tables.read_all("values", results)
    assert curve["status"].tolist()[-1] == "failed" and set(curve["evaluator"]) == {"train"}
    assert curve["reason"].tolist()[-1] == store.rows.loc[cells["train"].hash, "reason"]
