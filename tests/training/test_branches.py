"""The warmup-stable-decay schedule, and branches, which are shorter runs within a longer run."""

import math
import os
import signal
from pathlib import Path

import pandas as pd
import pytest
import tomli_w
import torch
from safetensors.torch import load_file

from iclbench import tables
from iclbench.backbones.gpt2 import GPT2
from iclbench.config.cards import TrainSettings, decay_start
from iclbench.config.resolution import resolve_run
from iclbench.core.context import Context
from iclbench.core.errors import Interrupted, UsageError
from iclbench.core.settings import validate
from iclbench.evaluation.contestants import contestant_of_loaded_run
from iclbench.evaluation.evaluate import evaluate_run
from iclbench.evaluation.monitor import Monitor
from iclbench.evaluation.run_training import train_with_monitor
from iclbench.store.identity import variant_id
from iclbench.store.runs import Run, create
from iclbench.store.state import is_intact
from iclbench.training import checkpoint, record
from iclbench.training.fit import Training, fit
from iclbench.training.run import train
from iclbench.training.schedule import learning_rate
from tests.conftest import small_card
from tests.prototypes import prototype_card
from tests.refusals import refused
from tests.training.test_run import have_same_weights, new_run, weights

STABLE = "train.schedule=warmup-stable-decay"
# Branches of 10 and 20 steps, which start at steps 8 and 16 of the run.
BRANCHED = (STABLE, "train.steps=40", "train.branches=[0.5, 0.25]", "train.checkpoint_every=3")
RUN_FILES = ["branch-000000010.safetensors", "branch-000000020.safetensors", "model.safetensors", "values.parquet"]


def branch(run: Run, steps: int) -> dict[str, torch.Tensor]:
    return load_file(run.branch(steps))


