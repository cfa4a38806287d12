"""The pool of worker processes: calls, killed workers, errors and interruptions."""

import os
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError
from pathlib import Path

import pytest

from iclbench.sweep.executor import WorkerDiedError, WorkerStartError
from iclbench.sweep.local import LocalPool
from tests.refusals import refused
from tests.sweep import calls
from tests.sweep.test_kill import is_alive

SECONDS = 60.0  # time limit of each step


@pytest.fixture
def pool() -> Iterator[LocalPool]:
    pool = LocalPool([("left", 1), ("right", 1)], calls.set_up)
    yield pool
    pool.stop(grace=0.0)


def wait_until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_calls_run_in_parallel_and_each_slot_is_set_up_with_its_arguments(pool: LocalPool, tmp_path: Path) -> None:
    futures = [pool.submit(calls.meet, tmp_path, *pair) for pair in (("a", "b"), ("b", "a"))]
    assert [future.result(SECONDS) for future in futures] == ["a", "b"], "a call returns only if the other one runs"
    squares = [pool.submit(calls.square, x) for x in range(20)]
    assert [future.result(SECONDS) for future in squares] == [x * x for x in range(20)]
    assert {pool.submit(calls.slot_name).result(SECONDS) for _ in range(20)} <= {"left", "right"}


def test_a_killed_worker_fails_only_its_call_and_the_slot_continues(pool: LocalPool, tmp_path: Path) -> None:
    other = pool.submit(calls.meet, tmp_path, "other", "second")
    wait_until((tmp_path / "other").exists)
    killed = pool.submit(calls.die, signal.SIGKILL)
    with refused("worker-died", 9, "SIGKILL", exit_code=1):
        killed.result(SECONDS)
    assert pool.submit(calls.square, 7).result(SECONDS) == 49, "a new process computes the call"
    (tmp_path / "second").touch()
    assert other.result(SECONDS) == "other", "the other worker continues"
    with refused("worker-died", 15, exit_code=1):
        pool.submit(calls.die, signal.SIGTERM).result(SECONDS)


def test_an_idle_worker_that_is_killed_is_replaced_or_fails_one_call(pool: LocalPool) -> None:
    worker = pool.submit(calls.pid).result(SECONDS)
    os.kill(worker, signal.SIGKILL)
    wait_until(lambda: not is_alive(worker))
    futures = [pool.submit(calls.square, x) for x in range(4)]
    failed = [future for future in futures if isinstance(future.exception(SECONDS), WorkerDiedError)]
    assert len(failed) <= 1
    assert all(future.result() == x * x for x, future in enumerate(futures) if future not in failed)


def test_an_error_in_a_call_has_a_one_line_message_and_the_worker_continues() -> None:
    pool = LocalPool([()], calls.set_up)
    try:
        worker = pool.submit(calls.pid).result(SECONDS)
        with refused("failed", "ValueError", "first", exit_code=1):
            pool.submit(calls.fail, "first\nsecond").result(SECONDS)
        with refused("missing-file", "data.csv", exit_code=1):
            pool.submit(calls.fail_with_code, "data.csv", "missing-file").result(SECONDS)
        with pytest.raises((AttributeError, TypeError)):  # errors of pickle
            pool.submit(lambda: 1).result(SECONDS)
        assert pool.submit(calls.pid).result(SECONDS) == worker
    finally:
        pool.shutdown()
    assert not is_alive(worker), "shutdown waits for the end of workers"


def test_a_worker_that_cannot_be_set_up_raises_a_start_error() -> None:
    pool = LocalPool([()], calls.refuse)
    try:
        with refused("worker-died", "RuntimeError", exit_code=1) as error:
            pool.submit(calls.square, 1).result(SECONDS)
        assert isinstance(error.value, WorkerStartError)
    finally:
        pool.stop(grace=0.0)


def test_stop_waits_for_checkpoints_and_cancels_waiting_calls(tmp_path: Path) -> None:
    pool = LocalPool([()], calls.set_up)
    pool.submit(calls.stop_slowly, tmp_path / "began", tmp_path / "checkpoint")
    waiting = pool.submit(calls.square, 1)
    wait_until((tmp_path / "began").exists)
    wait_until((tmp_path / "began").read_text)
    worker = int((tmp_path / "began").read_text())
    pool.stop(grace=SECONDS)
    assert (tmp_path / "checkpoint").read_text() == "checkpoint"
    assert not is_alive(worker)
    with pytest.raises(CancelledError):
        waiting.result(SECONDS)


def test_a_worker_that_does_not_stop_is_killed(tmp_path: Path) -> None:
    pool = LocalPool([()], calls.set_up)
    future = pool.submit(calls.never_stop, tmp_path / "began")
    wait_until((tmp_path / "began").exists)
    wait_until((tmp_path / "began").read_text)
    worker = int((tmp_path / "began").read_text())
    pool.stop(grace=0.3)
    assert not is_alive(worker)
    assert isinstance(future.exception(SECONDS), WorkerDiedError)


def test_workers_ignore_ctrl_c(pool: LocalPool, tmp_path: Path) -> None:
    future = pool.submit(calls.sleep, 0.5)
    wait_until(lambda: pool.processes)
    for _ in range(5):  # the first signals arrive while the worker starts
        for worker in pool.processes:
            os.kill(worker, signal.SIGINT)
        time.sleep(0.02)
    assert future.result(SECONDS) > 0
