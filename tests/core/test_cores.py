"""As many cores as a process was given are used, wherever work is spread over them."""

import os

import pytest

from iclbench.cli.sweep_run import worker_slots
from iclbench.core import cores
from iclbench.core.errors import UsageError
from iclbench.estimators import workers
from iclbench.training.processes import check_count


def test_no_more_cores_are_counted_than_this_process_was_given(monkeypatch: pytest.MonkeyPatch) -> None:
    """A scheduler, or `taskset`, gives few of a machine that has many."""
    monkeypatch.delenv("ICLBENCH_WORKERS", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {3, 4, 5}, raising=False)
    assert cores.available() == workers._available() == len(worker_slots()) == 3
    check_count(3, "cpu")
    with pytest.raises(UsageError, match=r"--processes 4 .* 3 "):
        check_count(4, "cpu")
    monkeypatch.delattr(os, "sched_getaffinity")
    assert cores.available() == 64
