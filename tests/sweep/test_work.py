"""The work of one cell: its files and its row, and reasons that a user can act on."""

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
from iclbench.evaluation.costs.costs import Sizes, measure_costs
from iclbench.store.cells import Store, record
from iclbench.store.runs import create, find
from iclbench.sweep.cells import GridCell, grid_cells
from iclbench.sweep.order import Order
from iclbench.sweep.pack import pack
from iclbench.sweep.plan import plan
from iclbench.sweep.work import work
from tests.conftest import small_card

RUN = "tiny-gpt2-smoke-s0"


def cells_of(
    folder: Path, lr: float = 1e-3, notes: str = "", cost: list[int] | None = None, **train: object
) -> dict[str, GridCell]:
    """A run of four steps and its evaluation, by kind."""
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


def do(results: Path, cells: dict[str, GridCell]) -> dict[str, str | None]:
    """Everything that is to do, one after the other; the reasons of what failed by kind."""
    todo = plan(list(cells.values()), Store(results)).todo
    return {cell.kind: work(cell, Context(results)).reason for cell in todo}


@pytest.fixture
def done(tmp_path: Path) -> tuple[Path, dict[str, GridCell]]:
    cells = cells_of(tmp_path)
    assert do(tmp_path / "results", cells) == {"train": None, "evaluate": None}
    return tmp_path / "results", cells


def test_a_cell_names_its_files_and_a_training_counts_the_seconds_of_all_processes(
    done: tuple[Path, dict[str, GridCell]],
) -> None:
    results, cells = done
    store = Store(results)
    named = {path.relative_to(results).as_posix() for path in store.files(cells["train"])}
    assert named == {
        f"runs/{RUN}/{name}" for name in ("config.toml", "model.safetensors", "values.parquet", "costs.parquet")
    }
    evaluated = {path.name for path in store.files(cells["evaluate"])}
    assert evaluated == {f"{RUN}.{table}.parquet" for table in ("values", "costs", "errors")}
    costs = tables.read("costs", results / "runs" / RUN / "costs.parquet").set_index(["phase", "metric"])["value"]
    assert store.rows.loc[cells["train"].hash, "seconds"] == costs["train", "seconds"]
    again = work(cells["train"], Context(results))
    assert again.seconds == costs["train", "seconds"], "which takes no time, for it is trained"


def test_a_sweep_beyond_learned_positions_has_all_rows_that_can_be_and_nothing_is_left(tmp_path: Path) -> None:
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
    assert not plan(cells, Store(tmp_path)).todo
    values = tables.read_all("values", tmp_path / "tables")
    own = values[values["run"].eq("tiny-gpt2-learned-smoke-s0")]
    of = own.dropna(subset="n_context").groupby(["evaluator", "shift", "status"])["n_context"]
    assert {key: (sizes.min(), sizes.max()) for key, sizes in of} == {
        ("next", "none", "ok"): (0, 8),
        ("next", "points-16", "ok"): (0, 8),
        ("next", "points-16", "skipped"): (9, 16),
        ("probe", "none", "skipped"): (16, 16),
    }


def test_a_note_on_a_card_leaves_nothing_to_do(done: tuple[Path, dict[str, GridCell]]) -> None:
    results, _ = done
    assert do(results, cells_of(results.parent, notes="a word")) == {}


def test_a_table_that_another_configuration_has_overwritten_is_not_what_a_cell_found(tmp_path: Path) -> None:
    """The card of a baseline is changed and changed back: both write the same file."""
    results, card = tmp_path / "results", tmp_path / "mine.toml"
    (tmp_path / "tiny.toml").write_text(tomli_w.dumps(small_card(baselines=[str(card)], oracles=[], shifts=[])))
    alone = {"tasks": [str(tmp_path / "tiny.toml")], "backbones": ["gpt2"], "presets": ["smoke"], "seeds": [0]}
    (tmp_path / "grid.toml").write_text(tomli_w.dumps({"summary": "one", **alone, "evaluate": {}}))

    def swept(k: int) -> bool:
        """Whether there was something to do."""
        card.write_text(tomli_w.dumps({"estimator": "knn", "summary": "mine", "settings": {"k": k}}))
        cells = [cell for cell in grid_cells([str(tmp_path / "grid.toml")]) if cell.run == "mine"]
        todo = plan(cells, Store(results)).todo
        assert [work(cell, Context(results)).reason for cell in todo] == [None] * len(todo)
        return bool(todo)

    assert swept(3) and not swept(3)
    (path,) = results.glob("tables/*/mine.values.parquet")
    found = tables.read("values", path)
    assert swept(7) and not found.equals(tables.read("values", path))
    assert swept(3) and found.equals(tables.read("values", path))


