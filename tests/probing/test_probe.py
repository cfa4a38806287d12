"""Probes of a run: rows, cached cells and failed rows."""

from pathlib import Path
from typing import Any

import pytest
import torch

from iclbench import tables
from iclbench.backbones.base import Backbone, TaskShape
from iclbench.cli.probe_tables import depth_table
from iclbench.config.resolution import resolve_run
from iclbench.core.context import Context
from iclbench.core.episodes import Points
from iclbench.core.errors import UsageError
from iclbench.core.predictions import Point
from iclbench.core.settings import BaseSettings
from iclbench.evaluation.cells import CellResult
from iclbench.evaluation.evaluate import evaluate_run
from iclbench.probing import probe as module
from iclbench.probing.probe import probe
from iclbench.probing.rank import probe_rank
from iclbench.store.runs import Run, create
from iclbench.training.run import train
from tests.refusals import refused

SIZES = {"tasks": 20, "fit": 4, "test": 6}
CONTESTANTS = ["gpt2", "zero", "least-squares", "gd", "gd-plus-plus", "gd-plus-plus-transformed"]


class Unlayered(Backbone):
    """A plug-in that defines only `predict_targets`."""

    Settings = BaseSettings

    def __init__(self, settings: BaseSettings, shape: TaskShape) -> None:
        super().__init__(settings, shape)
        self.weight = torch.nn.Parameter(torch.zeros(shape.x_dim, 1))

    def predict_targets(self, context: Points, x_target: torch.Tensor, related: Points | None = None) -> Point:
        return Point(x_target @ self.weight)


@pytest.fixture(scope="module")
def card(tmp_path_factory: pytest.TempPathFactory) -> Path:
    import tomli_w

    from tests.conftest import small_card

    path = tmp_path_factory.mktemp("card") / "tiny-linear.toml"
    path.write_text(tomli_w.dumps(small_card()))
    return path


@pytest.fixture(scope="module")
def trained_run(card: Path) -> Run:
    run = create(card.parent, resolve_run(str(card), "gpt2", "smoke", 0))
    train(run)
    return run


@pytest.fixture(scope="module")
def probed_folder(trained_run: Run, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[CellResult]]:
    """Return a read-only results folder with one probe, and the cells of the probe."""
    folder = tmp_path_factory.mktemp("probed")
    return folder, list(probe(Context(folder), trained_run, **SIZES))


def values(results: Path) -> dict[str, bytes]:
    return {str(p.relative_to(results)): p.read_bytes() for p in tables.files("values", results / "tables")}


@pytest.mark.slow
def test_the_probe_of_a_linear_task_has_rows_for_gradient_descent_and_reference_levels(
    probed_folder: tuple[Path, list[CellResult]],
) -> None:
    folder, cells = probed_folder
    assert [c.contestant.name for c in cells] == CONTESTANTS
    assert {c.prompts.id for c in cells} == {cells[0].prompts.id}
    rows = tables.read_all("values", folder)
    assert set(rows["evaluator"]) == {"probe", "gamma_search"}
    assert set(rows["n_context"]) == {8}, "the trained number of examples"
    layers = rows[rows["axis"] == "layer"]
    assert set(layers["contestant"]) == {"gpt2"} and set(layers["axis_value"]) == {1, 2}
    names = {"squared_error", "squared_error_raw", "scale", "shift", "scale_std", "shift_std"}
    assert set(layers["metric"]) == names and len(layers) == 2 * len(names)
    steps = rows[rows["axis"] == "gd_step"].groupby("contestant")["axis_value"].agg(["min", "max", "size"])
    assert steps.to_numpy().tolist() == [[1, 24, 24]] * 3
    levels = rows[(rows["evaluator"] == "probe") & rows["axis"].isna()].set_index("contestant")["value"]
    labels = cells[0].prompts.episodes.queries.y[:, 4:]
    assert levels["zero"] == pytest.approx(labels.square().mean().item() / 3, rel=1e-5)
    assert levels["least-squares"] < 1e-6
    (raw, transformed) = rows[rows["metric"] == "gamma"].sort_values("contestant").to_dict("records")
    assert "independent draw" in raw["reason"] and "20 tasks" in transformed["reason"]


def test_the_unscaled_errors_of_the_last_layer_equal_the_errors_of_the_model(
    trained_run: Run, probed_folder: tuple[Path, list[CellResult]]
) -> None:
    """The errors of the model are computed from `predict_targets`."""
    folder, (cell, *_) = probed_folder
    episodes = cell.prompts.episodes
    with torch.no_grad():
        answer = trained_run.load().predict_targets(episodes.context, episodes.queries.x).mean
    errors = (answer - episodes.queries.y)[:, 4:, 0].double().square().mean(1) / 3
    rows = tables.read_all("values", folder)
    last = rows.query("axis == 'layer' and axis_value == 2 and metric == 'squared_error_raw'").iloc[0]
    assert last["value"] == pytest.approx(errors.mean().item(), rel=1e-5)
    assert last["low"] < last["value"] < last["high"]
    assert last["n_episodes"] == 20 and last["normaliser"] == 3


def test_the_probe_of_a_nonlinear_task_has_no_gradient_descent(card: Path, tmp_path: Path) -> None:
    run = create(tmp_path, resolve_run("decision-tree", "gpt2", "smoke", 0, ["train.steps=2"]))
    train(run)
    assert [c.contestant.name for c in probe(Context(tmp_path), run, **SIZES)] == ["gpt2", "zero"]


