"""An executor that runs jobs in the test process, because workers take seconds to import torch."""

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any


class InlineExecutor:
    """An executor that runs jobs in this process.

    Args:
        before: called before each job with the number of the job. It can raise an error to simulate a worker that dies.
    """

    slots = 1

    def __init__(self, before: Callable[[int], None] = lambda call: None) -> None:
        self.calls = 0
        self._before = before

    def submit(self, fn: Callable[..., Any], /, *args: Any) -> Future[Any]:
        future: Future[Any] = Future()
        self.calls += 1
        try:
            self._before(self.calls)
            future.set_result(fn(*args))
        except Exception as error:
            future.set_exception(error)
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None: ...
    def stop(self, grace: float) -> None: ...