def test_another_rate_is_to_do_and_the_old_run_is_not_overwritten(done: tuple[Path, dict[str, GridCell]]) -> None:
    """What the user sees: where the old run lies, in what it differs, and that the same command then goes on."""
    results, old = done
    weights = (results / "runs" / RUN / "model.safetensors").read_bytes()
    changed = cells_of(results.parent, lr=2e-3)
    reasons = do(results, changed)
    assert reasons.keys() == {"train", "evaluate"}
    for reason in reasons.values():
        assert reason is not None
        assert str(results / "runs" / RUN) in reason
        assert f"iclbench rm {RUN}" in reason
        assert "train.lr: 0.001 -> 0.002" in reason
        assert len(reason.splitlines()) == 1
    assert (results / "runs" / RUN / "model.safetensors").read_bytes() == weights
    assert plan(list(old.values()), Store(results)).todo == (), "what is there is still known"
    (results / "runs" / RUN).rename(results / "old")
    assert do(results, changed) == {"train": None, "evaluate": None}
    assert plan(list(changed.values()), Store(results)).todo == ()


@pytest.mark.parametrize("name", ["values.parquet", "costs.parquet", "model.safetensors"])
def test_what_training_wrote_and_is_cut_short_is_trained_again(
    done: tuple[Path, dict[str, GridCell]], name: str
) -> None:
    results, cells = done
    path = results / "runs" / RUN / name
    weights, curve = (results / "runs" / RUN / "model.safetensors").read_bytes(), path.read_bytes()
    path.write_bytes(curve[:-10])
    assert do(results, cells) == {"train": None}
    assert plan(list(cells.values()), Store(results)).todo == ()
    assert (results / "runs" / RUN / "model.safetensors").read_bytes() == weights
    if name != "costs.parquet":
        assert path.read_bytes() == curve


def test_weights_are_kept_where_a_file_beside_them_is_there_and_cannot_be_read_now(
    done: tuple[Path, dict[str, GridCell]],
) -> None:
    """A file system that is away for a moment is no reason to train again."""
    results, cells = done
    costs = results / "runs" / RUN / "costs.parquet"
    costs.unlink()
    costs.mkdir()
    assert work(cells["train"], Context(results)).status == "failed"
    assert (results / "runs" / RUN / "model.safetensors").is_file()


def test_weights_that_are_gone_are_trained_again_only_when_somebody_needs_them(
    done: tuple[Path, dict[str, GridCell]],
) -> None:
    results, cells = done
    before = tables.read_all("values", results / "tables")
    (results / "runs" / RUN / "model.safetensors").unlink()
    assert do(results, cells) == {"train": None}
    (results / "runs" / RUN / "model.safetensors").unlink()
    for path in results.glob(f"tables/*/{RUN}.errors.parquet"):
        path.unlink()
    assert do(results, cells) == {"train": None, "evaluate": None}
    assert tables.read_all("values", results / "tables").equals(before)


def test_a_run_that_another_process_trains_is_waited_for_and_used(tmp_path: Path) -> None:
    """Two equal sweeps at once: each run is trained once, and neither sweep has failed cells."""
    cells, results = cells_of(tmp_path), tmp_path / "results"
    assert cells["train"].config is not None
    run = create(results, cells["train"].config, RUN)
    with ThreadPoolExecutor(1) as other:
        with run.lock():
            second = other.submit(do, results, cells)
            with pytest.raises(TimeoutError):
                second.result(1.0)
            assert not run.checkpoint_step, "nobody trains what is held"
        assert second.result(60) == {"train": None, "evaluate": None}
    assert run.finished


def test_what_a_run_costs_is_measured_without_its_weights(tmp_path: Path) -> None:
    """The untrained backbone has the same parameters, state and operations as the trained one."""
    cells, results = cells_of(tmp_path, cost=[4]), tmp_path / "results"
    assert work(cells["cost"], Context(results)).status == "done"
    assert not (results / "runs").exists(), "no run is begun for it"
    (file,) = Store(results).files(cells["cost"])
    untrained = tables.read("costs", file)
    assert do(results, cells) == {"train": None, "evaluate": None}
    run, sizes = find(results, RUN), Sizes(cells["cost"].options["points"])
    train, frozen = run.config.train, cells["cost"].frozen
    measured = measure_costs(Context(results), backbone(run), frozen, "smoke", sizes, train=train)
    assert measured == (file, [], 0), "rows of the same configuration stand in one file"
    fixed = ["phase", "metric", "n_points", "n_episodes", "run", "value"]
    exact = ("parameters", "state_bytes", "flops")
    both = [rows.loc[rows["metric"].isin(exact), fixed] for rows in (untrained, tables.read("costs", file))]
    assert len(both[0]) == 11, "parameters, FLOPs of a step and of all; state and FLOPs of three phases at two sizes"
    assert both[0].reset_index(drop=True).equals(both[1].reset_index(drop=True))


