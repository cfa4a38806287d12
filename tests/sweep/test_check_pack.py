"""The check of packs from unknown sources: an intact pack passes, and every kind of tampering is refused."""

import dataclasses
import json
import os
import pickle
import shutil
import sys
import tempfile
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path

import pandas as pd
import pytest
import tomli_w
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from iclbench import tables
from iclbench.cli.main import main
from iclbench.cli.sweep_results import print_packed
from iclbench.config.cards import read_toml
from iclbench.core import limits
from iclbench.core.context import Context
from iclbench.core.files import DIGEST, digest_path, save_tensors
from iclbench.core.trust import UntrustedError
from iclbench.registry import BACKBONES
from iclbench.store import archives
from iclbench.store.cells import CellStore
from iclbench.store.outcome import Outcome
from iclbench.store.runs import Run
from iclbench.sweep import check_pack as module
from iclbench.sweep.cells import GridCell, grid_cells
from iclbench.sweep.check_pack import check_pack
from iclbench.sweep.pack import cell_kinds, pack
from iclbench.sweep.pack_cards import write_cards
from iclbench.sweep.verify import Workers
from iclbench.sweep.work import work
from tests.conftest import increase_code_version, small_card
from tests.refusals import refused
from tests.sweep.test_kill import is_alive, wait_until

GROUP = "tiny-smoke"
RUNS = [f"tiny-gpt2-smoke-s{seed}" for seed in (0, 1)]
LONG = "x" * 100


class _InlineWorkers:
    """Compute cells in this process, since a new process would have to import torch."""

    def __init__(self, threads: int, max_seconds: float | None = None) -> None:
        pass

    def __enter__(self) -> "_InlineWorkers":
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def work(self, cell: GridCell, context: Context, instruction_set: str) -> Outcome:
        return work(cell, context)


@pytest.fixture(autouse=True, scope="module")
def inline_workers() -> Iterator[None]:
    """Compute cells in this process, and measure seconds and bytes, which are not compared, only once."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr("iclbench.sweep.check_pack.Workers", _InlineWorkers)
        monkeypatch.setattr("iclbench.evaluation.costs.costs._MIN_REPEATS", 1)
        monkeypatch.setattr("iclbench.evaluation.costs.costs._MAX_REPEATS", 1)
        yield


def make_pack(folder: Path, **changes: object) -> Path:
    """Sweep a grid of two seeds and pack it with its cards. The grid names cards in other folders."""
    card = small_card(baselines=["zero", str(folder / "cards" / "nearest.toml")], shifts=[])
    card["presets"]["smoke"]["train"] |= {"steps": 4, "log_every": 2}  # type: ignore[index]
    (folder / "cards").mkdir()
    (folder / "cards" / "tiny.toml").write_text(tomli_w.dumps(card))
    baseline = {"estimator": "knn", "summary": "two neighbours", "settings": {"k": 2}}
    (folder / "cards" / "nearest.toml").write_text(tomli_w.dumps(baseline))
    grid = {
        "summary": "two seeds",
        "tasks": [str(folder / "cards" / "tiny.toml")],
        "backbones": ["gpt2"],
        "presets": ["smoke"],
        "seeds": [0, 1],
        "weights": [0, 1],
        "evaluate": {},
        "cost": {"points": [4]},
    } | changes
    grid = {key: value for key, value in grid.items() if value is not None}
    (folder / "study.toml").write_text(tomli_w.dumps(grid))
    path, results = str(folder / "study.toml"), folder / "results"
    cells = grid_cells([path])
    for cell in cells:
        outcome = work(cell, Context(results))
        assert outcome.status == "done", outcome
    packed = results / "study"
    pack(cells, CellStore(results), packed)
    write_cards([path], cells, results, packed)
    return packed


@pytest.fixture(scope="module")
def intact_pack(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_pack(tmp_path_factory.mktemp("swept"))


@pytest.fixture(scope="module")
def grid_path(intact_pack: Path) -> Path:
    """The card of the packed grid."""
    return intact_pack.parents[1] / "study.toml"


@pytest.fixture
def packed(intact_pack: Path, tmp_path: Path) -> Path:
    """A copy of the pack, for a test that changes it."""
    return Path(shutil.copytree(intact_pack, tmp_path / "study"))


def check(packed: Path, n: int = 1) -> list[str]:
    return list(check_pack(packed, n, Context(Path("unused")), 600))


def edit(packed: Path, table: tables.TableName, change: Callable[[pd.DataFrame], pd.DataFrame]) -> None:
    """Change the rows of a table. The new file has a valid digest."""
    path = packed / f"{GROUP}.{table}.parquet"
    tables.write(table, change(tables.read(table, path)), path, {"packed": GROUP})


def edit_card(packed: Path, **changes: object) -> None:
    path = packed / "study.toml"
    path.write_text(tomli_w.dumps(read_toml(path) | changes))


def with_value(rows: pd.DataFrame, row: int, factor: float = 1.5) -> pd.DataFrame:
    rows = rows.copy()
    value = rows["value"].iloc[row]
    rows.loc[rows.index[row], "value"] = value * factor + 0.1
    return rows


def test_an_intact_pack_passes_and_states_the_probability_of_finding_an_edited_training(packed: Path) -> None:
    before = {path.name: path.read_bytes() for path in packed.iterdir()}
    lines = check(packed)
    assert any("probability 1/2" in line for line in lines)
    assert before == {path.name: path.read_bytes() for path in packed.iterdir()}


def test_a_pack_contains_the_cards_that_its_grid_names_by_path(packed: Path) -> None:
    assert {path.name for path in packed.glob("*.toml")} == {"study.toml", "tiny.toml", "nearest.toml"}
    assert read_toml(packed / "study.toml")["tasks"] == ["tiny.toml"]
    assert read_toml(packed / "tiny.toml")["baselines"] == ["zero", "nearest.toml"]


def test_the_card_of_a_pack_can_be_swept_from_any_folder(
    packed: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Its card names other cards of the pack by file name."""
    monkeypatch.chdir(tmp_path)
    cells = grid_cells([f"{packed.name}/study.toml"])
    assert {CellStore(packed.parent).state(cell) for cell in cells} == {"done"}


