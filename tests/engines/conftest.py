"""Fixtures: a grid that the local engine has swept, and clusters that run during the test session."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import tomli_w

from tests.engines import slurm_cluster
from tests.sweep.conftest import tiny_grid


@dataclass
class Engine:
    """An engine and its environment.

    Attributes:
        name: the value of `--engine`.
        environment: environment variables from which the command finds the cluster.
        worker: a part of the command line of worker processes.
        options: additional options of `iclbench sweep`.
    """

    name: str
    environment: dict[str, str]
    worker: str
    options: list[str] = field(default_factory=list)

    def command(self, grid: Path, results: Path, *options: str) -> list[str]:
        engine = ["--engine", self.name, *self.options] if self.name != "local" else ["--workers", "2"]
        return [sys.executable, "-m", "iclbench", "sweep", str(grid), "--results", str(results), *engine, *options]

    def start(self, grid: Path, results: Path, *options: str) -> subprocess.Popen[str]:
        """Start a sweep in a new process group, which a test can kill as a unit."""
        environment = os.environ | self.environment | {"COLUMNS": "200", "OMP_NUM_THREADS": "1"}
        return subprocess.Popen(
            self.command(grid, results, *options),
            env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
        )  # fmt: skip

    def sweep(self, grid: Path, results: Path, *options: str, timeout: float = 900) -> tuple[int, str]:
        """Run a sweep, and return its exit code and its output."""
        process = self.start(grid, results, *options)
        try:
            output, _ = process.communicate(timeout=timeout)
        finally:
            process.kill()
        return process.returncode, output

    def workers(self) -> list[int]:
        """Return the process ids of the workers."""
        pids = []
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                line = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except OSError:
                continue
            if self.worker in line and int(folder.name) != os.getpid():
                pids.append(int(folder.name))
        return pids

    def kill_worker(self) -> bool:
        """Kill a worker, as the kernel does when memory is short. Return whether a worker existed."""
        for pid in self.workers():
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
            return True
        return False


def write_engine_settings(folder: Path, engine: str, **settings: object) -> dict[str, str]:
    """Write a user's engine settings, and return the environment in which commands find them."""
    (folder / "iclbench").mkdir(parents=True, exist_ok=True)
    (folder / "iclbench" / "engines.toml").write_text(tomli_w.dumps({engine: settings}))
    return {"XDG_CONFIG_HOME": str(folder)}


@pytest.fixture(scope="session")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    pytest.importorskip("submitit", reason="submitit is not installed: pip install 'iclbench[slurm]'")
    if (reason := slurm_cluster.missing_requirement()) is not None:
        pytest.skip(reason)
    folder = tmp_path_factory.mktemp("slurm")
    try:
        path = slurm_cluster.start(folder)
        settings = {"memory": "1G", "poll": 0.5, "minutes": 60, "worth": 10.0, "jobs": 2, "partition": "low"}
        environment = write_engine_settings(folder / "config", "slurm", **settings)
        yield Engine("slurm", environment | {"SLURM_CONF": str(path)}, "submitit.core._submit")
    finally:
        slurm_cluster.stop(folder)


@pytest.fixture(scope="session")
def ray(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    pytest.importorskip("ray", reason="ray is not installed: pip install 'iclbench[ray]'")
    from ray.cluster_utils import Cluster

    node_arguments = {"num_cpus": 1, "object_store_memory": 100 * 2**20}
    cluster = Cluster(initialize_head=True, head_node_args=node_arguments)
    try:
        cluster.add_node(**node_arguments)
        folder = tmp_path_factory.mktemp("ray")
        environment = write_engine_settings(folder, "ray", address=cluster.address, poll=0.2, worth=10.0, jobs=2)
        yield Engine("ray", environment, "ray::_task")
    finally:
        cluster.shutdown()


@pytest.fixture(scope="session")
def local() -> Engine:
    return Engine("local", {}, "multiprocessing.spawn")


@pytest.fixture(params=["slurm", "ray"])
def engine(request: pytest.FixtureRequest) -> Engine:
    cluster_engine: Engine = request.getfixturevalue(request.param)
    return cluster_engine


@pytest.fixture(scope="session")
def large_grid(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A grid with more than forty cells, whose training runs take seconds."""
    return tiny_grid(tmp_path_factory.mktemp("large"), steps=300, seeds=[0, 1, 2])


@pytest.fixture(scope="session")
def expected(large_grid: Path, local: Engine, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The results folder after a sweep of the grid by the local engine."""
    results = tmp_path_factory.mktemp("local") / "results"
    code, output = local.sweep(large_grid, results)
    assert code == 0, output
    return results


def wait_for(condition: object, seconds: float = 120) -> None:
    """Wait until the condition holds, or fail after the given number of seconds."""
    deadline = time.monotonic() + seconds
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < deadline, "the condition did not hold in time"
        time.sleep(0.1)
