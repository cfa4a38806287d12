"""The Ray engine, for clusters and clouds without a scheduler. Each bundle of cells is a Ray task.

Ray is configured not to restart tasks. Instead, the engine submits the bundle of a dead task again, and training
continues from its checkpoints. Ray does not always report the loss of a node, so the executor enforces a time limit for
each task. The executor also reports resources that no node has, because Ray would let a task wait for them forever.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import sys
import time
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from iclbench.core.errors import Interrupted, UsageError, one_line
from iclbench.core.signals import ignore_ctrl_c
from iclbench.store.outcome import Outcome
from iclbench.sweep.bundle import Bundle, plain_outcomes
from iclbench.sweep.engines import EngineSettings
from iclbench.sweep.executor import WorkerDiedError, WorkerStartError
from iclbench.sweep.jobs import BundleFiles, JobBundle, JobExecutor, do_bundle, not_shared_message, result_of


def _task(bundle: str, work: str, threads: int, folder: str, import_path: list[str]) -> dict[str, Any] | None:
    """Compute a bundle in a Ray task. Return the result of `do_bundle`, or None if the node has no access to the
    results folder."""
    sys.path[:0] = [entry for entry in import_path if entry not in sys.path]
    files = BundleFiles.of(bundle)
    if not Path(bundle).is_file():
        return None
    if Path(folder).is_dir():
        os.chdir(folder)  # file names in cards are relative to the folder in which the command was started
    try:
        return do_bundle(bundle, work, threads)
    except Interrupted as error:  # returned, because Ray would print a traceback of several pages if it were raised
        return {"error": str(error), "unfit": False, "outcomes": plain_outcomes(files.stored_outcomes())}
    finally:
        files.exit_file.touch()


@dataclass
class _RayBundle(JobBundle):
    """A bundle whose Ray task is waiting or running."""

    task: Any
    time_limit: float | None  # in seconds
    start_time: float = field(default_factory=time.monotonic)


class RayExecutor(JobExecutor[_RayBundle]):
    """An `Executor` whose workers are Ray tasks.

    Raises:
        UsageError: no cluster is reachable at the address, or the cluster runs another version of Ray or Python.
    """

    engine, jobs_noun = "ray", "Ray tasks"

    def __init__(self, results: Path, settings: EngineSettings, *callbacks: Any) -> None:
        import ray

        self._ray, self._owns_connection = ray, not ray.is_initialized()
        if self._owns_connection:
            try:
                _check_reachable(settings.address)
                ray.init(settings.address, log_to_driver=False, logging_level=logging.ERROR, configure_logging=False)
            except Exception as error:
                raise UsageError(_no_cluster(settings.address, error), code="not-supported") from None
        super().__init__(results, settings, *callbacks)
        # A process does not release the GPU memory that it has used, so each task with a GPU gets a new process.
        task = ray.remote(max_calls=1 if settings.gpus else 0, max_retries=0)(_task)
        self._remote = task.options(
            num_cpus=settings.cpus,
            num_gpus=settings.gpus,
            runtime_env={"env_vars": _user_environment() | {"OMP_NUM_THREADS": str(settings.cpus)}},
        )
        self._reported_shortage: str | None = None
        self._next_check = 0.0
        self._thread.start()

    def _enqueue(self, future: Future[dict[str, Outcome]], bundle: Bundle, work: str) -> None:
        if (shortage := self._shortage()) is not None and self._nodes():  # without nodes, workers may still join
            future.set_exception(WorkerStartError(f"{shortage}: change cpus or gpus in [ray]", code="not-supported"))
            return
        files = BundleFiles.new(self.folder, bundle.name)
        bundle.write(files.bundle)
        future.set_running_or_notify_cancel()
        task = self._remote.remote(str(files.bundle), work, self._settings.cpus, str(Path.cwd()), sys.path)
        with self._lock:
            self._running.append(_RayBundle(future, files, task, self._time_limit(bundle)))

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """See `Executor.shutdown`."""
        self._stopping.set()
        if wait:
            self._thread.join()
            if self._owns_connection:
                with ignore_ctrl_c():  # Ctrl-C here would end the process without a message
                    self._ray.shutdown()

    def stop(self, grace: float) -> None:
        """See `Executor.stop`."""
        self._stopping.set()
        self._thread.join()
        with self._lock:
            running_bundles, self._running = self._running, []
        for bundle in running_bundles:  # has the effect of Ctrl-C in the task: training writes a checkpoint
            self._cancel(bundle, force=False)
        # Ray reports a task as cancelled before its process has ended, so wait for the exit files.
        started = [bundle.files for bundle in running_bundles if bundle.files.start_file.exists()]
        deadline = time.monotonic() + grace
        while time.monotonic() < deadline and not all(files.exit_file.exists() for files in started):
            time.sleep(0.1)
        for bundle in running_bundles:
            self._cancel(bundle, force=True)
        self.shutdown()

    def _time_limit(self, bundle: Bundle) -> float | None:
        """Return the seconds after which a task counts as stuck; None if its expected duration is unknown."""
        settings = self._settings
        if settings.minutes is not None:
            return 60.0 * settings.minutes
        seconds = self._expected_seconds(bundle)
        return None if seconds is None else max(3600.0, settings.margin * seconds)

    def _nodes(self) -> list[dict[str, float]]:
        """Return the resources of the live nodes that have CPUs."""
        nodes = (node["Resources"] for node in self._ray.nodes() if node["Alive"])
        return [node for node in nodes if node.get("CPU")]

    def _shortage(self) -> str | None:
        """Return a message if a task needs more CPUs or GPUs than any node has and would therefore wait forever;
        otherwise None."""
        nodes = self._nodes()
        for name, needed in (("CPU", self._settings.cpus), ("GPU", self._settings.gpus)):
            largest = max((node.get(name, 0.0) for node in nodes), default=0.0)
            if needed > largest:
                return f"no node of the Ray cluster has {needed} {name}; the largest node has {largest:g}"
        return None

    def _check_nodes(self, waiting_count: int) -> None:
        """Report once if tasks are waiting for a node with enough CPUs or GPUs."""
        if time.monotonic() < self._next_check:
            return
        self._next_check = time.monotonic() + self._settings.poll
        shortage = self._shortage()
        if shortage is not None and shortage != self._reported_shortage:
            self._print_line(f"{shortage}; tasks waiting for such a node: {waiting_count}")
        self._reported_shortage = shortage

    @property
    def _poll_seconds(self) -> float:
        return min(0.2, self._settings.poll)

    def _poll(self) -> None:
        if bundles := self._snapshot():
            finished_tasks, _ = self._ray.wait([bundle.task for bundle in bundles], num_returns=len(bundles), timeout=0)
            waiting_count = 0
            for bundle in bundles:
                if bundle.task in finished_tasks:
                    self._settle(bundle, self._result(bundle))
                elif bundle.files.start_file.exists():
                    self._check_time_limit(bundle)
                else:
                    bundle.start_time = time.monotonic()  # the time of waiting for a node does not count
                    waiting_count += 1
            if waiting_count:
                self._check_nodes(waiting_count)

    def _check_time_limit(self, bundle: _RayBundle) -> None:
        if bundle.time_limit is not None and time.monotonic() - bundle.start_time > bundle.time_limit:
            self._cancel(bundle, force=True)
            minutes = bundle.time_limit / 60
            error = WorkerDiedError(f"a Ray task took more than {minutes:.0f} minutes", bundle.files.stored_outcomes())
            self._settle(bundle, error)

    def _result(self, bundle: _RayBundle) -> dict[str, Outcome] | Exception:
        try:
            content = self._ray.get(bundle.task)
        except Exception as error:  # a worker or a node has died
            return WorkerDiedError(_cause(error), bundle.files.stored_outcomes())
        if not content:
            return WorkerStartError(not_shared_message(self.folder), code="missing-file")
        self._clock.check(bundle.files)
        return result_of(content)

    def _cancel(self, bundle: _RayBundle, force: bool) -> None:
        with contextlib.suppress(Exception):
            self._ray.cancel(bundle.task, force=force)


def _check_reachable(address: str) -> None:
    """Raise `OSError` if nothing listens at the address. Ray itself would try to connect for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if host and port.isdigit():
        with socket.create_connection((host, int(port)), timeout=10):
            pass


def _user_environment() -> dict[str, str]:
    """Return the environment variables of iclbench, which Ray workers do not inherit."""
    return {name: value for name, value in os.environ.items() if name.startswith("ICLBENCH_")}


def _no_cluster(address: str, error: Exception) -> str:
    line = one_line(error)
    if "ersion mismatch" in line:
        return f"engine 'ray': {line}; install the same versions of Ray and Python on all nodes"
    return (
        f"engine 'ray': no cluster at address '{address}' ({line}); start one with 'ray start --head', or change "
        "address in [ray]"
    )


def _cause(error: Exception) -> str:
    """Return the cause of a Ray error in one line. The message of the error itself is several pages long."""
    names = {"WorkerCrashedError": "the worker was killed (out of memory?)", "NodeDiedError": "its node has died"}
    return names.get(type(error).__name__, one_line(getattr(error, "cause", None) or error))