def test_replacing_a_pack_removes_the_cards_of_grids_without_cells(packed: Path, grid_path: Path) -> None:
    """The old grid has only cells of the replaced task. The other grid and two presets still have cells in the pack."""
    grid = read_toml(packed / "study.toml")
    cards = {
        "old.toml": grid | {"tasks": ["tiny.toml"], "evaluate": {"baselines": ["old-baseline.toml"]}},
        "old-baseline.toml": {"estimator": "zero"},
        "other.toml": grid
        | {"more": [grid | {"tasks": ["Linear"], "evaluate": {"baselines": ["other-baseline.toml"]}}]},
        "other-baseline.toml": {"estimator": "zero"},
        "small.rates.toml": {},
        "grid.rates.toml": {},
    }
    for name, content in cards.items():
        (packed / name).write_text(tomli_w.dumps(content))
    for group in ("linear-smoke", "bursty-small"):
        tables.write("cells", [], packed / f"{group}.cells.parquet", {"packed": group})
    study = {path.name for path in packed.glob("*.toml")} - cards.keys()
    cells = grid_cells([str(grid_path)])
    write_cards([str(grid_path)], cells, packed.parent, packed)
    assert {path.name for path in packed.glob("*.toml")} == study | cards.keys()
    print_packed([str(grid_path)], cells, CellStore(packed.parent), packed, replace=True)
    remaining = {"other.toml", "other-baseline.toml", "small.rates.toml"}
    assert {path.name for path in packed.glob("*.toml")} == study | remaining


@pytest.mark.parametrize("table", ["values", "errors", "costs"])
def test_an_edited_value_is_refused(packed: Path, table: tables.TableName) -> None:
    def change(rows: pd.DataFrame) -> pd.DataFrame:
        if table == "values":
            return with_value(rows, int(rows["run"].eq(RUNS[1]).to_numpy().nonzero()[0][0]))
        return with_value(rows, int(rows["metric"].ne("seconds").to_numpy().nonzero()[0][-1]))

    if table == "costs":
        edit(packed, table, lambda rows: rows.assign(value=rows["value"].where(rows["metric"].ne("parameters"), 7.0)))
    else:
        edit(packed, table, change)
    with refused("bad-data", "edited value", exit_code=1):
        check(packed)


