"""Baseline cells of packed results are used for the very prompts they are of, and for no others."""

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
from iclbench.store.cells import Store
from iclbench.sweep.cells import GridCell
from iclbench.sweep.pack import pack
from iclbench.sweep.reference import PackedBaselines
from tests.conftest import small_card
from tests.sweep.test_pack import sweep

NAMES = ("zero", "knn-3", "decision-tree-2")
ASKED = {"shifts": ["none", "orthants"], "evaluators": [], "seed": 0}


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> TaskConfig:
    path = tmp_path_factory.mktemp("cards") / "tiny-linear.toml"
    path.write_text(tomli_w.dumps(small_card(baselines=list(NAMES), oracles=[])))
    return resolve_task(str(path), "smoke")[0]


@pytest.fixture(scope="module")
def shipped(task: TaskConfig, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A results folder with nothing but packed files, and the folder in which they were computed."""
    computed, packed = (tmp_path_factory.mktemp(name) for name in ("computed", "packed"))
    of_baselines = [GridCell("evaluate", name, name, task, "smoke", options=ASKED, baseline=name) for name in NAMES]
    sweep(of_baselines, computed)
    pack(of_baselines, Store(computed), computed / "reference")
    (computed / "reference").rename(packed / "reference")
    return packed, computed


@pytest.fixture
def packed(shipped: tuple[Path, Path], tmp_path: Path) -> Path:
    """A copy of the packed files that may be changed."""
    for path in (shipped[0] / "reference").iterdir():
        target = tmp_path / "results" / "reference" / path.name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(path.read_bytes())
    return tmp_path / "results"


def evaluated(
    results: Path, prompts: PromptSet, names: Sequence[str] = NAMES, fresh: bool = False
) -> dict[str, CellResult]:
    field = contestants.baselines(prompts, names)
    found = evaluate_cells(results, prompts, field, None if fresh else PackedBaselines(results), fresh)
    return {cell.contestant.name: cell for cell in found}


def taken(results: Path, prompts: PromptSet, names: Sequence[str] = NAMES) -> set[str]:
    return {name for name, cell in evaluated(results, prompts, names).items() if cell.shipped == "reference"}


def change(packed: Path, table: tables.TableName, **columns: object) -> None:
    path = packed / "reference" / f"tiny-linear-smoke.{table}.parquet"
    tables.write(table, tables.read(table, path).assign(**columns), path, {})


def own(results: Path, prompts: PromptSet, run: str, table: tables.TableName = "values") -> pd.DataFrame:
    return tables.read(table, results / "tables" / prompts.id / f"{run}.{table}.parquet")


def test_a_baseline_that_is_fitted_to_nothing_is_taken_like_any_other(tmp_path: Path) -> None:
    images, _ = resolve_task("image-completion", "smoke", {"episodes": 4})
    name, asked = "mean-image", ASKED | {"shifts": ["none"]}
    cell = GridCell("evaluate", name, name, images, "smoke", options=asked, baseline=name)
    sweep([cell], tmp_path)
    pack([cell], Store(tmp_path), tmp_path / "reference")
    shutil.rmtree(tmp_path / "tables")
    assert taken(tmp_path, PromptSet(images, "smoke"), [name]) == {name}


@pytest.mark.parametrize("shift", ["none", "orthants"])
def test_shipped_cells_are_not_computed_again_and_say_the_same(
    shift: str, task: TaskConfig, shipped: tuple[Path, Path], packed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompts = PromptSet(task, "smoke", shift)
    for cls in (NearestNeighbours, GreedyTree):
        monkeypatch.setattr(cls, "answer", None)
    assert taken(packed, prompts) == set(NAMES)
    for name in NAMES:
        pd.testing.assert_frame_equal(own(packed, prompts, name), own(shipped[1], prompts, name))
    assert all(cell.cached and cell.shipped for cell in evaluated(packed, prompts).values())


@pytest.mark.parametrize("name", ["knn-3", "decision-tree-2"])
def test_paired_differences_beside_shipped_errors_are_those_beside_computed_ones(
    name: str, task: TaskConfig, shipped: tuple[Path, Path], packed: Path
) -> None:
    """`zero` stands for a model: its errors are there at every size, those of the tree at a few."""
    prompts = PromptSet(task, "smoke")
    evaluated(packed, prompts, [name])
    model, beside = own(shipped[1], prompts, "zero", "errors"), []
    for results in (packed, shipped[1]):
        scores = EpisodeScores([model, own(results, prompts, name, "errors")], {prompts.id})
        curves = (scores.curves([run], prompts.id, "squared_error") for run in ("zero", name))
        found = difference(*(curve for curve in curves if curve is not None))
        assert found is not None
        beside.append((found.value, found.low, found.high))
    assert beside[0] == pytest.approx(beside[1], rel=1e-5)


def test_cells_of_other_prompts_are_computed(task: TaskConfig, packed: Path) -> None:
    others = [
        PromptSet(task, "smoke", seed=1),
        PromptSet(task, "smoke", "points-12"),
        PromptSet(task.model_copy(update={"episodes": 32}), "smoke"),
        PromptSet(task.model_copy(update={"parameters": task.parameters | {"dim": 4}}), "smoke"),
    ]
    for prompts in others:
        assert not taken(packed, prompts, ["zero"])


def test_a_card_of_the_users_own_is_computed(task: TaskConfig, packed: Path, tmp_path: Path) -> None:
    card = tmp_path / "knn-3.toml"
    card.write_text(tomli_w.dumps({"estimator": "knn", "summary": "one", "settings": {"k": 1}}))
    assert not taken(packed, PromptSet(task, "smoke"), [str(card)])


def test_other_versions_of_the_library_that_fits_are_computed_anew(task: TaskConfig, packed: Path) -> None:
    """Of the three only the tree is scikit-learn's; XGBoost's version matters to none of them."""
    rows = tables.read("cells", packed / "reference" / "tiny-linear-smoke.cells.parquet")
    versions = json.loads(rows["libraries"].iloc[0])
    change(packed, "cells", libraries=json.dumps(versions | {"xgboost": "0.1"}))
    assert taken(packed, PromptSet(task, "smoke", "orthants")) == set(NAMES)
    change(packed, "cells", libraries=json.dumps(versions | {"scikit-learn": "0.1"}))
    assert taken(packed, PromptSet(task, "smoke")) == {"zero", "knn-3"}


def test_an_estimator_that_answers_otherwise_since_is_computed_anew(task: TaskConfig, packed: Path) -> None:
    change(packed, "cells", cell=[f"{i:016x}" for i in range(len(NAMES))])  # as with another number of versions
    assert not taken(packed, PromptSet(task, "smoke"))


def test_where_single_episodes_were_not_kept_they_are_computed(task: TaskConfig, packed: Path) -> None:
    (packed / "reference" / "tiny-linear-smoke.errors.parquet").unlink()
    assert not taken(packed, PromptSet(task, "smoke"), ["zero"])
    assert taken(packed, PromptSet(task, "smoke", "orthants"), ["zero"]) == {"zero"}  # whose errors nobody compares


def test_damaged_packed_files_are_named_and_computed(
    task: TaskConfig, packed: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = packed / "reference" / "tiny-linear-smoke.values.parquet"
    path.write_bytes(path.read_bytes()[:500])
    assert not taken(packed, PromptSet(task, "smoke"), ["zero"])
    assert path.name in caplog.text


def test_fresh_computes_here_what_was_taken(task: TaskConfig, packed: Path) -> None:
    prompts = PromptSet(task, "smoke")
    assert taken(packed, prompts) == set(NAMES)
    assert not any(cell.cached or cell.shipped for cell in evaluated(packed, prompts, fresh=True).values())
    assert len(own(packed, prompts, "zero", "errors")) == 48 * 9  # every episode at every context size again
    assert all(cell.cached and not cell.shipped for cell in evaluated(packed, prompts, fresh=True).values())


def test_the_printed_table_says_what_was_not_computed_here(
    task: TaskConfig, packed: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    prompts = PromptSet(task, "smoke")
    evaluated(packed, prompts, ["knn-3"])
    evaluated(packed, prompts, ["zero"], fresh=True)
    summarise(packed, prompts)
    print_summary(packed, [prompts.id])
    (line,) = [line for line in capsys.readouterr().out.splitlines() if "--fresh" in line]
    assert "reference" in line and line.endswith(": knn-3")


def test_every_cell_is_named_before_it_is_worked_on(task: TaskConfig, tmp_path: Path) -> None:
    prompts = PromptSet(task, "smoke")
    steps: list[str] = []
    field = contestants.baselines(prompts, ["zero", "knn-3"])
    begins = lambda contestant, prompts: steps.append(contestant.name)  # noqa: E731
    for cell in evaluate_cells(tmp_path, prompts, field, begins=begins):
        assert cells.is_done(tmp_path, cell.contestant, prompts)
        steps.append(f"{cell.contestant.name} done")
    assert steps == ["zero", "zero done", "knn-3", "knn-3 done"]
