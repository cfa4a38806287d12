"""Checkpoints: the last two are kept, and if the last one is invalid, the previous one is used."""

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

from iclbench.core.errors import Interrupted
from iclbench.core.memory import OutOfMemoryError
from iclbench.store.runs import Run
from iclbench.training import checkpoint
from iclbench.training.run import train
from iclbench.training.step import make_optimiser
from tests.conftest import small_card
from tests.refusals import refused
from tests.training.test_run import new_run, stop_at, with_digest

Metadata = dict[str, str]
Tensors = dict[str, Tensor]


@pytest.fixture(scope="module")
def interrupted(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """An interrupted run of 12 steps, with checkpoints of steps 6 and 8."""
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


def restored_step(run: Run) -> int:
    """Return the step from which the run continues."""
    backbone = run.config.build(run.config.task.build())
    return checkpoint.restore(run, backbone, make_optimiser(backbone, run.config.train)).step


def checkpoint_names(run: Run) -> list[str]:
    return sorted(path.name for path in (run.path / "checkpoints").iterdir())


def test_the_last_two_checkpoints_are_kept(run: Run) -> None:
    """A crash or a full disk may destroy the latest checkpoint."""
    assert checkpoint_names(run) == ["step-000000006.safetensors", "step-000000008.safetensors"]
    assert restored_step(run) == 8
    run.checkpoints[-1].unlink()
    assert restored_step(run) == 6


def test_a_checkpoint_that_the_file_system_cannot_read_is_not_renamed(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    newest, names_before, open_path = run.checkpoints[-1], checkpoint_names(run), Path.open

    def stale(path: Path, *args: Any, **options: Any) -> Any:
        if path == newest:
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
        return open_path(path, *args, **options)

    monkeypatch.setattr(Path, "open", stale)
    with refused("unreadable-file", newest, exit_code=1):
        restored_step(run)
    monkeypatch.undo()
    assert checkpoint_names(run) == names_before and restored_step(run) == 8


def test_a_checkpoint_named_after_another_step_is_not_used(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    run.checkpoints[-1].rename(run.path / "checkpoints" / "step-000000011.safetensors")
    assert restored_step(run) == 6
    assert checkpoint_names(run) == ["step-000000006.safetensors", "step-000000011.unusable"]
    assert "step-000000011.safetensors" in caplog.text and "step 8" in caplog.text


@pytest.mark.parametrize("fraction", [0.2, 0.5, 0.9])
def test_a_checkpoint_with_a_flipped_bit_is_not_used(
    run: Run, fraction: float, caplog: pytest.LogCaptureFixture
) -> None:
    newest = run.checkpoints[-1]
    content = newest.read_bytes()
    position = int(fraction * len(content))
    newest.write_bytes(content[:position] + bytes([content[position] ^ 1]) + content[position + 1 :])
    assert restored_step(run) == 6
    assert "step-000000008.safetensors" in caplog.text


def with_metadata(**changes: str) -> Callable[[Metadata, Tensors], None]:
    return lambda metadata, tensors: metadata.update(changes)


def with_tensors(**changes: Tensor) -> Callable[[Metadata, Tensors], None]:
    return lambda metadata, tensors: tensors.update(
        {name.replace("__", "."): tensor for name, tensor in changes.items()}
    )


def with_a_wrong_shape(metadata: Metadata, tensors: Tensors) -> None:
    tensors["optimiser.0.exp_avg"] = torch.zeros(3, 3)


def without_a_moment(metadata: Metadata, tensors: Tensors) -> None:
    del tensors["optimiser.0.exp_avg"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "change",
    [
        with_metadata(step="-8"),
        with_metadata(step="eight"),
        with_metadata(step="0"),
        with_metadata(step="13"),
        with_metadata(step="9" * 5000),
        with_metadata(seconds="nan"),
        with_metadata(seconds="-1.0"),
        with_metadata(seconds="1e999"),
        with_metadata(seconds="[]"),
        with_metadata(bytes='"many"'),
        with_metadata(bytes="-5"),
        with_metadata(bytes="true"),
        with_metadata(bytes="{"),
        with_metadata(scored="3"),
        with_metadata(scored='["row"]'),
        with_metadata(scored="[" * 100_000),
        with_tensors(log__losses=torch.tensor([torch.nan, 1.0])),
        with_tensors(log__steps=torch.tensor([8, 4])),
        with_tensors(log__steps=torch.tensor([4, 400])),
        with_tensors(log__steps=torch.tensor(4)),
        with_tensors(log__losses=torch.zeros(3)),
        with_tensors(log__pending=torch.zeros(2)),
        with_tensors(log__pending=torch.tensor(torch.inf)),
        with_a_wrong_shape,
        without_a_moment,
        with_tensors(optimiser__999__step=torch.tensor(1.0)),
        with_tensors(optimiser__x__step=torch.tensor(1.0)),
    ],
)
def test_a_checkpoint_with_invalid_contents_is_not_used(run: Run, change: Callable[[Metadata, Tensors], None]) -> None:
    """The digest of the checkpoint is correct."""
    newest = run.checkpoints[-1]
    with safe_open(newest, framework="pt") as file:
        tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
        metadata = file.metadata() or {}
    assert json.loads(metadata["scored"]) == [] and tensors["log.losses"].shape == (2,)
    save_file(tensors, newest, with_digest(metadata, tensors))
    assert restored_step(run) == 8, "the rewritten checkpoint is valid"
    change(metadata, tensors)
    save_file(tensors, newest, with_digest(metadata, tensors))
    assert restored_step(run) == 6
    assert checkpoint_names(run) == ["step-000000006.safetensors", "step-000000008.unusable"]


def test_running_out_of_memory_does_not_mark_a_checkpoint_as_unusable(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run_out_of_memory(*arguments: object) -> None:
        torch.empty(10**15)

    monkeypatch.setattr(checkpoint, "_load", run_out_of_memory)
    with pytest.raises(OutOfMemoryError, match=r"-o train\.batch"):
        restored_step(run)
    assert checkpoint_names(run) == ["step-000000006.safetensors", "step-000000008.safetensors"]
