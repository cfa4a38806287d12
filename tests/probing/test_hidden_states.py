"""Linear probes of hidden states: scores of known hidden states, positions in the sequence, result rows and errors."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from iclbench import tables
from iclbench.backbones.base import Backbone, TaskShape
from iclbench.cli.probe_tables import depth_table
from iclbench.config.resolution import resolve_run, resolve_task
from iclbench.core.context import Context
from iclbench.core.episodes import Points
from iclbench.core.predictions import Categorical
from iclbench.core.settings import BaseSettings
from iclbench.evaluation.cells import CellResult
from iclbench.families.streams.base import ProbeTarget
from iclbench.probing.hidden_states import HiddenStateSet, hidden_states, probe_scores
from iclbench.probing.probe import probe
from iclbench.store.runs import Run, create
from iclbench.training.run import train
from tests.refusals import refused
from tests.texts import numbers

FIT, TEST = 400, 200


class Transparent(Backbone):
    """A plug-in whose first layer contains the last token, and whose second layer also contains the token before it."""

    Settings = BaseSettings
    input_kinds = frozenset({"tokens"})
    order = "causal"
    heads = ("categorical",)

    def __init__(self, settings: BaseSettings, shape: TaskShape) -> None:
        super().__init__(settings, shape)
        self.logits = torch.nn.Parameter(torch.zeros(shape.classes))

    def predict_targets(self, context: Points, x_target: Tensor, related: Points | None = None) -> Categorical:
        return Categorical(self.logits.expand(*x_target.shape[:2], -1))

    def hidden_by_layer(self, context: Points, x_target: Tensor, related: Points | None = None) -> Iterator[Tensor]:
        last, previous = (F.one_hot(context.y[:, -min(i, context.count)], len(self.logits)).float() for i in (1, 2))
        yield last.unsqueeze(1)
        yield torch.cat([last, previous], 1).unsqueeze(1)


class Opaque(Transparent):
    """A plug-in without hidden vectors."""

    hidden_by_layer = None


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def tokens(count: int, classes: int, seed: int = 0) -> Tensor:
    return torch.randint(classes, (count,), generator=torch.Generator().manual_seed(seed))


def test_r_squared_is_1_if_hidden_states_contain_the_target_and_0_if_they_are_shuffled() -> None:
    values = normal(FIT + TEST, 2)
    hidden = torch.cat([values, normal(FIT + TEST, 5, seed=1)], 1) @ normal(7, 7, seed=2) + 3
    target = ProbeTarget.of_all(values.float())
    assert float(probe_scores(hidden, target, FIT).mean()) == pytest.approx(1, abs=1e-9)
    shuffled = hidden[torch.randperm(FIT + TEST, generator=torch.Generator().manual_seed(3))]
    assert abs(float(probe_scores(shuffled, target, FIT).mean())) < 0.05


def test_noise_in_the_hidden_state_reduces_r_squared_by_its_share_of_the_variance() -> None:
    """If signal and noise have equal variances, R² is 1/2."""
    values = normal(20_000, 1)
    scores = probe_scores(values + normal(20_000, 1, seed=1), ProbeTarget.of_all(values), 10_000)
    assert len(scores) == 10_000
    assert float(scores.mean()) == pytest.approx(0.5, abs=0.03)


def test_accuracy_is_1_if_hidden_states_contain_the_token_and_at_chance_if_they_are_shuffled() -> None:
    values = tokens(FIT + TEST, 4)
    hidden = F.one_hot(values, 4).double() @ normal(4, 9, seed=1)
    target = ProbeTarget.of_all(values)
    assert float(probe_scores(hidden, target, FIT).mean()) == 1
    shuffled = hidden[torch.randperm(FIT + TEST, generator=torch.Generator().manual_seed(3))]
    accuracy = float(probe_scores(shuffled, target, FIT).mean())
    assert accuracy == pytest.approx(0.25, abs=4 * (0.25 * 0.75 / TEST) ** 0.5)


def test_a_wide_hidden_state_without_the_target_has_no_r_squared_on_held_out_episodes() -> None:
    target = ProbeTarget.of_all(normal(600, 1))
    assert float(probe_scores(normal(600, 250, seed=1), target, FIT).mean()) < 0.05


def test_episodes_without_the_target_are_neither_fitted_nor_scored() -> None:
    values = normal(FIT + TEST, 1)
    hidden = values @ normal(1, 3, seed=1)
    is_defined = torch.arange(FIT + TEST) % 3 > 0
    target = ProbeTarget(values.masked_fill(~is_defined.unsqueeze(1), 1e3), is_defined)
    scores = probe_scores(hidden, target, FIT)
    assert len(scores) == int(is_defined[FIT:].sum())
    assert float(scores.mean()) == pytest.approx(1, abs=1e-9)


@pytest.mark.parametrize("backbone", ["gpt2-learned", "gru", "mamba", "hyena"])
@pytest.mark.parametrize("task", ["recall", "linear-system"])
def test_the_last_layer_decodes_to_the_prediction_and_no_layer_depends_on_later_elements(
    backbone: str, task: str
) -> None:
    """The prediction is computed in one pass over the complete sequence."""
    config = resolve_run(task, backbone, "smoke", 0)
    model = config.build(config.task.build(None)).eval()
    prompts = HiddenStateSet(config.task, "smoke", context=9, fit=3, test=4)
    hidden = hidden_states(model, prompts)
    assert {len(layer) for layer in hidden} == {7}
    episodes = prompts.episodes
    with torch.no_grad():
        answers = model.ask(episodes, "next")
        decoded = model.read(model.read_out(model.finish(hidden[-1].float().unsqueeze(1))))
    for name, tensor in answers.tensors().items():
        torch.testing.assert_close(decoded.tensors()[name][:, 0], tensor[:, 9], rtol=1e-4, atol=1e-4)
    episodes.context.y[:, 9:] = 0  # change later elements
    assert all(map(torch.equal, hidden_states(model, prompts), hidden))
    episodes.context.y[:, 8] = 0
    assert not any(map(torch.equal, hidden_states(model, prompts), hidden))


def test_probe_sequences_have_at_least_the_trained_length_and_fit_and_test_sets_are_disjoint() -> None:
    task = resolve_task("recall", "smoke", {})[0]
    short, trained, long = (HiddenStateSet(task, "smoke", context=n, fit=64, test=64) for n in (5, task.points, 60))
    assert torch.equal(short.episodes.context.y, trained.episodes.context.y)
    assert short.episodes.context.count == task.points + 1
    assert long.episodes.context.count == 61
    assert len({short.id, trained.id, long.id}) == 3
    y = short.episodes.context.y
    assert len(torch.unique(y, dim=0)) == 128, "fitted and scored episodes differ"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("results")


@pytest.fixture(scope="module")
def transparent(folder: Path) -> Run:
    run = create(folder, resolve_run("markov", f"{__name__}:Transparent", "smoke", 0, ["train.steps=1"]), "clear")
    train(run)
    return run


@pytest.fixture(scope="module")
def cells(folder: Path, transparent: Run) -> list[CellResult]:
    return list(probe(Context(folder), transparent, [32, 1], fit=FIT, test=TEST))


def test_every_layer_of_the_trained_and_the_untrained_model_is_scored(folder: Path, cells: list[CellResult]) -> None:
    assert [cell.contestant.run for cell in cells] == ["clear", "clear-untrained"] * 2
    assert not any(cell.reason for cell in cells)
    rows = tables.read_all("values", folder)
    rows = rows[rows["evaluator"].eq("probe") & rows["n_context"].eq(32)]
    assert set(rows["kind"]) == {"backbone", "baseline"} and set(rows["normaliser"]) == {1}
    assert set(rows["n_episodes"]) == {TEST}
    values = rows[rows["run"].eq("clear")].set_index(["metric", "axis_value"])["value"]
    assert len(values) == 4
    assert values["accuracy_of_previous_element", 2] == 1
    assert values["accuracy_of_previous_element", 1] < 0.8
    # The prediction also depends on earlier tokens, which these hidden states do not contain.
    assert values["r_squared_of_prediction"].between(-0.1, 0.9).all()
    assert (rows["low"] <= rows["value"]).all() and (rows["value"] <= rows["high"]).all()


def test_targets_that_are_absent_or_constant_give_skipped_rows(folder: Path, cells: list[CellResult]) -> None:
    rows = tables.read_all("values", folder)
    rows = rows[rows["evaluator"].eq("probe") & rows["n_context"].eq(1)]
    assert set(rows["status"]) == {"skipped"}
    reasons = rows.drop_duplicates("metric").set_index("metric")["reason"]
    absent, constant = reasons["accuracy_of_previous_element"], reasons["r_squared_of_prediction"]
    assert "'previous_element'" in absent and "--context" in absent and numbers(absent) == [1, 2]
    assert "'prediction'" in constant and "--context" not in constant and numbers(constant) == [1]


def test_a_probe_of_recall_at_a_key_names_the_nearest_value(tmp_path: Path) -> None:
    """Keys and values alternate, so the target `value` is not defined after 16 elements. The table has only the other
    score."""
    run = create(tmp_path, resolve_run("recall", "gru", "smoke", 0, ["train.steps=1"]), "gru")
    train(run)
    cells = list(probe(Context(tmp_path), run, [16], fit=64, test=32))
    rows = tables.read_all("values", tmp_path)
    rows = rows[rows["prompt_set"].eq(cells[0].prompts.id)]
    (reason,) = rows.loc[rows["status"].eq("skipped"), "reason"].unique()
    assert "'value'" in reason and "16 elements" in reason and reason.endswith("use --context 15")
    columns, lines = depth_table(rows)
    assert {line[columns.index("score")] for line in lines} == {"accuracy of previous element"}


def test_a_repeated_probe_is_cached_and_the_table_has_one_row_per_target_and_model(
    folder: Path, transparent: Run, cells: list[CellResult]
) -> None:
    assert all(cell.cached for cell in probe(Context(folder), transparent, [32], fit=FIT, test=TEST))
    rows = tables.read_all("values", folder)
    columns, lines = depth_table(rows[rows["prompt_set"].eq(cells[0].prompts.id)])
    assert columns == ["contestant", "score", "depth", "1/2", "all", "best"]
    by_score = [dict(zip(columns, line, strict=True)) for line in lines]
    assert len(by_score) == 4
    (best,) = [
        line for line in by_score if line["score"] == "accuracy of previous element" and "bold" in line["contestant"]
    ]
    assert best["best"] == "1.000 at layer 2"


def test_a_layer_with_nan_does_not_make_other_layers_fail(
    transparent: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    layers_of = Transparent.hidden_by_layer

    def with_nan(self: Transparent, *arguments: Any) -> Iterator[Tensor]:
        first, second = layers_of(self, *arguments)
        yield first
        yield second.masked_fill(second[:, :, :1] == 1, torch.nan)

    monkeypatch.setattr(Transparent, "hidden_by_layer", with_nan)
    cell = next(iter(probe(Context(tmp_path), transparent, [32], fit=FIT, test=TEST)))
    assert "not finite" in str(cell.reason)
    rows = tables.read_all("values", tmp_path)
    assert set(rows.loc[rows["status"].eq("failed"), "axis_value"]) == {2}
    assert set(rows.loc[rows["status"].eq("ok"), "axis_value"]) == {1}


def test_the_tasks_option_and_models_without_hidden_vectors_are_refused(transparent: Run, tmp_path: Path) -> None:
    with refused("not-applicable", "'clear'", "--fit"):
        list(probe(Context(tmp_path), transparent, tasks=8))
    run = create(tmp_path, resolve_run("markov", f"{__name__}:Opaque", "smoke", 0, ["train.steps=1"]), "opaque")
    train(run)
    with refused("not-applicable", "'opaque'", "hidden_by_layer"):
        list(probe(Context(tmp_path), run, fit=FIT, test=TEST))
