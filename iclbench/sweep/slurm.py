"""SLURM, through submitit: bundles of cells as arrays of jobs.

All that concerns a bundle lies in `RESULTS/jobs/slurm` (`iclbench.sweep.jobs`), so that a sweep may be killed at any
time: the same command finds its jobs again. submitit's own files and the logs lie in `logs` there.

SLURM asks a job to go with SIGTERM, not with the signal that submitit waits for by default. Training then writes a
checkpoint, submitit's handler puts the job back into the queue, and it goes on from there. Without accounting
(`sacct`) only `scontrol` knows of jobs that were killed, so that is what is asked.
"""

from __future__ import annotations

import contextlib
import io
import logging
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from iclbench.core.errors import IclbenchError, Interrupted, UsageError, one_line
from iclbench.core.files import write_text
from iclbench.core.formats import plural
from iclbench.store.outcome import Outcome
from iclbench.sweep.bundle import Bundle
from iclbench.sweep.engines import EngineSettings, user_file
from iclbench.sweep.executor import WorkerDiedError, WorkerStartError
from iclbench.sweep.jobs import Files, Handed, JobExecutor, do_bundle, not_shared

log = logging.getLogger("iclbench")

# The signal that SLURM sends; submitit reads it when it is imported, in the parent and in the job.
_SIGNAL = {"SUBMITIT_PREEMPT_SIGNAL": "TERM"}
# Seconds before its time is up that a job is told so.
_NOTICE = 90
# What becomes of a job at its end. All else is on its way.
_ENDS = {
    "BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED", "REVOKED",
    "TIMEOUT",
}  # fmt: skip
# Seconds until a file that was written on a node is surely seen here, and until one is that hardly was written.
_LATE, _SOON = 90.0, 5.0
# Time-outs of one job, after each of which it goes on from its checkpoint.
_TIMEOUTS = 10
# Jobs that ended before they had begun to work, where none has begun yet: whatever is wrong is so with all of them.
_HOPELESS = 3
# Limits in minutes that are asked for, so that jobs of like length make one array.
_LIMITS = (60, 120, 240, 480, 960, 1440, 2880, 5760, 10080)
# Array tasks that a scheduler takes where it does not say.
_ARRAY = 1001


# A bundle that is to be submitted, and the name of its work.
_Waiting = tuple[Future[dict[str, Outcome]], Bundle, str]


@dataclass
class Job:
    """What a job calls: the work of a bundle whose file it is told.

    Attributes:
        bundle: the file.
        work: what is done with every cell, as `module:name`.
        threads: torch threads.
    """

    bundle: str
    work: str
    threads: int = 1

    def __call__(self) -> None:
        """Work through the bundle, and leave a file that says so."""
        files = Files.of(self.bundle)
        if not _noted(files):
            log.warning("nobody knows of this job: its sweep ended while it was submitted")
            return
        try:
            do_bundle(self.bundle, self.work, self.threads)
        except Interrupted:
            # Training has written its checkpoint; submitit's handler, which is back in its place, does the rest.
            try:
                signal.raise_signal(signal.SIGTERM)
            except Exception as error:  # it does not put the job back
                files.end(f"{error} Raise minutes in [slurm]", files.finished())
                raise
            raise

    def checkpoint(self) -> Any:
        """What goes on when the job has been put back; called by submitit's handler of signals."""
        # A second signal comes when the time of grace is over.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if Files.of(self.bundle).cancelled.exists():
            os._exit(1)
        if shutil.which("scontrol") is None:  # then SLURM puts back what it has pre-empted, and nothing else
            while True:
                time.sleep(60)
        if _is_over():
            os._exit(1)
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self)


def _noted(files: Files) -> bool:
    """Whether the note that a bundle has this job is there, or comes: a sweep that ended between the two may have been
    started again and given the cells to another job.

    Raises:
        FileNotFoundError: nodes do not share the folder.
    """
    deadline = time.monotonic() + _LATE
    while not files.job.exists():
        if time.monotonic() > deadline:
            return False
        _look_again(files.folder)
        time.sleep(1.0)
    return True


def _look_again(folder: Path) -> None:
    """Let a file system over the net see what is new; raises `FileNotFoundError` where there is no such folder."""
    next(folder.iterdir(), None)


def _is_over() -> bool:
    """Whether the scheduler has ended this job already, which it tells by the same signal: somebody has taken it out of
    the queue, or SLURM itself has put it back."""
    with contextlib.suppress(subprocess.SubprocessError, OSError):
        said = _call("scontrol", "-o", "show", "job", os.environ["SLURM_JOB_ID"])
        return any(f"JobState={state}" in said for state in ("CANCELLED", "COMPLETING", "PENDING"))
    return False


