"""Packed baseline cells are copied if the prompts are identical, and computed otherwise."""

import json
import shutil
from collections.abc import Sequence
from pathlib import Path

import pandas as pd
import pytest
import tomli_w

from iclbench import tables
from iclbench.analysis.episode_scores import EpisodeScores
from iclbench.analysis.pairs import difference
from iclbench.cli.summary import print_summary
from iclbench.config.resolution import TaskConfig, resolve_task
from iclbench.estimators.knn import NearestNeighbours
from iclbench.estimators.trees import GreedyTree
from iclbench.evaluation import cells, contestants
from iclbench.evaluation.cells import CellResult
from iclbench.evaluation.evaluate import evaluate_cells, summarise
from iclbench.evaluation.prompts import PromptSet
from iclbench.store.cells import CellStore
from iclbench.sweep.cells import GridCell
from iclbench.sweep.pack import pack
from iclbench.sweep.reference import PackedBaselines
from tests.conftest import small_card
from tests.sweep.test_pack import sweep

NAMES = ("zero", "knn-3", "decision-tree-2")
OPTIONS = {"shifts": ["none", "orthants"], "evaluators": [], "seed": 0}


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> TaskConfig:
    path = tmp_path_factory.mktemp("cards") / "tiny-linear.toml"
    path.write_text(tomli_w.dumps(small_card(baselines=list(NAMES), oracles=[])))
    return resolve_task(str(path), "smoke")[0]


