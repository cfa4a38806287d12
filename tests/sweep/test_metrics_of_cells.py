"""Evaluations know their metrics: one that lacks a metric of today's code is to do, wherever it is cached."""

from collections.abc import Callable
from pathlib import Path

import pytest
import tomli_w
import torch
from torch import Tensor

from iclbench import tables
from iclbench.config.cards import cards_folder
from iclbench.core.context import Context
from iclbench.core.expected_metrics import lacking
from iclbench.core.heads import HEADS
from iclbench.core.joint import JointGaussian
from iclbench.core.predictions import Categorical, Gaussian, Point
from iclbench.evaluation import cells as evaluation_cells
from iclbench.evaluation import contestants
from iclbench.evaluation.evaluate import evaluate_cells
from iclbench.evaluation.prompts import PromptSet
from iclbench.store.cells import Store
from iclbench.sweep.cells import SUMMARY, GridCell, grid_cells
from iclbench.sweep.pack import pack, value_rows
from iclbench.sweep.plan import plan
from iclbench.sweep.reference import PackedBaselines
from iclbench.sweep.work import work
from tests.conftest import small_card

PACKED = cards_folder("grids").parent / "results" / "reference"
ADDED = "added_error"


def do_all(cells: list[GridCell], results: Path) -> list[tuple[str, str]]:
    """All that is to do, and what that was."""
    todo = plan(cells, Store(results)).todo
    for cell in todo:
        assert work(cell, Context(results)).status == "done"
    return sorted((cell.kind, cell.contestant) for cell in todo)


@pytest.fixture
def swept(tmp_path: Path) -> tuple[Path, list[GridCell]]:
    card, grid, results = tmp_path / "tiny-linear.toml", tmp_path / "grid.toml", tmp_path / "results"
    card.write_text(tomli_w.dumps(small_card(baselines=["zero"], oracles=[])))
    alone = {"tasks": [str(card)], "backbones": ["gpt2"], "presets": ["smoke"], "seeds": [0], "weights": [0]}
    grid.write_text(tomli_w.dumps({"summary": "s", **alone, "evaluate": {}, "cost": {"points": [4]}}))
    cells = grid_cells([str(grid)])
    assert len(do_all(cells, results)) == 5
    assert do_all(cells, results) == []
    return results, cells


