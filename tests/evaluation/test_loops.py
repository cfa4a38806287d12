"""Evaluation of looped models with other numbers of loops than in training."""

import shutil
from pathlib import Path

import pandas as pd
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


def write_card(folder: Path) -> str:
    path = folder / "tiny-linear.toml"
    path.write_text(tomli_w.dumps(small_card()))
    return str(path)


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A results folder with a looped run that is evaluated with the number of loops in training."""
    folder = tmp_path_factory.mktemp("looped")
    config = resolve_run(write_card(folder), "gpt2", "smoke", 0, ["backbone.loops=3", "backbone.loop_window=2"])
    run = create(folder, config, "looped")
    train(run)
    list(evaluate_run(Context(folder), run, baseline_names=["zero"]))
    return folder


def final_rows(results: Path) -> pd.DataFrame:
    """Return the rows of the run with the number of loops in training."""
    rows = tables.read_all("values", results).query("run == 'looped'")
    return tables.frame("values", rows[rows["axis"].isna()]).sort_values(["metric", "n_context"], ignore_index=True)


def test_rows_on_the_axis_loops_are_those_of_the_same_weights_with_more_iterations(
    results: Path, tmp_path: Path
) -> None:
    """The reference is a model that is built with this number of loops and loads the weights of the run."""
    folder = tmp_path / "copy"
    shutil.copytree(results, folder)
    run, rows_before = Run(folder / "runs" / "looped"), final_rows(folder)

    def evaluate() -> list[object]:
        cells = evaluate_run(Context(folder), run, baseline_names=["zero"], loops=[2, 7, 7])
        return [cell.contestant.coordinate for cell in cells if not cell.cached]

    assert evaluate() == [("loops", 2), ("loops", 7)]
    assert evaluate() == []
    pd.testing.assert_frame_equal(final_rows(folder), rows_before)
    all_rows = tables.read_all("values", folder).query("run == 'looped'")
    prompts = PromptSet(run.config.task, "smoke")
    for loops in (2, 7):
        rows = all_rows[all_rows["axis"].eq("loops") & all_rows["axis_value"].eq(loops)]
        assert set(rows["metric"]) == {"squared_error", "auc"} and rows["status"].eq("ok").all()
        config = resolve_run(write_card(tmp_path), "gpt2", "smoke", 0, [f"backbone.loops={loops}"])
        model = config.build(config.task.build()).eval()
        model.load_state_dict(load_file(run.weights))
        context = prompts.episodes.context
        with torch.no_grad():
            errors = (model.predict_next(context).mean - context.y).double().square().sum(-1)
        expected = errors.mean(0).numpy() / prompts.family.normaliser
        actual = rows[rows["metric"].eq("squared_error")].sort_values("n_context")["value"].to_numpy(dtype=float)
        assert actual == pytest.approx(expected, rel=1e-5)
    remove_run(folder, "looped")
    assert not list((folder / "tables").rglob("looped*"))


def test_impossible_numbers_of_loops_are_refused(results: Path, tmp_path: Path) -> None:
    looped = Run(results / "runs" / "looped")
    with refused("bad-value", "looped", "loops", 1001):
        list(evaluate_run(Context(results), looped, loops=[1001]))
    plain = create(tmp_path, resolve_run(write_card(tmp_path), "gpt2", "smoke", 0), "plain")
    train(plain)
    with refused("not-applicable", "plain", "backbone.loops"):
        list(evaluate_run(Context(tmp_path), plain, loops=[4]))
