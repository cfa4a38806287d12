"""The interface between the engine and the workers: that of `concurrent.futures`, with a method that stops workers.

`iclbench.sweep.local` runs calls in processes on this machine, `iclbench.sweep.slurm` as jobs on a cluster. Another
engine is a class with these members, registered under the entry point `iclbench.engines` (`iclbench.sweep.engines`).
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
    """The worker of a call died. `finished` holds the outcomes of the finished cells of its bundle, by hash."""

    code = "worker-died"

    def __init__(self, message: str, finished: Mapping[str, Outcome] | None = None) -> None:
        super().__init__(message)
        self.finished = dict(finished or {})


class WorkerStartError(IclbenchError):
    """Workers cannot be started, so nothing can be computed."""

    code = "worker-died"


@runtime_checkable
class Executor(Protocol):
    """Runs a number of calls in parallel."""

    @property
    def slots(self) -> int:
        """Number of calls that run in parallel."""

    def submit(self, fn: Callable[..., T], /, *args: Any) -> Future[T]:
        """Call `fn(*args)` in a worker. The function and its arguments must be picklable.

        The future fails with `WorkerDiedError` if the worker dies (other calls continue), with `WorkerStartError` if
        workers cannot be set up, and with `IclbenchError` if `fn` raises an exception.
        """

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Accept no more calls, and wait for submitted calls or cancel those that have not begun."""

    def stop(self, grace: float) -> None:
        """Stop at once: send SIGTERM to every worker, kill those that still run after `grace` seconds, and return when
        all have ended. Futures that are not done are cancelled or fail."""


@runtime_checkable
class AdoptingExecutor(Protocol):
    """An executor whose jobs outlive the sweep that submitted them."""

    def adopted(self, is_wanted: Callable[[Bundle], bool]) -> Iterable[tuple[Bundle, Future[dict[str, Outcome]]]]:
        """The wanted bundles that an earlier sweep has submitted and not collected."""


@runtime_checkable
class SubmittingExecutor(Executor, AdoptingExecutor, Protocol):
    """An executor that can submit jobs without waiting for them."""

    def queued(self) -> Iterable[Bundle]:
        """Bundles of an earlier sweep that are still in the queue or running."""

    def queue(self) -> Mapping[str, Any]:
        """The state (`name`, `reason`, `node`) of every known job, by bundle."""

    def job(self, name: str) -> str:
        """The ID of the job of a bundle; empty if it has no job."""

    def progress(self, name: str) -> tuple[int, int]:
        """Number of finished cells of a bundle, and of all its cells."""

    def flush(self) -> None:
        """Submit all pending bundles now. Futures of refused bundles fail with `WorkerStartError`."""
