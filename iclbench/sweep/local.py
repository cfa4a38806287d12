"""The local engine: worker processes on this machine, one per slot. A worker runs one call at a time.

Processes are spawned, never forked, because torch's threads and CUDA do not survive a fork. For each slot, a thread of
the parent sends calls to the worker through a pipe. If a worker is killed, its pipe closes and its current call fails.
The slot starts a new worker for the next call. If the parent is killed, the pipes close as well: idle workers end, and
the watchdog that `set_up` starts ends busy workers.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import queue
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, TypeVar

from iclbench.core.errors import IclbenchError, one_line
from iclbench.core.plugins import as_plugin_error
from iclbench.core.signals import defer_signals
from iclbench.sweep.executor import WorkerDiedError, WorkerStartError

T = TypeVar("T")

_SPAWN = multiprocessing.get_context("spawn")
# Starting a process and waiting for its end both change multiprocessing's list of children, which is not thread-safe.
_CHILDREN_LOCK = threading.Lock()


@dataclass(frozen=True)
class _Call:
    future: Future[Any]
    fn: Callable[..., Any]
    args: tuple[Any, ...]


class LocalPool:
    """An `Executor` of worker processes.

    Args:
        slot_arguments: for each slot, the arguments of `set_up`, such as the slot's GPU.
        set_up: a picklable function that each new process calls first.
    """

    def __init__(self, slot_arguments: Sequence[tuple[Any, ...]], set_up: Callable[..., None]) -> None:
        self.slots = len(slot_arguments)
        self._set_up = set_up
        self._calls: queue.SimpleQueue[_Call | None] = queue.SimpleQueue()
        self._workers: dict[int, _Worker] = {}
        self._stopping = threading.Event()
        self._threads = [
            threading.Thread(target=self._run_calls, args=(index, arguments), name=f"slot {index}", daemon=True)
            for index, arguments in enumerate(slot_arguments)
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, fn: Callable[..., T], /, *args: Any) -> Future[T]:
        """See `Executor.submit`."""
        future: Future[T] = Future()
        self._calls.put(_Call(future, fn, args))
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """See `Executor.shutdown`."""
        if cancel_futures:
            self._cancel()
        for _ in self._threads:
            self._calls.put(None)
        if wait:
            for thread in self._threads:
                thread.join()

    def stop(self, grace: float) -> None:
        """See `Executor.stop`."""
        self._stopping.set()
        self.shutdown(wait=False, cancel_futures=True)
        self._for_each_worker(_Worker.terminate)
        deadline = time.monotonic() + grace
        try:
            for thread in self._threads:
                thread.join(max(0.0, deadline - time.monotonic()))
        finally:  # also after a second Ctrl-C
            self._for_each_worker(_Worker.kill)
            for thread in self._threads:
                thread.join()

    @property
    def processes(self) -> list[int]:
        """Process ids of the current workers."""
        return [worker.pid for worker in list(self._workers.values())]

    def _for_each_worker(self, action: Callable[[_Worker], None]) -> None:
        for worker in list(self._workers.values()):
            action(worker)

    def _cancel(self) -> None:
        with contextlib.suppress(queue.Empty):
            while True:
                call = self._calls.get_nowait()
                if call is not None:
                    call.future.cancel()

    def _run_calls(self, index: int, arguments: tuple[Any, ...]) -> None:
        """Run calls in the worker of a slot, one at a time, until the pool shuts down."""
        while (call := self._calls.get()) is not None:
            if not call.future.set_running_or_notify_cancel():
                continue
            try:
                call.future.set_result(self._worker(index, arguments).call(call.fn, call.args))
            except (WorkerDiedError, WorkerStartError) as error:
                if worker := self._workers.pop(index, None):
                    worker.end()
                call.future.set_exception(error)
            except BaseException as error:
                call.future.set_exception(error)
        if worker := self._workers.pop(index, None):
            worker.end()

    def _worker(self, index: int, arguments: tuple[Any, ...]) -> _Worker:
        """Return the worker of a slot. If the slot has no worker, start one."""
        if (worker := self._workers.get(index)) is None:
            worker = self._workers[index] = _Worker(self._set_up, arguments)
            if self._stopping.is_set():  # `stop` may have run before this worker was added
                worker.kill()
            worker.wait_until_set_up()
        return worker


class _Worker:
    """A worker process and the parent's end of its pipe."""

    def __init__(self, set_up: Callable[..., None], arguments: tuple[Any, ...]) -> None:
        self._pipe, child_pipe = _SPAWN.Pipe()
        self._process = _SPAWN.Process(target=_serve, args=(child_pipe, set_up, arguments), daemon=True)
        # Ctrl-C at a terminal reaches all processes of the group. A new process has not set its handler yet, so SIGINT
        # is blocked while the process starts; the process inherits the signal mask of this thread.
        try:
            with defer_signals(signal.SIGINT), _CHILDREN_LOCK:
                self._process.start()
        finally:
            child_pipe.close()
        self.pid = self._process.pid or 0

    def wait_until_set_up(self) -> None:
        """Wait until the worker is set up. Raise `WorkerStartError` if that fails, `WorkerDiedError` if the worker
        died."""
        is_ok, answer = self._answer()
        if not is_ok:
            raise WorkerStartError(answer)

    def call(self, fn: Callable[..., T], args: tuple[Any, ...]) -> T:
        """Return `fn(*args)`, computed by the worker. Raise `IclbenchError` if `fn` raises an exception, with
        the exception's code if it has one, and `WorkerDiedError` if the worker died."""
        with contextlib.suppress(OSError):  # `_answer` reports a dead worker
            self._pipe.send((fn, args))
        is_ok, answer = self._answer()
        if not is_ok:
            message, code = answer
            raise IclbenchError(message, code=code)
        return answer

    def _answer(self) -> tuple[bool, Any]:
        try:
            return self._pipe.recv()
        except (EOFError, OSError):
            raise WorkerDiedError(self.end()) from None

    def terminate(self) -> None:
        """Send SIGTERM to the worker. If it is training, it writes a checkpoint and ends."""
        self._process.terminate()

    def kill(self) -> None:
        self._process.kill()

    def end(self) -> str:
        """End the worker and return a message on how it ended. An idle worker ends when its pipe is closed; a busy
        worker is killed after `_EXIT_SECONDS`."""
        self._pipe.close()
        with _CHILDREN_LOCK:
            self._process.join(_EXIT_SECONDS)
            self._process.kill()
            self._process.join()
        code = self._process.exitcode or 0
        if code >= 0:
            return f"the worker ended (exit code {code})"
        is_kill = -code == getattr(signal, "SIGKILL", None)  # Windows has no SIGKILL
        signal_name = "SIGKILL, out of memory?" if is_kill else signal.strsignal(-code)
        return f"the worker was killed by signal {-code} ({signal_name})"


