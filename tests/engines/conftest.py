"""One grid, swept by the local engine once, and clusters that are there for the whole session."""

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

from tests.engines import slurm_here
from tests.sweep.conftest import tiny_grid


@dataclass
class Engine:
    """An engine, and how tests reach it.

    Attributes:
        name: as `--engine` takes it.
        environment: in which the command finds it.
        worker: a word of the command line of the processes that work.
    """

    name: str
    environment: dict[str, str]
    worker: str
    options: list[str] = field(default_factory=list)

    def command(self, grid: Path, results: Path, *more: str) -> list[str]:
        engine = ["--engine", self.name, *self.options] if self.name != "local" else ["--workers", "2"]
        return [sys.executable, "-m", "iclbench", "sweep", str(grid), "--results", str(results), *engine, *more]

    def start(self, grid: Path, results: Path, *more: str) -> subprocess.Popen[str]:
        environment = os.environ | self.environment | {"COLUMNS": "200", "OMP_NUM_THREADS": "1"}
        return subprocess.Popen(
            self.command(grid, results, *more),
            env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
        )  # fmt: skip

    def sweep(self, grid: Path, results: Path, *more: str, timeout: float = 900) -> tuple[int, str]:
        """Exit code and what was said."""
        process = self.start(grid, results, *more)
        try:
            said, _ = process.communicate(timeout=timeout)
        finally:
            process.kill()
        return process.returncode, said

    def workers(self) -> list[int]:
        """Process ids of those that work."""
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                line = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except OSError:
                continue
            if self.worker in line and int(folder.name) != os.getpid():
                found.append(int(folder.name))
        return found

    def kill_one(self) -> bool:
        """Kill a worker as the kernel does for want of memory."""
        for pid in self.workers():
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
            return True
        return False


def _told(folder: Path, engine: str, **settings: object) -> dict[str, str]:
    """A user's file of engines."""
    (folder / "iclbench").mkdir(parents=True, exist_ok=True)
    (folder / "iclbench" / "engines.toml").write_text(tomli_w.dumps({engine: settings}))
    return {"XDG_CONFIG_HOME": str(folder)}


@pytest.fixture(scope="session")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    pytest.importorskip("submitit", reason="submitit is not installed: pip install 'iclbench[slurm]'")
    if (why := slurm_here.missing()) is not None:
        pytest.skip(why)
    folder = tmp_path_factory.mktemp("slurm")
    try:
        path = slurm_here.start(folder)
        own = _told(folder / "config", "slurm", memory="1G", poll=0.5, minutes=60, worth=10.0, jobs=2, partition="low")
        yield Engine("slurm", own | {"SLURM_CONF": str(path)}, "submitit.core._submit")
    finally:
        slurm_here.stop(folder)


@pytest.fixture(scope="session")
def ray(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    pytest.importorskip("ray", reason="ray is not installed: pip install 'iclbench[ray]'")
    from ray.cluster_utils import Cluster

    small = {"num_cpus": 1, "object_store_memory": 100 * 2**20}
    cluster = Cluster(initialize_head=True, head_node_args=small)
    try:
        cluster.add_node(**small)
        folder = tmp_path_factory.mktemp("ray")
        own = _told(folder, "ray", address=cluster.address, poll=0.2, worth=10.0, jobs=2)
        yield Engine("ray", own, "ray::_task")
    finally:
        cluster.shutdown()


@pytest.fixture(scope="session")
def local() -> Engine:
    return Engine("local", {}, "multiprocessing.spawn")


@pytest.fixture(params=["slurm", "ray"])
def engine(request: pytest.FixtureRequest) -> Engine:
    found: Engine = request.getfixturevalue(request.param)
    return found


@pytest.fixture(scope="session")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A grid of more than forty cells, whose trainings take seconds."""
    return tiny_grid(tmp_path_factory.mktemp("wide"), steps=300, seeds=[0, 1, 2])


@pytest.fixture(scope="session")
def expected(wide: Path, local: Engine, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the local engine makes of it."""
    results = tmp_path_factory.mktemp("local") / "results"
    code, said = local.sweep(wide, results)
    assert code == 0, said
    return results


def wait_for(condition: object, seconds: float = 120) -> None:
    """Until it holds."""
    deadline = time.monotonic() + seconds
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < deadline, "it does not come"
        time.sleep(0.1)
