"""Work spread over processes that share what was read: they are forked once it is in memory."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from typing import TypeVar

# Forking is safe where no thread of a library holds a lock by then: on Linux, with what is loaded here.
CAN_FORK = sys.platform == "linux"

T = TypeVar("T")

# What forked processes find: closures need not be sent.
_jobs: list[Callable[[], object]] = []


def available() -> int:
    """The cores that this process may use; 1 where processes cannot share what was read."""
    return len(os.sched_getaffinity(0)) if CAN_FORK else 1


def each(jobs: Sequence[Callable[[], T]], workers: int) -> Iterator[tuple[int, T]]:
    """Do every job, in so many processes, and yield its place and its result as they come; results are pickled.

    What a process that was killed (out of memory) leaves undone is done here.
    """
    left = dict.fromkeys(range(len(jobs)))
    workers = min(workers, len(jobs)) if CAN_FORK else 1
    if workers > 1:
        _jobs[:] = jobs
        try:
            for place, result in _forked(len(jobs), workers):
                del left[place]
                yield place, result  # type: ignore[misc]  # of jobs of this type
        except BrokenProcessPool:
            pass
        finally:
            _jobs.clear()
    for place in left:
        yield place, jobs[place]()


def _forked(number: int, workers: int) -> Iterator[tuple[int, object]]:
    with ProcessPoolExecutor(workers, get_context("fork"), _set_up) as pool:
        places: dict[Future[object], int] = {pool.submit(_do, place): place for place in range(number)}
        try:
            for done in as_completed(places):
                yield places[done], done.result()
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def _set_up() -> None:
    """Ctrl-C ends these processes without a word: the one that started them tells."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _do(place: int) -> object:
    return _jobs[place]()