@dataclass
class _Running(Handed):
    """A bundle whose job is in the queue or runs."""

    job: str
    missed: float | None = None


@dataclass(frozen=True)
class State:
    """What the scheduler says of a job."""

    name: str
    reason: str = ""
    exit_code: str = ""
    node: str = ""


class SlurmExecutor(JobExecutor[_Running]):
    """An `Executor` whose workers are jobs."""

    engine = "slurm"

    def __init__(self, results: Path, settings: EngineSettings, *told: Any) -> None:
        for program in ("sbatch", "scancel", "scontrol"):
            if shutil.which(program) is None:
                raise UsageError(f"engine 'slurm': no '{program}' on this machine; run the sweep on a login node")
        if any(character in str(results.absolute()) for character in "'\"\\%\n"):
            raise UsageError(f"engine 'slurm': no job's log can be in {results.absolute()}; choose another --results")
        super().__init__(results, settings, *told)
        self._pending: list[_Waiting] = []
        self._known: list[Files] = []  # of all jobs that were followed from here
        self._told, self._stillborn = set[str](), 0
        self._thread.start()

    def _hand(self, future: Future[dict[str, Outcome]], bundle: Bundle, work: str) -> None:
        with self._lock:
            self._pending.append((future, bundle, work))

    def adopted(self, wanted: Callable[[Bundle], bool]) -> Iterator[tuple[Bundle, Future[dict[str, Outcome]]]]:
        """See `Adopting.adopted`: jobs that are still there, or have come to an end meanwhile."""
        for name, job in self._jobs().items():
            files = Files(self.folder, name)
            try:
                bundle = Bundle.read(files.bundle)
            except (OSError, IclbenchError) as error:
                why = one_line(error)
                self._say_once(why, f"job {job} is left alone: {why}")
                continue
            if not wanted(bundle):
                continue
            running = _Running(Future(), files, job)
            with self._lock:
                self._running.append(running)
                self._known.append(files)
            yield bundle, running.future

    def queued(self) -> list[Bundle]:
        """See `Submitting.queued`; what others have left is forgotten."""
        found = []
        for name, state in self.queue().items():
            files = Files(self.folder, name)
            if state.name in _ENDS or state.name == "GONE":
                files.job.unlink(missing_ok=True)
                continue
            with contextlib.suppress(OSError, IclbenchError):
                found.append(Bundle.read(files.bundle))
        return found

    def flush(self) -> None:
        """See `Submitting.flush`."""
        self._flush(waiting=False)

    def _flush(self, waiting: bool) -> None:
        """Submit what is pending, as arrays; `waiting`: somebody waits for it, and what is refused is tried again."""
        with self._lock:
            pending, self._pending = self._pending, []
        if not pending:
            return
        by_limit: dict[int, list[_Waiting]] = {}
        for each in pending:
            by_limit.setdefault(self._minutes(each[1]), []).append(each)
        minutes = 0
        try:
            most = array_limit()
            arrays = [
                (minutes, group[start : start + most])
                for minutes, group in by_limit.items()
                for start in range(0, len(group), most)
            ]
            for minutes, group in arrays:
                self._submit(minutes, group, max(1, self.slots * len(group) // len(pending)))
        except OSError as error:
            self._refused(pending, waiting, f"jobs cannot be written to {self.folder}: {one_line(error)}")
        except Exception as error:
            self._refused(
                pending,
                waiting,
                f"SLURM takes no job: {_refusal(error)}; asked for {self._asked(minutes)}, which {user_file()} and the "
                "table [engine] of the grid set",
            )

    def _asked(self, minutes: int) -> str:
        """What a job asks for, in words."""
        own = self._settings
        gpus = [plural(own.gpus, "GPU")] if own.gpus else []
        partition = f"partition '{own.partition}'" if own.partition else "the default partition"
        return ", ".join([plural(own.cpus, "CPU"), *gpus, f"memory {own.memory}", f"{minutes} minutes", partition])

    def _refused(self, pending: Sequence[_Waiting], waiting: bool, why: str) -> None:
        """The scheduler takes no further job: where somebody waits, so do they as long as there are others, whose end
        may make room."""
        with self._lock:
            known = {id(each.future) for each in self._running}
            left = [each for each in pending if id(each[0]) not in known]
            if self._running and waiting:
                self._pending = left + self._pending
                left = []
        if waiting and not left:
            self._say_once(why, f"{why}; tried again when others have ended")
        for future, _, _ in left:
            future.set_exception(WorkerStartError(why))

    def _say_once(self, why: str, line: str) -> None:
        """A line for every reason."""
        if why not in self._told:
            self._told.add(why)
            self._say(line)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """See `Executor.shutdown`."""
        self._stopping.set()
        if wait:
            self._thread.join()

    def stop(self, grace: float) -> None:
        """See `Executor.stop`: jobs that run write their checkpoints, and none is put back."""
        self.shutdown(wait=True)
        with self._lock:
            running, self._running, pending, self._pending = self._running, [], self._pending, []
        for future in [*(each[0] for each in pending), *(each.future for each in running)]:
            future.cancel()
        jobs = [each.job for each in running]
        for each in running:
            each.files.cancelled.touch()
        try:
            if jobs:
                _call("scancel", *jobs)
            deadline = time.monotonic() + grace
            while time.monotonic() < deadline and any(state.name not in _ENDS for state in states(jobs).values()):
                time.sleep(min(1.0, self._settings.poll))
        except (subprocess.SubprocessError, OSError) as error:
            self._say(f"jobs {', '.join(jobs)} could not be taken out of the queue ({one_line(error)}): scancel them")
            return
        for each in running:
            each.files.job.unlink(missing_ok=True)

    def queue(self) -> dict[str, State]:
        """The state of every job that is known of, by bundle.

        Raises:
            IclbenchError: the scheduler is not there.
        """
        jobs = self._jobs()
        try:
            found = states(list(jobs.values()))
        except (subprocess.SubprocessError, OSError) as error:
            raise IclbenchError(f"the scheduler does not answer ({one_line(error)}); try again later") from error
        return {name: found.get(job, State("GONE")) for name, job in jobs.items()}

    def job(self, name: str) -> str:
        """The job of a bundle; empty: another sweep has just collected it, or no job is noted there."""
        try:
            return Files(self.folder, name).job.read_text().strip()
        except (FileNotFoundError, ValueError):
            return ""

    def _jobs(self) -> dict[str, str]:
        names = [path.stem for path in sorted(self.folder.glob("*.job"))]
        return {name: job for name in names if (job := self.job(name))}

    def progress(self, name: str) -> tuple[int, int]:
        """How many cells of a bundle are done, and how many there are."""
        files = Files(self.folder, name)
        try:
            return len(files.finished()), len(Bundle.read(files.bundle).cells)
        except (OSError, IclbenchError):
            return len(files.finished()), 0

    def _minutes(self, bundle: Bundle) -> int:
        if self._settings.minutes is not None:
            return self._settings.minutes
        seconds = self._seconds(bundle)
        # submitit takes any pre-emption of a job of ten minutes for a time-out, of which it allows three.
        wanted = 240.0 if seconds is None else self._settings.margin * seconds / 60
        return next((limit for limit in _LIMITS if wanted <= limit), round(wanted))

    def _submit(self, minutes: int, group: Sequence[_Waiting], at_once: int) -> None:
        """One array, of which so many tasks run at once."""
        os.environ |= _SIGNAL
        import submitit

        own = self._settings
        executor = submitit.SlurmExecutor(self.folder / "logs", python=own.python, max_num_timeout=_TIMEOUTS)
        named_options = {name: getattr(own, name) for name in ("partition", "account", "qos", "constraint", "exclude")}
        executor.update_parameters(
            job_name="iclbench",
            time=minutes,
            mem=own.memory,
            cpus_per_task=own.cpus,
            array_parallelism=at_once,
            signal_delay_s=min(_NOTICE, 15 * minutes),
            stderr_to_stdout=True,
            setup=[*(f"export {name}={value}" for name, value in _SIGNAL.items()), *own.setup],
            additional_parameters={"requeue": True} | own.options,
            **{name: value for name, value in named_options.items() if value is not None},
            **({"gpus_per_node": own.gpus} if own.gpus else {}),
        )
        files = [Files.new(self.folder, bundle.name) for _, bundle, _ in group]
        for each, (_, bundle, _) in zip(files, group, strict=True):
            bundle.write(each.bundle)
        # submitit prints what sbatch says; it is in the error, too.
        with contextlib.redirect_stderr(io.StringIO()), executor.batch():
            jobs = [
                executor.submit(Job(str(each.bundle), work, own.cpus))
                for each, (_, _, work) in zip(files, group, strict=True)
            ]
        for job, each, (future, _, _) in zip(jobs, files, group, strict=True):
            write_text(each.job, str(job.job_id))
            future.set_running_or_notify_cancel()
            with self._lock:
                self._running.append(_Running(future, each, str(job.job_id)))
                self._known.append(each)

    def _look(self) -> None:
        self._flush(waiting=True)
        try:
            self._ask(self._followed())
        except (subprocess.SubprocessError, OSError):  # the scheduler is not there for a moment
            return

    def _ask(self, running: Sequence[_Running]) -> None:
        """Settle what has ended well, and what the scheduler says has ended otherwise."""
        _look_again(self.folder)
        waiting = [each for each in running if not self._ended(each)]
        found = states([each.job for each in waiting])
        for each in waiting:
            state = found.get(each.job, State("GONE"))
            if state.name not in _ENDS and state.name != "GONE":
                each.missed = None
                continue
            each.missed = each.missed or time.monotonic()
            # Who ended well has written how.
            late = _LATE if state.name == "COMPLETED" else _SOON
            if not self._ended(each) and time.monotonic() - each.missed > late:
                self._settle(each, self._why(each, state))

    def _ended(self, each: _Running) -> bool:
        """Settle a bundle whose job has come to its end."""
        if not each.files.ended.is_file():
            return False
        try:
            result = each.files.result()
        except ValueError:  # half seen
            return False
        self._clock.look(each.files)
        self._settle(each, result)
        return True

    def _why(self, each: _Running, state: State) -> IclbenchError:
        log = self.folder / "logs" / f"{each.job}_0_log.out"
        what = f"job {each.job} is gone from the queue" if state.name == "GONE" else f"job {each.job}: {state.name}"
        if state.exit_code not in ("", "0:0"):
            what += f" (exit code {state.exit_code})"
        if state.name == "FAILED" and not each.files.began.exists():
            if not log.exists():
                return WorkerStartError(f"{what}; {not_shared(self.folder, state.node)}")
            self._stillborn += 1
            if self._stillborn == _HOPELESS and not any(files.began.exists() for files in self._known):
                return WorkerStartError(f"{what} before iclbench began, as others; see {log}, and setup and python in "
                                        f"{user_file()}")  # fmt: skip
        return WorkerDiedError(f"{what}; see {log}", each.files.finished())


def states(jobs: Sequence[str]) -> dict[str, State]:
    """What the scheduler says of jobs, `12` or `12_3`; those that it has forgotten are left out."""
    found: dict[str, State] = {}
    for array in dict.fromkeys(job.partition("_")[0] for job in jobs):
        out = _call("scontrol", "-o", "show", "job", array, but="Invalid job id")
        for line in out.splitlines():
            about = dict(re.findall(r"(\w+)=(\S*)", line))
            if "JobId" not in about:
                continue
            state = State(
                about.get("JobState", ""), about.get("Reason", ""), about.get("ExitCode", ""), about.get("NodeList", "")
            )
            if "ArrayJobId" in about:
                found |= {f"{about['ArrayJobId']}_{n}": state for n in _tasks(about.get("ArrayTaskId", ""))}
            else:
                found[about["JobId"]] = state
    return {job: found[job] for job in jobs if job in found}


def _tasks(text: str) -> Iterator[int]:
    """
    >>> list(_tasks("3")), list(_tasks("0-2,5%4"))
    ([3], [0, 1, 2, 5])
    """
    for part in text.partition("%")[0].split(","):
        first, _, last = part.partition("-")
        if first.isdigit():
            yield from range(int(first), int(last or first) + 1)


def array_limit() -> int:
    """How many tasks an array may have."""
    found = re.search(r"MaxArraySize\s*=\s*(\d+)", _call("scontrol", "show", "config"))
    return max(1, int(found[1]) - 1 if found else _ARRAY - 1)


def _call(*words: str, but: str = "") -> str:
    """What a program of SLURM says.

    Raises:
        SubprocessError: it failed, and not for the reason of `but`.
    """
    environment = os.environ | {"SLURM_BITSTR_LEN": "0"}  # lists of tasks as long as they are
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=60, env=environment)
    if done.returncode and not (but and but in done.stderr):
        raise subprocess.SubprocessError(done.stderr.strip() or f"{words[0]}: exit code {done.returncode}")
    return done.stdout


def _refusal(error: Exception) -> str:
    """The scheduler's own line."""
    lines = [line for line in str(error).splitlines() if "error:" in line]
    return lines[-1].partition("error:")[2].strip() if lines else one_line(error)
