"""Evaluations that lack a metric of the current code are recomputed, even if they are packed."""

from collections.abc import Callable
from pathlib import Path

import pytest
import tomli_w
import torch
from torch import Tensor

from iclbench import tables
from iclbench.config.cards import cards_folder
from iclbench.core.context import Context
from iclbench.core.expected_metrics import missing_metrics
from iclbench.core.heads import HEADS
from iclbench.core.joint import JointGaussian
from iclbench.core.predictions import Categorical, Gaussian, Point
from iclbench.evaluation import cells as evaluation_cells
from iclbench.evaluation import contestants
from iclbench.evaluation.evaluate import evaluate_cells
from iclbench.evaluation.prompts import PromptSet
from iclbench.store.cells import CellStore
from iclbench.sweep.cells import SUMMARY, GridCell, grid_cells
from iclbench.sweep.pack import pack, value_rows
from iclbench.sweep.plan import make_plan
from iclbench.sweep.reference import PackedBaselines
from iclbench.sweep.work import work
from tests.conftest import small_card

PACKED = cards_folder("grids").parent / "results" / "reference"
NEW_METRIC = "added_error"


def compute_all(cells: list[GridCell], results: Path) -> list[tuple[str, str]]:
    """Compute all unfinished cells and return their kinds and contestants."""
    todo = make_plan(cells, CellStore(results)).todo
    for cell in todo:
        assert work(cell, Context(results)).status == "done"
    return sorted((cell.kind, cell.contestant) for cell in todo)


@pytest.fixture
def finished_sweep(tmp_path: Path) -> tuple[Path, list[GridCell]]:
    card, grid, results = tmp_path / "tiny-linear.toml", tmp_path / "grid.toml", tmp_path / "results"
    card.write_text(tomli_w.dumps(small_card(baselines=["zero"], oracles=[])))
    common = {"tasks": [str(card)], "backbones": ["gpt2"], "presets": ["smoke"], "seeds": [0], "weights": [0]}
    grid.write_text(tomli_w.dumps({"summary": "s", **common, "evaluate": {}, "cost": {"points": [4]}}))
    cells = grid_cells([str(grid)])
    assert len(compute_all(cells, results)) == 5
    assert compute_all(cells, results) == []
    return results, cells


