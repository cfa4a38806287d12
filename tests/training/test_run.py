"""Training: exact resume, signals, divergence, locks, damaged checkpoints."""

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
from iclbench.store.runs import DivergedError, Run, create
from iclbench.training import checkpoint
from iclbench.training.run import Report, train
from iclbench.training.schedule import learning_rate
from iclbench.training.step import TrainingData
from tests.forked import FORKS


def sealed(claims: dict[str, str], tensors: dict[str, torch.Tensor]) -> dict[str, str]:
    """What a checkpoint says of itself, with the digest that fits."""
    rest = {key: text for key, text in claims.items() if key != "digest"}
    return rest | {"digest": checkpoint._digest(tensors, rest)}


def new_run(card: Path, results: Path, *overrides: str) -> Run:
    return create(results, resolve_run(str(card), "gpt2", "smoke", 3, overrides))


def stop_at(step: int) -> Report:
    """A reporter that interrupts the process itself when a step is reported."""

    def report(done: int, loss: float) -> None:
        if done == step:
            os.kill(os.getpid(), signal.SIGINT)

    return report


def weights(run: Run) -> dict[str, torch.Tensor]:
    return load_file(run.weights)


def same(a: Run, b: Run) -> bool:
    left, right = weights(a), weights(b)
    return left.keys() == right.keys() and all(torch.equal(left[k], right[k]) for k in left)


def test_interrupted_and_continued_equals_undisturbed_bit_for_bit(card_path: Path, tmp_path: Path) -> None:
    straight = new_run(card_path, tmp_path / "a")
    train(straight)
    broken = new_run(card_path, tmp_path / "b")
    with pytest.raises(Interrupted) as stopped:
        train(broken, report=stop_at(4))
    assert stopped.value.exit_code == 130
    assert not broken.finished
    train(broken)
    assert same(straight, broken)
    assert (straight.path / "values.parquet").read_bytes() == (broken.path / "values.parquet").read_bytes()


def test_seeds_give_different_weights_and_the_same_seed_the_same(card_path: Path, tmp_path: Path) -> None:
    runs = [
        create(tmp_path / n, resolve_run(str(card_path), "gpt2", "smoke", s)) for n, s in [("a", 0), ("b", 0), ("c", 1)]
    ]
    for run in runs:
        train(run)
    assert same(runs[0], runs[1])
    assert not same(runs[0], runs[2])


def test_training_ignores_the_callers_random_state(card_path: Path, tmp_path: Path) -> None:
    first = new_run(card_path, tmp_path / "a")
    train(first)
    torch.manual_seed(12345)
    torch.randn(7)
    second = new_run(card_path, tmp_path / "b")
    train(second)
    assert same(first, second)