# Seconds that a worker has to end after its pipe was closed, before it is killed.
_EXIT_SECONDS = 5.0


def _serve(pipe: Connection, set_up: Callable[..., None], arguments: tuple[Any, ...]) -> None:
    """Set up a worker process, then answer calls until the pipe is closed. This is the main function of the process.

    Answers are `(True, value)`; `(False, message)` if the set-up fails; `(False, (message, code))` if a call fails.
    Exceptions are not sent, since unpickling them may import torch.
    """
    _answer_calls(pipe, set_up, arguments)
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(0)  # all files are written, and a normal exit would only delay the parent while torch shuts down


def _answer_calls(pipe: Connection, set_up: Callable[..., None], arguments: tuple[Any, ...]) -> None:
    with contextlib.suppress(EOFError, OSError):
        try:
            set_up(*arguments)
        except Exception as error:
            pipe.send((False, f"a worker process cannot be set up: {one_line(error)}"))
            return
        pipe.send((True, None))
        while True:
            fn, args = pipe.recv()
            try:
                answer = (True, fn(*args))
            except (Exception, SystemExit) as error:
                reason = as_plugin_error(error)
                code = reason.code if isinstance(reason, IclbenchError) else IclbenchError.code
                answer = (False, (one_line(reason), code))
            pipe.send(answer)