@pytest.mark.parametrize("table", ["values", "errors"])
def test_an_edit_of_any_row_is_found(packed: Path, table: tables.TableName) -> None:
    """Every row is edited once. The rows of the training curve are compared after retraining only."""
    rows = tables.read(table, packed / f"{GROUP}.{table}.parquet")
    edited = 0
    for row in range(0, len(rows), 1 if table == "values" else 5):
        changed = with_value(rows, row)
        if table == "values" and cell_kinds(rows).iloc[row] == "train":
            assert module._are_equal(GROUP, table, changed, rows)
            continue
        with refused("bad-data", GROUP, table, exit_code=1):
            module._are_equal(GROUP, table, changed, rows)
        edited += 1
    assert edited > 30
    with refused("bad-data", GROUP, table, exit_code=1):
        module._are_equal(GROUP, table, rows.drop(index=len(rows) - 1), rows)


@pytest.mark.parametrize("table", ["values", "errors"])
def test_rounding_is_accepted(packed: Path, table: tables.TableName) -> None:
    rows = tables.read(table, packed / f"{GROUP}.{table}.parquet")
    if table == "values":
        rows = rows[rows["low"].lt(rows["high"]).fillna(False)]
    rounded = rows.assign(value=rows["value"] * (1 + 1e-6))
    assert not module._are_equal(GROUP, table, rounded, rows)


@pytest.mark.parametrize("sign", ["same", "alternating"])
def test_a_small_shift_of_the_errors_of_all_episodes_is_found(packed: Path, sign: str) -> None:
    """A fiftieth of the standard deviation decides a paired test between similar models."""
    rows = tables.read("errors", packed / f"{GROUP}.errors.parquet")
    spread = rows.groupby(["run", "prompt_set"])["value"].transform("std")
    signs = 1 if sign == "same" else 1 - 2 * (rows["episode"] % 2)
    with refused("bad-data", GROUP, "errors", exit_code=1):
        module._are_equal(GROUP, "errors", rows.assign(value=rows["value"] + signs * spread / 50), rows)


def test_an_infinite_error_does_not_hide_an_edit(packed: Path) -> None:
    rows = tables.read("errors", packed / f"{GROUP}.errors.parquet")
    values = rows["value"].mask(rows["episode"].eq(0), float("inf"))
    edited = values.mask(rows["episode"].eq(1), 0.0)
    with refused("bad-data", GROUP, "errors", exit_code=1):
        module._are_equal(GROUP, "errors", rows.assign(value=edited), rows.assign(value=values))
    rounded = values.mask(rows["episode"].gt(0), values * (1 + 1e-6))
    assert not module._are_equal(GROUP, "errors", rows.assign(value=rounded), rows.assign(value=values))


@pytest.mark.parametrize("column", ["tuned", "context_order", "data", "card"])
def test_an_edited_column_of_the_settings_is_found(packed: Path, column: str) -> None:
    rows = tables.read("values", packed / f"{GROUP}.values.parquet")
    changed = rows.assign(**{column: True if column == "tuned" else "other"})
    with refused("bad-data", column, exit_code=1):
        module._are_equal(GROUP, "values", changed.astype(rows.dtypes), rows)


def test_an_infinite_interval_is_found(packed: Path) -> None:
    rows = tables.read("values", packed / f"{GROUP}.values.parquet")
    rows = rows[~cell_kinds(rows).eq("train")].assign(low=pd.NA, high=pd.NA).astype(rows.dtypes)
    with refused("bad-data", exit_code=1):
        module._are_equal(GROUP, "values", rows.assign(low=-float("inf"), high=float("inf")), rows)


def test_a_table_of_another_task_is_refused(packed: Path) -> None:
    """Reports read all tables of a folder, also those that no cell names."""
    rows = tables.read("values", packed / f"{GROUP}.values.parquet").assign(task="linear")
    tables.write("values", rows, packed / "linear-smoke.values.parquet", {"packed": "linear-smoke"})
    with refused("bad-data", "'linear-smoke'", exit_code=1):
        check(packed)


def added(rows: pd.DataFrame, selected: pd.Series, **changes: object) -> pd.DataFrame:
    """Add a changed copy of the first selected row."""
    return pd.concat([rows, rows[selected].iloc[:1].assign(**changes)], ignore_index=True).astype(rows.dtypes)


