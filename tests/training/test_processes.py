"""Training in several processes gives the losses of a single process up to rounding, and runs can be continued with
a different number of processes."""

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
from iclbench.training import processes
from iclbench.training.fit import Training
from iclbench.training.processes import (
    SINGLE_PROCESS,
    Processes,
    check_count,
    join_processes,
    start_processes,
    this_process,
)
from iclbench.training.step import TrainingData
from tests.forked import FORKS
from tests.refusals import refused


class DoublePrecisionData(TrainingData):
    """Batches in double precision. Every third episode has fewer scored points, and one episode has none."""

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
        backbone, data = backbone.double(), DoublePrecisionData(data.family, data.points)
    training = Training(backbone, data, config.train, 0, "cpu", processes)
    step_losses = []
    for _ in range(steps):
        pending_before = training.progress.pending.clone()
        training.step()
        step_losses.append(float(training.progress.pending - pending_before))
        training.progress.pending = torch.zeros_like(training.progress.pending)
    return step_losses


def _train_process(rank: int, name: str, double: bool, steps: int, port: int, path: str) -> None:
    torch.set_num_threads(1)
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    with join_processes("cpu") as process:
        step_losses = losses(name, double, steps, process)
    if process.is_first:
        torch.save(torch.tensor(step_losses, dtype=torch.float64), path)


def losses_of_two_processes(name: str, double: bool, steps: int, path: Path, port: int) -> Tensor:
    arguments = (name, double, steps, port, str(path))
    torch.multiprocessing.start_processes(_train_process, arguments, nprocs=2, start_method=FORKS.get_start_method())
    step_losses: Tensor = torch.load(path)
    return step_losses


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "double", "steps", "port"),
    [
        ("gpt2", True, 50, 29611),
        pytest.param("gpt2", True, 200, 29613, marks=pytest.mark.slow),
        pytest.param("mamba2", False, 200, 29612, marks=pytest.mark.slow),
    ],
)
def test_two_processes_give_the_losses_of_one(name: str, double: bool, steps: int, port: int, tmp_path: Path) -> None:
    """The batch size is odd. Losses are equal at every step, up to 1e-10 in double precision and 1e-4 in single
    precision.
    """
    expected = torch.tensor(losses(name, double, steps, SINGLE_PROCESS), dtype=torch.float64)
    actual = losses_of_two_processes(name, double, steps, tmp_path / "losses.pt", port)
    assert len(expected.unique()) == steps
    torch.testing.assert_close(actual, expected, rtol=1e-10 if double else 1e-4, atol=0.0 if double else 1e-4)


def start_training(results: Path, *arguments: str) -> subprocess.Popen[str]:
    options = ["--preset", "smoke", "-o", "train.steps=400", "-o", "train.checkpoint_every=20", "-o", "task.dim=3"]
    command = [
        sys.executable,
        "-m",
        "iclbench",
        "train",
        "linear",
        "gpt2",
        "--results",
        str(results),
        *options,
        *arguments,
    ]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


@pytest.mark.slow
def test_a_run_continues_with_a_different_number_of_processes(tmp_path: Path) -> None:
    """The run is trained by two processes, then one, then two again. Ctrl-C interrupts the first two parts. The
    learning curve equals the curve of a run in a single process.
    """
    single = start_training(tmp_path / "one")
    assert single.wait(120) == 0
    run = tmp_path / "r" / "runs" / "linear-gpt2-smoke-s0"
    last_step = 0
    for count in (2, 1):
        process = start_training(tmp_path / "r", "--processes", str(count))
        while not any(int(path.stem.split("-")[1]) > last_step for path in run.glob("checkpoints/step-*")):
            assert process.poll() is None, process.communicate()[0]
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=60)
        assert process.returncode == 130 and "continues run" in output, output
        steps = [int(path.stem.split("-")[1]) for path in run.glob("checkpoints/step-*")]
        assert last_step < max(steps) < 400
        last_step = max(steps)
    final_process = start_training(tmp_path / "r", "--processes", "2")
    assert final_process.wait(120) == 0, final_process.communicate()[0]
    expected, actual = (
        tables.read("values", folder / "runs" / "linear-gpt2-smoke-s0" / "values.parquet")
        for folder in (tmp_path / "one", tmp_path / "r")
    )
    assert expected["axis_value"].tolist() == actual["axis_value"].tolist()
    torch.testing.assert_close(torch.tensor(actual["value"]), torch.tensor(expected["value"]), rtol=1e-4, atol=1e-4)


@pytest.mark.slow
def test_the_unexpected_end_of_a_process_is_reported(tmp_path: Path) -> None:
    process = start_training(tmp_path / "r", "--processes", "2", "-o", "train.steps=100000")
    run = tmp_path / "r" / "runs" / "linear-gpt2-smoke-s0"
    while not list(run.glob("checkpoints/step-*")):
        assert process.poll() is None, process.communicate()[0]
        time.sleep(0.05)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    os.kill(int(children[0]), signal.SIGKILL)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "2 processes" in output and "checkpoint" in output


