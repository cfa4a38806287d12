"""The SLURM engine, which uses submitit to submit bundles of cells as arrays of jobs.

All files of a bundle are in `RESULTS/jobs/slurm` (`iclbench.sweep.jobs`). A sweep can therefore be killed at any time:
if the same command is run again, it finds the jobs. The files of submitit and the logs are in the subfolder `logs`.

Jobs are configured to receive SIGTERM before SLURM stops them, instead of submitit's default signal. Training then
writes a checkpoint, submitit's handler puts the job back into the queue, and the job continues from the checkpoint.
States of jobs are read from `scontrol`, because unlike `sacct` it lists killed jobs even on clusters without
accounting.
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
from iclbench.sweep.jobs import BundleFiles, JobBundle, JobExecutor, do_bundle, not_shared_message

log = logging.getLogger("iclbench")

# The environment variable with the signal that SLURM sends. submitit reads it at import, in the sweep and in the job.
_SIGNAL = {"SUBMITIT_PREEMPT_SIGNAL": "TERM"}
# A job receives the signal this many seconds before its time limit.
_NOTICE_SECONDS = 90
# SLURM's states for jobs that have ended.
_END_STATES = {
    "BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED", "REVOKED",
    "TIMEOUT",
}  # fmt: skip
# Seconds to wait for a file that a node writes: after a job has completed, and after it has failed.
_FILE_SECONDS, _FAILURE_SECONDS = 90.0, 5.0
# Maximum number of time-outs of a job. After each of them, the job continues from its checkpoint.
_MAX_TIMEOUTS = 10
# If this many jobs fail before iclbench starts in them, and iclbench has not started in any other job, the sweep fails.
_MAX_FAILED_STARTS = 3
# Time limits of jobs in minutes. Few distinct limits are used, since jobs in one array have the same limit.
_TIME_LIMITS = (60, 120, 240, 480, 960, 1440, 2880, 5760, 10080)
# SLURM's default of MaxArraySize.
_MAX_ARRAY_SIZE = 1001


# The future of a bundle to submit, the bundle, and the function that computes a cell, as `module:name`.
_PendingBundle = tuple[Future[dict[str, Outcome]], Bundle, str]


@dataclass
class Job:
    """The function that a job calls to compute a bundle. submitit pickles it.

    Attributes:
        bundle: path of the bundle's file.
        work: the function that computes a cell, as `module:name`.
        threads: number of torch threads.
    """

    bundle: str
    work: str
    threads: int = 1

    def __call__(self) -> None:
        """Compute the bundle and write its end file."""
        files = BundleFiles.of(self.bundle)
        if not _has_job_file(files):
            log.warning("this job has no job file: its sweep ended during the submission")
            return
        try:
            do_bundle(self.bundle, self.work, self.threads)
        except Interrupted:
            # Training has written its checkpoint and restored submitit's signal handler, which now requeues the job.
            try:
                signal.raise_signal(signal.SIGTERM)
            except Exception as error:  # the handler refuses to requeue the job
                files.end(f"{error} Raise minutes in [slurm]", files.stored_outcomes())
                raise
            raise

    def checkpoint(self) -> Any:
        """Return the job that submitit puts into the queue. submitit's signal handler calls this method."""
        # SLURM sends a second signal at the end of the grace time.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if BundleFiles.of(self.bundle).cancel_file.exists():
            os._exit(1)
        if shutil.which("scontrol") is None:  # submitit cannot requeue the job; SLURM does if it pre-empted the job
            while True:
                time.sleep(60)
        if _is_cancelled_or_requeued():
            os._exit(1)
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self)


def _has_job_file(files: BundleFiles) -> bool:
    """Wait until the job file of a bundle exists, and return whether it does. If a sweep ended before it wrote the
    file, another sweep may have submitted the cells again, so this job must not compute them.

    Raises:
        FileNotFoundError: nodes do not share the folder.
    """
    deadline = time.monotonic() + _FILE_SECONDS
    while not files.job.exists():
        if time.monotonic() > deadline:
            return False
        _refresh(files.folder)
        time.sleep(1.0)
    return True


