"""The interface between the engine and its workers. It extends the interface of `concurrent.futures` with a method that
stops workers.

`iclbench.sweep.local` runs calls in processes on this machine, and `iclbench.sweep.slurm` runs them as jobs on a
cluster. To add an engine, write a class with the members of `Executor` and register it under the entry point
`iclbench.engines` (`iclbench.sweep.engines`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, runtime_checkable

from iclbench.core.errors import IclbenchError
from iclbench.store.outcome import Outcome

if TYPE_CHECKING:
    from iclbench.sweep.bundle import Bundle

T = TypeVar("T")


class WorkerDiedError(IclbenchError):
    """The worker of a call died.

    Attributes:
        finished: outcomes, by hash, of the cells of the bundle that were finished before the worker died.
    """

    code = "worker-died"

    def __init__(self, message: str, finished: Mapping[str, Outcome] | None = None) -> None:
        super().__init__(message)
        self.finished = dict(finished or {})


class WorkerStartError(IclbenchError):
    """Workers cannot be started, so nothing can be computed."""

    code = "worker-died"


@runtime_checkable
class Executor(Protocol):
    """An object that runs up to `slots` calls in parallel."""

    @property
    def slots(self) -> int:
        """Maximum number of calls that run in parallel."""

    def submit(self, fn: Callable[..., T], /, *args: Any) -> Future[T]:
        """Call `fn(*args)` in a worker. The function and its arguments must be picklable.

        The future fails with `WorkerDiedError` if the worker dies (other calls continue), with `WorkerStartError` if
        workers cannot be set up, or with `IclbenchError` if `fn` raises an exception.
        """

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Stop accepting calls. With `wait`, return after all submitted calls have ended; with `cancel_futures`, cancel
        the calls that have not started."""

    def stop(self, grace: float) -> None:
        """Stop at once: send SIGTERM to all workers, kill the workers that are still running after `grace` seconds, and
        return when all have ended. Futures that are not done are cancelled or fail."""


@runtime_checkable
class AdoptingExecutor(Protocol):
    """An executor whose jobs outlive the sweep that submitted them."""

    def adopted(self, is_wanted: Callable[[Bundle], bool]) -> Iterable[tuple[Bundle, Future[dict[str, Outcome]]]]:
        """Return the bundles, with their futures, that an earlier sweep submitted but did not collect, and for which
        `is_wanted` is true."""


@runtime_checkable
class SubmittingExecutor(Executor, AdoptingExecutor, Protocol):
    """An executor that can submit jobs without waiting for them."""

    def queued(self) -> Iterable[Bundle]:
        """Return the bundles of earlier sweeps that are still queued or running."""

    def queue(self) -> Mapping[str, Any]:
        """Return the state (`name`, `reason`, `node`) of each known job, by name of its bundle."""

    def job(self, name: str) -> str:
        """Return the ID of a bundle's job; empty if the bundle has no job."""

    def progress(self, name: str) -> tuple[int, int]:
        """Return the number of finished cells of a bundle, and the number of all its cells."""

    def flush(self) -> None:
        """Submit all pending bundles now. Futures of refused bundles fail with `WorkerStartError`."""