@pytest.fixture(scope="module")
def packed_and_computed(task: TaskConfig, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Return a results folder with only packed files, and the folder in which they were computed."""
    computed, packed = (tmp_path_factory.mktemp(name) for name in ("computed", "packed"))
    cells = [GridCell("evaluate", name, name, task, "smoke", options=OPTIONS, baseline=name) for name in NAMES]
    sweep(cells, computed)
    pack(cells, CellStore(computed), computed / "reference")
    (computed / "reference").rename(packed / "reference")
    return packed, computed


@pytest.fixture
def packed_copy(packed_and_computed: tuple[Path, Path], tmp_path: Path) -> Path:
    """A copy of the packed files that a test may change."""
    for path in (packed_and_computed[0] / "reference").iterdir():
        target = tmp_path / "results" / "reference" / path.name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(path.read_bytes())
    return tmp_path / "results"


def evaluate(
    results: Path, prompts: PromptSet, names: Sequence[str] = NAMES, fresh: bool = False
) -> dict[str, CellResult]:
    baselines = contestants.baselines(prompts, names)
    cells = evaluate_cells(results, prompts, baselines, None if fresh else PackedBaselines(results), fresh)
    return {cell.contestant.name: cell for cell in cells}


def copied_baselines(results: Path, prompts: PromptSet, names: Sequence[str] = NAMES) -> set[str]:
    return {name for name, cell in evaluate(results, prompts, names).items() if cell.pack_name == "reference"}


def change_packed_table(packed: Path, table: tables.TableName, **columns: object) -> None:
    path = packed / "reference" / f"tiny-linear-smoke.{table}.parquet"
    tables.write(table, tables.read(table, path).assign(**columns), path, {})


def read_table(results: Path, prompts: PromptSet, run: str, table: tables.TableName = "values") -> pd.DataFrame:
    return tables.read(table, results / "tables" / prompts.id / f"{run}.{table}.parquet")


def test_the_cell_of_a_baseline_without_fitting_is_copied(tmp_path: Path) -> None:
    images, _ = resolve_task("image-completion", "smoke", {"episodes": 4})
    name, options = "mean-image", OPTIONS | {"shifts": ["none"]}
    cell = GridCell("evaluate", name, name, images, "smoke", options=options, baseline=name)
    sweep([cell], tmp_path)
    pack([cell], CellStore(tmp_path), tmp_path / "reference")
    shutil.rmtree(tmp_path / "tables")
    assert copied_baselines(tmp_path, PromptSet(images, "smoke"), [name]) == {name}


@pytest.mark.parametrize("shift", ["none", "orthants"])
def test_packed_cells_are_copied_without_computation(
    shift: str,
    task: TaskConfig,
    packed_and_computed: tuple[Path, Path],
    packed_copy: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    prompts = PromptSet(task, "smoke", shift)
    for cls in (NearestNeighbours, GreedyTree):
        monkeypatch.setattr(cls, "answer", None)
    assert copied_baselines(packed_copy, prompts) == set(NAMES)
    for name in NAMES:
        pd.testing.assert_frame_equal(
            read_table(packed_copy, prompts, name), read_table(packed_and_computed[1], prompts, name)
        )
    assert all(cell.cached and cell.pack_name for cell in evaluate(packed_copy, prompts).values())


@pytest.mark.parametrize("name", ["knn-3", "decision-tree-2"])
def test_packed_and_computed_errors_give_equal_paired_differences(
    name: str, task: TaskConfig, packed_and_computed: tuple[Path, Path], packed_copy: Path
) -> None:
    """The baseline is compared with `zero`, which has errors at every context size, like a model."""
    prompts = PromptSet(task, "smoke")
    evaluate(packed_copy, prompts, [name])
    model, differences = read_table(packed_and_computed[1], prompts, "zero", "errors"), []
    for results in (packed_copy, packed_and_computed[1]):
        scores = EpisodeScores([model, read_table(results, prompts, name, "errors")], {prompts.id})
        curves = (scores.curves([run], prompts.id, "squared_error") for run in ("zero", name))
        gap = difference(*(curve for curve in curves if curve is not None))
        assert gap is not None
        differences.append((gap.value, gap.low, gap.high))
    assert differences[0] == pytest.approx(differences[1], rel=1e-5)


def test_cells_with_different_prompts_are_computed(task: TaskConfig, packed_copy: Path) -> None:
    prompt_sets = [
        PromptSet(task, "smoke", seed=1),
        PromptSet(task, "smoke", "points-12"),
        PromptSet(task.model_copy(update={"episodes": 32}), "smoke"),
        PromptSet(task.model_copy(update={"parameters": task.parameters | {"dim": 4}}), "smoke"),
    ]
    for prompts in prompt_sets:
        assert not copied_baselines(packed_copy, prompts, ["zero"])


def test_a_baseline_from_a_user_card_is_computed(task: TaskConfig, packed_copy: Path, tmp_path: Path) -> None:
    card = tmp_path / "knn-3.toml"
    card.write_text(tomli_w.dumps({"estimator": "knn", "summary": "one", "settings": {"k": 1}}))
    assert not copied_baselines(packed_copy, PromptSet(task, "smoke"), [str(card)])


def test_cells_are_recomputed_if_a_required_library_has_another_version(task: TaskConfig, packed_copy: Path) -> None:
    """Only the decision tree depends on scikit-learn, and no baseline depends on XGBoost."""
    rows = tables.read("cells", packed_copy / "reference" / "tiny-linear-smoke.cells.parquet")
    versions = json.loads(rows["libraries"].iloc[0])
    change_packed_table(packed_copy, "cells", libraries=json.dumps(versions | {"xgboost": "0.1"}))
    assert copied_baselines(packed_copy, PromptSet(task, "smoke", "orthants")) == set(NAMES)
    change_packed_table(packed_copy, "cells", libraries=json.dumps(versions | {"scikit-learn": "0.1"}))
    assert copied_baselines(packed_copy, PromptSet(task, "smoke")) == {"zero", "knn-3"}


def test_cells_of_a_different_code_version_are_recomputed(task: TaskConfig, packed_copy: Path) -> None:
    change_packed_table(
        packed_copy, "cells", cell=[f"{i:016x}" for i in range(len(NAMES))]
    )  # hashes of a different code version
    assert not copied_baselines(packed_copy, PromptSet(task, "smoke"))


def test_cells_without_packed_errors_are_computed(task: TaskConfig, packed_copy: Path) -> None:
    (packed_copy / "reference" / "tiny-linear-smoke.errors.parquet").unlink()
    assert not copied_baselines(packed_copy, PromptSet(task, "smoke"), ["zero"])
    assert copied_baselines(packed_copy, PromptSet(task, "smoke", "orthants"), ["zero"]) == {
        "zero"
    }  # paired tests do not use errors under shifts


def test_damaged_packed_files_are_reported_and_their_cells_computed(
    task: TaskConfig, packed_copy: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = packed_copy / "reference" / "tiny-linear-smoke.values.parquet"
    path.write_bytes(path.read_bytes()[:500])
    assert not copied_baselines(packed_copy, PromptSet(task, "smoke"), ["zero"])
    assert path.name in caplog.text


def test_fresh_computes_cells_that_were_copied(task: TaskConfig, packed_copy: Path) -> None:
    prompts = PromptSet(task, "smoke")
    assert copied_baselines(packed_copy, prompts) == set(NAMES)
    assert not any(cell.cached or cell.pack_name for cell in evaluate(packed_copy, prompts, fresh=True).values())
    assert len(read_table(packed_copy, prompts, "zero", "errors")) == 48 * 9  # every episode at every context size
    assert all(cell.cached and not cell.pack_name for cell in evaluate(packed_copy, prompts, fresh=True).values())


def test_the_printed_table_names_copied_baselines(
    task: TaskConfig, packed_copy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    prompts = PromptSet(task, "smoke")
    evaluate(packed_copy, prompts, ["knn-3"])
    evaluate(packed_copy, prompts, ["zero"], fresh=True)
    summarise(packed_copy, prompts)
    print_summary(packed_copy, [prompts.id])
    (line,) = [line for line in capsys.readouterr().out.splitlines() if "--fresh" in line]
    assert "reference" in line and line.endswith(": knn-3")


def test_the_start_of_every_cell_is_reported(task: TaskConfig, tmp_path: Path) -> None:
    prompts = PromptSet(task, "smoke")
    steps: list[str] = []
    baselines = contestants.baselines(prompts, ["zero", "knn-3"])
    record_start = lambda contestant, prompts: steps.append(contestant.name)  # noqa: E731
    for cell in evaluate_cells(tmp_path, prompts, baselines, on_start=record_start):
        assert cells.is_done(tmp_path, cell.contestant, prompts)
        steps.append(f"{cell.contestant.name} done")
    assert steps == ["zero", "zero done", "knn-3", "knn-3 done"]
