"""What jobs of a cluster and whoever submitted them tell each other: files in `RESULTS/jobs/ENGINE`, a folder that all
nodes share."""

from __future__ import annotations

import json
import logging
import os
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
from iclbench.registry import imported
from iclbench.store.outcome import Outcome
from iclbench.store.runs import writing
from iclbench.sweep.bundle import Bundle, other_commit, outcomes_of, plain_outcomes, read_outcomes, work_through
from iclbench.sweep.engines import EngineSettings
from iclbench.sweep.executor import WorkerDiedError, WorkerStartError
from iclbench.sweep.work import share_cores

log = logging.getLogger("iclbench")

# Seconds that clocks may differ by before that is said.
_SKEW = 60.0


@dataclass(frozen=True)
class Files:
    """The files of one bundle.

    `.json` what is to be done; `.job` which job does it; `.began` that a job found the folder; `.outcomes.json` what
    became of its cells so far; `.ended.json` that the job came to its end; `.cancelled` that nobody wants it any more;
    `.left` that who worked on it is through with it, at its end or not.
    """

    folder: Path
    name: str

    @classmethod
    def of(cls, bundle: str) -> Files:
        """Those beside the file of a bundle."""
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
    def began(self) -> Path:
        return self._path("began")

    @property
    def outcomes(self) -> Path:
        return self._path("outcomes.json")

    @property
    def ended(self) -> Path:
        return self._path("ended.json")

    @property
    def cancelled(self) -> Path:
        return self._path("cancelled")

    @property
    def left(self) -> Path:
        return self._path("left")

    @classmethod
    def new(cls, folder: Path, bundle: str) -> Files:
        """Of a bundle that is submitted now: whatever an earlier job of the same cells still writes is another's."""
        return cls(folder, f"{bundle}-{uuid.uuid4().hex[:8]}")

    def result(self) -> dict[str, Outcome] | IclbenchError:
        """What became of its cells, once its job has ended.

        Raises:
            ValueError: the file is there in part, or damaged.
        """
        return result_of(json.loads(self.ended.read_text(encoding="utf-8")))

    def end(self, error: str | None, outcomes: Mapping[str, Outcome], unfit: bool = False) -> dict[str, Any]:
        """Write that the job has come to its end; returns what is written, which `result_of` reads.

        Args:
            error: of the bundle as a whole.
            outcomes: of its cells.
            unfit: whether the job could have done no bundle at all.
        """
        about = {"error": error, "unfit": unfit, "outcomes": plain_outcomes(outcomes)}
        write_text(self.ended, json.dumps(about))
        return about

    def finished(self) -> dict[str, Outcome]:
        """What became of its cells, as far as a job has come and is known here."""
        try:
            return read_outcomes(self.outcomes)
        except (OSError, ValueError):
            return {}


def result_of(about: Mapping[str, Any]) -> dict[str, Outcome] | IclbenchError:
    """What became of cells, from what `do_bundle` has left; raises `ValueError` where it is something else."""
    try:
        error, unfit, outcomes = about["error"], about["unfit"], outcomes_of(about["outcomes"])
    except (TypeError, KeyError) as damage:
        raise ValueError("no end of a bundle") from damage
    if unfit:
        return WorkerStartError(error)
    return outcomes if error is None else WorkerDiedError(error, outcomes)


def do_bundle(bundle: str, work: str, threads: int) -> dict[str, Any]:
    """What a job does: work through the bundle of a file, go on where another job left off, and leave a file that says
    that it came to its end, and what became of all cells.

    Args:
        bundle: the file.
        work: what is done with every cell, as `module:name`.
        threads: torch threads.

    Returns:
        What it has left: `error` of the bundle as a whole, whether the job was `unfit` for any, `outcomes` by cell.

    Raises:
        Interrupted: a signal came; a checkpoint was written.
        FileNotFoundError: the file is not there: nodes do not share the folder.
    """
    files = Files.of(bundle)
    write_text(files.began, json.dumps({"time": time.time(), "node": os.uname().nodename}))
    error, unfit, outcomes = None, True, files.finished()
    try:
        share_cores(threads)
        given, do = Bundle.read(files.bundle), imported(work)
        unfit = False  # whatever fails from here on is one bundle's
        outcomes = work_through(given, do, files.outcomes)
        if outcomes and (said := other_commit(files.bundle)) is not None:
            log.warning(said)
            first = next(iter(outcomes))
            outcomes[first] = replace(outcomes[first], warnings=(said, *outcomes[first].warnings))
    except Interrupted:
        raise
    except Exception as failed:
        error, outcomes = one_line(failed), files.finished()
    return files.end(error, outcomes, unfit)


