"""Cost rows: columns, medians over repetitions, and the code that each phase runs."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
import torch

from iclbench import __version__, tables
from iclbench.config.cards import TrainSettings
from iclbench.config.resolution import TaskConfig, resolve_task
from iclbench.core.context import Context
from iclbench.core.hashing import content_hash
from iclbench.core.predictions import Point
from iclbench.core.predictor import Predictor
from iclbench.evaluation.contestants import PredictorContestant
from iclbench.evaluation.costs import costs
from iclbench.evaluation.costs.costs import Cost, CostSizes, count_costs, measure_costs, training_costs
from iclbench.evaluation.costs.flops import count_flops
from iclbench.families.request import Request
from iclbench.registry import ESTIMATORS
from tests.evaluation.costs.test_costs import contestant

SETTINGS = TrainSettings(steps=1, batch=8, clip=0.3)


def fix_measurements(monkeypatch: pytest.MonkeyPatch, seconds: float = 0.5, peak: int | None = 4096) -> None:
    """Make every measurement return these values."""
    monkeypatch.setattr(costs, "seconds_of", lambda work, device: seconds)
    monkeypatch.setattr(costs, "peak_of", lambda work, device: peak)


def test_cost_rows_have_all_columns(task: TaskConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fix_measurements(monkeypatch)
    monkeypatch.setattr(costs.devices, "device_label", lambda device: f"The {device} (R) 2000")
    gpt2 = replace(contestant("gpt2", heads=2), variant="as trained")
    path, lines, _ = measure_costs(
        Context(tmp_path), gpt2, task, "smoke", CostSizes([5, 3, 5], episodes=4), train=SETTINGS
    )
    threads = torch.get_num_threads()
    folder = tmp_path / "tables" / "costs" / "tiny-linear-smoke" / f"the-cpu-r-2000-{threads}"
    assert (path, lines) == (folder / "run-of-gpt2.costs.parquet", [])
    rows = [
        {k: v for k, v in row.items() if v == v and v is not None and v is not pd.NA}
        for row in tables.read("costs", path).astype(object).to_dict("records")
    ]
    shared = {
        "run": "run-of-gpt2",
        "task": "tiny-linear",
        "contestant": "gpt2",
        "preset": "smoke",
        "device": "The cpu (R) 2000",
        "threads": threads,
        "version": __version__,
    }
    size = sum(p.numel() for p in gpt2.predictor.parameters())  # type: ignore[attr-defined]
    exact = [{"phase": "model", "metric": "parameters", "value": size}]
    exact += [
        {"phase": "train_step", "n_points": task.points, "metric": metric, "value": value}
        for metric, value in (("seconds", 0.5), ("bytes", 4096))
    ]
    exact += [
        {"phase": phase, "n_points": n, "n_episodes": 4, "metric": metric, "value": value / 4}
        for n in (3, 5)
        for phase in ("condition", "query", "update")
        for metric, value in (("seconds", 0.5), ("bytes", 4096))
    ]
    counted = [row for row in rows if row["metric"] in ("flops", "state_bytes")]
    assert all(shared | columns in rows for columns in exact)
    assert len(rows) == len(exact) + len(counted)
    assert [(row["phase"], row["metric"], row.get("n_points"), row.get("n_episodes")) for row in counted] == [
        *[("condition", "state_bytes", n, 4) for n in (3, 5)],
        ("train_step", "flops", task.points, None),
        ("train", "flops", None, None),
        *[(phase, "flops", n, 4) for n in (3, 5) for phase in ("condition", "query", "update")],
    ]
    hashed = {
        "contestant": "as trained",
        "family": "linear",
        "parameters": {"dim": 3},
        "data": task.build().fingerprint,
        "version": __version__,
    }
    assert tables.metadata(path)["costs_id"] == content_hash(hashed)


@pytest.mark.parametrize(("first", "repeats"), [(0.3, 3), (0.25, 4), (7.0, 3), (1e-3, 20)])
def test_values_are_medians_of_as_many_repetitions_as_fit_into_the_time_limit(
    first: float, repeats: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Time is measured three to twenty times, and memory three times."""
    seconds, peaks = [first, *map(float, range(1, 30))], [40, 10, 20]
    monkeypatch.setattr(costs, "_MAX_REPEATS", 20)
    monkeypatch.setattr(costs, "seconds_of", lambda work, device: seconds.pop(0))
    monkeypatch.setattr(costs, "peak_of", lambda work, device: peaks.pop(0))
    measured_costs = list(costs._measure_repeatedly(costs._Work("query", 5, None, 4, lambda: None), "cpu", 1.0))
    assert measured_costs == [Cost("query", "seconds", (1 + repeats) / 2 / 4, 5, 4), Cost("query", "bytes", 5.0, 5, 4)]
    assert len(seconds) == 29 - repeats and not peaks


