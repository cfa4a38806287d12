"""Diverged trainings: remembered until their configuration changes, with the curve as far as it goes."""

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
from tests.training.test_run import new_run

TOO_FAST = ("train.lr=1e12", "train.clip=0", "train.warmup=0", "train.schedule=constant", "train.log_every=1")


def diverged(card: Path, results: Path) -> Run:
    run = new_run(card, results, *TOO_FAST)
    with pytest.raises(DivergedError, match=r"diverged at step \d+: the loss is (nan|inf).*train\.lr") as found:
        train(run)
    assert found.value.exit_code == 1
    return run


def test_what_diverged_is_not_trained_again(
    card_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = diverged(card_path, tmp_path)
    with monkeypatch.context() as patched:
        patched.delattr(TrainingData, "batch")  # nothing is drawn
        overrides = [part for each in TOO_FAST for part in ("-o", each)]
        command = ["train", str(card_path), "gpt2", "--preset", "smoke", "--seed", "3", "--results", str(tmp_path)]
        assert main([*command, *overrides]) == 1
        (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]
        assert "has diverged at step" in line and "train.lr" in line and str(run.path / "diverged.json") in line
        with pytest.raises(DivergedError, match="not tried again"):
            run.load()
    (run.path / "diverged.json").unlink()
    with pytest.raises(DivergedError, match="the last good checkpoint is kept"):
        train(run)


def test_where_all_runs_have_diverged_eval_names_them(
    card_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = diverged(card_path, tmp_path)
    assert main(["eval", "--results", str(tmp_path)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert f"run '{run.name}' has diverged at step" in line and "lower -o train.lr" in line


def test_another_configuration_trains_and_forgets_it(card_path: Path, tmp_path: Path) -> None:
    run = diverged(card_path, tmp_path)
    assert not run.is_started
    slower = new_run(card_path, tmp_path)
    assert slower.path == run.path and slower.diverged is None
    train(slower)
    assert slower.finished and not (run.path / "diverged.json").exists()
    curve = tables.read("values", run.path / "values.parquet")
    assert set(curve["status"]) == {"ok"}


def test_its_curve_ends_in_a_failed_row_with_the_reason(card_path: Path, tmp_path: Path) -> None:
    run = diverged(card_path, tmp_path)
    found = run.diverged
    assert found is not None
    curve = tables.read("values", run.path / "values.parquet").sort_values("axis_value")
    assert curve["axis_value"].tolist() == [float(step) for step in range(1, found.step + 1)]
    assert curve["status"].tolist() == ["ok"] * (found.step - 1) + ["failed"]
    assert curve["value"].isna().tolist() == [False] * (found.step - 1) + [True]
    assert curve["reason"].iloc[-1] == found.reason


def test_final_weights_that_are_not_finite_are_no_finished_run(
    card_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loss of the last step is that of the weights before it."""
    steps = 0

    def descend(loss: torch.Tensor, backbone: GPT2, *arguments: object) -> None:
        nonlocal steps
        steps += 1
        if steps == 12:
            backbone.read_out.weight.data[0, 0] = torch.inf

    monkeypatch.setattr(fit, "descend", descend)
    run = new_run(card_path, tmp_path)
    with pytest.raises(DivergedError, match=r"at step 12: weights are not finite \(read_out\.weight\)"):
        train(run)
    assert not run.finished and run.checkpoint_step == 9


def test_what_was_infinite_from_the_start_is_no_divergence(
    card_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = GPT2.__init__

    def masked(self: GPT2, *arguments: object) -> None:
        original(self, *arguments)
        self.register_buffer("mask", torch.tensor([0.0, -torch.inf]))

    monkeypatch.setattr(GPT2, "__init__", masked)
    run = new_run(card_path, tmp_path)
    train(run)
    assert run.finished


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"config": 3, "step": 1, "what": "x"}'])
def test_a_record_that_cannot_be_read_is_found_out_again(card_path: Path, tmp_path: Path, text: str) -> None:
    run = new_run(card_path, tmp_path)
    (run.path / "diverged.json").write_text(text)
    assert run.diverged is None


def test_it_crosses_to_other_processes(tmp_path: Path) -> None:
    error = DivergedError(Run(tmp_path / "a"), 3, "the loss is nan", is_recorded=True)
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.reason) == (str(error), error.reason)
