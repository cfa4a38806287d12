"""Diverged runs: the record of the divergence, and the learning curve."""

import pickle
from pathlib import Path

import pytest
import torch

from iclbench import tables
from iclbench.backbones.gpt2 import GPT2
from iclbench.cli.main import main
from iclbench.store.runs import DivergedError, Run
from iclbench.training import fit
from iclbench.training.run import train
from iclbench.training.step import TrainingData
from tests.refusals import refused
from tests.training.test_run import new_run

DIVERGING = ("train.lr=1e12", "train.clip=0", "train.warmup=0", "train.schedule=constant", "train.log_every=1")


def diverged_run(card: Path, results: Path) -> Run:
    run = new_run(card, results, *DIVERGING)
    with refused("diverged", run.name, "train.lr", exit_code=1):
        train(run)
    return run


def test_a_diverged_configuration_is_not_trained_again(
    card_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = diverged_run(card_path, tmp_path)
    with monkeypatch.context() as patched:
        patched.delattr(TrainingData, "batch")  # no batch may be sampled
        overrides = [part for override in DIVERGING for part in ("-o", override)]
        command = ["train", str(card_path), "gpt2", "--preset", "smoke", "--seed", "3", "--results", str(tmp_path)]
        assert main([*command, *overrides]) == 1
        (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]
        assert "train.lr" in line and str(run.path / "diverged.json") in line
        with refused("diverged", run.name, exit_code=1):
            run.load()
    (run.path / "diverged.json").unlink()
    with refused("diverged", run.name, exit_code=1):
        train(run)


def test_eval_names_all_runs_if_all_have_diverged(
    card_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = diverged_run(card_path, tmp_path)
    assert main(["eval", "--results", str(tmp_path)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert f"'{run.name}'" in line and "-o train.lr" in line


def test_training_another_configuration_removes_the_record(card_path: Path, tmp_path: Path) -> None:
    run = diverged_run(card_path, tmp_path)
    assert not run.is_started
    slower = new_run(card_path, tmp_path)
    assert slower.path == run.path and slower.recorded_divergence is None
    train(slower)
    assert slower.is_finished and not (run.path / "diverged.json").exists()
    curve = tables.read("values", run.path / "values.parquet")
    assert set(curve["status"]) == {"ok"}


def test_the_learning_curve_ends_with_a_failed_row_that_states_the_reason(card_path: Path, tmp_path: Path) -> None:
    run = diverged_run(card_path, tmp_path)
    error = run.recorded_divergence
    assert error is not None
    curve = tables.read("values", run.path / "values.parquet").sort_values("axis_value")
    assert curve["axis_value"].tolist() == [float(step) for step in range(1, error.step + 1)]
    assert curve["status"].tolist() == ["ok"] * (error.step - 1) + ["failed"]
    assert curve["value"].isna().tolist() == [False] * (error.step - 1) + [True]
    assert curve["reason"].iloc[-1] == error.reason


def test_a_run_whose_final_weights_are_not_finite_is_not_finished(
    card_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loss of the last step is computed before the final update, so it does not detect this divergence."""
    steps = 0

    def descend(loss: torch.Tensor, backbone: GPT2, *arguments: object) -> None:
        nonlocal steps
        steps += 1
        if steps == 12:
            backbone.read_out.weight.data[0, 0] = torch.inf

    monkeypatch.setattr(fit, "descend", descend)
    run = new_run(card_path, tmp_path)
    with refused("diverged", "step 12", "read_out.weight", exit_code=1):
        train(run)
    assert not run.is_finished and run.checkpoint_step == 9


def test_a_buffer_that_is_infinite_from_the_start_is_not_a_divergence(
    card_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = GPT2.__init__

    def masked(self: GPT2, *arguments: object) -> None:
        original(self, *arguments)
        self.register_buffer("mask", torch.tensor([0.0, -torch.inf]))

    monkeypatch.setattr(GPT2, "__init__", masked)
    run = new_run(card_path, tmp_path)
    train(run)
    assert run.is_finished


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"config": 3, "step": 1, "what": "x"}'])
def test_an_unreadable_divergence_record_is_ignored(card_path: Path, tmp_path: Path, text: str) -> None:
    run = new_run(card_path, tmp_path)
    (run.path / "diverged.json").write_text(text)
    assert run.recorded_divergence is None


def test_the_divergence_error_can_be_pickled(tmp_path: Path) -> None:
    error = DivergedError(Run(tmp_path / "a"), 3, "the loss is nan", is_recorded=True)
    copy = pickle.loads(pickle.dumps(error))
    assert (str(copy), copy.reason) == (str(error), error.reason)
