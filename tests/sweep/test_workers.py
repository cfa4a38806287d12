"""The worker processes that check untrusted packs: their limits, and the end of all processes that they started."""

import sys
from collections.abc import Callable
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest

from iclbench.core import limits
from iclbench.core.errors import IclbenchError
from iclbench.sweep import verify
from iclbench.sweep.verify import Workers
from tests.sweep import hostile
from tests.sweep.test_kill import is_alive, wait_until

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")


@pytest.fixture
def cell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Any], Any]:
    """Return a function that makes workers compute this function instead of a cell."""
    monkeypatch.setattr(verify, "_set_up", hostile.set_up)

    def replace_work(function: Any) -> Any:
        monkeypatch.setattr(verify, "work", function)
        return tmp_path

    return replace_work


def processes(folder: Path) -> dict[str, int]:
    return {path.stem: int(path.read_text()) for path in folder.glob("*.pid")}


def test_all_processes_of_a_worker_end_at_the_time_limit(cell: Callable[[Any], Any]) -> None:
    folder = cell(hostile.start_processes_and_sleep)
    with Workers(1, max_seconds=1.0) as workers:
        outcome = workers.work(folder, None, "")  # type: ignore[arg-type]
        assert (outcome.status, "1.00 s" in str(outcome.reason)) == ("failed", True), outcome
    pids = processes(folder)
    assert pids.keys() == {"worker", "command", "child", "orphan"}
    wait_until(lambda: not any(map(is_alive, pids.values())))


def test_commands_end_with_the_block_or_with_their_worker(cell: Callable[[Any], Any]) -> None:
    folder = cell(hostile.start_a_command)
    with Workers(1) as workers:
        assert workers.work(folder, None, "").status == "done"  # type: ignore[arg-type]
        command = processes(folder)["command"]
        assert is_alive(command)
    wait_until(lambda: not is_alive(command))
    cell(hostile.start_a_command_and_die)
    with Workers(1) as workers:
        outcome = workers.work(folder, None, "")  # type: ignore[arg-type]
        assert (outcome.status, "exit code 3" in str(outcome.reason)) == ("failed", True), outcome
        command = processes(folder)["command"]
        wait_until(lambda: not is_alive(command))


def test_a_worker_cannot_exceed_the_memory_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The limit also holds for the parent, which is a new process: this one may already be larger."""
    pytest.importorskip("resource")
    monkeypatch.setenv(limits.VARIABLE, "256M")
    parent = get_context("spawn").Process(target=_allocate_in_workers, args=(tmp_path,))
    parent.start()
    parent.join()
    assert parent.exitcode == 0


def _allocate_in_workers(folder: Path) -> None:
    with pytest.MonkeyPatch.context() as patch, limits.process_memory(16), Workers(1, max_seconds=5.0) as workers:
        patch.setattr(verify, "_set_up", hostile.set_up)
        patch.setattr(verify, "work", hostile.allocate)
        with pytest.raises(IclbenchError, match=r"\w+"):
            workers.work(folder, None, "")  # type: ignore[arg-type]
        assert int((folder / "blocks").read_text()) < 16 * 256 / 64
        patch.setattr(verify, "work", hostile.allocate_all)
        assert workers.work(folder, None, "").status == "failed"  # type: ignore[arg-type]
