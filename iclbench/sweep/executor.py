"""What the engine asks of whatever runs bundles of cells: the shape of `concurrent.futures`, and how to end early.

`iclbench.sweep.local` runs them in processes of this machine, `iclbench.sweep.slurm` as jobs of a cluster. Another
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
    """The process that worked on a call is gone, and with it the answer; `finished` is what had become of the cells of
    its bundle before, by hash, as far as that is known."""

    def __init__(self, message: str, finished: Mapping[str, Outcome] | None = None) -> None:
        super().__init__(message)
        self.finished = dict(finished or {})


class WorkerStartError(IclbenchError):
    """Worker processes cannot be set up, so that nothing can be computed."""


@runtime_checkable
class Executor(Protocol):
    """Runs calls somewhere, so many at a time."""

    @property
    def slots(self) -> int:
        """Calls that run side by side."""

    def submit(self, fn: Callable[..., T], /, *args: Any) -> Future[T]:
        """Call `fn(*args)` in a worker; both can be pickled.

        The future fails with `WorkerDiedError` when the worker dies (other calls go on), with `WorkerStartError` when
        there can be no worker, and with `IclbenchError` when `fn` raised something.
        """

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """No more calls; wait for those that were submitted, or cancel those that have not begun."""

    def stop(self, grace: float) -> None:
        """End at once: ask every worker with SIGTERM to stop, end those by force that are there after `grace` seconds,
        and return when none is left. Futures that were not done are cancelled or fail."""


@runtime_checkable
class Adopting(Protocol):
    """An executor whose work outlives who asked for it."""

    def adopted(self, wanted: Callable[[Bundle], bool]) -> Iterable[tuple[Bundle, Future[dict[str, Outcome]]]]:
        """What an earlier sweep has submitted and nobody has collected, as far as it is wanted."""


@runtime_checkable
class Submitting(Executor, Adopting, Protocol):
    """One that can be asked to submit and to leave."""

    def queued(self) -> Iterable[Bundle]:
        """What an earlier sweep has submitted, and is still in the queue or running."""

    def queue(self) -> Mapping[str, Any]:
        """The state (`name`, `reason`, `node`) of every job that is known of, by bundle."""

    def job(self, name: str) -> str:
        """The job of a bundle."""

    def progress(self, name: str) -> tuple[int, int]:
        """How many cells of a bundle are done, and how many there are."""

    def flush(self) -> None:
        """Submit now what was handed in; futures of what is refused fail with `WorkerStartError`."""