def test_sizes_at_which_costs_cannot_be_measured_are_told(tmp_path: Path) -> None:
    """With learned positions a model takes in no more than it was trained for."""
    cell = cells_of(tmp_path, cost=[4, 9])["cost"]
    assert cell.config is not None
    settings = cell.config.backbone.settings | {"positions": "learned"}
    learned = cell.config.backbone.model_copy(update={"settings": settings})
    cell = replace(cell, config=cell.config.model_copy(update={"backbone": learned}))
    outcome = work(cell, Context(tmp_path / "results"))
    assert outcome.status == "done"
    assert [line for line in outcome.warnings if "left out" in line] == [
        f"'{RUN}' at 9 points left out: it takes in at most 8 examples and a query"
    ]
    assert not work(cells_of(tmp_path, cost=[4])["cost"], Context(tmp_path / "other")).warnings


def test_a_failing_cell_leaves_a_row_with_one_line_and_is_tried_again(tmp_path: Path) -> None:
    cells = cells_of(tmp_path)
    outcome = work(cells["evaluate"], Context(tmp_path / "results"))
    assert outcome.status == "failed"
    assert outcome.reason == f"run '{RUN}' has not finished training; continue it with iclbench train"
    store = Store(tmp_path / "results")
    assert store.state(cells["evaluate"]) == "failed"
    assert store.rows.loc[cells["evaluate"].hash, "reason"] == outcome.reason
    assert do(tmp_path / "results", cells) == {"train": None, "evaluate": None}
    assert Store(tmp_path / "results").state(cells["evaluate"]) == "done"


def diverging(folder: Path) -> dict[str, GridCell]:
    """A training whose rate is far too high, and its evaluation."""
    return cells_of(folder, lr=1e12, clip=0.0, schedule="constant", warmup=0, log_every=1)


def test_a_training_that_diverged_is_an_end_that_no_sweep_tries_again(tmp_path: Path) -> None:
    cells, results = diverging(tmp_path), tmp_path / "results"
    outcome = work(cells["train"], Context(results))
    assert outcome.status == "diverged"
    assert re.fullmatch(r"diverged at step \d: the loss is (nan|inf)", outcome.reason or "")
    found = plan(list(cells.values()), Store(results))
    assert found.todo == (cells["evaluate"],), "which gets its row without work"
    given_up = list(Order(found, 1).cells_without_work())
    ((cell, without),) = given_up
    assert (cell, without.status) == (cells["evaluate"], "diverged")
    record(results, cell, without, Context(results))
    found = plan(list(cells.values()), Store(results))
    assert found.todo == ()
    assert set(found.states.values()) == {"diverged"}
    rows = Store(results).rows["reason"]
    assert rows[cells["train"].hash] == outcome.reason
    assert rows[cells["evaluate"].hash].startswith(f"its training diverged (run '{RUN}')")


@pytest.mark.parametrize("name", ["diverged.json", "values.parquet"])
def test_without_its_record_what_diverged_is_tried_again_with_all_that_needs_it(tmp_path: Path, name: str) -> None:
    cells, results = diverging(tmp_path), tmp_path / "results"
    for cell in cells.values():
        assert work(cell, Context(results)).status == "diverged"
    assert plan(list(cells.values()), Store(results)).todo == ()
    (results / "runs" / RUN / name).unlink()
    assert plan(list(cells.values()), Store(results)).todo == tuple(cells.values())


def test_a_diverged_training_is_packed_with_its_curve(tmp_path: Path) -> None:
    """A point of the rate curve: how far it came, and that it came no farther."""
    cells, results = diverging(tmp_path), tmp_path / "results"
    for cell in cells.values():
        work(cell, Context(results))
    pack(list(cells.values()), Store(results), results / "reference")
    for folder in ("runs", "cells"):
        shutil.rmtree(results / folder)
    store = Store(results)
    assert plan(list(cells.values()), store).todo == ()
    curve = tables.read_all("values", results)
    assert curve["status"].tolist()[-1] == "failed" and set(curve["evaluator"]) == {"train"}
    assert curve["reason"].tolist()[-1] == store.rows.loc[cells["train"].hash, "reason"]
