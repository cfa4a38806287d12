"""What jobs of a cluster and whoever submitted them tell each other: files in `RESULTS/jobs/ENGINE`, a folder that all
nodes share."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from iclbench.core.errors import Interrupted, one_line
from iclbench.core.files import atomic
from iclbench.sweep.bundle import Bundle, named, read_outcomes, work_through
from iclbench.sweep.executor import WorkerDiedError
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

    def clear(self) -> None:
        """Remove what another job has left."""
        for path in (self.job, self.began, self.outcomes, self.ended, self.cancelled):
            path.unlink(missing_ok=True)

    def result(self) -> dict[str, Outcome] | WorkerDiedError:
        """What became of its cells, once its job has ended."""
        error = json.loads(self.ended.read_text(encoding="utf-8"))["error"]
        return self.finished() if error is None else WorkerDiedError(error, self.finished())

    def finished(self) -> dict[str, Outcome]:
        """What became of its cells, as far as a job has come."""
        return read_outcomes(self.outcomes) if self.outcomes.is_file() else {}


def do_bundle(bundle: str, work: str, threads: int) -> None:
    """What a job does: work through the bundle of a file, go on where another job left off, and leave a file that says
    that it came to its end.

    Args:
        bundle: the file.
        work: what is done with every cell, as `module:name`.
        threads: torch threads.

    Raises:
        Interrupted: a signal came; a checkpoint was written.
        FileNotFoundError: the file is not there: nodes do not share the folder.
    """
    files = Files.of(bundle)
    with atomic(files.began) as temporary:
        temporary.write_text(json.dumps({"time": time.time(), "node": os.uname().nodename}))
    os.environ["OMP_NUM_THREADS"] = str(threads)
    os.environ["ICLBENCH_WORKERS"] = "1"  # the cores are shared out already
    error = None
    try:
        import torch

        torch.set_num_threads(threads)
        work_through(Bundle.read(files.bundle), named(work), files.outcomes)
    except Interrupted:
        raise
    except Exception as failed:
        error = one_line(failed)
    with atomic(files.ended) as temporary:
        temporary.write_text(json.dumps({"error": error}), encoding="utf-8")


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
