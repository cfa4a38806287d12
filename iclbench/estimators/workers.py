"""Parallel calls of a function for many episodes: in processes for libraries, and in threads for compiled loops.

Jobs run in this process if they take little time, or if worker processes die, for example because memory is
insufficient. The answers are always the same. `ICLBENCH_WORKERS` sets the number of processes or threads; with 1, all
jobs run in this process and thread. This module does not import torch, because worker processes import only a small
part of the package.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np

from iclbench.core import cores

log = logging.getLogger("iclbench")

_Answer = TypeVar("_Answer")

# Smallest estimated time in seconds for which worker processes are started; starting them takes several seconds.
_MIN_SECONDS = 15.0


def map_episodes(function: Callable[..., _Answer], jobs: Sequence[tuple[Any, ...]], seconds: float) -> list[_Answer]:
    """Return `[function(*job) for job in jobs]`. It is computed in worker processes if the estimated number of seconds
    is large."""
    workers = min(_worker_count(), len(jobs))
    if workers > 1 and seconds > _MIN_SECONDS:
        from concurrent.futures import BrokenExecutor

        from joblib import Parallel, delayed, parallel_config

        try:
            # Each process uses one thread, because more threads make such small fits many times slower.
            with parallel_config("loky", inner_max_num_threads=1):
                return list(Parallel(n_jobs=workers)(delayed(function)(*job) for job in jobs))
        except (BrokenExecutor, OSError) as error:
            log.warning("worker processes failed (%s); continuing without them", type(error).__name__)
    return [function(*job) for job in jobs]


def map_in_threads(function: Callable[[slice], _Answer], chunks: Sequence[slice]) -> list[_Answer]:
    """Return `[function(chunk) for chunk in chunks]`, computed in threads, for functions that release the GIL."""
    workers = min(_worker_count(), len(chunks))
    if workers <= 1:
        return [function(chunk) for chunk in chunks]
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(workers) as pool:
        futures = [pool.submit(function, chunk) for chunk in chunks]
        try:
            return [future.result() for future in futures]
        except BaseException:  # including Ctrl-C
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def fit_prefixes(model: Any, x: np.ndarray, y: np.ndarray, lengths: np.ndarray, queries: np.ndarray) -> np.ndarray:
    """Fit `model` to each prefix of one episode, and return its answers `(P, Q)` to `queries` `(P, Q, Dx)`.

    Answers for length 0 are 0.
    """
    answers = np.zeros(queries.shape[:2])
    for p, n in enumerate(lengths):
        if n > 0:
            answers[p] = model.fit(x[:n], y[:n]).predict(queries[p])
    return answers


def _worker_count() -> int:
    setting = os.environ.get("ICLBENCH_WORKERS", "")
    return max(1, int(setting)) if setting.isdecimal() else cores.count_available()