def _refresh(folder: Path) -> None:
    """Make a network file system read the folder again. Raise `FileNotFoundError` if the folder does not exist."""
    next(folder.iterdir(), None)


def _is_cancelled_or_requeued() -> bool:
    """Whether this job was signalled because SLURM cancelled or requeued it, not because of its time limit."""
    with contextlib.suppress(subprocess.SubprocessError, OSError):
        output = _call("scontrol", "-o", "show", "job", os.environ["SLURM_JOB_ID"])
        return any(f"JobState={state}" in output for state in ("CANCELLED", "COMPLETING", "PENDING"))
    return False


@dataclass
class _SlurmBundle(JobBundle):
    """A bundle whose job is queued or running."""

    job: str
    end_time: float | None = None


@dataclass(frozen=True)
class JobState:
    """The state of a job in the scheduler."""

    name: str
    reason: str = ""
    exit_code: str = ""
    node: str = ""


class SlurmExecutor(JobExecutor[_SlurmBundle]):
    """An `Executor` whose workers are SLURM jobs."""

    engine = "slurm"

    def __init__(self, results: Path, settings: EngineSettings, *callbacks: Any) -> None:
        for program in ("sbatch", "scancel", "scontrol"):
            if shutil.which(program) is None:
                raise UsageError(
                    f"engine 'slurm': no '{program}' on this machine; run the sweep on a login node",
                    code="not-supported",
                )
        if any(character in str(results.absolute()) for character in "'\"\\%\n"):
            raise UsageError(
                f"engine 'slurm': logs of jobs cannot be in {results.absolute()}; choose another --results",
                code="bad-value",
            )
        super().__init__(results, settings, *callbacks)
        self._pending: list[_PendingBundle] = []
        self._all_files: list[BundleFiles] = []  # of all jobs of this executor, including adopted ones
        self._printed_reasons, self._failed_starts = set[str](), 0
        self._thread.start()

    def _enqueue(self, future: Future[dict[str, Outcome]], bundle: Bundle, work: str) -> None:
        with self._lock:
            self._pending.append((future, bundle, work))

    def adopted(self, is_wanted: Callable[[Bundle], bool]) -> Iterator[tuple[Bundle, Future[dict[str, Outcome]]]]:
        """See `AdoptingExecutor.adopted`. The bundles include bundles whose jobs have already ended."""
        for name, job in self._jobs().items():
            files = BundleFiles(self.folder, name)
            try:
                bundle = Bundle.read(files.bundle)
            except (OSError, IclbenchError) as error:
                reason = one_line(error)
                self._print_once(reason, f"job {job} is ignored: {reason}")
                continue
            if not is_wanted(bundle):
                continue
            running = _SlurmBundle(Future(), files, job)
            with self._lock:
                self._running.append(running)
                self._all_files.append(files)
            yield bundle, running.future

    def queued(self) -> list[Bundle]:
        """See `SubmittingExecutor.queued`. The job files of jobs that have ended are removed."""
        bundles = []
        for name, state in self.queue().items():
            files = BundleFiles(self.folder, name)
            if state.name in _END_STATES or state.name == "GONE":
                files.job.unlink(missing_ok=True)
                continue
            with contextlib.suppress(OSError, IclbenchError):
                bundles.append(Bundle.read(files.bundle))
        return bundles

    def flush(self) -> None:
        """See `SubmittingExecutor.flush`."""
        self._flush(retry=False)

    def _flush(self, retry: bool) -> None:
        """Submit the pending bundles as arrays. With `retry`, refused bundles remain pending if other jobs are
        running."""
        with self._lock:
            pending, self._pending = self._pending, []
        if not pending:
            return
        by_limit: dict[int, list[_PendingBundle]] = {}
        for pending_bundle in pending:
            by_limit.setdefault(self._minutes(pending_bundle[1]), []).append(pending_bundle)
        minutes = 0
        try:
            max_tasks = array_limit()
            arrays = [
                (minutes, group[start : start + max_tasks])
                for minutes, group in by_limit.items()
                for start in range(0, len(group), max_tasks)
            ]
            for minutes, group in arrays:
                self._submit(minutes, group, max(1, self.slots * len(group) // len(pending)))
        except OSError as error:
            self._handle_refusal(pending, retry, f"jobs cannot be written to {self.folder}: {one_line(error)}")
        except Exception as error:
            self._handle_refusal(
                pending,
                retry,
                f"SLURM refuses a job: {_refusal(error)}; its resources ({self._resources(minutes)}) are set in "
                f"{user_file()} and the table [engine] of the grid",
            )

    def _resources(self, minutes: int) -> str:
        """Describe the resources of a job in words, for messages."""
        settings = self._settings
        gpus = [plural(settings.gpus, "GPU")] if settings.gpus else []
        partition = f"partition '{settings.partition}'" if settings.partition else "the default partition"
        return ", ".join(
            [plural(settings.cpus, "CPU"), *gpus, f"memory {settings.memory}", f"{minutes} minutes", partition]
        )

    def _handle_refusal(self, pending: Sequence[_PendingBundle], retry: bool, reason: str) -> None:
        """Fail the bundles that were refused. With `retry`, they remain pending while other jobs are running, because
        the end of these jobs may free resources."""
        with self._lock:
            submitted = {id(bundle.future) for bundle in self._running}
            refused = [pending_bundle for pending_bundle in pending if id(pending_bundle[0]) not in submitted]
            if self._running and retry:
                self._pending = refused + self._pending
                refused = []
        if retry and not refused:
            self._print_once(reason, f"{reason}; it will be submitted again when other jobs have ended")
        for future, _, _ in refused:
            future.set_exception(WorkerStartError(reason))

    def _print_once(self, reason: str, line: str) -> None:
        """Print a line, unless a line was printed before for the same reason."""
        if reason not in self._printed_reasons:
            self._printed_reasons.add(reason)
            self._print_line(line)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """See `Executor.shutdown`."""
        self._stopping.set()
        if wait:
            self._thread.join()

    def stop(self, grace: float) -> None:
        """See `Executor.stop`. Running jobs write their checkpoints and are not requeued."""
        self.shutdown(wait=True)
        with self._lock:
            running, self._running, pending, self._pending = self._running, [], self._pending, []
        for future in [*(future for future, _, _ in pending), *(bundle.future for bundle in running)]:
            future.cancel()
        jobs = [bundle.job for bundle in running]
        for bundle in running:
            bundle.files.cancel_file.touch()
        try:
            if jobs:
                _call("scancel", *jobs)
            deadline = time.monotonic() + grace
            while time.monotonic() < deadline and any(
                state.name not in _END_STATES for state in query_job_states(jobs).values()
            ):
                time.sleep(min(1.0, self._settings.poll))
        except (subprocess.SubprocessError, OSError) as error:
            self._print_line(
                f"jobs {', '.join(jobs)} could not be cancelled ({one_line(error)}): cancel them with scancel"
            )
            return
        for bundle in running:
            bundle.files.job.unlink(missing_ok=True)

    def queue(self) -> dict[str, JobState]:
        """Return the state of each known job, by name of its bundle.

        Raises:
            IclbenchError: the scheduler does not answer.
        """
        jobs = self._jobs()
        try:
            job_states = query_job_states(list(jobs.values()))
        except (subprocess.SubprocessError, OSError) as error:
            raise IclbenchError(
                f"the scheduler does not answer ({one_line(error)}); try again later", code="failed"
            ) from error
        return {name: job_states.get(job, JobState("GONE")) for name, job in jobs.items()}

    def job(self, name: str) -> str:
        """Return the ID of a bundle's job; empty if the bundle has no job file, for example because another sweep has
        just collected its results."""
        try:
            return BundleFiles(self.folder, name).job.read_text().strip()
        except (FileNotFoundError, ValueError):
            return ""

    def _jobs(self) -> dict[str, str]:
        names = [path.stem for path in sorted(self.folder.glob("*.job"))]
        return {name: job for name in names if (job := self.job(name))}

    def progress(self, name: str) -> tuple[int, int]:
        """Return the number of finished cells of a bundle, and the number of all its cells (0 if the bundle cannot be
        read)."""
        files = BundleFiles(self.folder, name)
        try:
            return len(files.stored_outcomes()), len(Bundle.read(files.bundle).cells)
        except (OSError, IclbenchError):
            return len(files.stored_outcomes()), 0

    def _minutes(self, bundle: Bundle) -> int:
        if self._settings.minutes is not None:
            return self._settings.minutes
        seconds = self._expected_seconds(bundle)
        # Short limits must be avoided: for a limit of ten minutes, submitit counts each pre-emption as a time-out.
        minutes = 240.0 if seconds is None else self._settings.margin * seconds / 60
        return next((limit for limit in _TIME_LIMITS if minutes <= limit), round(minutes))

    def _submit(self, minutes: int, group: Sequence[_PendingBundle], parallel_tasks: int) -> None:
        """Submit one array of jobs, of which at most `parallel_tasks` run in parallel."""
        os.environ |= _SIGNAL
        import submitit

        settings = self._settings
        executor = submitit.SlurmExecutor(self.folder / "logs", python=settings.python, max_num_timeout=_MAX_TIMEOUTS)
        named_options = {
            name: getattr(settings, name) for name in ("partition", "account", "qos", "constraint", "exclude")
        }
        executor.update_parameters(
            job_name="iclbench",
            time=minutes,
            mem=settings.memory,
            cpus_per_task=settings.cpus,
            array_parallelism=parallel_tasks,
            signal_delay_s=min(_NOTICE_SECONDS, 15 * minutes),
            stderr_to_stdout=True,
            setup=[*(f"export {name}={value}" for name, value in _SIGNAL.items()), *settings.setup],
            additional_parameters={"requeue": True} | settings.options,
            **{name: value for name, value in named_options.items() if value is not None},
            **({"gpus_per_node": settings.gpus} if settings.gpus else {}),
        )
        files = [BundleFiles.new(self.folder, bundle.name) for _, bundle, _ in group]
        for bundle_files, (_, bundle, _) in zip(files, group, strict=True):
            bundle.write(bundle_files.bundle)
        # Discard the output of sbatch, which submitit prints to stderr. A failure raises an error with the same text.
        with contextlib.redirect_stderr(io.StringIO()), executor.batch():
            jobs = [
                executor.submit(Job(str(bundle_files.bundle), work, settings.cpus))
                for bundle_files, (_, _, work) in zip(files, group, strict=True)
            ]
        for job, bundle_files, (future, _, _) in zip(jobs, files, group, strict=True):
            write_text(bundle_files.job, str(job.job_id))
            future.set_running_or_notify_cancel()
            with self._lock:
                self._running.append(_SlurmBundle(future, bundle_files, str(job.job_id)))
                self._all_files.append(bundle_files)

    def _poll(self) -> None:
        self._flush(retry=True)
        try:
            self._settle_ended(self._snapshot())
        except (subprocess.SubprocessError, OSError):  # the scheduler is temporarily unavailable
            return

    def _settle_ended(self, running: Sequence[_SlurmBundle]) -> None:
        """Settle the bundles that have an end file, and the bundles whose jobs have failed."""
        _refresh(self.folder)
        waiting = [bundle for bundle in running if not self._settle_finished(bundle)]
        job_states = query_job_states([bundle.job for bundle in waiting])
        for bundle in waiting:
            state = job_states.get(bundle.job, JobState("GONE"))
            if state.name not in _END_STATES and state.name != "GONE":
                bundle.end_time = None
                continue
            bundle.end_time = bundle.end_time or time.monotonic()
            # A completed job has written its end file, which may take time to become visible on this machine.
            patience = _FILE_SECONDS if state.name == "COMPLETED" else _FAILURE_SECONDS
            if not self._settle_finished(bundle) and time.monotonic() - bundle.end_time > patience:
                self._settle(bundle, self._failure(bundle, state))

    def _settle_finished(self, bundle: _SlurmBundle) -> bool:
        """Settle a bundle if it has a complete end file. Return whether it has one."""
        if not bundle.files.end_file.is_file():
            return False
        try:
            result = bundle.files.result()
        except ValueError:  # the file is not complete yet
            return False
        self._clock.check(bundle.files)
        self._settle(bundle, result)
        return True

    def _failure(self, bundle: _SlurmBundle, state: JobState) -> IclbenchError:
        """Return the error for a job that has ended without an end file."""
        job, log_path = bundle.job, self.folder / "logs" / f"{bundle.job}_0_log.out"
        message = f"job {job} has left the queue" if state.name == "GONE" else f"job {job}: {state.name}"
        if state.exit_code not in ("", "0:0"):
            message += f" (exit code {state.exit_code})"
        if state.name == "FAILED" and not bundle.files.start_file.exists():
            if not log_path.exists():
                return WorkerStartError(
                    f"{message}; {not_shared_message(self.folder, state.node)}", code="missing-file"
                )
            self._failed_starts += 1
            has_started = any(files.start_file.exists() for files in self._all_files)
            if self._failed_starts == _MAX_FAILED_STARTS and not has_started:
                return WorkerStartError(
                    f"{message} before the start of iclbench, like other jobs; see {log_path}, and setup and python in "
                    f"{user_file()}"
                )
        return WorkerDiedError(f"{message}; see {log_path}", bundle.files.stored_outcomes())


def query_job_states(jobs: Sequence[str]) -> dict[str, JobState]:
    """Return the states of jobs by ID (`12`, or `12_3` in an array). Jobs that the scheduler no longer lists are
    omitted."""
    job_states: dict[str, JobState] = {}
    for array in dict.fromkeys(job.partition("_")[0] for job in jobs):
        output = _call("scontrol", "-o", "show", "job", array, ignored_error="Invalid job id")
        for line in output.splitlines():
            fields = dict(re.findall(r"(\w+)=(\S*)", line))
            if "JobId" not in fields:
                continue
            state = JobState(
                fields.get("JobState", ""),
                fields.get("Reason", ""),
                fields.get("ExitCode", ""),
                fields.get("NodeList", ""),
            )
            if "ArrayJobId" in fields:
                job_states |= {
                    f"{fields['ArrayJobId']}_{n}": state for n in _task_numbers(fields.get("ArrayTaskId", ""))
                }
            else:
                job_states[fields["JobId"]] = state
    return {job: job_states[job] for job in jobs if job in job_states}


def _task_numbers(text: str) -> Iterator[int]:
    """Yield the task numbers in scontrol's description of an array.

    >>> list(_task_numbers("3")), list(_task_numbers("0-2,5%4"))
    ([3], [0, 1, 2, 5])
    """
    for number_range in text.partition("%")[0].split(","):
        first, _, last = number_range.partition("-")
        if first.isdigit():
            yield from range(int(first), int(last or first) + 1)


def array_limit() -> int:
    """Return the maximum number of tasks in an array."""
    match = re.search(r"MaxArraySize\s*=\s*(\d+)", _call("scontrol", "show", "config"))
    return max(1, int(match[1]) - 1 if match else _MAX_ARRAY_SIZE - 1)


def _call(*words: str, ignored_error: str = "") -> str:
    """Run a SLURM program and return its output.

    Raises:
        SubprocessError: the program failed with an error other than `ignored_error`.
    """
    environment = os.environ | {"SLURM_BITSTR_LEN": "0"}  # print complete lists of task numbers
    process = subprocess.run(words, capture_output=True, text=True, check=False, timeout=60, env=environment)
    if process.returncode and not (ignored_error and ignored_error in process.stderr):
        raise subprocess.SubprocessError(process.stderr.strip() or f"{words[0]}: exit code {process.returncode}")
    return process.stdout


def _refusal(error: Exception) -> str:
    """Return the scheduler's message in an error of submitit."""
    lines = [line for line in str(error).splitlines() if "error:" in line]
    return lines[-1].partition("error:")[2].strip() if lines else one_line(error)
