"""The folder of a run: what is written there is whole, believed only as it was written, and never lost in silence."""

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
from iclbench.core.errors import IclbenchError, Interrupted, UsageError
from iclbench.core.files import digest_path
from iclbench.store.runs import Run, create, writing
from iclbench.training.run import Report, _Stop, train
from tests.conftest import small_card
from tests.training.test_run import new_run, same


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A finished run."""
    folder = tmp_path_factory.mktemp("whole")
    card = folder / "tiny-linear.toml"
    card.write_text(tomli_w.dumps(small_card()))
    run = new_run(card, folder)
    train(run)
    return run


@pytest.fixture
def finished(whole: Run, tmp_path: Path) -> Run:
    return Run(Path(shutil.copytree(whole.path, tmp_path / "copied" / "runs" / whole.name)))


def flip(path: Path, place: float) -> None:
    whole = path.read_bytes()
    at = int(place * len(whole))
    path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])


@pytest.mark.parametrize("place", [0.5, 0.99])
def test_one_flipped_bit_in_weights_is_one_line_with_the_fix(finished: Run, place: float) -> None:
    finished.load()
    flip(finished.weights, place)
    with pytest.raises(UsageError, match=r"model\.safetensors does not hold the weights.*digest.*delete it, and"):
        finished.load()


def test_weights_that_have_lost_their_digest_are_one_line_with_the_fix(finished: Run) -> None:
    beside = digest_path(finished.weights)
    written = beside.read_text()
    assert finished.is_intact
    beside.unlink()
    assert not finished.is_intact
    with pytest.raises(UsageError, match=r"\(model\.safetensors\.sha256 is missing.*put it back\); delete it, and"):
        finished.load()
    beside.write_text(written)
    finished.load()


def test_weights_may_be_read_by_whom_the_umask_lets(card_path: Path, tmp_path: Path, whole: Run) -> None:
    assert {oct(path.stat().st_mode & 0o777) for path in [*whole.training_files, *whole.checkpoints]} == {
        oct(0o666 & ~mask())
    }


def mask() -> int:
    before = os.umask(0)
    os.umask(before)
    return before


def test_half_written_files_of_killed_processes_go_when_the_run_is_locked(finished: Run) -> None:
    left = [finished.path / ".model.safetensors.4711.tmp", finished.path / "checkpoints" / ".step-000000003.1.tmp"]
    others = [finished.path / ".notes.tmp", finished.path / "4711.tmp"]
    for path in (*left, *others):
        path.write_text("half")
    train(finished)
    assert not any(path.exists() for path in left)
    assert all(path.exists() for path in others)


def after(step: int, what: object) -> Report:
    def report(done: int, loss: float) -> None:
        if done == step:
            what()  # type: ignore[operator]

    return report


@pytest.mark.parametrize("moved", [True, False])
def test_a_folder_that_went_away_while_training_is_made_anew_and_the_end_says_so(
    card_path: Path, tmp_path: Path, whole: Run, moved: bool, caplog: pytest.LogCaptureFixture
) -> None:
    run = new_run(card_path, tmp_path / "results")
    config = (run.path / "config.toml").read_text()

    def away() -> None:
        if moved:
            (tmp_path / "results").rename(tmp_path / "elsewhere")
        else:
            shutil.rmtree(tmp_path / "results")

    with caplog.at_level(logging.WARNING):
        train(run, report=after(8, away))
    assert f"{run.path} was deleted or moved while run '{run.name}' trained" in caplog.text
    assert (run.path / "config.toml").read_text() == config
    again = Run(run.path)
    assert again.finished and same(again, whole)
    again.load()


def test_in_the_place_of_another_run_nothing_is_written(card_path: Path, tmp_path: Path) -> None:
    run = new_run(card_path, tmp_path)

    def replace() -> None:
        run.path.rename(tmp_path / "moved")
        new_run(card_path, tmp_path, "train.lr=0.5")

    with pytest.raises(IclbenchError, match=r"was replaced while run .*--name") as stopped:
        train(run, report=after(8, replace))
    assert stopped.value.exit_code == 1
    assert sorted(path.name for path in run.path.iterdir()) == [".lock", "config.toml"]
    assert Run(run.path).config.train.lr == 0.5


def test_a_run_in_training_keeps_its_configuration(card_path: Path, tmp_path: Path) -> None:
    """Before its first checkpoint another command of the same name would have taken it from under the weights."""
    run = new_run(card_path, tmp_path)
    before = (run.path / "config.toml").read_text()
    with run.lock():
        new_run(card_path, tmp_path)
        with pytest.raises(IclbenchError, match="is being trained by another process"):
            new_run(card_path, tmp_path, "train.lr=0.5")
    assert (run.path / "config.toml").read_text() == before


def test_a_new_run_takes_no_random_numbers_of_the_caller(card_path: Path, tmp_path: Path) -> None:
    torch.manual_seed(0)
    expected = torch.rand(3)
    torch.manual_seed(0)
    new_run(card_path, tmp_path)
    assert torch.equal(torch.rand(3), expected)


@contextmanager
def room(size: int) -> Iterator[None]:
    """No file may be larger."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_full_disk_is_exit_1_and_leaves_what_was_whole(card_path: Path, tmp_path: Path) -> None:
    """Tables fit, checkpoints do not; safetensors has an exception of its own for it."""
    run = new_run(card_path, tmp_path)
    with room(4096), pytest.raises(IclbenchError, match=r"cannot write to the results folder .*make room") as full:
        train(run)
    assert full.value.exit_code == 1
    assert [path.name for path in run.path.rglob("*") if path.is_file()] == [".lock", "config.toml"]
    train(run)
    assert run.finished


@pytest.mark.parametrize(
    ("number", "code"), [(errno.ENOSPC, 1), (errno.EDQUOT, 1), (errno.EACCES, 2), (errno.EROFS, 2), (errno.EEXIST, 2)]
)
def test_no_room_is_a_failure_and_no_permission_a_wrong_request(tmp_path: Path, number: int, code: int) -> None:
    with pytest.raises(IclbenchError, match=str(tmp_path)) as refused, writing(tmp_path):
        raise OSError(number, os.strerror(number))
    assert refused.value.exit_code == code


@pytest.mark.parametrize("text", ["", "preset = 3\n", "seed = [", "task = 5\n"])
def test_a_configuration_that_does_not_say_what_was_trained_is_one_line_with_the_fix(
    finished: Run, text: str, capsys: pytest.CaptureFixture[str], card_path: Path
) -> None:
    (finished.path / "config.toml").write_text(text)
    results = str(finished.path.parents[1])
    for command in (["eval", finished.name], ["train", str(card_path), "gpt2", "--preset", "smoke", "--seed", "3"]):
        assert main([*command, "--results", results]) == 2
        said = capsys.readouterr().err.strip().splitlines()[-1]
        assert said.startswith(f"error: {finished.path}") and "config.toml" in said
        assert said.endswith(f"put the file back, or move {finished.path} away or delete it and train the run again")
    assert main(["list", "runs", "--results", results]) == 0


def test_the_third_signal_ends_a_long_step_but_no_checkpoint_at_work(card_path: Path, tmp_path: Path) -> None:
    stop = _Stop(new_run(card_path, tmp_path))
    stop.ask(2, None)
    stop.ask(2, None)
    assert stop
    with stop.held():
        stop.ask(2, None)
    with pytest.raises(Interrupted, match="from step 0") as at_once:
        stop.ask(2, None)
    assert at_once.value.exit_code == 130
    assert create(tmp_path, resolve_run(str(card_path), "gpt2", "smoke", 3)).checkpoint_step == 0