def are_equal(weights_a: dict[str, torch.Tensor], weights_b: dict[str, torch.Tensor]) -> bool:
    return weights_a.keys() == weights_b.keys() and all(
        torch.equal(weights_a[name], weights_b[name]) for name in weights_a
    )


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A finished run with branches that was not interrupted."""
    folder = tmp_path_factory.mktemp("uninterrupted")
    card = folder / "tiny-linear.toml"
    card.write_text(tomli_w.dumps(small_card()))
    run = new_run(card, folder, *BRANCHED)
    train(run)
    return run


def test_the_learning_rate_warms_up_stays_constant_and_decays_in_the_last_fifth() -> None:
    settings = TrainSettings(steps=20, warmup=4, lr=2.0, schedule="warmup-stable-decay")
    rates = [learning_rate(settings, step) for step in range(20)]
    assert rates == [0.5, 1.0, 1.5, 2.0, *[2.0] * 12, 2.0, 1.5, 1.0, 0.5]
    on_branch = [learning_rate(settings, step, 10) for step in range(10)]
    assert on_branch == [*rates[:8], 2.0, 1.0]


def test_the_lower_learning_rate_is_used_if_warmup_and_decay_overlap() -> None:
    settings = TrainSettings(steps=10, warmup=16, lr=1.0, schedule="warmup-stable-decay")
    assert [learning_rate(settings, step) for step in (0, 7, 8, 9)] == [1 / 16, 8 / 16, 9 / 16, 0.5]
    short_settings = TrainSettings(steps=3, lr=1.0, schedule="warmup-stable-decay")
    assert [learning_rate(short_settings, step) for step in range(3)] == [1.0, 1.0, 1.0]


@pytest.mark.parametrize(
    "settings",
    [
        {"branches": [0.5]},
        {"branches": [0.5, 0.04], "schedule": "warmup-stable-decay"},
        {"branches": [0.5, 0.501], "schedule": "warmup-stable-decay"},
        {"branches": [0.999], "schedule": "warmup-stable-decay"},
        {"branches": [1.0], "schedule": "warmup-stable-decay"},
    ],
)
def test_invalid_branches_are_refused(settings: dict[str, object]) -> None:
    with pytest.raises(UsageError, match="branches") as error:
        validate(TrainSettings, {"steps": 100, **settings}, "mine.toml")
    assert "\n" not in str(error.value)


def test_runs_with_and_without_branches_are_different_runs_of_the_same_variant() -> None:
    plain, branched = (
        resolve_run("linear", "gpt2", "smoke", 0, [STABLE, *overrides]) for overrides in ([], [BRANCHED[2]])
    )
    assert variant_id(plain) == variant_id(branched), "they count as repetitions of the same contestant"
    assert plain.trained_part != branched.trained_part, "they have different folders"


@pytest.mark.slow
def test_branches_leave_the_run_bitwise_unchanged(uninterrupted: Run, card_path: Path, tmp_path: Path) -> None:
    unbranched = new_run(card_path, tmp_path, STABLE, "train.steps=40", "train.checkpoint_every=3")
    train(unbranched)
    assert have_same_weights(uninterrupted, unbranched)
    curves = [tables.read("values", run.path / "values.parquet") for run in (uninterrupted, unbranched)]
    pd.testing.assert_frame_equal(*curves)
    assert not list(unbranched.path.glob("branch-*")) and unbranched.config.train.total_steps == 40


@pytest.mark.parametrize("steps", [10, 20])
def test_a_branch_equals_a_run_of_the_same_length(
    uninterrupted: Run, steps: int, card_path: Path, tmp_path: Path
) -> None:
    """Warm-up and curriculum are equal, because the card specifies them in steps."""
    separate = new_run(card_path, tmp_path, STABLE, f"train.steps={steps}")
    train(separate)
    assert are_equal(branch(uninterrupted, steps), weights(separate))
    assert not are_equal(branch(uninterrupted, steps), weights(uninterrupted))


def test_a_branch_sees_the_same_episodes_and_progress_as_its_run(
    card_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[tuple[float, float]] = []
    original = GPT2.loss

    def loss(self: GPT2, episodes, progress, generator):
        calls.append((progress, float(episodes.context.x.sum())))
        return original(self, episodes, progress, generator)

    monkeypatch.setattr(GPT2, "loss", loss)
    train(new_run(card_path, tmp_path, *BRANCHED))
    branch_calls, run_calls = calls[8:10] + calls[18:22], dict(calls[:8] + calls[10:18] + calls[22:])
    assert [progress * 40 for progress in run_calls] == list(range(40))
    assert [progress * 40 for progress, _ in branch_calls] == [8, 9, 16, 17, 18, 19]
    assert all(run_calls[progress] == episode_sum for progress, episode_sum in branch_calls)


@pytest.mark.slow
def test_branches_are_reported_separately_from_the_run(card_path: Path, tmp_path: Path) -> None:
    reports: list[tuple[int, str]] = []
    run = new_run(card_path, tmp_path, *BRANCHED, "train.log_every=1")
    train_with_monitor(run, Context(), lambda step, text: reports.append((step, text)))
    branch_reports = [(step, text) for step, text in reports if text.startswith("branch of")]
    steps = run.config.train.branch_steps
    assert len(branch_reports) == sum(end - decay_start(end) for end in steps)
    assert {(decay_start(end), f"branch of {end} steps: {end} done") for end in steps} <= {
        (step, text.partition(",")[0]) for step, text in branch_reports
    }
    training_steps = [step for step, text in reports if not text.startswith("branch of")]
    assert training_steps == list(range(1, run.config.train.steps + 1)), "the reports of the run do not change"


def test_branches_are_included_in_the_steps_and_seconds_of_the_run(uninterrupted: Run) -> None:
    costs = tables.read("costs", uninterrupted.path / "costs.parquet").set_index(["phase", "metric"])["value"]
    assert costs["train", "steps"] == 40 + 2 + 4
    assert costs["train_step", "seconds"] == pytest.approx(costs["train", "seconds"] / 46)


@pytest.mark.slow
def test_the_seconds_of_a_branch_are_counted_once(
    card_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This holds even if the run is interrupted during the branch."""
    original, is_interrupting = Training.step, True

    def step(self: Training) -> None:
        original(self)
        if self.end == 10:
            self._meter._start -= 1000.0  # simulates a step of 1,000 seconds
            if is_interrupting:
                os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(Training, "step", step)
    run = new_run(card_path, tmp_path, *BRANCHED)
    with refused("interrupted", run.name, "step 9", "10 steps", exit_code=130):
        train(run)
    is_interrupting = False
    train(run)
    costs = tables.read("costs", run.path / "costs.parquet").set_index(["phase", "metric"])["value"]
    assert 2000 < costs["train", "seconds"] < 2100


