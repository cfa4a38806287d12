"""Costs: exact counts, plausible measurements, and a second measurement with the same cost file."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from iclbench import tables
from iclbench.backbones.base import TaskShape
from iclbench.config.cards import TrainSettings
from iclbench.config.resolution import TaskConfig
from iclbench.core.context import Context
from iclbench.core.measure import _reset_resident_peak
from iclbench.evaluation.contestants import PredictorContestant
from iclbench.evaluation.costs import costs
from iclbench.evaluation.costs.costs import CostSizes, measure_costs
from iclbench.registry import BACKBONES, ESTIMATORS
from tests.forked import call_in_new_process

WIDTH, LAYERS, EPISODES = 16, 2, 4


@pytest.fixture(autouse=True)
def limit_repeats(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(costs, "_MAX_REPEATS", 3)


def contestant(name: str, **settings: object) -> PredictorContestant:
    cls = BACKBONES.get(name)
    built = cls(cls.Settings(layers=LAYERS, width=WIDTH, **settings), TaskShape(x_dim=3, points=9))
    return PredictorContestant(name, f"run-of-{name}", "backbone", "", predictor=built.eval())


def rows_of(path: Path) -> dict[tuple[str, str, int | None], float]:
    table = tables.read("costs", path)
    sizes = [
        None if n is None else int(n) for n in table["n_points"].astype(object).where(table["n_points"].notna(), None)
    ]
    return dict(zip(zip(table["phase"], table["metric"], sizes, strict=True), table["value"], strict=True))


def test_parameters_and_states_are_counted_exactly(task: TaskConfig, tmp_path: Path) -> None:
    """For each of 2 n tokens, the state of GPT-2 holds a mask byte, and a key and a value of the model's width per
    layer. The state of Mamba holds the last inputs of the convolution and a recurrent state per layer, and does not
    depend on n.
    """
    gpt2, mamba = contestant("gpt2", heads=2), contestant("mamba", state=4)
    for model, expected in (
        (gpt2, {n: 2 * n * (LAYERS * 2 * WIDTH * 4 + 1) for n in (5, 12)}),
        (mamba, dict.fromkeys((5, 12), LAYERS * (3 + 4) * 2 * WIDTH * 4)),
    ):
        path, lines, _ = measure_costs(Context(tmp_path), model, task, "smoke", CostSizes([5, 12], episodes=EPISODES))
        rows = rows_of(path)
        assert not lines
        assert rows["model", "parameters", None] == sum(p.numel() for p in model.predictor.parameters())
        for n, size in expected.items():
            assert rows["condition", "state_bytes", n] == size


def test_all_phases_are_timed_with_their_number_of_episodes(task: TaskConfig, tmp_path: Path) -> None:
    settings = TrainSettings(steps=1, batch=8)
    path, _, _ = measure_costs(
        Context(tmp_path), contestant("gpt2", heads=2), task, "smoke", CostSizes([5], episodes=EPISODES), train=settings
    )
    rows = rows_of(path)
    timed = {(phase, n) for phase, metric, n in rows if metric == "seconds"}
    assert timed == {("train_step", task.points), ("condition", 5), ("query", 5), ("update", 5)}
    assert all(value > 0 for value in rows.values())
    table = tables.read("costs", path)
    is_per_episode = table["phase"].isin(["condition", "query", "update"])
    assert set(table.loc[is_per_episode, "n_episodes"]) == {EPISODES}
    assert table.loc[~is_per_episode, "n_episodes"].isna().all(), "a training step is measured per batch"
    assert set(table["threads"]) == {torch.get_num_threads()}


def test_flops_are_counted_per_batch_in_training_and_per_episode_otherwise(task: TaskConfig, tmp_path: Path) -> None:
    """Repeated measurements agree. The FLOPs of a training run include the steps of its branches."""
    flops = []
    branched = {
        "schedule": "warmup-stable-decay",
        "branches": [0.25, 0.5],
    }  # two more steps for the branch at 10, and four for the branch at 20
    for batch, episodes in ((8, 4), (8, 4), (16, 8)):
        settings = TrainSettings(steps=40, batch=batch, **branched)
        model = contestant("gpt2", heads=2)
        path, lines, _ = measure_costs(
            Context(tmp_path), model, task, "smoke", CostSizes([5], episodes=episodes), train=settings
        )
        assert not lines
        table = tables.read("costs", path)
        table = table[(table["metric"] == "flops") & (table["n_episodes"].isna() | (table["n_episodes"] == episodes))]
        flops.append(dict(zip(table["phase"], table["value"], strict=True)))
    few, repeated, many = flops
    assert few == repeated
    assert few.keys() == {"train", "train_step", "condition", "query", "update"}
    assert few["train"] == (40 + 2 + 4) * few["train_step"]
    assert many["train_step"] == pytest.approx(2 * few["train_step"], rel=0.01)
    for phase in ("condition", "query", "update"):
        assert many[phase] == pytest.approx(few[phase], rel=0.01)


def test_work_outside_torch_gives_a_message_instead_of_flops(task: TaskConfig, tmp_path: Path) -> None:
    cls = ESTIMATORS.get("decision_tree")
    tree = PredictorContestant("decision-tree-2", "decision-tree-2", "baseline", "", predictor=cls())
    path, lines, _ = measure_costs(Context(tmp_path), tree, task, "smoke", CostSizes([5], episodes=EPISODES))
    counted = {phase: value for (phase, metric, _), value in rows_of(path).items() if metric == "flops"}
    assert counted == {"condition": 0, "update": 0}, "a tree stores its points and is fitted by a query"
    (line,) = lines
    assert all(name in line for name in ("'decision-tree-2'", "query", "NumPy"))


def test_measuring_a_training_step_does_not_change_the_model(task: TaskConfig, tmp_path: Path) -> None:
    model = contestant("gpt2", heads=2)
    weights = {name: t.clone() for name, t in model.predictor.state_dict().items()}
    measure_costs(Context(tmp_path), model, task, "smoke", CostSizes([]), train=TrainSettings(steps=1, batch=8))
    assert all(torch.equal(t, weights[name]) for name, t in model.predictor.state_dict().items())
    assert not model.predictor.training


def test_sizes_that_the_model_does_not_support_are_skipped_with_a_message(task: TaskConfig, tmp_path: Path) -> None:
    model_with_positions = contestant("gpt2", heads=2, positions="learned")
    path, lines, _ = measure_costs(
        Context(tmp_path), model_with_positions, task, "smoke", CostSizes([8, 9], episodes=EPISODES)
    )
    assert {n for _, _, n in rows_of(path)} == {None, 8}
    (line,) = lines
    assert all(name in line for name in ("'run-of-gpt2'", "9 points", "8 examples"))


def test_several_simultaneous_queries_or_updates_have_separate_rows(task: TaskConfig, tmp_path: Path) -> None:
    """Six queries of a state need six times the FLOPs of one query. The same holds for updates of a recurrent state."""
    for model, phase in ((contestant("gpt2", heads=2), "query"), (contestant("mamba", state=4), "update")):
        numbers = {"queries": [6, 1]} if phase == "query" else {"updates": [6, 6]}
        path, lines, _ = measure_costs(
            Context(tmp_path), model, task, "smoke", CostSizes([5], episodes=EPISODES, **numbers)
        )
        rows = tables.read("costs", path)
        several = rows[rows["n_at_once"].notna()]
        assert not lines and set(zip(several["phase"], several["n_at_once"], strict=True)) == {(phase, 6)}
        flops = rows[(rows["metric"] == "flops") & (rows["phase"] == phase)]
        flops_of_one = flops.loc[flops["n_at_once"].isna(), "value"].item()
        flops_of_six = flops.loc[flops["n_at_once"] == 6, "value"].item()
        assert flops_of_six == pytest.approx(6 * flops_of_one, rel=0.1)


def test_updates_that_the_model_does_not_support_are_skipped_with_a_message(task: TaskConfig, tmp_path: Path) -> None:
    model_with_positions = contestant("gpt2", heads=2, positions="learned")
    path, lines, _ = measure_costs(
        Context(tmp_path), model_with_positions, task, "smoke", CostSizes([5], [7], [2, 4], EPISODES)
    )
    assert set(tables.read("costs", path)["n_at_once"].dropna()) == {7, 2}
    (line,) = lines
    assert all(name in line for name in ("'run-of-gpt2'", "5 points", "by 4", "8 examples"))


def test_a_baseline_has_a_state_and_no_parameters(task: TaskConfig, tmp_path: Path) -> None:
    knn = PredictorContestant("knn-3", "knn-3", "baseline", "", predictor=ESTIMATORS.get("knn")())
    path = measure_costs(
        Context(tmp_path), knn, task, "smoke", CostSizes([5], episodes=EPISODES), train=TrainSettings(steps=1)
    ).path
    rows = rows_of(path)
    assert {phase for phase, _, _ in rows} == {"condition", "query", "update"}
    assert rows["condition", "state_bytes", 5] == 5 * (3 * 4 + 4 + 1)


def seconds_of_queries(path: Path) -> dict[tuple[int, int], float]:
    """Return the seconds of the query phase by number of points and number of episodes."""
    table = tables.read("costs", path)
    rows = table[(table["phase"] == "query") & (table["metric"] == "seconds")]
    return {(n, b): value * b for n, b, value in zip(rows["n_points"], rows["n_episodes"], rows["value"], strict=True)}


def test_a_second_measurement_replaces_only_rows_with_the_same_sizes(
    task: TaskConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = contestant("gpt2", heads=2)
    settings = TrainSettings(steps=1, batch=8)
    calls = [([5, 3], 4), ([5], 2), ([5, 7], 4)]
    for seconds, (sizes, episodes) in enumerate(calls, 1):
        monkeypatch.setattr(costs, "seconds_of", lambda work, device, seconds=seconds: float(seconds))
        path, lines, _ = measure_costs(
            Context(tmp_path), model, task, "smoke", CostSizes(sizes, episodes=episodes), train=settings
        )
        assert not lines
    assert list(tmp_path.rglob("*.parquet")) == [path]
    assert seconds_of_queries(path) == {(3, 4): 1, (5, 2): 2, (5, 4): 3, (7, 4): 3}
    assert rows_of(path)["train_step", "seconds", task.points] == 3
    assert len(tables.read("costs", path)) == len(tables.read_all("costs", tmp_path)), "the table has no duplicate rows"


def test_rows_with_outdated_settings_or_task_are_removed_with_a_message(task: TaskConfig, tmp_path: Path) -> None:
    model = replace(contestant("gpt2", heads=2), variant="as trained")
    wider = task.model_copy(update={"parameters": task.parameters | {"dim": 4}})
    zero = PredictorContestant("zero", "zero", "baseline", "", predictor=ESTIMATORS.get("zero")())
    for first, second, second_task in ((model, replace(model, variant="other"), task), (zero, zero, wider)):
        path = measure_costs(Context(tmp_path), first, task, "smoke", CostSizes([5], episodes=EPISODES)).path
        outcome = measure_costs(Context(tmp_path), second, second_task, "smoke", CostSizes([3], episodes=EPISODES))
        (line,) = outcome.messages
        assert (outcome.path, outcome.failed) == (path, 0) and f"'{first.run}'" in line
        assert {n for _, _, n in rows_of(path)} - {None} == {3}


def test_costs_do_not_depend_on_the_weights(task: TaskConfig, tmp_path: Path) -> None:
    before = replace(contestant("gpt2", heads=2), variant="as trained", identity="weights")
    after = replace(before, identity="other weights")
    measure_costs(Context(tmp_path), before, task, "smoke", CostSizes([5], episodes=EPISODES))
    path, lines, _ = measure_costs(Context(tmp_path), after, task, "smoke", CostSizes([3], episodes=EPISODES))
    assert not lines
    assert {n for _, _, n in rows_of(path)} - {None} == {3, 5}


@pytest.mark.slow
@pytest.mark.skipif(_reset_resident_peak() is None, reason="the kernel reports no peak")
def test_memory_that_the_allocator_reuses_is_counted_in_each_measurement() -> None:
    """Each measurement allocates and frees blocks that are small enough for the heap. The test uses a new process,
    because a process that has done other work may not return its complete heap.
    """
    work = "kept = [torch.ones(16_384) for _ in range(320)]; del kept"
    lines = [
        "import torch",
        "from iclbench.core.measure import peak_of",
        f"print(*[peak_of(lambda: exec({work!r}), 'cpu') for _ in range(4)])",
    ]
    process = subprocess.run([sys.executable, "-c", "\n".join(lines)], capture_output=True, text=True, check=True)
    assert [round(int(peak) / 20e6, 1) for peak in process.stdout.split()] == [pytest.approx(1.05, abs=0.2)] * 4


@pytest.mark.slow
@pytest.mark.skipif(_reset_resident_peak() is None, reason="the kernel reports no peak")
def test_memory_of_a_training_step_is_proportional_to_the_batch_size(task: TaskConfig) -> None:
    """The batches are large enough to make partly used pages negligible."""
    longer = task.model_copy(update={"points": 29})
    few, many = (call_in_new_process(bytes_of_training_step, longer, batch) for batch in (256, 1024))
    assert 3 < many / few < 4.5


def bytes_of_training_step(task: TaskConfig, batch: int) -> float:
    step_costs = costs.training_costs(
        contestant("gpt2", heads=2), task.build(), task, TrainSettings(steps=1, batch=batch)
    )
    return next(cost.value for cost in step_costs if cost.metric == "bytes")
