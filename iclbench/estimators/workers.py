"""One function over many episodes in worker processes, for libraries that cannot be batched.

Small work stays in this process; so does work whose workers die (killed, out of memory), which is then done again
here. The answers are the same either way. `ICLBENCH_WORKERS` sets the number of processes; 1 means none. Compiled loops
run in as many threads instead. No torch here: workers import this module, and hardly anything else of the package.
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

# Starting the workers and their imports takes some seconds, once per session.
_WORTH_SECONDS = 15.0


def over_episodes(function: Callable[..., _Answer], jobs: Sequence[tuple[Any, ...]], seconds: float) -> list[_Answer]:
    """`[function(*job) for job in jobs]`, spread over processes when the estimated `seconds` are worth it."""
    workers = min(_available(), len(jobs))
    if workers > 1 and seconds > _WORTH_SECONDS:
        from concurrent.futures import BrokenExecutor

        from joblib import Parallel, delayed, parallel_config

        try:
            # One thread each: on fits this small, threads cost many times what they bring.
            with parallel_config("loky", inner_max_num_threads=1):
                return list(Parallel(n_jobs=workers)(delayed(function)(*job) for job in jobs))
        except (BrokenExecutor, OSError) as error:
            log.warning("worker processes failed (%s); going on without them", type(error).__name__)
    return [function(*job) for job in jobs]


def in_threads(function: Callable[[slice], _Answer], chunks: Sequence[slice]) -> list[_Answer]:
    """`[function(part) for part in parts]`, in threads where there are cores: for functions that give up the GIL."""
    workers = min(_available(), len(chunks))
    if workers <= 1:
        return [function(chunk) for chunk in chunks]
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(workers) as pool:
        futures = [pool.submit(function, chunk) for chunk in chunks]
        try:
            return [future.result() for future in futures]
        except BaseException:  # Ctrl-C among them
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def fit_prefixes(model: Any, x: np.ndarray, y: np.ndarray, lengths: np.ndarray, queries: np.ndarray) -> np.ndarray:
    """Fit `model` afresh on every prefix of one episode; `queries` `(P, Q, Dx)` -> answers `(P, Q)`, 0 for length 0."""
    answers = np.zeros(queries.shape[:2])
    for p, n in enumerate(lengths):
        if n > 0:
            answers[p] = model.fit(x[:n], y[:n]).predict(queries[p])
    return answers


def _available() -> int:
    setting = os.environ.get("ICLBENCH_WORKERS", "")
    return max(1, int(setting)) if setting.isdecimal() else cores.available()
