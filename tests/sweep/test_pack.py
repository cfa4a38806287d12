"""Packed results: a few files replace the results folder of a grid and give the same report."""

import itertools
import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import tomli_w
import torch

from iclbench import tables
from iclbench.analysis import normalised
from iclbench.backbones.base import Backbone
from iclbench.config.resolution import resolve_run
from iclbench.core.context import Context
from iclbench.core.errors import UsageError
from iclbench.core.files import save_tensors
from iclbench.core.predictor import Predictor
from iclbench.registry import ESTIMATORS
from iclbench.report import data
from iclbench.report.blocks import Figure, Table
from iclbench.report.sections import heat_map, leaderboard
from iclbench.store import archives
from iclbench.store.cells import CellStore
from iclbench.store.identity import weights_id
from iclbench.store.outcome import Outcome
from iclbench.store.runs import Run, create
from iclbench.sweep.cells import SUMMARY, GridCell, grid_cells
from iclbench.sweep.pack import _PairedErrors, _weights_to_pack, cell_kinds, pack, value_rows
from iclbench.sweep.plan import make_plan
from iclbench.sweep.work import work
from tests.analysis.hand_made import MODEL
from tests.conftest import increase_code_version, small_card
from tests.prototypes import prototype_card
from tests.refusals import refused

FAILED = "tiny-linear-cnp-broken-smoke-s0"


def sweep(cells: list[GridCell], results: Path) -> None:
    """Compute the cells that are not done. Record inapplicable cells and the failed run, as an engine does."""
    for cell in make_plan(cells, CellStore(results)).todo:
        if cell.reason:
            CellStore(results).record(cell, Outcome("skipped", cell.reason), Context(results))
        elif cell.run == FAILED:
            CellStore(results).record(cell, Outcome("failed", "a reason"), Context(results))
        else:
            outcome = work(cell, Context(results))
            assert outcome.status != "failed", (cell.run, outcome)


@pytest.fixture(scope="module")
def swept_grid(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[GridCell]]:
    """Return the results folder and the cells of a swept grid.

    It has regression runs of two seeds, a classification run, an inapplicable pair, a failed run and a branch.
    """
    folder = tmp_path_factory.mktemp("swept")
    linear, classes = folder / "tiny-linear.toml", folder / "tiny-classes.toml"
    linear.write_text(
        tomli_w.dumps(small_card(shifts=["orthants"], baselines=["zero", "mean", "knn-3", "decision-tree-2"]))
    )
    classes.write_text(tomli_w.dumps(prototype_card()))
    short_training = "train.steps=4"
    branched = ["train.steps=12", "train.schedule=warmup-stable-decay", "train.branches=[0.5]"]
    common = {"tasks": [str(linear)], "presets": ["smoke"], "seeds": [0]}
    grid = folder / "grid.toml"
    card = {
        "summary": "two questions",
        **common,
        "backbones": ["gpt2", "icicl-cnp"],
        "seeds": [0, 1],
        "overrides": {"smoke": {"few": [short_training]}},
        "evaluate": {"shifts": ["orthants"]},
        "cost": {"points": [4]},
        "weights": [0],
        "without": [{"tasks": [str(linear)], "backbones": ["icicl-cnp"], "reason": "no related datasets"}],
        "more": [
            {**common, "backbones": ["cnp"], "evaluate": {}, "overrides": {"smoke": {"broken": [short_training]}}},
            {
                **common,
                "backbones": ["transformer"],
                "evaluate": {},
                "weights": [0],
                "overrides": {"smoke": {"branched": branched}},
            },
            {
                **common,
                "tasks": [str(classes)],
                "backbones": ["gpt2"],
                "overrides": {"smoke": {"few": [short_training]}},
                "evaluate": {},
                "probe": {"of": ["rank"]},
            },
        ],
    }
    grid.write_text(tomli_w.dumps(card))
    cells = grid_cells([str(grid)])
    sweep(cells, folder / "results")
    return folder / "results", cells


