"""Communication between a sweep and its cluster jobs through files in `RESULTS/jobs/ENGINE`, a folder that all nodes
share."""

from __future__ import annotations

import json
import logging
import platform
import threading
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

from iclbench.core.errors import IclbenchError, Interrupted, one_line
from iclbench.core.files import write_text
from iclbench.registry import import_object
from iclbench.store.outcome import Outcome
from iclbench.store.runs import write_errors
from iclbench.sweep.bundle import Bundle, commit_mismatch, outcomes_of, plain_outcomes, read_outcomes, work_through
from iclbench.sweep.engines import EngineSettings
from iclbench.sweep.executor import WorkerDiedError, WorkerStartError
from iclbench.sweep.work import share_cores

log = logging.getLogger("iclbench")

# A warning is printed if two clocks differ by more than this many seconds.
_MAX_SKEW = 60.0


@dataclass(frozen=True)
class BundleFiles:
    """The files of one bundle.

    | ending | content | what it means if the file exists |
    | --- | --- | --- |
    | `.json` | the bundle | |
    | `.job` | the id of the bundle's job | the bundle was submitted |
    | `.began` | start time and node | the job has started and can read the folder |
    | `.outcomes.json` | the outcomes so far | |
    | `.ended.json` | the result | the job has finished |
    | `.cancelled` | empty | the sweep was stopped |
    | `.left` | empty | the worker no longer works on the bundle, finished or not |
    """

    folder: Path
    name: str

    @classmethod
    def of(cls, bundle: str) -> BundleFiles:
        """Return the files of the bundle that is stored at this path."""
        path = Path(bundle)
        return cls(path.parent, path.stem)

    def _path(self, ending: str) -> Path:
        return self.folder / f"{self.name}.{ending}"

    @property
    def bundle(self) -> Path:
        return self._path("json")

    @property
    def job(self) -> Path:
        return self._path("job")

    @property
    def start_file(self) -> Path:
        return self._path("began")

    @property
    def outcomes(self) -> Path:
        return self._path("outcomes.json")

    @property
    def end_file(self) -> Path:
        return self._path("ended.json")

    @property
    def cancel_file(self) -> Path:
        return self._path("cancelled")

    @property
    def exit_file(self) -> Path:
        return self._path("left")

    @classmethod
    def new(cls, folder: Path, bundle: str) -> BundleFiles:
        """Return the files for a new submission of a bundle. Each submission has different file names."""
        return cls(folder, f"{bundle}-{uuid.uuid4().hex[:8]}")

    def result(self) -> dict[str, Outcome] | IclbenchError:
        """Read the end file of the job. Return the outcomes of its cells, or the error that ended the job.

        Raises:
            ValueError: the file is incomplete or damaged.
        """
        return result_of(json.loads(self.end_file.read_text(encoding="utf-8")))

    def end(self, error: str | None, outcomes: Mapping[str, Outcome], unfit: bool = False) -> dict[str, Any]:
        """Write the end file of the job and return its content, from which `result_of` reads the outcomes.

        Args:
            error: error message of the bundle; None if it succeeded.
            outcomes: outcomes of its cells.
            unfit: whether the job failed for a reason that would make any bundle fail.
        """
        content = {"error": error, "unfit": unfit, "outcomes": plain_outcomes(outcomes)}
        write_text(self.end_file, json.dumps(content))
        return content

    def stored_outcomes(self) -> dict[str, Outcome]:
        """Return the outcomes of the cells so far; empty if their file is missing or damaged."""
        try:
            return read_outcomes(self.outcomes)
        except (OSError, ValueError):
            return {}


def result_of(content: Mapping[str, Any]) -> dict[str, Outcome] | IclbenchError:
    """Return the outcomes in the content of an end file, or the error that ended the job. Raise `ValueError` for any
    other content."""
    try:
        error, unfit, outcomes = content["error"], content["unfit"], outcomes_of(content["outcomes"])
    except (TypeError, KeyError) as damage:
        raise ValueError("not the end file of a bundle") from damage
    if unfit:
        return WorkerStartError(error)
    return outcomes if error is None else WorkerDiedError(error, outcomes)


def do_bundle(bundle: str, work: str, threads: int) -> dict[str, Any]:
    """Compute the cells of a bundle in a job and write the end file. Cells that an earlier job finished are not
    recomputed.

    Args:
        bundle: path of the bundle's file.
        work: the function that computes a cell, as `module:name`.
        threads: number of torch threads.

    Returns:
        The content of the end file: the `error` of the bundle, whether the job was `unfit`, and `outcomes` by cell.

    Raises:
        Interrupted: on a signal, after writing a checkpoint.
        FileNotFoundError: the folder of the bundle is missing, because the nodes do not share it.
    """
    files = BundleFiles.of(bundle)
    write_text(files.start_file, json.dumps({"time": time.time(), "node": platform.node()}))
    error, unfit, outcomes = None, True, files.stored_outcomes()
    try:
        share_cores(threads)
        cells, compute = Bundle.read(files.bundle), import_object(work)
        unfit = False  # later errors concern only this bundle
        outcomes = work_through(cells, compute, files.outcomes)
        if outcomes and (warning := commit_mismatch(files.bundle)) is not None:
            log.warning(warning)
            cell = next(iter(outcomes))
            outcomes[cell] = replace(outcomes[cell], warnings=(warning, *outcomes[cell].warnings))
    except Interrupted:
        raise
    except Exception as failure:
        error, outcomes = one_line(failure), files.stored_outcomes()
    return files.end(error, outcomes, unfit)


