"""Run jobs in several processes. They are forked after the results are loaded, so that they share the results in
memory.

The pool uses neither threads nor shared locks. All processes take indices of jobs from one pipe, and each process sends
its results through a separate pipe. If a process is killed, the parent does not wait for it. If the parent is killed,
its processes end.
"""

from __future__ import annotations

import os
import pickle
import signal
import struct
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from typing import TypeVar

from iclbench.core import cores

# Forking is safe if no thread of a library holds a lock. This is the case on Linux with the libraries that a report
# loads.
CAN_FORK = sys.platform == "linux"
# On all systems, 4096 bytes can be written to a pipe at once. The parent process runs the jobs that exceed this limit.
_MAX_FORKED = 4096 // 4

T = TypeVar("T")


def available_workers() -> int:
    """The number of cores that this process may use; 1 if processes cannot be forked."""
    return cores.count_available() if CAN_FORK else 1


def run_jobs(jobs: Sequence[Callable[[], T]], workers: int) -> Iterator[tuple[int, T]]:
    """Run all jobs in several processes, and yield the index and the result of each job when it ends.

    The calling process runs the jobs of processes that were killed (for example, for lack of memory), and all jobs if
    no process can be started. Results are pickled.
    """
    remaining = dict.fromkeys(range(len(jobs)))
    workers = min(workers, len(jobs)) if CAN_FORK else 1
    if workers > 1:
        for index, result in _run_forked(jobs, workers):
            del remaining[index]
            yield index, result
    for index in remaining:
        yield index, jobs[index]()


def _run_forked(jobs: Sequence[Callable[[], T]], workers: int) -> Iterator[tuple[int, T]]:
    if sys.platform == "win32":
        return
    context = get_context("fork")
    indices, indices_end = os.pipe()
    os.write(indices_end, b"".join(struct.pack("i", index) for index in range(min(len(jobs), _MAX_FORKED))))
    os.close(indices_end)
    open_results: dict[Connection, object] = {}
    processes = []
    try:
        for _ in range(workers):
            results, results_end = context.Pipe(duplex=False)
            open_results[results] = None
            process = context.Process(target=_work, args=(jobs, indices, results_end, list(open_results)), daemon=True)
            with results_end, suppress(OSError):  # no memory for another process
                process.start()
                processes.append(process)
        while open_results:
            for results in [end for end in wait(list(open_results)) if isinstance(end, Connection)]:
                try:
                    index, result, error = pickle.loads(results.recv_bytes())
                except EOFError:  # the process has ended or was killed
                    del open_results[results]
                    results.close()
                    continue
                if error is not None:
                    raise error
                yield index, result
    finally:
        os.close(indices)
        for results in open_results:
            results.close()
        for process in processes:
            process.terminate()
            process.join()


def _work(
    jobs: Sequence[Callable[[], object]], indices: int, results: Connection, parent_ends: Sequence[Connection]
) -> None:
    """Run jobs until the pipe is empty. Ctrl-C ends the process silently, because the parent reports it."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    for end in parent_ends:  # otherwise sending a result would not fail after the parent was killed
        end.close()
    while index_bytes := os.read(indices, 4):
        (index,) = struct.unpack("i", index_bytes)
        try:
            message = pickle.dumps((index, jobs[index](), None))
        except Exception as error:
            message = pickle.dumps((index, None, error))
        with suppress(BrokenPipeError):
            results.send_bytes(message)
            continue
        return