@pytest.mark.parametrize(
    ("table", "change"),
    [
        ("values", lambda rows: added(rows, rows["run"].eq(RUNS[0]), run="super-s0", axis="branch", axis_value=2)),
        ("values", lambda rows: added(rows, rows["evaluator"].eq("train"), run="zero", contestant="zero")),
        ("costs", lambda rows: added(rows, rows["metric"].eq("parameters"), run="zero", contestant="zero")),
        ("costs", lambda rows: added(rows, rows["metric"].eq("seconds"), run="super", contestant="super")),
        ("costs", lambda rows: rows[rows["metric"].ne("parameters")]),
        ("costs", lambda rows: rows[rows["metric"].ne("steps")]),
        ("costs", lambda rows: added(rows, rows["metric"].eq("seconds"), metric="magic")),
        ("values", lambda rows: added(rows, rows["metric"].eq("auc"), axis="branch", axis_value=2)),
        ("cells", lambda rows: added(rows, rows["run"].eq("zero"), cell="0" * 16, run="super-s0", status="skipped")),
        ("cells", lambda rows: added(rows, rows["run"].eq("zero"), cell="0" * 16)),
        ("values", lambda rows: rows[rows["evaluator"].ne("train") | rows["run"].ne(RUNS[1])]),
        ("values", lambda rows: rows[rows["evaluator"].ne("train") | rows["axis_value"].ne(2)]),
        ("values", lambda rows: added(rows, rows["evaluator"].eq("train"), axis_value=3)),
        ("values", lambda rows: added(rows, rows["evaluator"].eq("train"), metric="accuracy", value=1.0)),
        ("values", lambda rows: added(rows, rows["evaluator"].eq("train"), evaluator="next", metric="squared_error")),
    ],
)
def test_rows_that_belong_to_no_cell_and_missing_rows_are_refused(
    packed: Path, table: tables.TableName, change: Callable[[pd.DataFrame], pd.DataFrame]
) -> None:
    edit(packed, table, change)
    with refused("bad-data", exit_code=1):
        check(packed, 0)


@pytest.mark.parametrize("files", ["[]", '["/etc/passwd"]', '["../x.parquet"]', '["study/x.parquet"]', "7"])
def test_the_files_of_a_cell_are_files_of_the_pack(packed: Path, files: str) -> None:
    edit(packed, "cells", lambda rows: rows.assign(files=rows["files"].where(rows["kind"].ne("train"), files)))
    with refused("not-finished", RUNS[0], exit_code=1):
        check(packed, 0)


def test_a_pack_in_a_folder_with_another_name_is_refused_with_its_name(packed: Path) -> None:
    with refused("missing-file", "'study'", "'other'", exit_code=1):
        check(packed.rename(packed.with_name("other")), 0)


def test_packed_results_without_cards_are_refused_with_the_command_that_checks_them(packed: Path) -> None:
    for path in packed.glob("*.toml"):
        path.unlink()
    (packed / f"{GROUP}.trials.parquet").write_bytes(b"")
    with refused("missing-file", "--verify N", exit_code=1):
        check(packed, 0)


def edit_weights(packed: Path, change: Callable[[dict[str, torch.Tensor], dict[str, str]], object]) -> None:
    """Change the tensors and the metadata of the archive. The digest is valid."""
    archive = archives.archive_path(packed, "tiny", "smoke")
    with safe_open(archive, framework="pt") as file:
        metadata = dict(file.metadata())
    tensors = load_file(archive)
    change(tensors, metadata)
    metadata.pop(DIGEST)
    save_tensors(archive, tensors, metadata, digest=True)


def test_tensors_and_metadata_of_no_run_are_refused(packed: Path, tmp_path: Path) -> None:
    def first(tensors: dict[str, torch.Tensor]) -> str:
        return min(name for name in tensors if name.startswith(RUNS[0]))

    changes: list[tuple[Callable[[dict[str, torch.Tensor], dict[str, str]], object], str, str]] = [
        (lambda tensors, _: tensors.update({"other/x": torch.zeros(2)}), "unreadable-file", "belongs to no run"),
        (lambda tensors, _: tensors.update({f"{RUNS[0]}/x": torch.zeros(2)}), "bad-data", "do not fit"),
        (lambda tensors, _: tensors.pop(first(tensors)), "bad-data", "do not fit"),
        (lambda tensors, _: tensors.update({first(tensors): torch.zeros(2)}), "bad-data", "do not fit"),
        (
            lambda _, metadata: metadata.update(
                {name: json.dumps(entry | {"about": entry["about"] | {"note": LONG}}) for name, text in metadata.items()
                 if name in RUNS for entry in [json.loads(text)]}
            ),
            "bad-data", "unknown metadata 'note'",
        ),
    ]  # fmt: skip
    for number, (change, code, text) in enumerate(changes):
        copy = Path(shutil.copytree(packed, tmp_path / str(number) / "study"))
        edit_weights(copy, change)
        with refused(code, text, exit_code=1):
            check(copy, 0)


