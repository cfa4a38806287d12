"""Work spread over processes that share what was read: they are forked once it is in memory.

No thread takes part, and no lock is shared: places are dealt out by one pipe, and every process answers through one of
its own. So nobody waits for a process that was killed, and none is left behind by a parent that was.
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

# Forking is safe where no thread of a library holds a lock by then: on Linux, with what is loaded here.
CAN_FORK = sys.platform == "linux"
# What a pipe takes at once everywhere; places beyond that are left for the caller.
_DEALT = 4096 // 4

T = TypeVar("T")


def available() -> int:
    """The cores that this process may use; 1 where processes cannot share what was read."""
    return cores.available() if CAN_FORK else 1


def each(jobs: Sequence[Callable[[], T]], workers: int) -> Iterator[tuple[int, T]]:
    """Do every job, in so many processes, and yield its place and its result as they come; results are pickled.

    What a process that was killed (out of memory) leaves undone is done here, and everything where none can be started.
    """
    left = dict.fromkeys(range(len(jobs)))
    workers = min(workers, len(jobs)) if CAN_FORK else 1
    if workers > 1:
        for place, result in _forked(jobs, workers):
            del left[place]
            yield place, result
    for place in left:
        yield place, jobs[place]()


def _forked(jobs: Sequence[Callable[[], T]], workers: int) -> Iterator[tuple[int, T]]:
    context = get_context("fork")
    places, deal = os.pipe()
    os.write(deal, b"".join(struct.pack("i", place) for place in range(min(len(jobs), _DEALT))))
    os.close(deal)
    at_work: dict[Connection, object] = {}
    processes = []
    try:
        for _ in range(workers):
            answers, answer = context.Pipe(duplex=False)
            at_work[answers] = None
            process = context.Process(target=_work, args=(jobs, places, answer, list(at_work)), daemon=True)
            with answer, suppress(OSError):  # no memory for another process
                process.start()
                processes.append(process)
        while at_work:
            for answers in [end for end in wait(list(at_work)) if isinstance(end, Connection)]:
                try:
                    place, result, error = pickle.loads(answers.recv_bytes())
                except EOFError:  # it has done all that it could, or was killed
                    del at_work[answers]
                    answers.close()
                    continue
                if error is not None:
                    raise error
                yield place, result
    finally:
        os.close(places)
        for answers in at_work:
            answers.close()
        for process in processes:
            process.terminate()
            process.join()


def _work(jobs: Sequence[Callable[[], object]], places: int, answer: Connection, others: Sequence[Connection]) -> None:
    """What a process does until nothing is left to do. Ctrl-C ends it without a word: the one that started it tells."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    for end in others:  # so that a parent that is killed is found out by the next answer
        end.close()
    while taken := os.read(places, 4):
        (place,) = struct.unpack("i", taken)
        try:
            found = pickle.dumps((place, jobs[place](), None))
        except Exception as error:
            found = pickle.dumps((place, None, error))
        with suppress(BrokenPipeError):
            answer.send_bytes(found)
            continue
        return