def test_truncated_checkpoint_falls_back_to_the_one_before(
    card_path: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    straight = new_run(card_path, tmp_path / "a")
    train(straight)
    broken = new_run(card_path, tmp_path / "b")
    with pytest.raises(Interrupted):
        train(broken, report=stop_at(8))
    newest = sorted(broken.path.glob("checkpoints/*.safetensors"))[-1]
    newest.write_bytes(newest.read_bytes()[:1000])
    train(broken)
    assert newest.name in caplog.text
    assert same(straight, broken)


def test_foreign_checkpoint_is_passed_over(card_path: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    straight = new_run(card_path, tmp_path / "a")
    train(straight)
    other = new_run(card_path, tmp_path / "b")
    folder = other.path / "checkpoints"
    folder.mkdir()
    (folder / "step-000000009.safetensors").write_bytes(b"not a checkpoint at all")
    from_another = new_run(card_path, tmp_path / "c", "train.lr=0.1")
    train(from_another)
    last = sorted(from_another.path.glob("checkpoints/*.safetensors"))[-1]
    (folder / "step-000000010.safetensors").write_bytes(last.read_bytes())
    train(other)
    assert "another configuration" in caplog.text
    assert "step-000000009" in caplog.text
    assert same(straight, other)


def test_a_good_checkpoint_survives_unusable_ones_of_later_steps(card_path: Path, tmp_path: Path) -> None:
    run = new_run(card_path, tmp_path)
    folder = run.path / "checkpoints"
    folder.mkdir()
    for step in (500, 600):
        (folder / f"step-{step:09d}.safetensors").write_bytes(b"half a checkpoint")
    with pytest.raises(Interrupted):
        train(run, report=stop_at(8))
    assert run.checkpoint_step == 8
    assert {p.name for p in folder.glob("*.unusable")} == {"step-000000500.unusable", "step-000000600.unusable"}


def test_a_checkpoint_of_another_architecture_leaves_the_weights_as_they_were(card_path: Path, tmp_path: Path) -> None:
    straight = new_run(card_path, tmp_path / "a")
    train(straight)
    wide = new_run(card_path, tmp_path / "b", "backbone.width=32")
    train(wide)
    run = new_run(card_path, tmp_path / "c")
    folder = run.path / "checkpoints"
    folder.mkdir()
    newest = sorted(wide.path.glob("checkpoints/step-*"))[-1]
    with safe_open(newest, framework="pt") as file:
        tensors = {k: file.get_tensor(k) for k in file.keys()}  # noqa: SIM118
        claims = (file.metadata() or {}) | {"config": run.hash, "step": "9"}
    save_file(tensors, folder / "step-000000009.safetensors", sealed(claims, tensors))
    train(run)
    assert same(straight, run)


def test_weights_of_another_run_are_refused(card_path: Path, tmp_path: Path) -> None:
    run, other = new_run(card_path, tmp_path / "a"), new_run(card_path, tmp_path / "b", "train.lr=0.1")
    for each in (run, other):
        train(each)
    run.weights.write_bytes(other.weights.read_bytes())
    with pytest.raises(UsageError, match=r"another configuration.*delete it"):
        run.load()
    run.weights.unlink()
    train(run)
    run.load()


def test_weights_trained_before_a_setting_existed_survive_a_change_of_the_cards_baselines(
    card_path: Path, tmp_path: Path
) -> None:
    run = new_run(card_path, tmp_path)
    # As an iclbench wrote it that did not know of `evaluators` and `compile` yet.
    text = (run.path / "config.toml").read_text()
    head, training = text.split("[train]")
    older = (
        head
        + "[train]"
        + "".join(line for line in training.splitlines(True) if not line.startswith(("evaluators", "compile")))
    )
    (run.path / "config.toml").write_text(older)
    run = Run(run.path)
    train(run)
    card_path.write_text(card_path.read_text().replace('"knn-3"', '"knn-3", "averaging"'))
    followed = new_run(card_path, tmp_path)
    assert followed.config.task.baselines != run.config.task.baselines, "the run follows the card"
    followed.load()
    train(followed)


def test_tied_weights_can_be_saved(card_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from iclbench.backbones.gpt2 import GPT2

    original = GPT2.__init__

    def tied(self: GPT2, *arguments: object) -> None:
        original(self, *arguments)
        self.twin = self.read_out

    monkeypatch.setattr(GPT2, "__init__", tied)
    run = new_run(card_path, tmp_path)
    train(run)
    assert torch.equal(weights(run)["twin.weight"], weights(run)["read_out.weight"])
    run.load()


def test_a_configuration_that_cannot_be_built_leaves_no_run_behind(card_path: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="multiple"):
        new_run(card_path, tmp_path, "backbone.width=15")
    assert not list(tmp_path.glob("**/config.toml"))


def test_a_configuration_that_never_trained_gives_way(card_path: Path, tmp_path: Path) -> None:
    new_run(card_path, tmp_path, "backbone.width=24")
    good = new_run(card_path, tmp_path)
    train(good)
    assert good.finished


@pytest.mark.parametrize("name", ["zero", "least-squares", "published-gpt2"])
def test_names_that_the_tables_already_have_are_refused(card_path: Path, tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, match="another --name"):
        create(tmp_path, resolve_run(str(card_path), "gpt2", "smoke"), name)


def test_errors_of_a_family_are_not_blamed_on_the_results_folder(
    card_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from iclbench.families.linear import Linear

    def missing(*arguments: object, **options: object) -> None:
        raise FileNotFoundError(2, "No such file", "data.bin")

    monkeypatch.setattr(Linear, "sample", missing)
    with pytest.raises(FileNotFoundError):
        train(new_run(card_path, tmp_path))


def test_diverged_loss_stops_with_advice_and_keeps_the_last_good_checkpoint(card_path: Path, tmp_path: Path) -> None:
    run = new_run(
        card_path,
        tmp_path,
        "train.lr=1e12",
        "train.clip=0",
        "train.steps=60",
        "train.warmup=0",
        "train.schedule=constant",
    )
    with pytest.raises(DivergedError, match=r"train\.lr"):
        train(run)
    assert not run.finished
    for path in run.path.glob("checkpoints/*.safetensors"):
        assert all(torch.isfinite(t).all() for k, t in load_file(path).items() if k.startswith("log."))


@pytest.mark.slow
def test_second_process_on_the_same_run_says_so(card_path: Path, tmp_path: Path) -> None:
    run = new_run(card_path, tmp_path)
    ready, done = FORKS.Event(), FORKS.Event()
    other = FORKS.Process(target=_hold, args=(run, ready, done))
    other.start()
    try:
        assert ready.wait(60)
        with pytest.raises(IclbenchError, match="another process"):
            train(run)
    finally:
        done.set()
        other.join()
    train(run)
    assert run.finished


def _hold(run: Run, ready, done) -> None:
    with run.lock():
        ready.set()
        done.wait(60)


def test_same_name_with_other_settings_shows_the_difference(card_path: Path, tmp_path: Path) -> None:
    train(new_run(card_path, tmp_path))
    with pytest.raises(UsageError, match=r"train\.lr: 0\.001 -> 0\.5"):
        new_run(card_path, tmp_path, "train.lr=0.5")


def test_a_run_follows_its_card_in_what_only_concerns_evaluation(card_path: Path, tmp_path: Path) -> None:
    first = new_run(card_path, tmp_path)
    before, fingerprint = first.config, first.hash
    card_path.write_text(card_path.read_text().replace('"knn-3"', '"knn-3", "averaging"'))
    again = new_run(card_path, tmp_path)
    after = again.config
    assert again.hash == fingerprint
    assert "averaging" in after.task.baselines
    assert after.task.card == before.task.card, "of what is trained and evaluated"


def test_training_lowers_the_loss_and_logs_it(card_path: Path, tmp_path: Path) -> None:
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


def test_context_targets_are_asked_while_training_and_not_in_evaluation() -> None:
    plain = resolve_run("gp-mixture", "tnp", "smoke")
    asked = resolve_run("gp-mixture", "tnp", "smoke", overrides=["task.context_targets=true"])
    family = plain.task.build()
    few, more = (TrainingData.of(run.task, family).batch(run.train, 0, 3) for run in (plain, asked))
    assert torch.equal(few.context.x, more.context.x)
    assert few.asked.count == 64 and more.asked.count == 64 + 16
    assert torch.equal(more.scored.sum(1), 64 + few.context.counts)
    sets = [PromptSet(run.task, "smoke") for run in (plain, asked)]
    assert sets[0].id == sets[1].id
    assert sets[1].episodes.asked.count == 64


def test_learning_rates() -> None:
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


def peak_of_training(run: Run) -> float | None:
    costs = tables.read("costs", run.path / "costs.parquet")
    found = costs[(costs["phase"] == "train") & (costs["metric"] == "bytes")]["value"]
    return None if found.empty else float(found.iloc[0])


@pytest.mark.parametrize("before", [None, 123_456_789_000])
def test_peak_memory_of_a_continued_run_is_that_of_all_processes_or_unknown(
    card_path: Path, tmp_path: Path, before: int | None
) -> None:
    """The first process needed this much, or left a checkpoint that does not say."""
    run = new_run(card_path, tmp_path)
    with pytest.raises(Interrupted):
        train(run, report=stop_at(8))
    with safe_open(run.checkpoints[-1], framework="pt") as file:
        tensors = {k: file.get_tensor(k) for k in file.keys()}  # noqa: SIM118
        claims = file.metadata() or {}
    assert int(claims.pop("bytes")) > 0
    claims |= {} if before is None else {"bytes": str(before)}
    save_file(tensors, run.checkpoints[-1], sealed(claims, tensors))
    train(run)
    assert peak_of_training(run) == before


def test_a_signal_in_the_last_step_is_passed_on_when_the_run_is_finished(card_path: Path, tmp_path: Path) -> None:
    run = new_run(card_path, tmp_path)
    with pytest.raises(Interrupted, match="is finished"):
        train(run, report=stop_at(run.config.train.steps))
    assert run.finished
    train(run)