@pytest.mark.parametrize("peak", [0, None])
def test_a_zero_or_unknown_memory_peak_gives_no_row(peak: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    fix_measurements(monkeypatch, peak=peak)
    measured_costs = list(costs._measure_repeatedly(costs._Work("train_step", 8, None, None, lambda: None), "cpu", 1.0))
    assert measured_costs == [Cost("train_step", "seconds", 0.5, 8)], "a training step is measured per batch"


@pytest.mark.parametrize("compiled", [True, False])
def test_the_measured_training_step_uses_the_training_code(
    task: TaskConfig, compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The step updates a copy of the backbone at progress 0.5, with optimiser, clipping and optional compilation."""
    gpt2, family = contestant("gpt2", heads=2), task.build()
    work: list[Callable[[], object]] = []
    descend_calls, loss_calls, compile_calls = [], [], []
    fix_measurements(monkeypatch)
    monkeypatch.setattr(costs, "seconds_of", lambda step, device: work.append(step) or 1.0)
    monkeypatch.setattr(costs, "descend", lambda *args: descend_calls.append(args))
    monkeypatch.setattr(torch, "compile", lambda function: compile_calls.append(function) or function)
    original = type(gpt2.predictor).loss  # type: ignore[attr-defined]
    monkeypatch.setattr(type(gpt2.predictor), "loss", lambda *args: loss_calls.append(args) or original(*args))
    settings = SETTINGS.model_copy(update={"compile": compiled})
    training_costs(gpt2, family, task, settings)
    work[0]()
    assert len(compile_calls) == compiled
    (loss, model, optimiser, clip), (_, batch, progress, draw) = descend_calls[0], loss_calls[0]
    assert loss.requires_grad and clip == 0.3 and progress == 0.5 and draw.device.type == "cpu"
    assert model is not gpt2.predictor and model.training
    assert {id(p) for group in optimiser.param_groups for p in group["params"]} == {id(p) for p in model.parameters()}
    assert (len(batch), batch.context.count) == (8, task.points + 1)


def test_flops_are_counted_on_the_cpu(task: TaskConfig) -> None:
    gpt2 = contestant("gpt2", heads=2)
    arguments = (task.build(), task, SETTINGS, CostSizes([3], episodes=4))
    assert count_costs(replace(gpt2, device="an accelerator"), *arguments) == count_costs(gpt2, *arguments)
    knn = PredictorContestant(
        "knn-3", "knn-3", "baseline", "", device="an accelerator", predictor=ESTIMATORS.get("knn")()
    )
    counts, reasons = count_costs(knn, *arguments)
    assert [cost.phase for cost in counts] == ["condition", "query", "update"] and not reasons


class NumPyMean(Predictor):
    """Predicts the mean of the outputs, computed by NumPy."""

    def predict_targets(self, context, x_target, related=None):
        mean = torch.from_numpy(context.y.numpy().mean(1, keepdims=True))
        return Point(mean.expand(-1, x_target.shape[1], -1))


def test_a_phase_whose_flops_cannot_be_counted_gives_one_message_for_all_sizes(task: TaskConfig) -> None:
    mean = PredictorContestant("mean", "mean", "baseline", "", predictor=NumPyMean())
    counts, reasons = count_costs(mean, task.build(), task, None, CostSizes([3, 5], episodes=4))
    assert {cost.phase for cost in counts} == {"condition", "update"}
    (reason,) = reasons
    assert "query" in reason and "NumPy" in reason


def test_phases_are_measured_on_points_of_sampled_episodes(task: TaskConfig) -> None:
    gpt2, family = contestant("gpt2", heads=2), task.build()
    state, works, messages = costs._answering_setup(gpt2, family, 5, CostSizes([5], episodes=4))
    phases = {work.phase: work.call for work in works}
    assert not messages
    episodes = family.sample_all_related(Request(4, 6, costs.generator(0, "costs", 5), shift="none"))
    expected = gpt2.predictor.condition(episodes.context.span(0, 5))
    assert state.nbytes == expected.nbytes
    torch.testing.assert_close(phases["condition"]().nbytes, expected.nbytes)  # type: ignore[attr-defined]
    answer = gpt2.predictor.query(expected, episodes.context.x[:, 5:])
    torch.testing.assert_close(phases["query"]().mean, answer.mean)  # type: ignore[attr-defined]
    assert phases["update"]().nbytes == gpt2.predictor.update(expected, episodes.context.span(5)).nbytes  # type: ignore[attr-defined]
    assert count_flops(phases["condition"]) > count_flops(phases["update"])


def test_sampled_episodes_have_the_given_number_of_context_points_and_related_datasets() -> None:
    related = {"points": 12, "targets": 5, "max_related": 2, "related_points": [4, 9]}
    family = resolve_task("gp-mixture", "smoke", related)[0].build()
    episodes = costs._episodes(family, 3, 7)
    assert episodes.context.counts.tolist() == [7, 7, 7]
    assert episodes.related is not None and episodes.related.mask.any(-1).all()
