"""What jobs of a cluster and whoever submitted them tell each other: files in `RESULTS/jobs/ENGINE`, a folder that all
nodes share."""

from __future__ import annotations

import json
import os
import time
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from iclbench.core.errors import IclbenchError, Interrupted, one_line
from iclbench.core.files import atomic
from iclbench.sweep.bundle import Bundle, named, outcomes_of, read_outcomes, work_through
from iclbench.sweep.executor import WorkerDiedError, WorkerStartError
from iclbench.sweep.outcome import Outcome

# Seconds that clocks may differ by before that is said.
_SKEW = 60.0


@dataclass(frozen=True)
class Files:
    """The files of one bundle.

    `.json` what is to be done; `.job` which job does it; `.began` that a job found the folder; `.outcomes.json` what
    became of its cells so far; `.ended.json` that the job came to its end; `.cancelled` that nobody wants it any more.
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

    @classmethod
    def new(cls, folder: Path, bundle: str) -> Files:
        """Of a bundle that is submitted now: whatever an earlier job of the same cells still writes is another's."""
        return cls(folder, f"{bundle}-{uuid.uuid4().hex[:8]}")

    def result(self) -> dict[str, Outcome] | IclbenchError:
        """What became of its cells, once its job has ended.

        Raises:
            ValueError: the file is there in part.
        """
        return result_of(json.loads(self.ended.read_text(encoding="utf-8")))

    def finished(self) -> dict[str, Outcome]:
        """What became of its cells, as far as a job has come and is known here."""
        try:
            return read_outcomes(self.outcomes)
        except (OSError, ValueError):
            return {}


def result_of(about: Mapping[str, Any]) -> dict[str, Outcome] | IclbenchError:
    """What became of cells, from what `do_bundle` has left."""
    if about["unfit"]:
        return WorkerStartError(about["error"])
    outcomes = outcomes_of(about["outcomes"])
    return outcomes if about["error"] is None else WorkerDiedError(about["error"], outcomes)


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
    with atomic(files.began) as temporary:
        temporary.write_text(json.dumps({"time": time.time(), "node": os.uname().nodename}))
    os.environ["OMP_NUM_THREADS"] = str(threads)
    os.environ["ICLBENCH_WORKERS"] = "1"  # the cores are shared out already
    error, unfit, outcomes = None, True, files.finished()
    try:
        given, do = Bundle.read(files.bundle), named(work)
        import torch

        torch.set_num_threads(threads)
        unfit = False  # whatever fails from here on is one bundle's
        outcomes = work_through(given, do, files.outcomes)
    except Interrupted:
        raise
    except Exception as failed:
        error, outcomes = one_line(failed), files.finished()
    about = {"error": error, "unfit": unfit, "outcomes": {cell: asdict(each) for cell, each in outcomes.items()}}
    with atomic(files.ended) as temporary:
        temporary.write_text(json.dumps(about), encoding="utf-8")
    return about


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