def test_an_unknown_backbone_is_refused_with_advice_on_plug_ins(packed: Path) -> None:
    edit_card(packed, backbones=["gpt2", "learned-kernel"])
    with refused("bad-value", "learned-kernel", "plug-in", exit_code=1):
        check(packed, 0)


def test_a_finished_run_that_is_declared_as_diverged_is_found_by_retraining(packed: Path) -> None:
    """Its rows and weights are removed, as those of a diverged run would be."""
    for table in ("values", "errors"):
        edit(packed, table, lambda rows: rows[rows["run"].ne(RUNS[1])])
    edit(packed, "costs", lambda rows: rows[rows["run"].ne(RUNS[1]) | rows["metric"].isin(["flops", "state_bytes"])])

    def declare(rows: pd.DataFrame) -> pd.DataFrame:
        is_declared = rows["run"].eq(RUNS[1]) & rows["kind"].ne("cost")
        return rows.assign(status=rows["status"].mask(is_declared, "diverged"))

    edit(packed, "cells", declare)
    archive = archives.archive_path(packed, "tiny", "smoke")
    archives.write(archive, [archives.entries(archive)[RUNS[0]]])
    with refused("bad-data", RUNS[1], "done", exit_code=1):
        check(packed, 0)


def test_libraries_must_be_an_object(packed: Path) -> None:
    edit(packed, "cells", lambda rows: rows.assign(libraries="[1]"))
    with refused("bad-data", "libraries", exit_code=1):
        check(packed, 2)
    edit(packed, "cells", lambda rows: rows.assign(libraries='{"torch": [1, 2]}'))
    assert check(packed, 0)


@pytest.mark.parametrize(
    ("column", "value", "code"),
    [
        ("run", "other", "bad-data"),
        ("contestant", "other", "bad-data"),
        ("seed", 7, "bad-data"),
        ("status", "diverged", "not-finished"),
    ],
)
def test_an_edited_row_of_an_evaluation_is_refused(packed: Path, column: str, value: object, code: str) -> None:
    """For example, a poor evaluation is declared as diverged, although its training is finished."""

    def change(rows: pd.DataFrame) -> pd.DataFrame:
        is_edited = rows["run"].eq(RUNS[1]) & rows["kind"].eq("evaluate")
        assert is_edited.sum() == 1
        return rows.assign(**{column: rows[column].mask(is_edited, value)})

    edit(packed, "cells", change)
    with refused(code, RUNS[1], exit_code=1):
        check(packed)


def test_a_skipped_cell_that_is_applicable_is_refused(packed: Path) -> None:
    edit(packed, "cells", lambda rows: rows.assign(status=rows["status"].mask(rows["run"].eq("zero"), "skipped")))
    with refused("bad-data", "'zero'", exit_code=1):
        check(packed)


def test_an_edited_training_curve_is_found_by_retraining(packed: Path) -> None:
    """All runs are retrained, since K is larger than their number."""
    edit(packed, "values", lambda rows: with_value(rows, int(cell_kinds(rows).eq("train").to_numpy().argmax())))
    with refused("bad-data", "edited training", exit_code=1):
        check(packed, 5)


def test_a_training_without_an_evaluation_is_also_drawn(tmp_path: Path) -> None:
    packed = make_pack(tmp_path, evaluate=None, cost=None)
    assert any("2/2" in line or "all trainings" in line for line in check(packed, 2))
    edit(packed, "values", lambda rows: with_value(rows, 0))
    with refused("bad-data", "edited training", exit_code=1):
        check(packed, 2)


