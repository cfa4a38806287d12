"""What the engine asks of whatever runs cells: the shape of `concurrent.futures`, and how to end early.

Another engine, of a cluster, is a class with these four members; cells, plan and engine stay as they are. `submit`
would write the pickled function and its arguments to the shared results folder and hand a job to the scheduler that
calls it (`work` writes what it finds into that folder itself, so only the small `Outcome` travels back), and set the
future when the job is gone from the queue: its result, or `WorkerDiedError` where there is none. `slots` is then the
number of jobs that may stand in the queue.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Protocol, TypeVar, runtime_checkable

from iclbench.core.errors import IclbenchError

T = TypeVar("T")


class WorkerDiedError(IclbenchError):
    """The process that worked on a call is gone, and with it the answer."""


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