def not_shared(folder: Path, node: str = "") -> str:
    """What to say where a job has not seen the folder."""
    return f"{folder} was not found on {node or 'the node'}: --results has to be a folder that all nodes share"


class Clock:
    """Looks whether nodes and files agree on what time it is, and says once where they do not.

    Args:
        say: tells the user a line.
    """

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say, self._said = say, False

    def look(self, files: Files) -> None:
        """At what a job wrote, and when that was by the file system's clock."""
        with suppress(OSError, ValueError, KeyError):
            about = json.loads(files.began.read_text())
            off = abs(about["time"] - files.began.stat().st_mtime)
            if off > _SKEW and not self._said:
                self._said = True
                self._say(f"the clock of node {about['node']} is {off:.0f} s off that of the files: let it be set")


@dataclass
class Handed:
    """A bundle that was handed to a cluster."""

    future: Future[dict[str, Outcome]]
    files: Files


H = TypeVar("H", bound=Handed)


class JobExecutor(ABC, Generic[H]):
    """An `Executor` whose workers are elsewhere: a thread looks again and again what has become of their bundles.

    Args:
        results: the results folder, which every node sees under this path.
        settings: of the jobs.
        seconds: what the cells of a bundle are expected to take; None: not known.
        say: tells the user a line.
    """

    engine: ClassVar[str]
    jobs: ClassVar[str] = "jobs"

    def __init__(
        self,
        results: Path,
        settings: EngineSettings,
        seconds: Callable[[Bundle], float | None] = lambda bundle: None,
        say: Callable[[str], None] = lambda line: None,
    ) -> None:
        self.slots = settings.jobs
        self.folder = results.absolute() / "jobs" / self.engine
        self._settings, self._seconds, self._say, self._clock = settings, seconds, say, Clock(say)
        self._running: list[H] = []
        self._lock, self._stopping = threading.Lock(), threading.Event()
        self._thread = threading.Thread(target=self._watch, name=self.engine, daemon=True)
        self.folder.mkdir(parents=True, exist_ok=True)

    def submit(self, fn: Callable[..., Any], /, *args: Any) -> Future[Any]:
        """See `Executor.submit`; what is called is the work of a bundle."""
        bundle, work = args
        assert fn is work_through and isinstance(bundle, Bundle), "a job works through a bundle"
        future: Future[dict[str, Outcome]] = Future()
        with writing(self.folder.parent.parent):
            self._hand(future, bundle, f"{work.__module__}:{work.__qualname__}")
        return future

    @abstractmethod
    def _hand(self, future: Future[dict[str, Outcome]], bundle: Bundle, work: str) -> None:
        """Hand a bundle to the cluster, or keep it for later."""

    @abstractmethod
    def _look(self) -> None:
        """Settle what has come to an end."""

    @property
    def _pause(self) -> float:
        """Seconds between two looks."""
        return self._settings.poll

    def _followed(self) -> list[H]:
        """What there is to look at."""
        with self._lock:
            return list(self._running)

    def _watch(self) -> None:
        while not self._stopping.wait(self._pause):
            try:
                self._look()
            except Exception as error:  # they stay noted, for `stop` to end or another sweep to find
                for each in self._followed():
                    each.future.set_exception(WorkerStartError(f"{self.jobs} cannot be followed: {one_line(error)}"))
                return

    def _settle(self, each: H, result: dict[str, Outcome] | Exception) -> None:
        with self._lock:
            self._running.remove(each)
        if isinstance(result, Exception):
            each.future.set_exception(result)
        else:
            each.future.set_result(result)
        with suppress(OSError):  # then the next sweep finds it, and its end beside it
            each.files.job.unlink(missing_ok=True)
