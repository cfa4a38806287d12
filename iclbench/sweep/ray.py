"""Ray, for clusters and clouds without a scheduler: a bundle of cells is a task in a process of its own.

Ray restarts nothing: tasks that die are handed in again by the engine, and go on from their checkpoints. A node that is
taken away gives no signal, and a task that waits for what no node has would wait for ever, so deadlines are kept here.
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
from iclbench.core.formats import plural
from iclbench.core.signals import ctrl_c_ignored
from iclbench.store.outcome import Outcome
from iclbench.sweep.bundle import Bundle, plain_outcomes
from iclbench.sweep.engines import EngineSettings
from iclbench.sweep.executor import WorkerDiedError, WorkerStartError
from iclbench.sweep.jobs import Files, Handed, JobExecutor, do_bundle, not_shared, result_of


def _task(bundle: str, work: str, threads: int, folder: str, path: list[str]) -> dict[str, Any] | None:
    """What a worker of Ray does, and what `do_bundle` leaves; None: it does not see the results folder."""
    sys.path[:0] = [each for each in path if each not in sys.path]
    files = Files.of(bundle)
    if not Path(bundle).is_file():
        return None
    if Path(folder).is_dir():
        os.chdir(folder)  # names of files in cards are relative to where the command was given
    try:
        return do_bundle(bundle, work, threads)
    except Interrupted as error:  # raised, Ray would print pages of it
        return {"error": str(error), "unfit": False, "outcomes": plain_outcomes(files.finished())}
    finally:
        files.left.touch()


@dataclass
class _Running(Handed):
    task: Any
    deadline: float | None
    since: float = field(default_factory=time.monotonic)


class RayExecutor(JobExecutor[_Running]):
    """An `Executor` whose workers are tasks of Ray.

    Raises:
        UsageError: there is no cluster at the address, or one of another version.
    """

    engine, jobs = "ray", "tasks of Ray"

    def __init__(self, results: Path, settings: EngineSettings, *told: Any) -> None:
        import ray

        self._ray, self._ours = ray, not ray.is_initialized()
        if self._ours:
            try:
                _knock(settings.address)
                ray.init(settings.address, log_to_driver=False, logging_level=logging.ERROR, configure_logging=False)
            except Exception as error:
                raise UsageError(_no_cluster(settings.address, error)) from None
        super().__init__(results, settings, *told)
        # A process that has used a GPU keeps its memory: then every task has one of its own.
        task = ray.remote(max_calls=1 if settings.gpus else 0, max_retries=0)(_task)
        self._remote = task.options(
            num_cpus=settings.cpus,
            num_gpus=settings.gpus,
            runtime_env={"env_vars": _told() | {"OMP_NUM_THREADS": str(settings.cpus)}},
        )
        self._told: str | None = None
        self._next_look = 0.0
        self._thread.start()

    def _hand(self, future: Future[dict[str, Outcome]], bundle: Bundle, work: str) -> None:
        if (lacking := self._lacking()) is not None and self._nodes():  # else workers are still to come
            future.set_exception(WorkerStartError(f"{lacking}: mend [ray]"))
            return
        files = Files.new(self.folder, bundle.name)
        bundle.write(files.bundle)
        future.set_running_or_notify_cancel()
        task = self._remote.remote(str(files.bundle), work, self._settings.cpus, str(Path.cwd()), sys.path)
        with self._lock:
            self._running.append(_Running(future, files, task, self._limit(bundle)))

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """See `Executor.shutdown`."""
        self._stopping.set()
        if wait:
            self._thread.join()
            if self._ours:
                with ctrl_c_ignored():  # it would end the process without a word
                    self._ray.shutdown()

    def stop(self, grace: float) -> None:
        """See `Executor.stop`."""
        self._stopping.set()
        self._thread.join()
        with self._lock:
            running, self._running = self._running, []
        for each in running:  # like Ctrl-C in the task: training writes its checkpoint
            self._cancel(each, force=False)
        # Ray answers for what is cancelled before it has ended.
        begun = [each.files for each in running if each.files.began.exists()]
        deadline = time.monotonic() + grace
        while time.monotonic() < deadline and not all(files.left.exists() for files in begun):
            time.sleep(0.1)
        for each in running:
            self._cancel(each, force=True)
        self.shutdown()

    def _limit(self, bundle: Bundle) -> float | None:
        """Seconds after which a task is taken for stuck; None: nothing says how long it takes."""
        own = self._settings
        if own.minutes is not None:
            return 60.0 * own.minutes
        seconds = self._seconds(bundle)
        return None if seconds is None else max(3600.0, own.margin * seconds)

    def _nodes(self) -> list[dict[str, float]]:
        """What the nodes have that take work."""
        nodes = (node["Resources"] for node in self._ray.nodes() if node["Alive"])
        return [node for node in nodes if node.get("CPU")]

    def _lacking(self) -> str | None:
        """What no node has and tasks would wait for for ever."""
        nodes = self._nodes()
        for name, wanted in (("CPU", self._settings.cpus), ("GPU", self._settings.gpus)):
            most = max((node.get(name, 0.0) for node in nodes), default=0.0)
            if wanted > most:
                return f"no node of the Ray cluster has {wanted} {name}, the largest has {most:g}"
        return None

    def _look_at_nodes(self, waiting: int) -> None:
        """Say, once until they are there, that tasks wait for nodes."""
        if time.monotonic() < self._next_look:
            return
        self._next_look = time.monotonic() + self._settings.poll
        lacking = self._lacking()
        if lacking is not None and lacking != self._told:
            self._say(f"{lacking}: {plural(waiting, 'task')} wait until one joins")
        self._told = lacking

    @property
    def _pause(self) -> float:
        return min(0.2, self._settings.poll)

    def _look(self) -> None:
        if running := self._followed():
            done, _ = self._ray.wait([each.task for each in running], num_returns=len(running), timeout=0)
            waiting = 0
            for each in running:
                if each.task in done:
                    self._settle(each, self._result(each))
                elif each.files.began.exists():
                    self._look_at_time(each)
                else:
                    each.since = time.monotonic()  # it waits for a node
                    waiting += 1
            if waiting:
                self._look_at_nodes(waiting)

    def _look_at_time(self, each: _Running) -> None:
        if each.deadline is not None and time.monotonic() - each.since > each.deadline:
            self._cancel(each, force=True)
            minutes = each.deadline / 60
            late = WorkerDiedError(f"a task of Ray took more than {minutes:.0f} minutes", each.files.finished())
            self._settle(each, late)

    def _result(self, each: _Running) -> dict[str, Outcome] | Exception:
        try:
            seen = self._ray.get(each.task)
        except Exception as error:  # a worker or a node is gone
            return WorkerDiedError(_cause(error), each.files.finished())
        if not seen:
            return WorkerStartError(not_shared(self.folder))
        self._clock.look(each.files)
        return result_of(seen)

    def _cancel(self, each: _Running, force: bool) -> None:
        with contextlib.suppress(Exception):
            self._ray.cancel(each.task, force=force)


def _knock(address: str) -> None:
    """Raises `OSError` where nobody answers; Ray itself would go on trying for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if host and port.isdigit():
        with socket.create_connection((host, int(port)), timeout=10):
            pass


def _told() -> dict[str, str]:
    """What the user has set for all commands; workers of Ray inherit nothing."""
    return {name: value for name, value in os.environ.items() if name.startswith("ICLBENCH_")}


def _no_cluster(address: str, error: Exception) -> str:
    line = one_line(error)
    if "ersion mismatch" in line:
        return f"engine 'ray': {line}; install the same versions of Ray and Python on all nodes"
    return f"engine 'ray': no cluster at address '{address}' ({line}); start one with 'ray start --head' or mend [ray]"


def _cause(error: Exception) -> str:
    """In a line; Ray writes pages."""
    names = {"WorkerCrashedError": "the worker was killed (out of memory?)", "NodeDiedError": "its node is gone"}
    return names.get(type(error).__name__, one_line(getattr(error, "cause", None) or error))
