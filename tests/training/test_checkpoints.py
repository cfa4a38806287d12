"""Checkpoints: two are kept, and one that no training has written is set aside for the one before."""

import errno
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tomli_w
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from iclbench.core.errors import IclbenchError, Interrupted
from iclbench.core.memory import OutOfMemoryError
from iclbench.store.runs import Run
from iclbench.training import checkpoint
from iclbench.training.run import train
from iclbench.training.step import make_optimiser
from tests.conftest import small_card
from tests.training.test_run import new_run, sealed, stop_at

Claims = dict[str, str]
Tensors = dict[str, Tensor]


@pytest.fixture(scope="module")
def interrupted(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run with checkpoints of steps 6 and 8, of 12."""
    folder = tmp_path_factory.mktemp("interrupted")
    card = folder / "tiny-linear.toml"
    card.write_text(tomli_w.dumps(small_card()))
    run = new_run(card, folder)
    with pytest.raises(Interrupted):
        train(run, report=stop_at(8))
    return run


@pytest.fixture
def run(interrupted: Run, tmp_path: Path) -> Run:
    return Run(Path(shutil.copytree(interrupted.path, tmp_path / interrupted.name)))


def restored(run: Run) -> int:
    """The step from which the run goes on."""
    backbone = run.config.build(run.config.task.build())
    return checkpoint.restore(run, backbone, make_optimiser(backbone, run.config.train)).step


def names(run: Run) -> list[str]:
    return sorted(path.name for path in (run.path / "checkpoints").iterdir())


def test_two_are_kept_and_without_the_newer_one_the_older_is_gone_on_from(run: Run) -> None:
    """A crash may take the newest with it, and so may a full disk: one would not be enough, three are not needed."""
    assert names(run) == ["step-000000006.safetensors", "step-000000008.safetensors"]
    assert restored(run) == 8
    run.checkpoints[-1].unlink()
    assert restored(run) == 6


def test_one_that_cannot_be_read_now_is_not_set_aside(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    newest, kept, opened = run.checkpoints[-1], names(run), Path.open

    def stale(path: Path, *args: Any, **more: Any) -> Any:
        if path == newest:
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
        return opened(path, *args, **more)

    monkeypatch.setattr(Path, "open", stale)
    with pytest.raises(IclbenchError, match="the same command tries again"):
        restored(run)
    monkeypatch.undo()
    assert names(run) == kept and restored(run) == 8


def test_one_that_was_renamed_to_another_step_is_refused(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    run.checkpoints[-1].rename(run.path / "checkpoints" / "step-000000011.safetensors")
    assert restored(run) == 6
    assert names(run) == ["step-000000006.safetensors", "step-000000011.unusable"]
    assert "step-000000011.safetensors cannot be used (it is of step 8)" in caplog.text


@pytest.mark.parametrize("place", [0.2, 0.5, 0.9])
def test_one_flipped_bit_sets_a_checkpoint_aside(run: Run, place: float, caplog: pytest.LogCaptureFixture) -> None:
    newest = run.checkpoints[-1]
    whole = newest.read_bytes()
    at = int(place * len(whole))
    newest.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
    assert restored(run) == 6
    assert "step-000000008.safetensors cannot be used" in caplog.text


def claim(**claims: str) -> Callable[[Claims, Tensors], None]:
    return lambda metadata, tensors: metadata.update(claims)


def hold(**held: Tensor) -> Callable[[Claims, Tensors], None]:
    return lambda metadata, tensors: tensors.update({name.replace("__", "."): each for name, each in held.items()})


def of_another_shape(metadata: Claims, tensors: Tensors) -> None:
    tensors["optimiser.0.exp_avg"] = torch.zeros(3, 3)


def without_a_moment(metadata: Claims, tensors: Tensors) -> None:
    del tensors["optimiser.0.exp_avg"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "change",
    [
        claim(step="-8"),
        claim(step="eight"),
        claim(step="0"),
        claim(step="13"),
        claim(step="9" * 5000),
        claim(seconds="nan"),
        claim(seconds="-1.0"),
        claim(seconds="1e999"),
        claim(seconds="[]"),
        claim(bytes='"many"'),
        claim(bytes="-5"),
        claim(bytes="true"),
        claim(bytes="{"),
        claim(scored="3"),
        claim(scored='["row"]'),
        claim(scored="[" * 100_000),
        hold(log__losses=torch.tensor([torch.nan, 1.0])),
        hold(log__steps=torch.tensor([8, 4])),
        hold(log__steps=torch.tensor([4, 400])),
        hold(log__steps=torch.tensor(4)),
        hold(log__losses=torch.zeros(3)),
        hold(log__pending=torch.zeros(2)),
        hold(log__pending=torch.tensor(torch.inf)),
        of_another_shape,
        without_a_moment,
        hold(optimiser__999__step=torch.tensor(1.0)),
        hold(optimiser__x__step=torch.tensor(1.0)),
    ],
)
def test_what_no_training_has_written_is_set_aside(run: Run, change: Callable[[Claims, Tensors], None]) -> None:
    """Even with a digest that is right."""
    newest = run.checkpoints[-1]
    with safe_open(newest, framework="pt") as file:
        tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
        claims = file.metadata() or {}
    assert json.loads(claims["scored"]) == [] and tensors["log.losses"].shape == (2,)
    save_file(tensors, newest, sealed(claims, tensors))
    assert restored(run) == 8, "nothing is wrong with it yet"
    change(claims, tensors)
    save_file(tensors, newest, sealed(claims, tensors))
    assert restored(run) == 6
    assert names(run) == ["step-000000006.safetensors", "step-000000008.unusable"]


def test_want_of_memory_is_not_taken_for_a_damaged_checkpoint(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def short(*arguments: object) -> None:
        torch.empty(10**15)

    monkeypatch.setattr(checkpoint, "_load", short)
    with pytest.raises(OutOfMemoryError, match=r"-o train\.batch"):
        restored(run)
    assert names(run) == ["step-000000006.safetensors", "step-000000008.safetensors"]