def not_shared_message(folder: Path, node: str = "") -> str:
    """Return the error message for a job that cannot find the folder."""
    return f"{folder} was not found on {node or 'the node'}: --results must be a folder that all nodes share"


class ClockCheck:
    """Compares the clocks of nodes with the clock of the file system, and warns once if they differ.

    Args:
        print_line: function that prints a line for the user.
    """

    def __init__(self, print_line: Callable[[str], None]) -> None:
        self._print_line, self._has_warned = print_line, False

    def check(self, files: BundleFiles) -> None:
        """Compare the time in a start file, from the node's clock, with the file's modification time."""
        with suppress(OSError, ValueError, KeyError):
            content = json.loads(files.start_file.read_text())
            skew = abs(content["time"] - files.start_file.stat().st_mtime)
            if skew > _MAX_SKEW and not self._has_warned:
                self._has_warned = True
                self._print_line(
                    f"the clock of node {content['node']} differs by {skew:.0f} s from the clock of the file system"
                )


@dataclass
class JobBundle:
    """A bundle that was submitted to a cluster, and its files."""

    future: Future[dict[str, Outcome]]
    files: BundleFiles


B = TypeVar("B", bound=JobBundle)


class JobExecutor(ABC, Generic[B]):
    """An `Executor` whose workers are jobs on a cluster. A thread polls the submitted bundles.

    Args:
        results: the results folder, which must have the same path on all nodes.
        settings: settings of the jobs.
        expected_seconds: function that returns the expected duration of a bundle in seconds; None if unknown.
        print_line: function that prints a line for the user.
    """

    engine: ClassVar[str]
    jobs_noun: ClassVar[str] = "jobs"  # the word for the jobs in messages

    def __init__(
        self,
        results: Path,
        settings: EngineSettings,
        expected_seconds: Callable[[Bundle], float | None] = lambda bundle: None,
        print_line: Callable[[str], None] = lambda line: None,
    ) -> None:
        self.slots = settings.jobs
        self.folder = results.absolute() / "jobs" / self.engine
        self._settings, self._expected_seconds = settings, expected_seconds
        self._print_line, self._clock = print_line, ClockCheck(print_line)
        self._running: list[B] = []
        self._lock, self._stopping = threading.Lock(), threading.Event()
        self._thread = threading.Thread(target=self._watch, name=self.engine, daemon=True)
        self.folder.mkdir(parents=True, exist_ok=True)

    def submit(self, fn: Callable[..., Any], /, *args: Any) -> Future[Any]:
        """See `Executor.submit`. The function must be `work_through`."""
        bundle, work = args
        assert fn is work_through and isinstance(bundle, Bundle), "jobs only run `work_through` on a bundle"
        future: Future[dict[str, Outcome]] = Future()
        with write_errors(self.folder.parent.parent):
            self._enqueue(future, bundle, f"{work.__module__}:{work.__qualname__}")
        return future

    @abstractmethod
    def _enqueue(self, future: Future[dict[str, Outcome]], bundle: Bundle, work: str) -> None:
        """Submit a bundle to the cluster, now or later."""

    @abstractmethod
    def _poll(self) -> None:
        """Settle the bundles whose jobs have ended."""

    @property
    def _poll_seconds(self) -> float:
        """Seconds between two polls."""
        return self._settings.poll

    def _snapshot(self) -> list[B]:
        """Return a copy of the list of submitted bundles whose results are not known yet."""
        with self._lock:
            return list(self._running)

    def _watch(self) -> None:
        """Poll until the executor stops. After an error, all bundles fail, including those that are submitted later.
        The job files remain, so that `stop` or another sweep can find the jobs."""
        failure: WorkerStartError | None = None
        while not self._stopping.wait(self._poll_seconds):
            try:
                if failure is None:
                    self._poll()
            except Exception as error:
                failure = WorkerStartError(f"cannot poll {self.jobs_noun}: {one_line(error)}")
            if failure is not None:
                for bundle in self._snapshot():
                    if not bundle.future.done():
                        bundle.future.set_exception(failure)

    def _settle(self, bundle: B, result: dict[str, Outcome] | Exception) -> None:
        with self._lock:
            self._running.remove(bundle)
        if isinstance(result, Exception):
            bundle.future.set_exception(result)
        else:
            bundle.future.set_result(result)
        with suppress(OSError):  # if this fails, the next sweep finds the job file and the end file
            bundle.files.job.unlink(missing_ok=True)
