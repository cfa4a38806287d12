"""Run folders: complete files, digests, full disks, and folders that are moved or removed."""

import errno
import logging
import os
import resource
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import tomli_w
import torch

from iclbench.cli.main import main
from iclbench.config.resolution import resolve_run
from iclbench.core.errors import IclbenchError, UsageError
from iclbench.core.files import digest_path
from iclbench.store.runs import Run, create, write_errors
from iclbench.training.run import StepReport, _StopFlag, train
from tests.conftest import small_card
from tests.refusals import refused
from tests.training.test_run import have_same_weights, new_run


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A finished run, which tests must not change."""
    folder = tmp_path_factory.mktemp("original")
    card = folder / "tiny-linear.toml"
    card.write_text(tomli_w.dumps(small_card()))
    run = new_run(card, folder)
    train(run)
    return run


@pytest.fixture
def finished_run(original: Run, tmp_path: Path) -> Run:
    return Run(Path(shutil.copytree(original.path, tmp_path / "copied" / "runs" / original.name)))


def flip_bit(path: Path, fraction: float) -> None:
    content = path.read_bytes()
    position = int(fraction * len(content))
    path.write_bytes(content[:position] + bytes([content[position] ^ 1]) + content[position + 1 :])


@pytest.mark.parametrize("fraction", [0.5, 0.99])
def test_weights_with_a_flipped_bit_are_refused(finished_run: Run, fraction: float) -> None:
    finished_run.load()
    flip_bit(finished_run.weights, fraction)
    with pytest.raises(UsageError, match=r"model\.safetensors"):
        finished_run.load()


def test_weights_without_a_digest_are_refused(finished_run: Run) -> None:
    digest_file = digest_path(finished_run.weights)
    digest = digest_file.read_text()
    assert finished_run.is_intact
    digest_file.unlink()
    assert not finished_run.is_intact
    with pytest.raises(UsageError, match=r"model\.safetensors\.sha256"):
        finished_run.load()
    digest_file.write_text(digest)
    finished_run.load()


def test_weights_and_checkpoints_have_permissions_that_follow_the_umask(
    card_path: Path, tmp_path: Path, original: Run
) -> None:
    assert {oct(path.stat().st_mode & 0o777) for path in [*original.training_files, *original.checkpoints]} == {
        oct(0o666 & ~umask())
    }


def umask() -> int:
    value = os.umask(0)
    os.umask(value)
    return value


def test_temporary_files_of_killed_processes_are_removed(finished_run: Run) -> None:
    temporary_files = [
        finished_run.path / ".model.safetensors.4711.tmp",
        finished_run.path / "checkpoints" / ".step-000000003.1.tmp",
    ]
    other_files = [finished_run.path / ".notes.tmp", finished_run.path / "4711.tmp"]
    for path in (*temporary_files, *other_files):
        path.write_text("half")
    train(finished_run)
    assert not any(path.exists() for path in temporary_files)
    assert all(path.exists() for path in other_files)


def call_after(step: int, action: object) -> StepReport:
    def report(finished_step: int, loss: float) -> None:
        if finished_step == step:
            action()  # type: ignore[operator]

    return report


@pytest.mark.parametrize("moved", [True, False])
def test_a_run_folder_moved_or_removed_during_training_is_recreated_with_a_warning(
    card_path: Path, tmp_path: Path, original: Run, moved: bool, caplog: pytest.LogCaptureFixture
) -> None:
    run = new_run(card_path, tmp_path / "results")
    config = (run.path / "config.toml").read_text()

    def move_or_remove() -> None:
        if moved:
            (tmp_path / "results").rename(tmp_path / "elsewhere")
        else:
            shutil.rmtree(tmp_path / "results")

    with caplog.at_level(logging.WARNING):
        train(run, report=call_after(8, move_or_remove))
    assert str(run.path) in caplog.text and f"'{run.name}'" in caplog.text
    assert (run.path / "config.toml").read_text() == config
    recreated = Run(run.path)
    assert recreated.is_finished and have_same_weights(recreated, original)
    recreated.load()


def test_training_does_not_write_into_the_folder_of_another_run(card_path: Path, tmp_path: Path) -> None:
    run = new_run(card_path, tmp_path)

    def replace() -> None:
        run.path.rename(tmp_path / "moved")
        new_run(card_path, tmp_path, "train.lr=0.5")

    with pytest.raises(IclbenchError, match=r"--name") as error:
        train(run, report=call_after(8, replace))
    assert error.value.exit_code == 1
    assert sorted(path.name for path in run.path.iterdir()) == [".lock", "config.toml"]
    assert Run(run.path).config.train.lr == 0.5


def test_the_configuration_of_a_run_is_not_replaced_during_training(card_path: Path, tmp_path: Path) -> None:
    """Without the lock, a command for a run with the same name could replace the configuration before the first
    checkpoint."""
    run = new_run(card_path, tmp_path)
    config_before = (run.path / "config.toml").read_text()
    with run.lock():
        new_run(card_path, tmp_path)
        with pytest.raises(IclbenchError, match=run.name):
            new_run(card_path, tmp_path, "train.lr=0.5")
    assert (run.path / "config.toml").read_text() == config_before


def test_a_new_run_does_not_change_the_random_state_of_the_caller(card_path: Path, tmp_path: Path) -> None:
    torch.manual_seed(0)
    expected = torch.rand(3)
    torch.manual_seed(0)
    new_run(card_path, tmp_path)
    assert torch.equal(torch.rand(3), expected)


@contextmanager
def file_size_limit(size: int) -> Iterator[None]:
    """Limit each file that is written inside the block to `size` bytes."""
    previous = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, previous[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, previous)


def test_a_full_disk_leaves_no_incomplete_files(card_path: Path, tmp_path: Path) -> None:
    """Tables fit on the disk, but checkpoints do not. For checkpoints, safetensors raises its own exception."""
    run = new_run(card_path, tmp_path)
    with file_size_limit(4096), pytest.raises(IclbenchError, match=str(tmp_path)) as error:
        train(run)
    assert error.value.exit_code == 1
    assert [path.name for path in run.path.rglob("*") if path.is_file()] == [".lock", "config.toml"]
    train(run)
    assert run.is_finished


@pytest.mark.parametrize(
    ("number", "code"), [(errno.ENOSPC, 1), (errno.EDQUOT, 1), (errno.EACCES, 2), (errno.EROFS, 2), (errno.EEXIST, 2)]
)
def test_a_full_disk_gives_exit_code_1_and_other_write_errors_give_2(tmp_path: Path, number: int, code: int) -> None:
    with pytest.raises(IclbenchError, match=str(tmp_path)) as error, write_errors(tmp_path):
        raise OSError(number, os.strerror(number))
    assert error.value.exit_code == code


@pytest.mark.parametrize("text", ["", "preset = 3\n", "seed = [", "task = 5\n"])
def test_a_damaged_configuration_is_refused(
    finished_run: Run, text: str, capsys: pytest.CaptureFixture[str], card_path: Path
) -> None:
    (finished_run.path / "config.toml").write_text(text)
    results = str(finished_run.path.parents[1])
    for command in (["eval", finished_run.name], ["train", str(card_path), "gpt2", "--preset", "smoke", "--seed", "3"]):
        assert main([*command, "--results", results]) == 2
        message = capsys.readouterr().err.strip().splitlines()[-1]
        assert message.startswith(f"error: {finished_run.path}") and "config.toml" in message
    assert main(["list", "runs", "--results", results]) == 0


def test_the_third_signal_interrupts_a_long_step_but_not_a_checkpoint_write(card_path: Path, tmp_path: Path) -> None:
    stop = _StopFlag(new_run(card_path, tmp_path))
    stop.handle(2, None)
    stop.handle(2, None)
    assert stop
    with stop.defer_interrupt():
        stop.handle(2, None)
    with refused("interrupted", "step 0", exit_code=130):
        stop.handle(2, None)
    assert create(tmp_path, resolve_run(str(card_path), "gpt2", "smoke", 3)).checkpoint_step == 0
