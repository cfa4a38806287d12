"""Training of runs: exact continuation, signals, divergence, locks and damaged checkpoints."""

import os
import signal
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from iclbench import tables
from iclbench.config.resolution import resolve_run
from iclbench.core.errors import IclbenchError, Interrupted, UsageError
from iclbench.evaluation.prompts import PromptSet
from iclbench.store.runs import Run, create
from iclbench.training import checkpoint
from iclbench.training.run import StepReport, train
from iclbench.training.schedule import learning_rate
from iclbench.training.step import TrainingData
from tests.forked import FORKS
from tests.refusals import refused


def with_digest(metadata: dict[str, str], tensors: dict[str, torch.Tensor]) -> dict[str, str]:
    """Add the correct digest to the metadata of a checkpoint."""
    unsealed = {key: text for key, text in metadata.items() if key != "digest"}
    return unsealed | {"digest": checkpoint._digest(tensors, unsealed)}


def new_run(card: Path, results: Path, *overrides: str) -> Run:
    return create(results, resolve_run(str(card), "gpt2", "smoke", 3, overrides))


def stop_at(step: int) -> StepReport:
    """Return a reporter that interrupts this process when the given step is reported."""

    def report(finished_step: int, loss: float) -> None:
        if finished_step == step:
            os.kill(os.getpid(), signal.SIGINT)

    return report


def weights(run: Run) -> dict[str, torch.Tensor]:
    return load_file(run.weights)


def have_same_weights(a: Run, b: Run) -> bool:
    weights_a, weights_b = weights(a), weights(b)
    return weights_a.keys() == weights_b.keys() and all(torch.equal(weights_a[k], weights_b[k]) for k in weights_a)


def test_a_continued_run_is_bitwise_equal_to_an_uninterrupted_run(card_path: Path, tmp_path: Path) -> None:
    uninterrupted = new_run(card_path, tmp_path / "a")
    train(uninterrupted)
    interrupted = new_run(card_path, tmp_path / "b")
    with refused("interrupted", interrupted.name, "step 4", exit_code=130):
        train(interrupted, report=stop_at(4))
    assert not interrupted.is_finished
    train(interrupted)
    assert have_same_weights(uninterrupted, interrupted)
    assert (uninterrupted.path / "values.parquet").read_bytes() == (interrupted.path / "values.parquet").read_bytes()


def test_weights_depend_only_on_the_seed(card_path: Path, tmp_path: Path) -> None:
    runs = [
        create(tmp_path / n, resolve_run(str(card_path), "gpt2", "smoke", s)) for n, s in [("a", 0), ("b", 0), ("c", 1)]
    ]
    for run in runs:
        train(run)
    assert have_same_weights(runs[0], runs[1])
    assert not have_same_weights(runs[0], runs[2])


def test_training_ignores_the_random_state_of_the_caller(card_path: Path, tmp_path: Path) -> None:
    first = new_run(card_path, tmp_path / "a")
    train(first)
    torch.manual_seed(12345)
    torch.randn(7)
    second = new_run(card_path, tmp_path / "b")
    train(second)
    assert have_same_weights(first, second)


