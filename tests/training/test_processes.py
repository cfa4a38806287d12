"""Several processes train what one does: the same losses to rounding, and runs go on with another number of them."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.multiprocessing
from torch import Tensor

from iclbench import tables
from iclbench.cli.main import main
from iclbench.config.cards import TrainSettings
from iclbench.config.resolution import resolve_run
from iclbench.core.episodes import Episodes
from iclbench.core.errors import IclbenchError, UsageError
from iclbench.training import processes
from iclbench.training.fit import Training
from iclbench.training.processes import ALONE, Processes, check_count, joined, started, this_process
from iclbench.training.step import TrainingData
from tests.forked import FORKS


class Doubled(TrainingData):
    """Episodes in double precision, of which every third asks for fewer points, and one for none."""

    def batch(self, settings: TrainSettings, seed: int, step: int, device: str = "cpu") -> Episodes:
        episodes = super().batch(settings, seed, step, device).to(dtype=torch.float64)
        episodes.scored[::3, : 1 + step % 3] = False
        episodes.scored[1] = False
        return episodes


def losses(name: str, double: bool, steps: int, processes: Processes) -> list[float]:
    config = resolve_run("linear", name, "smoke", overrides=["train.batch=7", "task.dim=3", "backbone.width=16"])
    torch.manual_seed(0)
    family = config.task.build()
    backbone = config.build(family)
    data = TrainingData.of(config.task, family)
    if double:
        backbone, data = backbone.double(), Doubled(data.family, data.points)
    training = Training(backbone, data, config.train, 0, "cpu", processes)
    found = []
    for _ in range(steps):
        before = training.progress.pending.clone()
        training.step()
        found.append(float(training.progress.pending - before))
        training.progress.pending = torch.zeros_like(training.progress.pending)
    return found


def _one_of_two(rank: int, name: str, double: bool, steps: int, port: int, path: str) -> None:
    torch.set_num_threads(1)
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    with joined("cpu") as own:
        found = losses(name, double, steps, own)
    if own.leads:
        torch.save(torch.tensor(found, dtype=torch.float64), path)


def of_two(name: str, double: bool, steps: int, path: Path, port: int) -> Tensor:
    arguments = (name, double, steps, port, str(path))
    torch.multiprocessing.start_processes(_one_of_two, arguments, nprocs=2, start_method=FORKS.get_start_method())
    found: Tensor = torch.load(path)
    return found


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "double", "steps", "port"),
    [
        ("gpt2", True, 50, 29611),
        pytest.param("gpt2", True, 200, 29613, marks=pytest.mark.slow),
        pytest.param("mamba2", False, 200, 29612, marks=pytest.mark.slow),
    ],
)
def test_two_processes_have_the_losses_of_one(name: str, double: bool, steps: int, port: int, tmp_path: Path) -> None:
    """Step by step on a batch that they cannot halve: to 1e-10 in double precision, to 1e-4 in single."""
    one = torch.tensor(losses(name, double, steps, ALONE), dtype=torch.float64)
    two = of_two(name, double, steps, tmp_path / "losses.pt", port)
    assert len(one.unique()) == steps
    torch.testing.assert_close(two, one, rtol=1e-10 if double else 1e-4, atol=0.0 if double else 1e-4)


def train(results: Path, *more: str) -> subprocess.Popen[str]:
    options = ["--preset", "smoke", "-o", "train.steps=400", "-o", "train.checkpoint_every=20", "-o", "task.dim=3"]
    command = [sys.executable, "-m", "iclbench", "train", "linear", "gpt2", "--results", str(results), *options, *more]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


@pytest.mark.slow
def test_a_run_goes_on_with_another_number_of_processes(tmp_path: Path) -> None:
    """From two to one and back, each interrupted by Ctrl-C; the learning curve is that of one process."""
    alone = train(tmp_path / "one")
    assert alone.wait(120) == 0
    run = tmp_path / "r" / "runs" / "linear-gpt2-smoke-s0"
    reached = 0
    for count in (2, 1):
        process = train(tmp_path / "r", "--processes", str(count))
        while not any(int(path.stem.split("-")[1]) > reached for path in run.glob("checkpoints/step-*")):
            assert process.poll() is None, process.communicate()[0]
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        said, _ = process.communicate(timeout=60)
        assert process.returncode == 130 and "continues run" in said, said
        steps = [int(path.stem.split("-")[1]) for path in run.glob("checkpoints/step-*")]
        assert reached < max(steps) < 400
        reached = max(steps)
    last = train(tmp_path / "r", "--processes", "2")
    assert last.wait(120) == 0, last.communicate()[0]
    one, other = (
        tables.read("values", folder / "runs" / "linear-gpt2-smoke-s0" / "values.parquet")
        for folder in (tmp_path / "one", tmp_path / "r")
    )
    assert one["axis_value"].tolist() == other["axis_value"].tolist()
    torch.testing.assert_close(torch.tensor(other["value"]), torch.tensor(one["value"]), rtol=1e-4, atol=1e-4)


@pytest.mark.slow
def test_a_process_that_is_gone_is_told_in_a_line(tmp_path: Path) -> None:
    process = train(tmp_path / "r", "--processes", "2", "-o", "train.steps=100000")
    run = tmp_path / "r" / "runs" / "linear-gpt2-smoke-s0"
    while not list(run.glob("checkpoints/step-*")):
        assert process.poll() is None, process.communicate()[0]
        time.sleep(0.05)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    os.kill(int(children[0]), signal.SIGKILL)
    said, _ = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "another of the 2 processes of this training is gone" in said and "goes on from the last checkpoint" in said


def test_what_several_processes_cannot_train_is_refused() -> None:
    config = resolve_run("linear", "gpt2", "smoke", overrides=["train.batch=2"])
    backbone = config.build(config.task.build())
    with pytest.raises(UsageError, match="a batch of 2 cannot be shared by 3 processes"):
        Processes(0, 3).check(backbone, 2)
    for task, name, more in (
        ("gp-mixture", "np", []),
        ("gp-mixture", "tnp-d", []),
        ("gp-mixture", "cnp", []),
        ("point-process", "thp", []),
        ("linear", "s4", ["backbone.dropout=0.1"]),
        ("bursty", "coqe", []),
    ):
        drawing = resolve_run(task, name, "smoke", overrides=more)
        with pytest.raises(UsageError, match="the loss of this backbone draws something"):
            Processes(0, 2).check(drawing.build(drawing.task.build()), 8)
    backbone.add_module("norm", torch.nn.BatchNorm2d(3))
    with pytest.raises(UsageError, match="batch norm takes its means over the whole batch"):
        Processes(0, 2).check(backbone, 2)
    Processes(0, 1).check(backbone, 1)


def test_torchrun_and_processes_have_to_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("WORLD_SIZE", "4")
    with pytest.raises(UsageError, match="--processes 2 under 4 processes of torchrun"), started(2, []):
        pass


@pytest.mark.parametrize(
    ("told", "line"),
    [
        ({"WORLD_SIZE": "abc"}, "RANK=0 and WORLD_SIZE=abc are no place among processes"),
        ({"WORLD_SIZE": "2", "RANK": "2"}, "RANK=2 and WORLD_SIZE=2 are no place"),
        ({"WORLD_SIZE": "2", "RANK": "1"}, "WORLD_SIZE=2 without MASTER_ADDR: start the command with torchrun"),
    ],
)
def test_a_place_that_makes_no_sense_is_a_line(
    told: dict[str, str], line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in told.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(UsageError, match=line):
        this_process()


@pytest.mark.parametrize(
    ("backbone", "count", "line"),
    [
        ("gpt2", "4096", "--processes 4096 is more than the"),
        ("np", "2", "train it in one process"),
    ],
)
def test_what_cannot_be_shared_is_refused_before_anything_is_started(
    backbone: str, count: str, line: str, card_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["train", str(card_path), backbone, "--preset", "smoke", "--processes", count]
    words += ["-o", "backbone.width=8"]
    assert main([*words, "--results", str(tmp_path)]) == 2
    assert line in capsys.readouterr().err and not (tmp_path / "runs").exists()


def test_several_do_not_share_one_gpu() -> None:
    with pytest.raises(UsageError, match="--device cuda, not cuda:1"):
        check_count(2, "cuda:1")


@pytest.mark.slow
def test_processes_end_with_the_first_one_that_is_killed(tmp_path: Path) -> None:
    """Also while they look for each other."""
    command = [sys.executable, "-m", "iclbench", "train", "linear", "gpt2", "--preset", "smoke", "--processes", "2"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    process = subprocess.Popen([*command, "--results", str(tmp_path)], env=environment, stderr=subprocess.DEVNULL)
    deadline, children = time.monotonic() + 60, Path(f"/proc/{process.pid}/task/{process.pid}/children")
    while not (others := children.read_text().split()):
        assert time.monotonic() < deadline and process.poll() is None
        time.sleep(0.05)
    process.kill()
    process.wait()
    while any(is_there(pid) for pid in others):
        assert time.monotonic() < deadline, "they are still there"
        time.sleep(0.2)


def is_there(pid: str) -> bool:
    try:
        return "iclbench" in Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return False


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1])
def test_a_process_without_the_others_gives_up_and_names_them(
    rank: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    place = {"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    for name, value in place.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(processes, "_MEETING", timedelta(seconds=1))
    monkeypatch.setattr(processes, "_SILENCE", 0.2)
    with (
        caplog.at_level("INFO", "iclbench"),
        pytest.raises(IclbenchError, match=f"other 1 of 2 processes .*127.0.0.1:{port}"),
        joined("cpu"),
    ):
        pass
    assert f"127.0.0.1:{port}" in caplog.text


def test_ctrl_c_ends_the_wait_for_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch itself waits without looking for signals."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        place = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1])}
    for name, value in place.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(processes, "_MEETING", timedelta(seconds=8))
    threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
    started = time.monotonic()
    with pytest.raises(KeyboardInterrupt), joined("cpu"):
        pass
    assert time.monotonic() - started < 6
