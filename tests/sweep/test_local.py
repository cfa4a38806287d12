"""The pool of worker processes: what becomes of calls when workers or the user are in the way."""

import os
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError
from pathlib import Path

import pytest

from iclbench.core.errors import IclbenchError
from iclbench.sweep.executor import WorkerDiedError, WorkerStartError
from iclbench.sweep.local import LocalPool
from tests.sweep import calls

SECONDS = 60.0  # nothing here takes longer


@pytest.fixture
def pool() -> Iterator[LocalPool]:
    pool = LocalPool([("left", 1), ("right", 1)], calls.set_up)
    yield pool
    pool.stop(grace=0.0)


def until(happened: Callable[[], object]) -> None:
    deadline = time.monotonic() + SECONDS
    while not happened():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def alive(pid: int) -> bool:
    """Whether a process is there and no zombie."""
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


def test_calls_run_side_by_side_each_slot_with_its_own_set_up_and_answers_belong_to_them(
    pool: LocalPool, tmp_path: Path
) -> None:
    both = [pool.submit(calls.meet, tmp_path, *pair) for pair in (("a", "b"), ("b", "a"))]
    assert [future.result(SECONDS) for future in both] == ["a", "b"], "each can only return while the other one runs"
    squares = [pool.submit(calls.square, x) for x in range(20)]
    assert [future.result(SECONDS) for future in squares] == [x * x for x in range(20)]
    assert {pool.submit(calls.seen).result(SECONDS) for _ in range(20)} <= {"left", "right"}


def test_a_killed_worker_fails_its_own_call_alone_and_the_slot_goes_on(pool: LocalPool, tmp_path: Path) -> None:
    other = pool.submit(calls.meet, tmp_path, "other", "later")
    until((tmp_path / "other").exists)
    killed = pool.submit(calls.die, signal.SIGKILL)
    with pytest.raises(WorkerDiedError, match=r"killed by signal 9 \(SIGKILL, out of memory\?\)"):
        killed.result(SECONDS)
    assert pool.submit(calls.square, 7).result(SECONDS) == 49, "by a new process"
    (tmp_path / "later").touch()
    assert other.result(SECONDS) == "other", "untouched"
    with pytest.raises(WorkerDiedError, match=r"signal 15"):
        pool.submit(calls.die, signal.SIGTERM).result(SECONDS)


def test_a_worker_killed_while_it_waits_is_replaced_or_fails_one_call(pool: LocalPool) -> None:
    first = pool.submit(calls.pid).result(SECONDS)
    os.kill(first, signal.SIGKILL)
    until(lambda: not alive(first))
    answers = [pool.submit(calls.square, x) for x in range(4)]
    died = [future for future in answers if isinstance(future.exception(SECONDS), WorkerDiedError)]
    assert len(died) <= 1
    assert all(future.result() == x * x for x, future in enumerate(answers) if future not in died)


def test_what_a_call_raises_is_one_line_and_the_worker_lives_on() -> None:
    pool = LocalPool([()], calls.set_up)
    try:
        before = pool.submit(calls.pid).result(SECONDS)
        with pytest.raises(IclbenchError, match=r"ValueError: first$") as raised:
            pool.submit(calls.fail, "first\nsecond").result(SECONDS)
        assert not isinstance(raised.value, WorkerDiedError)
        with pytest.raises((AttributeError, TypeError)):  # what pickle says
            pool.submit(lambda: 1).result(SECONDS)
        assert pool.submit(calls.pid).result(SECONDS) == before
    finally:
        pool.shutdown()
    assert not alive(before), "shutdown waits until workers are gone"


def test_workers_that_cannot_be_set_up_are_told_apart_from_cells_that_fail() -> None:
    pool = LocalPool([()], calls.refuse)
    try:
        with pytest.raises(WorkerStartError, match="RuntimeError: no such device"):
            pool.submit(calls.square, 1).result(SECONDS)
    finally:
        pool.stop(grace=0.0)


def test_stopping_lets_workers_write_their_checkpoint_and_cancels_the_rest(tmp_path: Path) -> None:
    pool = LocalPool([()], calls.set_up)
    pool.submit(calls.stop_slowly, tmp_path / "began", tmp_path / "ended")
    later = pool.submit(calls.square, 1)
    until((tmp_path / "began").exists)
    until((tmp_path / "began").read_text)
    worker = int((tmp_path / "began").read_text())
    pool.stop(grace=SECONDS)
    assert (tmp_path / "ended").read_text() == "checkpoint"
    assert not alive(worker)
    with pytest.raises(CancelledError):
        later.result(SECONDS)


def test_a_worker_that_does_not_stop_is_killed_in_the_end(tmp_path: Path) -> None:
    pool = LocalPool([()], calls.set_up)
    stuck = pool.submit(calls.never_stop, tmp_path / "began")
    until((tmp_path / "began").exists)
    until((tmp_path / "began").read_text)
    worker = int((tmp_path / "began").read_text())
    pool.stop(grace=0.3)
    assert not alive(worker)
    assert isinstance(stuck.exception(SECONDS), WorkerDiedError)


def test_workers_do_not_hear_the_ctrl_c_that_the_terminal_sends_to_all(pool: LocalPool, tmp_path: Path) -> None:
    asleep = pool.submit(calls.sleep, 0.5)
    until(lambda: pool.processes)
    for _ in range(5):  # also while it starts
        for worker in pool.processes:
            os.kill(worker, signal.SIGINT)
        time.sleep(0.02)
    assert asleep.result(SECONDS) > 0
