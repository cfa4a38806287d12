"""The number of cores that the process may use limits the number of workers."""

import os

import pytest

from iclbench.cli.sweep_run import gpus_of_workers
from iclbench.core import cores
from iclbench.core.errors import IclbenchError
from iclbench.estimators import workers
from iclbench.training.processes import check_count


def test_only_the_cores_that_the_process_may_use_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """A scheduler or `taskset` may restrict a process to a few of many cores."""
    monkeypatch.delenv("ICLBENCH_WORKERS", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {3, 4, 5}, raising=False)
    assert cores.count_available() == workers._worker_count() == len(gpus_of_workers()) == 3
    check_count(3, "cpu")
    with pytest.raises(IclbenchError) as error:
        check_count(4, "cpu")
    assert error.value.exit_code == 2 and "--processes 4" in str(error.value)
    monkeypatch.delattr(os, "sched_getaffinity")
    assert cores.count_available() == 64