def test_backbones_that_do_not_support_several_processes_are_refused() -> None:
    config = resolve_run("linear", "gpt2", "smoke", overrides=["train.batch=2"])
    backbone = config.build(config.task.build())
    with refused("bad-value", "train.batch", 2, 3):
        Processes(0, 3).check(backbone, 2)
    for task, name, overrides in (
        ("gp-mixture", "np", []),
        ("gp-mixture", "tnp-d", []),
        ("gp-mixture", "cnp", []),
        ("point-process", "thp", []),
        ("linear", "s4", ["backbone.dropout=0.1"]),
        ("bursty", "coqe", []),
    ):
        config_of_task = resolve_run(task, name, "smoke", overrides=overrides)
        with refused("not-applicable", "shares_batches"):
            Processes(0, 2).check(config_of_task.build(config_of_task.task.build()), 8)
    backbone.add_module("norm", torch.nn.BatchNorm2d(3))
    with refused("not-applicable", "batch norm", "contours-64"):
        Processes(0, 2).check(backbone, 2)
    Processes(0, 1).check(backbone, 1)


def test_a_conflict_between_torchrun_and_the_option_processes_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("WORLD_SIZE", "4")
    with refused("conflict", "torchrun", 4, "--processes 2"), start_processes(2, []):
        pass


@pytest.mark.parametrize(
    ("variables", "code", "names"),
    [
        ({"WORLD_SIZE": "abc"}, "bad-value", ("RANK=0", "WORLD_SIZE=abc")),
        ({"WORLD_SIZE": "2", "RANK": "2"}, "bad-value", ("RANK=2", "WORLD_SIZE=2")),
        ({"WORLD_SIZE": "2", "RANK": "1"}, "missing-value", ("WORLD_SIZE=2", "MASTER_ADDR", "torchrun")),
    ],
)
def test_inconsistent_environment_variables_are_refused(
    variables: dict[str, str], code: str, names: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with refused(code, *names):
        this_process()


@pytest.mark.parametrize(
    ("backbone", "count", "name"), [("gpt2", "4096", "--processes 4096"), ("np", "2", "shares_batches")]
)
def test_an_impossible_number_of_processes_is_refused_before_training(
    backbone: str, count: str, name: str, card_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["train", str(card_path), backbone, "--preset", "smoke", "--processes", count]
    words += ["-o", "backbone.width=8"]
    assert main([*words, "--results", str(tmp_path)]) == 2
    assert name in capsys.readouterr().err and not (tmp_path / "runs").exists()


def test_several_processes_on_one_gpu_are_refused() -> None:
    with refused("conflict", "--device cuda", "cuda:1"):
        check_count(2, "cuda:1")


def test_several_processes_on_gpus_are_refused_without_nccl(monkeypatch: pytest.MonkeyPatch) -> None:
    """Builds of torch for Windows have no NCCL."""
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.distributed, "is_nccl_available", lambda: False)
    check_count(1, "cuda")
    with refused("not-supported", "--processes 2", "NCCL"):
        check_count(2, "cuda")


@pytest.mark.slow
def test_all_processes_end_if_the_first_one_is_killed(tmp_path: Path) -> None:
    """The first process is killed before the processes are connected."""
    command = [sys.executable, "-m", "iclbench", "train", "linear", "gpt2", "--preset", "smoke", "--processes", "2"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    process = subprocess.Popen([*command, "--results", str(tmp_path)], env=environment, stderr=subprocess.DEVNULL)
    deadline, children = time.monotonic() + 60, Path(f"/proc/{process.pid}/task/{process.pid}/children")
    while not (others := children.read_text().split()):
        assert time.monotonic() < deadline and process.poll() is None
        time.sleep(0.05)
    process.kill()
    process.wait()
    while any(is_running(pid) for pid in others):
        assert time.monotonic() < deadline, "other processes are still running"
        time.sleep(0.2)


def is_running(pid: str) -> bool:
    try:
        return "iclbench" in Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return False


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1])
def test_a_process_stops_waiting_for_other_processes_after_a_timeout(
    rank: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with socket.socket() as free_socket:
        free_socket.bind(("127.0.0.1", 0))
        port = free_socket.getsockname()[1]
    variables = {"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(processes, "_START_TIMEOUT", timedelta(seconds=1))
    monkeypatch.setattr(processes, "_SECONDS_BEFORE_NOTE", 0.2)
    with (
        caplog.at_level("INFO", "iclbench"),
        refused("worker-died", "1 of 2", f"127.0.0.1:{port}", exit_code=1),
        join_processes("cpu"),
    ):
        pass
    assert f"127.0.0.1:{port}" in caplog.text


def test_ctrl_c_stops_waiting_for_other_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch itself does not react to signals while it waits."""
    with socket.socket() as free_socket:
        free_socket.bind(("127.0.0.1", 0))
        variables = {
            "RANK": "1",
            "WORLD_SIZE": "2",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(free_socket.getsockname()[1]),
        }
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(processes, "_START_TIMEOUT", timedelta(seconds=8))
    threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
    start_time = time.monotonic()
    with pytest.raises(KeyboardInterrupt), join_processes("cpu"):
        pass
    assert time.monotonic() - start_time < 6
