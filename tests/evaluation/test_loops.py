"""Evaluation of looped models with other numbers of loops than in training."""

from pathlib import Path

import pytest
import tomli_w
import torch
from safetensors.torch import load_file

from iclbench import tables
from iclbench.config.resolution import resolve_run
from iclbench.core.context import Context
from iclbench.evaluation.evaluate import evaluate_run
from iclbench.evaluation.prompts import PromptSet
from iclbench.store.runs import Run, create
from iclbench.sweep.cleaning import remove_run
from iclbench.training.run import train
from tests.conftest import small_card
from tests.refusals import refused

LOOPED = ["backbone.loops=3", "backbone.loop_window=2"]


@pytest.fixture(scope="module")
def card(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("card") / "tiny-linear.toml"
    path.write_text(tomli_w.dumps(small_card()))
    return path


def trained(card: Path, results: Path, overrides: list[str]) -> Run:
    run = create(results, resolve_run(str(card), "gpt2", "smoke", 0, overrides))
    train(run)
    return run


@pytest.mark.parametrize("loops", [2, 7])
def test_rows_on_the_axis_loops_are_those_of_the_same_weights_with_more_iterations(
    card: Path, tmp_path: Path, loops: int
) -> None:
    """The reference is a model that is built with this number of loops and loads the weights of the run."""
    run = trained(card, tmp_path, LOOPED)
    list(evaluate_run(Context(tmp_path), run, baseline_names=["zero"]))
    own_rows = tables.read_all("values", tmp_path).query("kind == 'backbone'")
    cells = [
        cell
        for cell in evaluate_run(Context(tmp_path), run, baseline_names=["zero"], loops=[loops, loops])
        if not cell.cached
    ]
    assert [cell.contestant.coordinate for cell in cells] == [("loops", loops)]
    rows = tables.read_all("values", tmp_path).query("kind == 'backbone'")
    assert tables.frame("values", rows[rows["axis"].isna()]).equals(tables.frame("values", own_rows))
    actual = rows[rows["axis"].eq("loops") & rows["metric"].eq("squared_error")]
    assert set(actual["run"]) == {run.name} and set(actual["axis_value"]) == {float(loops)}

    longer = resolve_run(str(card), "gpt2", "smoke", 0, [f"backbone.loops={loops}"])
    model = longer.build(longer.task.build()).eval()
    model.load_state_dict(load_file(run.weights))
    prompts = PromptSet(run.config.task, "smoke")
    episodes = prompts.episodes
    with torch.no_grad():
        errors = model.predict_next(episodes.context).scores(episodes.context.y)["squared_error"].double()
    expected = errors.mean(0) / prompts.family.normaliser
    by_size = actual.sort_values("n_context")["value"].to_numpy(dtype=float)
    assert by_size == pytest.approx(expected.numpy(), rel=1e-5)

    assert all(cell.cached for cell in evaluate_run(Context(tmp_path), run, baseline_names=["zero"], loops=[loops]))
    remove_run(tmp_path, run.name)
    assert not list((tmp_path / "tables").rglob(f"{run.name}*"))


def test_a_model_without_loops_cannot_be_evaluated_with_loops(card: Path, tmp_path: Path) -> None:
    run = trained(card, tmp_path, [])
    with refused("not-applicable", run.name, "backbone.loops"):
        list(evaluate_run(Context(tmp_path), run, loops=[4]))


def test_more_loops_than_the_limit_are_refused(card: Path, tmp_path: Path) -> None:
    run = trained(card, tmp_path, LOOPED)
    with refused("bad-value", run.name, "loops", 1001):
        list(evaluate_run(Context(tmp_path), run, loops=[1001]))