def test_in_the_environment_of_the_pack_numbers_must_be_equal(packed: Path) -> None:
    """In another environment, so small a difference is rounding."""

    def change(rows: pd.DataFrame) -> pd.DataFrame:
        is_number = rows["low"].lt(rows["high"]).fillna(False) & rows["kind"].eq("backbone")
        return rows.assign(value=rows["value"].where(~is_number, rows["value"] * (1 + 1e-6)))

    edit(packed, "values", change)
    with refused("bad-data", "edited value", exit_code=1):
        check(packed)
    edit(packed, "cells", lambda rows: rows.assign(hardware=rows["hardware"].mask(rows["hardware"].notna(), "abacus")))
    assert any("equal but for rounding (hardware: abacus then" in line for line in check(packed))


def test_weights_that_the_training_does_not_give_are_refused(packed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The change is so small that all numbers of the evaluation are equal, up to rounding."""
    archive = archives.archive_path(packed, "tiny", "smoke")
    entries = archives.entries(archive)
    run = Run(packed.parent / "runs" / RUNS[1])
    archives.unpack(entries[RUNS[1]], run, packed.parent)
    weights = load_file(run.weights)
    for weight in weights.values():
        weight.mul_(1 + 1e-6)
    with safe_open(run.weights, framework="pt") as file:
        metadata = file.metadata()
    save_file(weights, run.weights, metadata)
    digest_path(run.weights).write_text(f"{archives.digests.file_digest(run.weights)}  {run.weights.name}\n")
    changed = archives.of_run(run)
    assert changed is not None and changed.digest != entries[RUNS[1]].digest
    archives.write(archive, [entries[RUNS[0]], changed])
    monkeypatch.setattr(module, "_are_equal", lambda *tables, may_round: True)
    with refused("bad-data", RUNS[1], "weights", exit_code=1):
        check(packed, 2)


def test_a_card_that_no_cell_needs_is_refused(packed: Path) -> None:
    (packed / "other.toml").write_text(tomli_w.dumps({"estimator": "zero"}))
    with refused("bad-data", "'other.toml'", exit_code=1):
        check(packed)


def test_other_prompts_are_refused(packed: Path) -> None:
    edit_card(packed, evaluate={"seed": 1})
    with refused("settings-changed", "other prompts", exit_code=1):
        check(packed)


def test_a_prompt_set_with_another_name_is_refused(packed: Path) -> None:
    def change(rows: pd.DataFrame) -> pd.DataFrame:
        return rows.assign(prompt_set=rows["prompt_set"].where(rows["prompt_set"].isna(), "tiny-smoke-none-00000000"))

    edit(packed, "values", change)
    with refused("settings-changed", "other prompts", "00000000", exit_code=1):
        check(packed)


@pytest.mark.parametrize(("part", "setting", "value"), [("train", "steps", 6), ("backbone", "width", 32)])
def test_another_budget_is_refused(packed: Path, part: str, setting: str, value: int) -> None:
    """The packed weights were trained with another budget, which the card hides."""
    archive = archives.archive_path(packed, "tiny", "smoke")
    forged = []
    for entry in archives.entries(archive).values():
        config = tomllib.loads(entry.config)
        target = config[part]["settings"] if part == "backbone" else config[part]
        assert target[setting] != value
        target[setting] = value
        forged.append(dataclasses.replace(entry, config=tomli_w.dumps(config)))
    archives.write(archive, forged)
    edit(packed, "cells", lambda rows: rows.assign(cell=rows["cell"].str[::-1]))  # other settings, other hashes
    with refused("settings-changed", "other budget", "tiny-gpt2", setting, exit_code=1):
        check(packed)


def test_a_card_that_trains_longer_than_its_preset_is_refused(packed: Path) -> None:
    edit_card(packed, overrides={"smoke": {"long": ["train.steps=6"]}})
    with refused("settings-changed", "other budget", "steps 6", exit_code=1):
        check(packed)


def test_a_model_outside_the_parameter_budget_is_refused(packed: Path) -> None:
    card = read_toml(packed / "tiny.toml")
    card["presets"]["smoke"]["budget"] = 100_000
    (packed / "tiny.toml").write_text(tomli_w.dumps(card))
    with refused("settings-changed", "other budget", "100,000", exit_code=1):
        check(packed)


def test_other_code_is_refused(packed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    increase_code_version(monkeypatch, BACKBONES, "gpt2")
    with refused("code-changed", "other code", "gpt2", exit_code=1):
        check(packed)


def test_a_missing_seed_is_refused(packed: Path) -> None:
    for table in ("values", "errors", "costs", "cells"):
        edit(packed, table, lambda rows: rows[rows["run"].ne(RUNS[1])])
    with refused("not-finished", "missing seed 1", RUNS[1], exit_code=1):
        check(packed)


def test_a_card_without_a_seed_is_refused(packed: Path) -> None:
    edit_card(packed, seeds=[1], weights=[1])
    with refused("missing-value", "missing seed", exit_code=1):
        check(packed)


def test_a_cell_that_the_card_does_not_contain_is_refused(packed: Path) -> None:
    edit_card(packed, seeds=[0], weights=[0])
    with refused("bad-data", "s1", exit_code=1):
        check(packed)


def test_missing_weights_are_refused(packed: Path) -> None:
    archive = archives.archive_path(packed, "tiny", "smoke")
    archives.write(archive, [archives.entries(archive)[RUNS[0]]])
    with refused("missing-file", RUNS[1], exit_code=1):
        check(packed)


def test_weights_of_another_run_are_refused(packed: Path) -> None:
    archive = archives.archive_path(packed, "tiny", "smoke")
    entry = archives.entries(archive)[RUNS[0]]
    copy = archives.PackedWeights(RUNS[1], entry.path, entry.config, entry.metadata, entry.prefix)
    archives.write(archive, [entry, copy])
    with refused("settings-changed", RUNS[1], "seed", exit_code=1):
        check(packed)


def replace_by_pickle(packed: Path) -> None:
    archive = archives.archive_path(packed, "tiny", "smoke")
    archive.write_bytes(pickle.dumps({"weights": [1.0]}))
    digest_path(archive).write_text(f"{archives.digests.file_digest(archive)}  {archive.name}\n")


def with_paths_outside(packed: Path) -> None:
    edit(packed, "cells", lambda rows: rows.assign(files=json.dumps(["../../outside.values.parquet"])))


def with_outside_card(packed: Path) -> None:
    edit_card(packed, tasks=["../../tiny.toml"])


@pytest.mark.parametrize(
    ("tamper", "code"),
    [
        (lambda packed: (packed / "model.pkl").write_bytes(b"x"), "bad-data"),
        (lambda packed: (packed / "sitecustomize.py").write_text("x = 1"), "bad-data"),
        (lambda packed: (packed / "folder").mkdir(), "bad-data"),
        (lambda packed: (packed / "more.toml").symlink_to("/etc/passwd"), "bad-data"),
        (lambda packed: os.mkfifo(packed / "more.toml"), "bad-data"),
        (lambda packed: (packed / f"{GROUP}.values.parquet").write_bytes(b"PAR1"), "unreadable-file"),
        (lambda packed: (packed / "study.toml").write_text("[" * 5000), "bad-syntax"),
        (lambda packed: (packed / "linear.toml").write_text((packed / "tiny.toml").read_text()), "exists"),
        (lambda packed: (packed / "study.toml").unlink(), "missing-file"),
        (with_outside_card, "missing-file"),
        (replace_by_pickle, "unreadable-file"),
        (with_paths_outside, "not-finished"),
    ],
)
def test_hostile_files_are_refused(packed: Path, tamper: Callable[[Path], object], code: str) -> None:
    tamper(packed)
    with refused(code, exit_code=1):
        check(packed)


def test_large_files_and_tables_are_refused(packed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(limits.VARIABLE, "4K")
    with refused("too-large", exit_code=1):
        check(packed)


def test_code_that_a_card_names_is_not_loaded_without_trust(
    packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "hostile_net.py").write_text("from pathlib import Path\nPath('loaded').touch()\n")
    edit_card(packed, backbones=["hostile_net:Net"])
    with pytest.raises(UntrustedError):
        check(packed)
    assert not (tmp_path / "loaded").exists()


def test_names_are_escaped_and_cut_in_messages(packed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    edit(packed, "cells", lambda rows: rows.assign(cell=rows["cell"] + "0", run=f"<b>\x1b[31m{LONG}"))
    edit_card(packed, seeds=[0], weights=[0])
    assert main(["check-pack", str(packed)]) == 1
    printed = capsys.readouterr()
    assert LONG not in printed.err and "\x1b" not in printed.err and printed.err.count("\n") == 1
    (packed / f"{LONG}\x1b[31m.pkl").touch()
    assert main(["check-pack", str(packed)]) == 1
    assert LONG not in (err := capsys.readouterr().err) and "\x1b" not in err


@pytest.mark.parametrize(
    "tamper",
    [
        lambda packed, text: edit_card(packed, tasks=[text]),
        lambda packed, text: edit_card(packed, backbones=[text]),
        lambda packed, text: edit_card(packed, **{text: 1}),
        lambda packed, text: edit_card(packed, evaluate={"shifts": [text]}),
        lambda packed, text: edit_card(packed, overrides={"smoke": {text: []}}),
    ],
)
def test_strings_of_cards_are_escaped_and_cut_in_messages(
    packed: Path, tamper: Callable[[Path, str], None], capsys: pytest.CaptureFixture[str]
) -> None:
    tamper(packed, f"<b>\x1b[31m {LONG}")
    assert main(["check-pack", str(packed)]) == 1
    err = capsys.readouterr().err
    assert "x" * 20 in err and "x" * 65 not in err and "\x1b" not in err and err.count("\n") == 1, err
    assert tempfile.gettempdir() not in err, "files are named as in the pack"


@pytest.mark.slow
def test_edited_values_of_probes_are_refused(tmp_path: Path) -> None:
    packed = make_pack(tmp_path, seeds=[0], weights=[0], cost=None, probe={"of": ["layers", "rank"]})
    rows = tables.read("values", packed / f"{GROUP}.values.parquet")
    probes = cell_kinds(rows).eq("probe") & rows["status"].eq("ok")
    assert set(rows.loc[probes, "evaluator"]) >= {"probe"}
    assert "all trainings were recomputed" in " ".join(check(packed))
    for row in probes.to_numpy().nonzero()[0][:: int(probes.sum()) // 4]:
        with refused("bad-data", "values", exit_code=1):
            module._are_equal(GROUP, "values", with_value(rows, int(row)), rows)
    edit(packed, "values", lambda rows: with_value(rows, int(probes.to_numpy().argmax())))
    with refused("bad-data", "edited value", exit_code=1):
        check(packed)


HOSTILE = """
import os
import subprocess
import time

from iclbench.backbones.gpt2 import GPT2


class Net(GPT2):
    def train(self, mode=True):
        if mode and "HOSTILE_FILE" in os.environ and "ICLBENCH_WORKERS" in os.environ:
            pids = [os.getpid(), subprocess.Popen(["sleep", "1000"]).pid, os.fork()]
            if pids[-1]:
                with open(os.environ["HOSTILE_FILE"], "w") as file:
                    file.write(" ".join(map(str, pids)))
            time.sleep(1000)
        return super().train(mode)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_a_training_without_end_is_stopped_with_all_its_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(module, "Workers", Workers)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("ICLBENCH_TRUST", "hostile_net")
    (tmp_path / "temporary").mkdir()
    (tmp_path / "hostile_net.py").write_text(HOSTILE)
    settings = ["backbone.layers=1", "backbone.width=16", "backbone.heads=2"]
    packed = make_pack(
        tmp_path, backbones=["hostile_net:Net"], seeds=[0], weights=[0], cost=None, overrides={"smoke": {"v": settings}}
    )
    before = sorted(packed.parent.rglob("*"))
    monkeypatch.setenv("HOSTILE_FILE", str(tmp_path / "pids"))
    capsys.readouterr()
    assert main(["check-pack", str(packed), "--max-minutes", "0.75"]) == 1
    err = capsys.readouterr().err
    assert err.count("\n") == 1 and "45.0 s" in err, err
    pids = [int(pid) for pid in (tmp_path / "pids").read_text().split()]
    assert len(pids) == 3
    wait_until(lambda: not any(map(is_alive, pids)))
    assert sorted(packed.parent.rglob("*")) == before
    assert not list((tmp_path / "temporary").iterdir())


def test_a_folder_that_does_not_exist_is_a_usage_error(tmp_path: Path) -> None:
    with refused("missing-file", "nothing"):
        check(tmp_path / "nothing")


def test_the_memory_limit_ends_with_the_block(monkeypatch: pytest.MonkeyPatch) -> None:
    resource = pytest.importorskip("resource")
    before = resource.getrlimit(resource.RLIMIT_DATA)
    with limits.process_memory(4):
        assert resource.getrlimit(resource.RLIMIT_DATA)[0] == 4 * limits.max_bytes()
    assert resource.getrlimit(resource.RLIMIT_DATA) == before