class Killed(BaseException):
    """Simulates a process that is killed between two instructions."""


@pytest.mark.slow
def test_a_run_killed_after_any_write_and_continued_has_identical_files(
    card_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each run is killed after a different write of weights or of a checkpoint."""
    original, writes_left = checkpoint.save_tensors, math.inf
    written: list[str] = []

    def save(path: Path, *arguments: object, **options: object) -> None:
        nonlocal writes_left
        original(path, *arguments, **options)
        written.append(path.relative_to(run.path).as_posix())
        writes_left -= 1
        if writes_left == 0:
            raise Killed

    monkeypatch.setattr(checkpoint, "save_tensors", save)
    monkeypatch.setattr(record, "save_tensors", save)

    def make_run(name: str) -> Run:
        typed = (STABLE, "train.steps=20", "train.branches=[0.5]", "train.checkpoint_every=9")
        return new_run(card_path, tmp_path / name, *typed)

    run = uninterrupted = make_run("uninterrupted")
    train(run)
    run_checkpoints, branch_checkpoints = (
        [f"checkpoints/{folder}step-{step:09d}.safetensors" for step in (8, 9, 10, 18, 20)]
        for folder in ("", "branch-000000010/")
    )
    assert written == [
        run_checkpoints[0],
        *branch_checkpoints[1:3],
        run_checkpoints[0],
        RUN_FILES[0],
        run_checkpoints[1],
        run_checkpoints[3],
        run_checkpoints[4],
        "model.safetensors",
    ]
    for kill_at in range(1, len(written)):
        run, writes_left = make_run(str(kill_at)), kill_at
        with pytest.raises(Killed):
            train(run)
        writes_left = math.inf
        train(Run(run.path))
        for name in (RUN_FILES[0], *RUN_FILES[2:]):
            assert (run.path / name).read_bytes() == (uninterrupted.path / name).read_bytes(), (kill_at, name)
        assert not list((run.path / "checkpoints").glob("branch-*")), kill_at


@pytest.mark.slow
def test_a_branch_continues_from_its_own_checkpoint(
    card_path: Path, tmp_path: Path, uninterrupted: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = Training.step
    finished_steps: list[tuple[int, int]] = []

    def step(self: Training) -> None:
        original(self)
        finished_steps.append((self.end, self.progress.step))
        if finished_steps[-1] == (20, 18):
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(Training, "step", step)
    run = new_run(card_path, tmp_path, *BRANCHED)
    with pytest.raises(Interrupted):
        train(run)
    assert run.checkpoint_step == 16
    finished_steps.clear()
    train(run)
    assert finished_steps[:3] == [(20, 19), (20, 20), (40, 17)]
    assert all((run.path / name).read_bytes() == (uninterrupted.path / name).read_bytes() for name in RUN_FILES)


@pytest.mark.slow
def test_a_missing_or_damaged_branch_is_retrained(
    uninterrupted: Run, card_path: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = new_run(card_path, tmp_path, *BRANCHED)
    train(run)
    assert all(map(is_intact, run.training_files)) and run.branch(20) in run.training_files
    for damage in (lambda path: path.unlink(), lambda path: path.write_bytes(path.read_bytes()[:-1] + b"x")):
        damage(run.branch(20))
        assert not run.has_branch(20) and run.has_branch(10)
        run.weights.unlink()
        train(run)
        assert "branch of 20 steps" in caplog.text
        assert are_equal(branch(run, 20), branch(uninterrupted, 20)) and have_same_weights(run, uninterrupted)


@pytest.mark.slow
def test_weights_of_another_branch_are_refused(card_path: Path, tmp_path: Path) -> None:
    run = new_run(card_path, tmp_path, *BRANCHED)
    train(run)
    for ending in ("", ".sha256"):
        Path(f"{run.branch(20)}{ending}").write_bytes(Path(f"{run.branch(10)}{ending}").read_bytes())
    assert not run.has_branch(20)
    with pytest.raises(UsageError, match=r"20 steps .*model\.safetensors"):
        run.load_branch(20, run.load())


def test_a_diverging_branch_ends_the_run_at_the_start_of_the_branch(
    card_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = Training.step

    def step(self: Training) -> None:
        original(self)
        if self.end == 20:
            self.progress.pending += torch.nan

    monkeypatch.setattr(Training, "step", step)
    run = new_run(card_path, tmp_path, *BRANCHED, "train.log_every=1")
    with refused("diverged", "step 17", "nan", "20 steps", exit_code=1):
        train(run)
    assert run.has_branch(10) and not run.has_branch(20) and not run.is_finished
    values = tables.read("values", run.path / "values.parquet")
    assert values.loc[values["status"].eq("ok"), "axis_value"].tolist() == list(range(1, 17))


def test_a_contestant_can_load_the_branches_of_its_run(uninterrupted: Run) -> None:
    model = uninterrupted.load()
    contestant = contestant_of_loaded_run(uninterrupted, model, "cpu")
    assert list(contestant.branches) == [10, 20]
    for steps, load in contestant.branches.items():
        loaded = load()
        assert not loaded.training and are_equal(loaded.state_dict(), branch(uninterrupted, steps))
    assert are_equal(model.state_dict(), weights(uninterrupted)), "the model of the run does not change"


def test_training_in_memory_refuses_branches(uninterrupted: Run) -> None:
    config = uninterrupted.config
    with refused("bad-value", "branches"):
        fit(config.build(config.task.build()), config.task, config.train)


def evaluation_rows(results: Path, run: Run) -> pd.DataFrame:
    list(evaluate_run(Context(results), run, ["none", "orthants"], baseline_names=["zero"]))
    values = tables.read_all("values", results / "tables")
    return values[values["run"].eq(run.name) & values["metric"].ne("score")]


@pytest.mark.slow
def test_evaluations_of_branches_equal_evaluations_of_shorter_runs(
    uninterrupted: Run, card_path: Path, tmp_path: Path
) -> None:
    values = evaluation_rows(uninterrupted.path.parents[1], uninterrupted)
    run_rows = values[values["axis"].isna()]
    columns = ["shift", "n_context", "metric", "value", "low", "high", "n_episodes", "normaliser", "status"]
    assert len(values) == 3 * len(run_rows)
    for steps in (10, 20, 40):
        separate = new_run(card_path, tmp_path / str(steps), STABLE, f"train.steps={steps}")
        train(separate)
        expected = evaluation_rows(tmp_path / str(steps), separate)
        branch_rows = values[values["axis"].eq("branch") & values["axis_value"].eq(steps)] if steps < 40 else run_rows
        assert expected["axis"].isna().all()
        pd.testing.assert_frame_equal(
            branch_rows[columns].sort_values(columns[:3], ignore_index=True),
            expected[columns].sort_values(columns[:3], ignore_index=True),
        )


@pytest.mark.slow
def test_branch_rows_do_not_replace_rows_of_evaluations_during_training(tmp_path: Path) -> None:
    """Both rows have the same step and test, but the learning rate has decayed only in the branch."""
    card = tmp_path / "tiny-classes.toml"
    card.write_text(tomli_w.dumps(prototype_card()))
    overrides = [STABLE, "train.steps=20", "train.branches=[0.5]", "train.evaluate_every=10"]
    run = create(tmp_path, resolve_run(str(card), "tests.prototypes:Net", "smoke", 3, overrides), "net")
    train(run, monitor=Monitor)
    list(evaluate_run(Context(tmp_path), run, baseline_names=["majority"]))
    values = tables.read_all("values", tmp_path)
    tests = values[values["run"].eq("net") & values["evaluator"].isin(run.config.task.evaluators)]
    tests = tests[tests["metric"].eq("accuracy_within_choices") & tests["axis_value"].eq(10)]
    axes = {name: set(rows["axis"]) for name, rows in tests.groupby("evaluator")}
    assert axes == {name: {"train_step", "branch"} for name in ("icl", "icl_paired")}