@pytest.fixture(scope="module")
def packed_results(swept_grid: tuple[Path, list[GridCell]], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A results folder with only packed files, as in a clean checkout."""
    results, cells = swept_grid
    clean = tmp_path_factory.mktemp("packed") / "clean"
    pack(cells, CellStore(results), results / "reference")
    clean.mkdir()
    (results / "reference").rename(clean / "reference")
    return clean


@pytest.fixture
def packed_copy(packed_results: Path, tmp_path: Path) -> Path:
    """A copy of the packed files that a test may change."""
    return Path(shutil.copytree(packed_results, tmp_path / "clean"))


def cells_to_do(cells: list[GridCell], results: Path) -> set[tuple[str, str, str]]:
    return {(cell.group, cell.kind, cell.run) for cell in make_plan(cells, CellStore(results)).todo}


def test_packing_preserves_the_state_of_every_cell(
    swept_grid: tuple[Path, list[GridCell]], packed_results: Path
) -> None:
    results, cells = swept_grid
    store, before = CellStore(packed_results), CellStore(results)
    states = {cell.hash: before.state(cell) for cell in cells}
    assert set(states.values()) == {"done", "failed", "skipped"}
    names = sorted(path.name for path in (packed_results / "reference").iterdir())
    kinds = ("cells", "costs", "errors", "values")
    parquet = [f"tiny-{task}-smoke.{kind}.parquet" for task in ("classes", "linear") for kind in kinds]
    assert names == [*parquet, *(f"tiny-linear-smoke.weights.safetensors{end}" for end in ("", ".sha256"))]
    assert {cell.hash: store.state(cell) for cell in cells} == states
    assert {run for _, _, run in cells_to_do(cells, packed_results)} == {FAILED, SUMMARY}, "failed cells are repeated"
    for name in ("reason", "seconds", "hardware", "libraries", "threads"):
        assert store.rows[name].equals(before.rows[name])
    assert store.rows.loc[store.rows["status"].eq("skipped"), "reason"].eq("no related datasets").all()


@pytest.mark.slow
@pytest.mark.parametrize("run", ["tiny-linear-gpt2-few-smoke-s0", "tiny-linear-transformer-branched-smoke-s0"])
def test_packed_weights_give_the_packed_values(
    run: str, swept_grid: tuple[Path, list[GridCell]], packed_copy: Path
) -> None:
    """Weights of branches and of seed 1 are not packed."""
    results, cells = swept_grid
    (archive,) = packed_copy.glob("reference/*.weights.safetensors")
    assert set(archives.entries(archive)) == {
        "tiny-linear-gpt2-few-smoke-s0",
        "tiny-linear-transformer-branched-smoke-s0",
    }
    (cell,) = [cell for cell in cells if cell.run == run and cell.kind == "evaluate"]
    unpacked = archives.find(packed_copy, run)
    assert unpacked.digest == Run(results / "runs" / run).digest
    before = value_rows(CellStore(results), cell)
    for path in (packed_copy / "reference").glob("*.parquet"):
        path.unlink()
    assert work(replace(cell, needs=()), Context(packed_copy)).status == "done"
    after = value_rows(CellStore(packed_copy), cell)
    # A sweep also needs the training curve and costs, so it trains the run.
    (train,) = [cell for cell in cells if cell.run == run and cell.kind == "train"]
    assert work(train, Context(packed_copy)).status == "done"
    assert CellStore(packed_copy).state(train) == "done" and Run(unpacked.path).digest == unpacked.digest
    assert list(Run(unpacked.path).branch_digests.values()) == list(Run(results / "runs" / run).branch_digests.values())
    pd.testing.assert_frame_equal(after, before[before["axis"].ne("branch").fillna(True)].reset_index(drop=True))


@pytest.mark.slow
def test_scores_of_finished_contestants_are_packed_before_the_summary_is_done(
    swept_grid: tuple[Path, list[GridCell]], tmp_path: Path
) -> None:
    """Packing again from only the packed files gives the same bytes."""
    before, cells = swept_grid
    results = Path(shutil.copytree(before, tmp_path / "results", ignore=shutil.ignore_patterns("reference")))
    missing_run = "tiny-linear-gpt2-few-smoke-s1"
    for path in results.glob(f"cells/*/{missing_run}.evaluate-*"):
        path.unlink()
    for path in results.glob("cells/tiny-linear-smoke/summary.evaluate-*"):
        path.unlink()
    pack(cells, CellStore(results), results / "reference")
    summary = pd.concat(value_rows(CellStore(before), cell) for cell in cells if cell.run == SUMMARY)
    expected = summary[summary["metric"].isin(tables.COMPARISON_METRICS)]
    expected = expected[expected["run"].ne(missing_run) & expected["task"].eq("tiny-linear")]
    packed = results / "reference" / "tiny-linear-smoke.values.parquet"

    def scores() -> pd.DataFrame:
        rows = tables.read("values", packed)
        return rows[rows["metric"].isin(tables.COMPARISON_METRICS)]

    key = ["run", "prompt_set", "metric"]
    assert missing_run not in set(scores()["run"])
    assert scores().set_index(key)["value"].sort_index().equals(expected.set_index(key)["value"].sort_index())
    assert {"zero", "tiny-linear-gpt2-few-smoke-s0"} <= set(scores()["run"])
    content = packed.read_bytes()
    for folder in ("tables", "cells", "runs", "costs"):
        shutil.rmtree(results / folder, ignore_errors=True)
    pack(cells, CellStore(results), results / "reference")
    assert packed.read_bytes() == content


@pytest.mark.slow
def test_repeated_packing_keeps_weights_and_a_missing_archive_causes_retraining(
    swept_grid: tuple[Path, list[GridCell]], packed_copy: Path, caplog: pytest.LogCaptureFixture
) -> None:
    _, cells = swept_grid
    (archive,) = packed_copy.glob("reference/*.weights.safetensors")
    before = archive.read_bytes()
    assert archive in pack(cells, CellStore(packed_copy), packed_copy / "reference")
    assert archive.read_bytes() == before
    damaged = bytearray(before)
    damaged[-1] ^= 1
    archive.write_bytes(damaged)
    with pytest.raises(UsageError) as error:
        pack(cells, CellStore(packed_copy), packed_copy / "reference")
    assert archive.name in str(error.value)
    archive.unlink()
    run = "tiny-linear-gpt2-few-smoke-s0"
    assert ("tiny-linear-smoke", "train", run) in cells_to_do(cells, packed_copy)
    pack(cells, CellStore(packed_copy), packed_copy / "reference", replace=True)
    assert not archive.exists()


@pytest.mark.slow
def test_a_run_with_nan_predictions_is_a_failed_cell_in_packed_results_and_in_the_report(
    swept_grid: tuple[Path, list[GridCell]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NaN at a single context size suffices, and the score of the other seed does not replace the mean over seeds."""
    before, cells = swept_grid
    results = Path(shutil.copytree(before, tmp_path / "results"))
    broken = "tiny-linear-gpt2-few-smoke-s0"
    (evaluation,) = [cell for cell in cells if cell.run == broken and cell.kind == "evaluate"]
    for path in results.glob(f"tables/*/{broken}.values.parquet"):
        path.unlink()
    original_ask = Predictor.ask

    def nan_after_four(self: Predictor, *arguments: Any) -> Any:
        answer = original_ask(self, *arguments)
        if isinstance(self, Backbone):
            answer.mean[:, 4] = torch.nan
        return answer

    with monkeypatch.context() as patched:
        patched.setattr(Predictor, "ask", nan_after_four)
        assert work(evaluation, Context(results)).status == "failed"
    for cell in cells:
        if cell.run == SUMMARY and cell.group == evaluation.group:
            work(cell, Context(results))
    pack(cells, CellStore(results), results / "reference", replace=True)
    clean = tmp_path / "clean"
    clean.mkdir()
    (results / "reference").rename(clean / "reference")
    recorded = CellStore(clean).rows.loc[evaluation.hash]
    assert recorded["status"] == "failed" and "squared_error is nan" in recorded["reason"]
    values = tables.read("values", clean / "reference" / "tiny-linear-smoke.values.parquet")
    rows = values[values["run"].eq(broken) & values["shift"].eq("none") & values["evaluator"].eq("next")]
    failed = rows[rows["status"].eq("failed")]
    assert set(failed["metric"]) == {"squared_error", "auc"} and set(failed["n_context"].dropna()) == {4}
    assert len(rows) > len(failed) and "score" not in set(rows["metric"])
    section = heat_map.section(data.load_results(clean))
    assert section is not None
    (figure,) = [block for block in section.walk() if isinstance(block, Figure)]
    cell = figure.data.set_index(["row", "contestant"]).loc[("tiny-linear", "gpt2")]
    assert cell["status"] == "failed" and "squared_error is nan" in cell["reason"]


@pytest.mark.parametrize(
    ("name", "is_affected"),
    [
        ("tiny-linear-smoke.values.parquet", lambda cell: cell.kind != "cost"),
        ("tiny-linear-smoke.costs.parquet", lambda cell: cell.run != SUMMARY),
        ("tiny-linear-smoke.errors.parquet", lambda cell: cell.kind == "evaluate" and cell.run != SUMMARY),
        ("tiny-classes-smoke.errors.parquet", lambda cell: cell.kind == "evaluate" and cell.run != SUMMARY),
        ("tiny-classes-smoke.cells.parquet", lambda cell: True),
    ],
)
def test_deleting_a_packed_file_adds_its_cells_to_the_plan(
    swept_grid: tuple[Path, list[GridCell]], packed_copy: Path, name: str, is_affected: Callable[[GridCell], bool]
) -> None:
    """The plan also contains failed cells, the summary, and runs whose weights are needed."""
    cells = swept_grid[1]
    before = make_plan(cells, CellStore(packed_copy))
    (packed_copy / "reference" / name).unlink()
    after = make_plan(cells, CellStore(packed_copy))
    group = name.split(".")[0]
    lost = {c.hash for c in cells if c.group == group and before.states[c.hash] == "done" and is_affected(c)}
    changed = {c.hash for c in cells if before.states[c.hash] != after.states[c.hash]}
    assert changed == lost
    training_hashes = {need for c in cells if c.hash in lost and c.config is not None for need in c.needs}
    summary = {c.hash for c in cells if c.run == SUMMARY and c.group == group}
    skipped = {c.hash for c in cells if c.reason and c.group == group} if ".cells." in name else set()
    assert {c.hash for c in after.todo} == {c.hash for c in before.todo} | lost | training_hashes | summary | skipped


@pytest.mark.slow
def test_a_summary_of_packed_rows_equals_the_summary_of_the_sweep(
    swept_grid: tuple[Path, list[GridCell]], packed_copy: Path
) -> None:
    """Scores compare all contestants, whether or not their rows are packed."""
    for cell in (cell for cell in swept_grid[1] if cell.run == SUMMARY):
        assert work(cell, Context(packed_copy)).status == "done"
        new_rows, swept_rows = (value_rows(CellStore(results), cell) for results in (packed_copy, swept_grid[0]))
        assert len(new_rows) and new_rows["metric"].eq("score").any()
        pd.testing.assert_frame_equal(new_rows, swept_rows)
        assert any(not tables.is_packed(path, packed_copy) for path in CellStore(packed_copy).files(cell)), (
            "the summary has been recomputed"
        )


def test_packed_values_and_costs_are_complete_and_exact(
    swept_grid: tuple[Path, list[GridCell]], packed_results: Path
) -> None:
    results = swept_grid[0]
    for table in ("values", "costs"):
        keys = tables.key_columns(table)
        rows = tables.read_all(table, packed_results).sort_values(keys, ignore_index=True)
        single = [tables.read_all(table, results / folder) for folder in ("runs", "tables")]
        expected = pd.concat(single).drop_duplicates(keys)
        expected = expected[expected["run"] != FAILED].sort_values(keys, ignore_index=True)
        pd.testing.assert_frame_equal(rows, expected, check_exact=True)


def test_branch_rows_are_packed_with_the_evaluation(packed_results: Path) -> None:
    rows = tables.read_all("values", packed_results)
    branch = rows[rows["axis"].eq("branch").fillna(False).astype(bool)]
    assert set(branch["contestant"]) == {"transformer"} and set(branch["axis_value"]) == {6.0}
    assert {"auc", "squared_error"} <= set(branch["metric"]) and set(cell_kinds(branch)) == {"evaluate"}


@pytest.mark.slow
def test_packed_errors_are_averages_over_curves_and_test_accuracies(
    swept_grid: tuple[Path, list[GridCell]], packed_results: Path
) -> None:
    results = swept_grid[0]
    packed_errors, full_errors = (
        tables.read_all("errors", packed_results),
        tables.read_all("errors", results / "tables"),
    )
    values = tables.read_all("values", results)
    curves = packed_errors[packed_errors["n_related"].isna()]
    assert curves["n_context"].isna().all()
    assert set(curves["prompt_set"].str.split("-").str[3]) == {"none"}, "errors under shifts are not packed"
    assert set(curves["metric"]) == {"squared_error"}
    assert "decision-tree-2" in set(curves["run"])
    for run, rows in curves.groupby("run"):
        is_curve = full_errors["run"].eq(run) & full_errors["prompt_set"].isin(rows["prompt_set"])
        for episode, curve in full_errors[is_curve].groupby("episode"):
            n, error = curve["n_context"].to_numpy(float), curve["value"].to_numpy(float)
            area = float(np.sum((error[1:] + error[:-1]) / 2 * np.diff(n)) / (n[-1] - n[0]))
            assert rows.set_index("episode")["value"][episode] == pytest.approx(area, rel=1e-6)
        auc = values[values["run"].eq(run) & values["metric"].eq("auc") & values["shift"].eq("none")]["value"]
        assert rows["value"].mean() == pytest.approx(float(auc.iloc[0]), rel=1e-6)
    targets = packed_errors[packed_errors["n_related"].notna()]
    assert set(targets["metric"]) == {"accuracy_within_choices"}
    expected = full_errors[full_errors["metric"].eq("accuracy_within_choices")]
    assert len(targets) == len(expected) > 0, "the errors of every test are packed"


@pytest.mark.parametrize(
    ("score_metric", "selected"),
    [
        (None, {"log_likelihood", "squared_error"}),
        ("log_likelihood", {"log_likelihood"}),
        ("squared_error", {"log_likelihood", "squared_error"}),
    ],
)
def test_errors_for_target_scores_are_packed_even_if_there_is_no_score_row(
    score_metric: str | None, selected: set[str]
) -> None:
    row = MODEL | {"preset": "grid", "evaluator": "targets", "metric": "squared_error", "n_related": 0, "n_episodes": 2}
    rows = [row] + ([row | {"metric": "score", "score_of": score_metric, "score_one": "best"}] if score_metric else [])
    error = {"run": "m-s0", "prompt_set": "p", "n_context": 4, "n_related": 0, "episode": 0, "value": 0.5}
    metrics = ("log_likelihood", "squared_error", "covered_90")
    errors = tables.frame("errors", [error | {"metric": metric} for metric in metrics])
    assert set(_PairedErrors(tables.frame("values", rows)).select(errors)["metric"]) == selected


@pytest.mark.slow
def test_packed_and_unpacked_results_give_equal_reports(
    swept_grid: tuple[Path, list[GridCell]], packed_results: Path
) -> None:
    full, from_packs = data.load_results(swept_grid[0]), data.load_results(packed_results)
    pair_count = 0
    for a, b in zip(full.slices, from_packs.slices, strict=True):
        assert a.id == b.id
        for before, after in zip(leaderboards(a), leaderboards(b), strict=True):
            pd.testing.assert_frame_equal(after, before, rtol=1e-12, atol=1e-14, check_exact=False)
            if "behind" in before:
                pair_count += int(before["behind"].notna().sum())
    assert pair_count, "the leaderboards have paired differences"
    contests = zip(normalised.contests(full, "smoke"), normalised.contests(from_packs, "smoke"), strict=True)
    for expected_contest, contest in contests:
        pd.testing.assert_frame_equal(expected_contest.scores, contest.scores, check_exact=True)
        for upper, lower in itertools.pairwise(contest.scores["contestant"]):
            expected, difference = expected_contest.difference(upper, lower), contest.difference(upper, lower)
            if (expected, difference) != (None, None):
                assert vars(difference) == pytest.approx(vars(expected), rel=1e-12, abs=1e-14)


def leaderboards(task: data.Slice) -> list[pd.DataFrame]:
    section = leaderboard.section(task)
    return [block.frame for block in section.blocks if isinstance(block, Table)] if section else []


@pytest.mark.slow
def test_rows_that_are_both_packed_and_unpacked_are_counted_once(
    swept_grid: tuple[Path, list[GridCell]], packed_results: Path, tmp_path: Path
) -> None:
    results = swept_grid[0]
    combined = Path(shutil.copytree(results / "tables", tmp_path / "combined" / "tables")).parent
    shutil.copytree(packed_results / "reference", combined / "reference")
    shutil.copytree(results / "runs", combined / "runs", ignore=shutil.ignore_patterns("*.safetensors"))
    assert len(tables.read_all("values", combined)) == len(tables.read_all("values", results))
    data.load_results(combined)


@pytest.mark.slow
def test_repeated_packing_gives_the_same_bytes_even_from_packed_files(
    swept_grid: tuple[Path, list[GridCell]], packed_results: Path, packed_copy: Path, tmp_path: Path
) -> None:
    results, cells = swept_grid
    expected = {path.name: path.read_bytes() for path in (packed_results / "reference").iterdir()}
    pack(list(reversed(cells)), CellStore(results), results / "reference")
    (results / "reference").rename(tmp_path / "again")
    pack(cells, CellStore(packed_copy), packed_copy / "reference")
    for folder in (tmp_path / "again", packed_copy / "reference"):
        assert {path.name: path.read_bytes() for path in folder.iterdir()} == expected


@pytest.mark.slow
def test_cells_that_are_not_in_the_grid_are_not_packed(
    swept_grid: tuple[Path, list[GridCell]], packed_copy: Path
) -> None:
    fewer = [cell for cell in swept_grid[1] if cell.kind != "cost" and cell.seed != 1 and cell.run != SUMMARY]
    pack(fewer, CellStore(packed_copy), packed_copy / "fewer")
    shutil.rmtree(packed_copy / "reference")
    for table in ("values", "costs", "errors", "cells"):
        assert not tables.read_all(table, packed_copy)["run"].str.endswith("-s1").any(), table
    assert {run for _, _, run in cells_to_do(fewer, packed_copy)} == {FAILED}


def test_packing_a_subset_of_the_packed_cells_is_refused(
    swept_grid: tuple[Path, list[GridCell]], packed_copy: Path
) -> None:
    before = {path.name: path.read_bytes() for path in (packed_copy / "reference").iterdir()}
    with refused("exists", packed_copy / "reference", "--replace"):
        pack([cell for cell in swept_grid[1] if cell.seed != 1], CellStore(packed_copy), packed_copy / "reference")
    assert {path.name: path.read_bytes() for path in (packed_copy / "reference").iterdir()} == before


@pytest.mark.slow
def test_replace_removes_cells_whose_code_changed_so_that_they_are_recomputed(
    swept_grid: tuple[Path, list[GridCell]], packed_copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    increase_code_version(monkeypatch, ESTIMATORS, "decision-tree")
    cells = [replace(cell) for cell in swept_grid[1]]  # copies compute their hashes with the new code
    new_hashes = {old.hash: new.hash for old, new in zip(swept_grid[1], cells, strict=True)}
    cells = [replace(cell, needs=tuple(new_hashes[need] for need in cell.needs)) for cell in cells]
    changed = {cell.hash for cell in cells} - {cell.hash for cell in swept_grid[1]}
    assert {cell.run for cell in cells if cell.hash in changed} == {"decision-tree-2", SUMMARY}
    pack(cells, CellStore(packed_copy), packed_copy / "reference", replace=True)
    assert set(tables.read_all("cells", packed_copy)["cell"]) == {cell.hash for cell in cells} - changed
    values = tables.read_all("values", packed_copy)
    assert not values["run"].eq("decision-tree-2").any() and values["run"].eq("knn-3").any()
    assert changed <= {cell.hash for cell in make_plan(cells, CellStore(packed_copy)).todo}
    before = {path.name: path.read_bytes() for path in (packed_copy / "reference").iterdir()}
    pack(cells, CellStore(packed_copy), packed_copy / "reference")
    assert {path.name: path.read_bytes() for path in (packed_copy / "reference").iterdir()} == before


@pytest.mark.slow
def test_packed_and_unpacked_rows_of_a_cell_are_equal(
    swept_grid: tuple[Path, list[GridCell]], packed_results: Path
) -> None:
    single_store, packed_store = CellStore(swept_grid[0]), CellStore(packed_results)
    row_count = 0
    for cell in swept_grid[1]:
        if single_store.state(cell) == "done":
            rows = value_rows(single_store, cell)
            pd.testing.assert_frame_equal(value_rows(packed_store, cell), rows, check_exact=True)
            row_count += len(rows)
    assert row_count == len(tables.read_all("values", packed_results))


def training_cell(results: Path, name: str) -> GridCell:
    """Record a finished run whose weights are zero, and return its training cell."""
    config = resolve_run("linear", "gpt2", "smoke")
    run = create(results, config, name)
    save_tensors(run.weights, {"weight": torch.zeros(2)}, run.signature, digest=True)
    cell = GridCell("train", name, "gpt2", config.task, "smoke", config, packs_weights=True)
    CellStore(results).record(cell, Outcome("done"), Context(results))
    return cell


def test_weights_that_the_grid_no_longer_packs_are_removed_only_with_replace(tmp_path: Path) -> None:
    cells = [training_cell(tmp_path, name) for name in ("a", "b")]
    archive = archives.archive_path(tmp_path / "mine", "linear", "smoke")
    assert archive in pack(cells, CellStore(tmp_path), tmp_path / "mine")
    fewer = [cells[0], replace(cells[1], packs_weights=False)]
    with refused("exists", archive, "'b'", "--replace"):
        pack(fewer, CellStore(tmp_path), tmp_path / "mine")
    assert list(archives.entries(archive)) == ["a", "b"]
    pack(fewer, CellStore(tmp_path), tmp_path / "mine", replace=True)
    assert list(archives.entries(archive)) == ["a"]


def test_different_weights_of_the_same_configuration_do_not_replace_packed_weights(tmp_path: Path) -> None:
    """The packed rows were computed with the packed weights."""
    cell, out = training_cell(tmp_path, "a"), tmp_path / "reference"
    (row,) = tmp_path.glob("cells/*/a.train-*")
    run = Run(tmp_path / "runs" / "a")
    CellStore(tmp_path).record(cell, Outcome("done", None, ("runs/a/model.safetensors",)), Context(tmp_path))
    archive = archives.archive_path(out, "linear", "smoke")
    assert archive in pack([cell], CellStore(tmp_path), out)
    before = archive.read_bytes()
    row.unlink()
    pack([cell], CellStore(tmp_path), out)
    assert archive.read_bytes() == before, "packing equal weights does not change the archive"
    save_tensors(run.weights, {"weight": torch.ones(2)}, run.signature, digest=True)
    with refused("exists", "'a'", "'reference/a'", "--replace"):
        pack([cell], CellStore(tmp_path), out)
    assert archive.read_bytes() == before
    pack([cell], CellStore(tmp_path), out, replace=True)
    assert archives.entries(archive)["a"].tensors()["weight"].tolist() == [1, 1]


def test_weights_of_a_different_code_version_are_not_packed(tmp_path: Path) -> None:
    cell = training_cell(tmp_path, "a")
    weights, store = archives.of_run(Run(tmp_path / "runs" / "a")), CellStore(tmp_path)
    assert cell.config is not None and weights is not None
    newer = cell.config.model_copy(update={"backbone": cell.config.backbone.model_copy(update={"code": 2})})
    assert _weights_to_pack("a", weights_id(cell.config), store, dict) == weights
    assert _weights_to_pack("a", weights_id(newer), store, dict) is None
    packed = replace(weights, config=tomli_w.dumps(newer.dump()))
    assert _weights_to_pack("a", weights_id(newer), store, lambda: {"a": packed}) == packed


def test_packed_weights_are_kept_if_only_new_defaults_or_data_fingerprints_differ(tmp_path: Path) -> None:
    """Otherwise, adding a setting with a default to a backbone would remove all packed weights."""
    cell, store = training_cell(tmp_path, "a"), CellStore(tmp_path / "empty")
    weights = archives.of_run(Run(tmp_path / "runs" / "a"))
    assert cell.config is not None and weights is not None
    content = cell.config.dump()
    content["task"]["learned"] = {"fingerprint": "0123"}
    assert content["backbone"]["settings"].pop("size") == "standard"
    packed = replace(weights, config=tomli_w.dumps(content))
    assert _weights_to_pack("a", weights_id(cell.config), store, lambda: {"a": packed}) == packed
    content["backbone"]["settings"]["width"] = 64
    other = replace(weights, config=tomli_w.dumps(content))
    assert _weights_to_pack("a", weights_id(cell.config), store, lambda: {"a": other}) is None


def test_results_are_packed_only_into_a_subfolder_of_the_results_folder(tmp_path: Path) -> None:
    """The message suggests a subfolder with the given name."""
    results = tmp_path / "results"
    for out in (tmp_path / "lab", results / ".." / "lab", results / "deep" / "lab"):
        with refused("bad-value", f"--pack {results / 'lab'}"):
            pack([], CellStore(results), out)
    assert not (tmp_path / "lab").exists()


@pytest.mark.parametrize("name", ["tables", "cells", "runs", "rates", "jobs", "report", ".hidden", "a b", "a\x1b[31m"])
def test_results_are_not_packed_into_reserved_folders_or_under_invalid_names(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError):
        pack([], CellStore(tmp_path), tmp_path / name)


def test_packed_files_are_marked_as_packed_and_refer_only_to_existing_files(packed_results: Path) -> None:
    for path in (packed_results / "reference").glob("*.parquet"):
        assert tables.metadata(path)["packed"] == path.name.split(".")[0]
    cell_files = tables.read_all("cells", packed_results)["files"].dropna()
    assert all((packed_results / file).is_file() for files in cell_files for file in json.loads(files))


@pytest.mark.slow
def test_scores_of_runs_trained_on_another_task_are_not_packed(
    swept_grid: tuple[Path, list[GridCell]], tmp_path: Path
) -> None:
    """Such runs are in the summary of the results folder but not in the grid."""
    results = Path(shutil.copytree(swept_grid[0], tmp_path / "results"))
    path = next(results.glob("tables/tiny-linear-smoke-none-*/summary/scores.values.parquet"))
    rows = tables.read("values", path)
    guest = rows[rows["kind"].eq("backbone")].head(1).assign(run="guest", contestant="gpt2@other", trained_on="other")
    tables.write("values", pd.concat([rows, guest], ignore_index=True), path, {})
    pack(swept_grid[1], CellStore(results), results / "reference")
    packed = tables.read("values", results / "reference" / tables.packed_file_name("values", "tiny-linear", "smoke"))
    assert "score" in set(packed["metric"]) and packed["trained_on"].isna().all() and "guest" not in set(packed["run"])


@pytest.mark.slow
def test_packed_rows_have_the_hash_of_the_current_card(
    swept_grid: tuple[Path, list[GridCell]], packed_results: Path, tmp_path: Path
) -> None:
    """Cells with equal hashes have equal rows, so older rows are also valid for the current card."""
    copied = Path(shutil.copytree(packed_results, tmp_path / "again"))
    cells = [
        replace(cell, task_config=cell.task_config.model_copy(update={"card": "changed"}))
        for cell in swept_grid[1]
        if cell.task == "tiny-linear"
    ]
    pack(cells, CellStore(copied), copied / "reference")
    assert set(tables.read("values", copied / "reference" / "tiny-linear-smoke.values.parquet")["card"]) == {"changed"}


@pytest.mark.parametrize("metric", ["score", "gap", "log_likelihood_adjusted"])
def test_rows_that_compare_contestants_belong_to_the_summary(metric: str) -> None:
    """These rows change with every added contestant."""
    rows = pd.DataFrame(
        {
            "metric": [metric, "log_likelihood"],
            "run": ["a", "a"],
            "kind": ["backbone", "backbone"],
            "evaluator": ["targets", "targets"],
            "axis": pd.array([None, None], dtype="string"),
        }
    )
    assert cell_kinds(rows).tolist() == [SUMMARY, "evaluate"]