@pytest.fixture
def add_metric(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """A function that adds a metric to point predictions."""
    metrics, original_scores = Point.metrics, Point.scores

    def scores(self: Point, y: Tensor) -> dict[str, Tensor]:
        return {**original_scores(self, y), NEW_METRIC: (self.mean - y).square().square().sum(-1)}

    def patch() -> None:
        monkeypatch.setattr(Point, "metrics", (*metrics, NEW_METRIC))
        monkeypatch.setattr(Point, "scores", scores)

    return patch


EVALUATIONS = [("evaluate", "gpt2"), ("evaluate", SUMMARY), ("evaluate", "zero")]


def test_a_new_metric_requires_new_evaluations_but_no_training(
    finished_sweep: tuple[Path, list[GridCell]], add_metric: Callable[[], None]
) -> None:
    results, cells = finished_sweep
    add_metric()
    assert compute_all(cells, results) == EVALUATIONS
    assert compute_all(cells, results) == []
    for cell in cells:
        if cell.kind == "evaluate" and cell.run != SUMMARY:
            assert NEW_METRIC in set(value_rows(CellStore(results), cell)["metric"])


def test_sweeps_and_single_evaluations_agree_on_which_cells_are_done(
    finished_sweep: tuple[Path, list[GridCell]], add_metric: Callable[[], None]
) -> None:
    results, cells = finished_sweep
    (cell,) = (cell for cell in cells if cell.contestant == "zero")
    prompts = PromptSet(cell.task_config, "smoke")
    (zero,) = contestants.baselines(prompts, ["zero"])

    def answers() -> list[bool]:
        return [CellStore(results).state(cell) == "done", evaluation_cells.is_done(results, zero, prompts)]

    assert answers() == [True, True]
    errors = evaluation_cells.cell_path(results, zero, prompts, "errors")
    content = errors.read_bytes()
    errors.write_bytes(content[:-1])
    assert answers() == [False, False]
    errors.write_bytes(content)
    assert answers() == [True, True]
    add_metric()
    assert answers() == [False, False]


@pytest.mark.slow
def test_a_new_metric_requires_new_evaluations_of_packed_runs(
    finished_sweep: tuple[Path, list[GridCell]], add_metric: Callable[[], None], tmp_path: Path
) -> None:
    results, cells = finished_sweep
    clean = tmp_path / "clean"
    clean.mkdir()
    pack(cells, CellStore(results), results / "reference")
    (results / "reference").rename(clean / "reference")
    (path,) = clean.glob("reference/*.cells.parquet")
    rows = tables.read("cells", path)
    is_evaluation = rows["kind"].eq("evaluate") & rows["run"].ne(SUMMARY)
    assert rows.loc[is_evaluation, "metrics"].tolist() == [" ".join(sorted({"auc", *Point.metrics}))] * 2
    assert rows.loc[~is_evaluation, "metrics"].isna().all()
    assert make_plan(cells, CellStore(clean)).todo == ()
    (task,) = {cell.task: cell.task_config for cell in cells}.values()
    prompts = PromptSet(task, "smoke")
    zero = contestants.baselines(prompts, ["zero"])
    assert PackedBaselines(clean)(zero[0], prompts) is not None
    add_metric()
    todo = [(cell.kind, cell.contestant) for cell in make_plan(cells, CellStore(clean)).todo]
    assert sorted(todo) == sorted([*EVALUATIONS, ("train", "gpt2")]), "a sweep does not unpack weights"
    assert PackedBaselines(clean)(zero[0], prompts) is None


@pytest.mark.slow
def test_an_evaluation_that_lacks_a_new_metric_is_recomputed_once(
    finished_sweep: tuple[Path, list[GridCell]], add_metric: Callable[[], None]
) -> None:
    results, cells = finished_sweep
    (task,) = {cell.task: cell.task_config for cell in cells}.values()
    prompts = PromptSet(task, "smoke")
    zero = contestants.baselines(prompts, ["zero"])
    assert [cell.cached for cell in evaluate_cells(results, prompts, zero)] == [True]
    add_metric()
    assert [cell.cached for cell in evaluate_cells(results, prompts, zero)] == [False]
    assert [cell.cached for cell in evaluate_cells(results, prompts, zero)] == [True]
    path = evaluation_cells.cell_path(results, zero[0], prompts)
    assert NEW_METRIC in set(tables.read("values", path)["metric"])


@pytest.mark.slow
def test_a_declared_metric_that_is_never_computed_repeats_evaluations_only_once(
    finished_sweep: tuple[Path, list[GridCell]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The prediction class of a plug-in may compute fewer scores than it declares."""
    results, cells = finished_sweep
    monkeypatch.setattr(Point, "metrics", (*Point.metrics, NEW_METRIC))
    assert compute_all(cells, results) == EVALUATIONS
    assert compute_all(cells, results) == []


def test_missing_metrics_depend_on_the_kind_of_prediction(monkeypatch: pytest.MonkeyPatch) -> None:
    gaussian_metrics = list(Gaussian.metrics)
    assert missing_metrics([], "next") == missing_metrics(["r_squared"], "next") == set()
    assert missing_metrics(["accuracy_within_choices"], "targets") == set(), "this metric depends on the data"
    assert missing_metrics(gaussian_metrics, "next") == set() and missing_metrics(gaussian_metrics, "targets") == {
        "log_likelihood_joint"
    }
    assert missing_metrics([*Categorical.metrics, "accuracy_within_choices"], "targets") == set()
    assert "accuracy" in missing_metrics(["cross_entropy"], "targets")
    for kind in (Gaussian, JointGaussian):
        monkeypatch.setattr(kind, "metrics", (*kind.metrics, "crps"))
    assert missing_metrics(gaussian_metrics, "next") == {"crps"} and missing_metrics(Point.metrics, "next") == set()


@pytest.mark.parametrize("head", HEADS)
def test_predictions_compute_exactly_the_metrics_they_declare(head: str) -> None:
    prediction_class = HEADS[head]
    prediction = prediction_class.from_raw(torch.zeros(1, 2, prediction_class.raw_dim(3)), 3)
    y = torch.zeros(1, 2, dtype=torch.long) if head == "categorical" else torch.ones(1, 2, 3)
    assert set(prediction.scores(y)) == set(prediction_class.metrics)


@pytest.mark.parametrize("group", ["linear-small", "gp-mixture-small", "bursty-small", "point-process-grid"])
def test_packed_evaluations_have_all_metrics(group: str) -> None:
    """After a change that adds a metric, the packed cells must be recomputed."""
    columns = ["run", "evaluator", "prompt_set", "metric", "status"]
    rows = tables.read_columns("values", PACKED / f"{group}.values.parquet", columns)
    rows = rows[rows["status"].eq("ok") & rows["evaluator"].isin(["next", "targets"])]
    rows = rows[~rows["metric"].isin(tables.COMPARISON_METRICS)]
    metrics_of = rows.groupby(["run", "evaluator", "prompt_set"])["metric"].unique()
    assert len(metrics_of) > 10
    for (run, question, _), metrics in metrics_of.items():
        missing = missing_metrics(metrics, question)
        assert not missing, f"{run} lacks {missing}: recompute the packed cells (grids/README.md)"