@pytest.fixture
def add(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Give single values one more metric."""
    metrics, of_today = Point.metrics, Point.scores

    def scores(self: Point, y: Tensor) -> dict[str, Tensor]:
        return {**of_today(self, y), ADDED: (self.mean - y).square().square().sum(-1)}

    def patch() -> None:
        monkeypatch.setattr(Point, "metrics", (*metrics, ADDED))
        monkeypatch.setattr(Point, "scores", scores)

    return patch


EVALUATIONS = [("evaluate", "gpt2"), ("evaluate", SUMMARY), ("evaluate", "zero")]


def test_a_metric_that_is_added_makes_evaluations_to_do_and_trainings_not(
    swept: tuple[Path, list[GridCell]], add: Callable[[], None]
) -> None:
    results, cells = swept
    add()
    assert do_all(cells, results) == EVALUATIONS
    assert do_all(cells, results) == []
    for cell in cells:
        if cell.kind == "evaluate" and cell.run != SUMMARY:
            assert ADDED in set(value_rows(Store(results), cell)["metric"])


@pytest.mark.parametrize("says", [True, False])
def test_packed_cells_are_asked_as_well(
    says: bool, swept: tuple[Path, list[GridCell]], add: Callable[[], None], tmp_path: Path
) -> None:
    """Those that name their metrics, and older ones, whose rows say them."""
    results, cells = swept
    clean = tmp_path / "clean"
    clean.mkdir()
    pack(cells, Store(results), results / "reference")
    (results / "reference").rename(clean / "reference")
    (path,) = clean.glob("reference/*.cells.parquet")
    rows = tables.read("cells", path)
    evaluates = rows["kind"].eq("evaluate") & rows["run"].ne(SUMMARY)
    assert rows.loc[evaluates, "metrics"].tolist() == [" ".join(sorted({"auc", *Point.metrics}))] * 2
    assert rows.loc[~evaluates, "metrics"].isna().all()
    if not says:
        tables.write("cells", rows.drop(columns="metrics"), path, tables.metadata(path) | {"older": "yes"})
    assert plan(cells, Store(clean)).todo == ()
    (task,) = {cell.task: cell.frozen for cell in cells}.values()
    prompts = PromptSet(task, "smoke")
    zero = contestants.baselines(prompts, ["zero"])
    assert PackedBaselines(clean)(zero[0], prompts) is not None
    add()
    todo = [(cell.kind, cell.contestant) for cell in plan(cells, Store(clean)).todo]
    assert sorted(todo) == sorted([*EVALUATIONS, ("train", "gpt2")]), "weights are not unpacked by a sweep"
    assert PackedBaselines(clean)(zero[0], prompts) is None


def test_an_evaluation_is_computed_again_once(swept: tuple[Path, list[GridCell]], add: Callable[[], None]) -> None:
    results, cells = swept
    (task,) = {cell.task: cell.frozen for cell in cells}.values()
    prompts = PromptSet(task, "smoke")
    zero = contestants.baselines(prompts, ["zero"])
    assert [cell.cached for cell in evaluate_cells(results, prompts, zero)] == [True]
    add()
    assert [cell.cached for cell in evaluate_cells(results, prompts, zero)] == [False]
    assert [cell.cached for cell in evaluate_cells(results, prompts, zero)] == [True]
    path = evaluation_cells.cell_path(results, zero[0], prompts)
    assert ADDED in set(tables.read("values", path)["metric"])


def test_a_metric_that_does_not_come_is_not_waited_for(
    swept: tuple[Path, list[GridCell]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of a class from elsewhere that scores less than it says."""
    results, cells = swept
    monkeypatch.setattr(Point, "metrics", (*Point.metrics, ADDED))
    assert do_all(cells, results) == EVALUATIONS
    assert do_all(cells, results) == []


def test_what_is_lacking_follows_from_the_kind_of_prediction(monkeypatch: pytest.MonkeyPatch) -> None:
    of_gaussians = list(Gaussian.metrics)
    assert lacking([], "next") == lacking(["r_squared"], "next") == set()
    assert lacking(["accuracy_within_choices"], "targets") == set(), "chance"
    assert lacking(of_gaussians, "next") == set() and lacking(of_gaussians, "targets") == {"log_likelihood_joint"}
    assert lacking([*Categorical.metrics, "accuracy_within_choices"], "targets") == set()
    assert "accuracy" in lacking(["cross_entropy"], "targets")
    for kind in (Gaussian, JointGaussian):
        monkeypatch.setattr(kind, "metrics", (*kind.metrics, "crps"))
    assert lacking(of_gaussians, "next") == {"crps"} and lacking(Point.metrics, "next") == set()


@pytest.mark.parametrize("head", HEADS)
def test_predictions_have_exactly_the_metrics_that_they_name(head: str) -> None:
    kind = HEADS[head]
    blank = kind.from_raw(torch.zeros(1, 2, kind.raw_dim(3)), 3)
    y = torch.zeros(1, 2, dtype=torch.long) if head == "categorical" else torch.ones(1, 2, 3)
    assert set(blank.scores(y)) == set(kind.metrics), f"{kind.__name__}.metrics names what its scores() computes"


@pytest.mark.parametrize("group", ["linear-small", "gp-mixture-small", "bursty-small", "point-process-grid"])
def test_packed_evaluations_lack_nothing(group: str) -> None:
    """A change that adds a metric recomputes the packed cells, or they are to do."""
    columns = ["run", "evaluator", "prompt_set", "metric", "status"]
    rows = tables.read_columns("values", PACKED / f"{group}.values.parquet", columns)
    rows = rows[rows["status"].eq("ok") & rows["evaluator"].isin(["next", "targets"])]
    rows = rows[~rows["metric"].isin(tables.COMPARING)]
    found = rows.groupby(["run", "evaluator", "prompt_set"])["metric"].unique()
    assert len(found) > 10
    for (run, question, _), metrics in found.items():
        lacks = lacking(metrics, question)
        assert not lacks, f"{run} lacks {lacks}: recompute the packed cells (grids/README.md)"