def test_if_the_last_checkpoint_is_truncated_the_previous_one_is_used(
    card_path: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    uninterrupted = new_run(card_path, tmp_path / "a")
    train(uninterrupted)
    interrupted = new_run(card_path, tmp_path / "b")
    with pytest.raises(Interrupted):
        train(interrupted, report=stop_at(8))
    newest = sorted(interrupted.path.glob("checkpoints/*.safetensors"))[-1]
    newest.write_bytes(newest.read_bytes()[:1000])
    train(interrupted)
    assert newest.name in caplog.text
    assert have_same_weights(uninterrupted, interrupted)


@pytest.mark.slow
def test_a_checkpoint_of_another_run_is_not_used(
    card_path: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    uninterrupted = new_run(card_path, tmp_path / "a")
    train(uninterrupted)
    other = new_run(card_path, tmp_path / "b")
    folder = other.path / "checkpoints"
    folder.mkdir()
    (folder / "step-000000009.safetensors").write_bytes(b"not a checkpoint at all")
    source_run = new_run(card_path, tmp_path / "c", "train.lr=0.1")
    train(source_run)
    last = sorted(source_run.path.glob("checkpoints/*.safetensors"))[-1]
    (folder / "step-000000010.safetensors").write_bytes(last.read_bytes())
    train(other)
    assert "step-000000010" in caplog.text and "step-000000009" in caplog.text
    assert have_same_weights(uninterrupted, other)


def test_a_valid_checkpoint_is_used_if_all_later_checkpoints_are_unusable(card_path: Path, tmp_path: Path) -> None:
    run = new_run(card_path, tmp_path)
    folder = run.path / "checkpoints"
    folder.mkdir()
    for step in (500, 600):
        (folder / f"step-{step:09d}.safetensors").write_bytes(b"half a checkpoint")
    with pytest.raises(Interrupted):
        train(run, report=stop_at(8))
    assert run.checkpoint_step == 8
    assert {p.name for p in folder.glob("*.unusable")} == {"step-000000500.unusable", "step-000000600.unusable"}


@pytest.mark.slow
def test_a_checkpoint_of_a_wider_model_is_not_used(card_path: Path, tmp_path: Path) -> None:
    uninterrupted = new_run(card_path, tmp_path / "a")
    train(uninterrupted)
    wide = new_run(card_path, tmp_path / "b", "backbone.width=32")
    train(wide)
    run = new_run(card_path, tmp_path / "c")
    folder = run.path / "checkpoints"
    folder.mkdir()
    newest = sorted(wide.path.glob("checkpoints/step-*"))[-1]
    with safe_open(newest, framework="pt") as file:
        tensors = {k: file.get_tensor(k) for k in file.keys()}  # noqa: SIM118
        metadata = (file.metadata() or {}) | {"config": run.hash, "step": "9"}
    save_file(tensors, folder / "step-000000009.safetensors", with_digest(metadata, tensors))
    train(run)
    assert have_same_weights(uninterrupted, run)


def test_weights_of_another_run_are_refused(card_path: Path, tmp_path: Path) -> None:
    run, other = new_run(card_path, tmp_path / "a"), new_run(card_path, tmp_path / "b", "train.lr=0.1")
    for trained_run in (run, other):
        train(trained_run)
    run.weights.write_bytes(other.weights.read_bytes())
    with pytest.raises(UsageError, match=r"model\.safetensors"):
        run.load()
    run.weights.unlink()
    train(run)
    run.load()


def test_weights_of_an_older_version_can_be_loaded_after_the_baselines_of_the_card_change(
    card_path: Path, tmp_path: Path
) -> None:
    run = new_run(card_path, tmp_path)
    # Write the configuration of an older version, which lacks the settings `evaluators` and `compile`.
    text = (run.path / "config.toml").read_text()
    before_train, train_section = text.split("[train]")
    older_text = (
        before_train
        + "[train]"
        + "".join(line for line in train_section.splitlines(True) if not line.startswith(("evaluators", "compile")))
    )
    (run.path / "config.toml").write_text(older_text)
    run = Run(run.path)
    train(run)
    card_path.write_text(card_path.read_text().replace('"knn-3"', '"knn-3", "averaging"'))
    updated = new_run(card_path, tmp_path)
    assert updated.config.task.baselines != run.config.task.baselines, "the run adopts the baselines of the card"
    updated.load()
    train(updated)


def test_tied_weights_can_be_saved(card_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from iclbench.backbones.gpt2 import GPT2

    original = GPT2.__init__

    def tied(self: GPT2, *arguments: object) -> None:
        original(self, *arguments)
        self.tied = self.read_out

    monkeypatch.setattr(GPT2, "__init__", tied)
    run = new_run(card_path, tmp_path)
    train(run)
    assert torch.equal(weights(run)["tied.weight"], weights(run)["read_out.weight"])
    run.load()


def test_a_configuration_that_cannot_be_built_creates_no_run(card_path: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="width"):
        new_run(card_path, tmp_path, "backbone.width=15")
    assert not list(tmp_path.glob("**/config.toml"))


def test_a_configuration_that_was_never_trained_is_replaced(card_path: Path, tmp_path: Path) -> None:
    new_run(card_path, tmp_path, "backbone.width=24")
    run = new_run(card_path, tmp_path)
    train(run)
    assert run.is_finished


@pytest.mark.parametrize("name", ["zero", "least-squares", "published-gpt2"])
def test_reserved_names_are_refused(card_path: Path, tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, match="--name"):
        create(tmp_path, resolve_run(str(card_path), "gpt2", "smoke"), name)


def test_os_errors_of_a_family_are_not_attributed_to_the_results_folder(
    card_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from iclbench.families.linear import Linear

    def missing(*arguments: object, **options: object) -> None:
        raise FileNotFoundError(2, "No such file", "data.bin")

    monkeypatch.setattr(Linear, "sample", missing)
    with pytest.raises(FileNotFoundError):
        train(new_run(card_path, tmp_path))


def test_a_diverged_loss_ends_training_and_leaves_only_finite_checkpoints(card_path: Path, tmp_path: Path) -> None:
    run = new_run(
        card_path,
        tmp_path,
        "train.lr=1e12",
        "train.clip=0",
        "train.steps=60",
        "train.warmup=0",
        "train.schedule=constant",
    )
    with refused("diverged", "train.lr", exit_code=1):
        train(run)
    assert not run.is_finished
    for path in run.path.glob("checkpoints/*.safetensors"):
        assert all(torch.isfinite(t).all() for k, t in load_file(path).items() if k.startswith("log."))


@pytest.mark.slow
def test_two_processes_cannot_train_the_same_run(card_path: Path, tmp_path: Path) -> None:
    run = new_run(card_path, tmp_path)
    ready, release = FORKS.Event(), FORKS.Event()
    other = FORKS.Process(target=_hold_lock, args=(run, ready, release))
    other.start()
    try:
        assert ready.wait(60)
        with pytest.raises(IclbenchError, match=run.name):
            train(run)
    finally:
        release.set()
        other.join()
    train(run)
    assert run.is_finished


def _hold_lock(run: Run, ready, release) -> None:
    with run.lock():
        ready.set()
        release.wait(60)


def test_the_error_for_an_existing_run_with_different_settings_names_the_difference(
    card_path: Path, tmp_path: Path
) -> None:
    train(new_run(card_path, tmp_path))
    with pytest.raises(UsageError, match=r"train\.lr: 0\.001 -> 0\.5"):
        new_run(card_path, tmp_path, "train.lr=0.5")


def test_a_run_adopts_changed_evaluation_settings_of_its_card(card_path: Path, tmp_path: Path) -> None:
    run = new_run(card_path, tmp_path)
    config_before, fingerprint = run.config, run.hash
    card_path.write_text(card_path.read_text().replace('"knn-3"', '"knn-3", "averaging"'))
    updated = new_run(card_path, tmp_path)
    config_after = updated.config
    assert updated.hash == fingerprint
    assert "averaging" in config_after.task.baselines
    assert config_after.task.card == config_before.task.card, "the hash of the card excludes baselines"


@pytest.mark.slow
def test_training_reduces_the_logged_loss(card_path: Path, tmp_path: Path) -> None:
    overrides = [
        "task.dim=1",
        "task.points=5",
        "train.steps=200",
        "train.log_every=50",
        "train.batch=64",
        "train.checkpoint_every=500",
        "train.curriculum.points.start=6",
        "backbone.init_std=0.2",
        "backbone.width=32",
        "train.lr=3e-3",
    ]
    run = new_run(card_path, tmp_path, *overrides)
    train(run)
    curve = tables.read("values", run.path / "values.parquet")
    assert curve["axis_value"].tolist() == [50, 100, 150, 200]
    assert curve["value"].iloc[-1] < 0.75 * curve["value"].iloc[0]


def test_context_points_are_additional_targets_in_training_but_not_in_evaluation() -> None:
    plain = resolve_run("gp-mixture", "tnp", "smoke")
    with_context = resolve_run("gp-mixture", "tnp", "smoke", overrides=["task.context_targets=true"])
    family = plain.task.build()
    plain_batch, larger_batch = (
        TrainingData.of(run.task, family).batch(run.train, 0, 3) for run in (plain, with_context)
    )
    assert torch.equal(plain_batch.context.x, larger_batch.context.x)
    assert plain_batch.queries.count == 64 and larger_batch.queries.count == 64 + 16
    assert torch.equal(larger_batch.scored.sum(1), 64 + plain_batch.context.counts)
    sets = [PromptSet(run.task, "smoke") for run in (plain, with_context)]
    assert sets[0].id == sets[1].id
    assert sets[1].episodes.queries.count == 64


def test_learning_rates_follow_the_cosine_and_inverse_square_root_schedules() -> None:
    settings = resolve_settings(steps=100, warmup=10, schedule="cosine")
    rates = [learning_rate(settings, step) for step in range(100)]
    assert rates[0] == pytest.approx(0.1)
    assert rates[9] == rates[10] == pytest.approx(1.0)
    assert rates[55] == pytest.approx(0.5)
    assert rates[99] < 0.001
    inverse = resolve_settings(steps=100, warmup=4, schedule="inverse-sqrt")
    assert learning_rate(inverse, 15) == pytest.approx(0.5)


def resolve_settings(**values: object):
    from iclbench.config.cards import TrainSettings

    return TrainSettings(lr=1.0, **values)


def peak_training_memory(run: Run) -> float | None:
    costs = tables.read("costs", run.path / "costs.parquet")
    peaks = costs[(costs["phase"] == "train") & (costs["metric"] == "bytes")]["value"]
    return None if peaks.empty else float(peaks.iloc[0])


@pytest.mark.parametrize("before", [None, 123_456_789_000])
def test_the_peak_memory_of_a_continued_run_is_the_maximum_or_unknown(
    card_path: Path, tmp_path: Path, before: int | None
) -> None:
    """`before` is the peak memory in the checkpoint of the first process, or None."""
    run = new_run(card_path, tmp_path)
    with pytest.raises(Interrupted):
        train(run, report=stop_at(8))
    with safe_open(run.checkpoints[-1], framework="pt") as file:
        tensors = {k: file.get_tensor(k) for k in file.keys()}  # noqa: SIM118
        metadata = file.metadata() or {}
    assert int(metadata.pop("bytes")) > 0
    metadata |= {} if before is None else {"bytes": str(before)}
    save_file(tensors, run.checkpoints[-1], with_digest(metadata, tensors))
    train(run)
    assert peak_training_memory(run) == before


def test_a_signal_during_the_last_step_is_raised_after_the_run_is_finished(card_path: Path, tmp_path: Path) -> None:
    run = new_run(card_path, tmp_path)
    with refused("interrupted", run.name, exit_code=130):
        train(run, report=stop_at(run.config.train.steps))
    assert run.is_finished
    train(run)