@pytest.mark.slow
def test_each_context_size_has_its_own_episodes(trained_run: Run, tmp_path: Path) -> None:
    cells = list(probe(Context(tmp_path), trained_run, [5, 16, 5], **SIZES))
    assert [c.prompts.context_points for c in cells] == [5] * len(CONTESTANTS) + [16] * len(CONTESTANTS)
    assert set(tables.read_all("values", tmp_path)["n_context"]) == {5, 16}


@pytest.mark.slow
def test_a_repeated_probe_is_cached_and_deterministic(
    trained_run: Run, probed_folder: tuple[Path, list[CellResult]], tmp_path: Path
) -> None:
    list(probe(Context(tmp_path), trained_run, **SIZES))
    before = values(tmp_path)
    assert before == values(probed_folder[0])
    assert all(cell.cached for cell in probe(Context(tmp_path), trained_run, **SIZES))
    assert not any(cell.cached for cell in probe(Context(tmp_path), trained_run, **SIZES | {"fit": 5}))
    assert {name: values(tmp_path)[name] for name in before} == before


def test_a_failed_cell_is_recorded_with_its_reason_and_recomputed(
    trained_run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(module, "tune_gamma", _fail)
        reasons = {c.contestant.name: c.reason for c in probe(Context(tmp_path), trained_run, **SIZES)}
    assert [name for name, reason in reasons.items() if reason] == ["gd-plus-plus", "gd-plus-plus-transformed"]
    failed = tables.read_all("values", tmp_path).query("status == 'failed'")
    assert set(failed["reason"]) == {"RuntimeError: out of luck"}
    assert set(failed["evaluator"]) == {"probe"} and set(failed["n_context"]) == {8}
    recomputed = [c.contestant.name for c in probe(Context(tmp_path), trained_run, **SIZES) if not c.cached]
    assert recomputed == ["gd-plus-plus", "gd-plus-plus-transformed"]
    assert (tables.read_all("values", tmp_path)["status"] == "ok").all()


def _fail(*arguments: object) -> None:
    raise RuntimeError("out of luck")


def test_a_layer_that_is_nan_in_some_tasks_does_not_fail_other_layers(
    trained_run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    decode_layers = module.decode_layers

    def with_nan_in_first_layer(*arguments: Any) -> torch.Tensor:
        decoded = decode_layers(*arguments)
        decoded[0, 3:5] = torch.nan
        return decoded

    with monkeypatch.context() as patched:
        patched.setattr(module, "decode_layers", with_nan_in_first_layer)
        reasons = {c.contestant.name: c.reason for c in probe(Context(tmp_path), trained_run, **SIZES)}
    assert "2 of 20" in str(reasons.pop("gpt2"))
    assert not any(reasons.values())
    values = tables.read_all("values", tmp_path)
    layers = values[values["axis"] == "layer"]
    failed = layers[layers["status"] == "failed"]
    assert set(failed["axis_value"]) == {1} and set(layers.drop(failed.index)["axis_value"]) == {2}
    assert failed["value"].isna().all() and set(failed["metric"]) >= {"squared_error", "squared_error_raw"}
    columns, lines = depth_table(values[values["run"] == trained_run.name])
    table_row = dict(zip(columns, lines[0], strict=True))
    assert table_row["1/2"] == "failed" and "best" not in table_row, "a layer failed, so no layer is the best"
    assert [c.contestant.name for c in probe(Context(tmp_path), trained_run, **SIZES) if not c.cached] == ["gpt2"]


@pytest.mark.slow
def test_probing_does_not_change_evaluations(trained_run: Run, tmp_path: Path) -> None:
    list(evaluate_run(Context(tmp_path), trained_run))
    before = values(tmp_path)
    list(probe(Context(tmp_path), trained_run, **SIZES))
    after = values(tmp_path)
    assert {name: after[name] for name in before} == before
    assert all(cell.cached for cell in evaluate_run(Context(tmp_path), trained_run))


def test_a_run_without_layers_is_refused(card: Path, tmp_path: Path) -> None:
    run = create(tmp_path, resolve_run(str(card), f"{__name__}:Unlayered", "smoke", 0), "flat")
    train(run)
    with refused("not-applicable", "'flat'", "predict_by_layer"):
        list(probe(Context(tmp_path), run, **SIZES))


def test_rank_probes_of_stream_models_are_refused(tmp_path: Path) -> None:
    run = create(tmp_path, resolve_run("linear-system", "gru", "smoke", 0, ["train.steps=1"]), "filter")
    train(run)
    with refused("not-applicable", "'filter'", "stream"):
        list(probe_rank(Context(tmp_path), run))


@pytest.mark.slow
def test_a_context_beyond_learned_positions_is_skipped_but_its_references_are_computed(
    card: Path, tmp_path: Path
) -> None:
    run = create(tmp_path, resolve_run(str(card), "gpt2-learned", "smoke", 0, ["train.steps=2"]), "learned")
    train(run)
    cells = list(probe(Context(tmp_path), run, [8, 9], **SIZES))
    assert len(cells) == 2 * len(CONTESTANTS) and not any(cell.reason for cell in cells)
    values = tables.read_all("values", tmp_path / "tables")
    skipped = values[values["status"].ne("ok")]
    assert skipped[["run", "n_context", "status"]].to_numpy().tolist() == [["learned", 9, "skipped"]]
    assert skipped["reason"].str.contains("8").all()
    assert all(cell.cached for cell in probe(Context(tmp_path), run, [8, 9], **SIZES))


def test_an_unfinished_run_is_refused(card: Path, tmp_path: Path) -> None:
    run = create(tmp_path, resolve_run(str(card), "gpt2", "smoke", 0))
    with pytest.raises(UsageError, match=r"linear"):
        list(probe(Context(tmp_path), run, **SIZES))
