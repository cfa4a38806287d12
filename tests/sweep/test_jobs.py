"""Jobs and the sweeps that submit them communicate through files. These tests need no scheduler."""

import json
import os
import signal
import subprocess
import time
from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
import typer

from iclbench.cli.sweep_jobs import Cluster
from iclbench.core.context import Context
from iclbench.core.errors import IclbenchError, Interrupted
from iclbench.store.cells import CellStore
from iclbench.store.outcome import Outcome
from iclbench.sweep import engine, slurm
from iclbench.sweep.bundle import Bundle, work_through
from iclbench.sweep.cells import GridCell
from iclbench.sweep.engines import EngineSettings
from iclbench.sweep.executor import WorkerDiedError, WorkerStartError
from iclbench.sweep.jobs import BundleFiles, ClockCheck
from iclbench.sweep.plan import Plan
from iclbench.sweep.slurm import Job, JobState, SlurmExecutor
from tests.refusals import refused
from tests.sweep.test_engine import DONE, cell

CELL = cell("train", "a")
WORK = f"{__name__}:finish"


def finish(each: GridCell, context: Context) -> Outcome:
    return DONE


def interrupt(each: GridCell, context: Context) -> Outcome:
    raise Interrupted("a signal")


@pytest.fixture(autouse=True)
def _unlimited_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Do not limit the threads of the test process."""
    monkeypatch.setattr("iclbench.sweep.jobs.share_cores", lambda threads: None)


def submit_bundle(folder: Path, name: str = "one", has_job_file: bool = True) -> BundleFiles:
    """Write the files of a submitted bundle."""
    files = BundleFiles(folder, name)
    Bundle((CELL,), Context(folder)).write(files.bundle)
    if has_job_file:
        files.job.write_text("7")
    return files


@pytest.fixture
def executor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """An executor whose scheduler refuses all jobs and lists no jobs. `lines` records its messages."""
    lines: list[str] = []

    def refuse(self: SlurmExecutor, *group: Any) -> None:
        raise subprocess.SubprocessError("sbatch: error: Job violates accounting/QOS policy (job submit limit)")

    monkeypatch.setattr(slurm.shutil, "which", lambda program: program)
    monkeypatch.setattr(slurm, "query_job_states", lambda jobs: {})
    monkeypatch.setattr(slurm, "array_limit", lambda: 1000)
    monkeypatch.setattr(SlurmExecutor, "_submit", refuse)
    refusing_executor = SlurmExecutor(tmp_path, EngineSettings(poll=0.01), lambda bundle: None, lines.append)
    refusing_executor.lines = lines  # type: ignore[attr-defined]
    yield refusing_executor
    refusing_executor.shutdown()


def failure(future: Future[Any]) -> BaseException:
    error = future.exception(timeout=10)
    assert error is not None
    return error


def test_a_job_computes_its_bundle_and_writes_the_end_file(tmp_path: Path) -> None:
    files = submit_bundle(tmp_path)
    Job(str(files.bundle), WORK)()
    assert files.result() == {CELL.hash: DONE}


def test_a_job_without_a_job_file_computes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(slurm, "_FILE_SECONDS", 0.0)
    files = submit_bundle(tmp_path, has_job_file=False)
    Job(str(files.bundle), WORK)()
    assert not files.start_file.exists() and not files.end_file.exists()
    assert caplog.text


def test_a_job_that_is_not_requeued_reports_the_reason(tmp_path: Path) -> None:
    files = submit_bundle(tmp_path)

    def timed_out(number: int, frame: object) -> None:
        raise RuntimeError("Job not requeued because: timed-out too many times.")

    previous_handler = signal.signal(signal.SIGTERM, timed_out)
    try:
        with pytest.raises(RuntimeError, match="timed-out"):
            Job(str(files.bundle), f"{__name__}:interrupt")()
    finally:
        signal.signal(signal.SIGTERM, previous_handler)
    result = files.result()
    assert isinstance(result, WorkerDiedError)
    assert "timed-out too many times" in str(result) and "[slurm]" in str(result)


def test_cancelled_and_requeued_jobs_are_detected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    for state in ("CANCELLED", "COMPLETING", "PENDING"):
        monkeypatch.setattr(slurm, "_call", lambda *words, state=state: f"JobId=7 JobState={state} Reason=None")
        assert slurm._is_cancelled_or_requeued()
    monkeypatch.setattr(slurm, "_call", lambda *words: "JobId=7 JobState=RUNNING Reason=None")
    assert not slurm._is_cancelled_or_requeued()

    def unreachable(*words: str) -> str:
        raise subprocess.SubprocessError("Unable to contact slurm controller")

    monkeypatch.setattr(slurm, "_call", unreachable)
    assert not slurm._is_cancelled_or_requeued()


def test_a_bundle_with_a_different_schema_fails_and_a_different_version_gives_a_warning(tmp_path: Path) -> None:
    files = submit_bundle(tmp_path)
    content = json.loads(files.bundle.read_text())
    files.bundle.write_text(json.dumps(content | {"code": {"version": "0.0.1", "commit": None}}))
    Job(str(files.bundle), WORK)()
    result = files.result()
    assert isinstance(result, dict)
    (line,) = result[CELL.hash].warnings
    assert result[CELL.hash].status == "done" and "0.0.1" in line
    files.outcomes.unlink()
    files.bundle.write_text(json.dumps(content | {"schema": 0}))
    Job(str(files.bundle), WORK)()
    error = files.result()
    assert isinstance(error, WorkerStartError) and "schema" in str(error) and "\n" not in str(error)


def test_the_error_for_an_unshared_results_folder_names_the_node(
    executor: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slurm, "_FAILURE_SECONDS", 0.0)
    submit_bundle(executor.folder)
    monkeypatch.setattr(slurm, "query_job_states", lambda jobs: {"7": JobState("FAILED", exit_code="1:0", node="n3")})
    ((bundle, future),) = executor.adopted(lambda bundle: True)
    assert bundle.cells == (CELL,)
    error = failure(future)
    assert isinstance(error, WorkerStartError) and error.code == "missing-file"
    assert "n3" in str(error) and "--results" in str(error)
    # After the job has started, the same state fails only this job.
    submit_bundle(executor.folder).start_file.write_text("{}")
    ((_, future),) = executor.adopted(lambda bundle: True)
    assert isinstance(failure(future), WorkerDiedError)


def test_refused_bundles_wait_for_running_jobs_and_fail_if_no_job_runs(
    executor: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = executor.submit(work_through, Bundle((CELL,), Context(executor.folder)), finish)
    assert "Job violates accounting/QOS policy" in str(failure(first))
    # While another job runs, the bundle waits, and one line is printed.
    files = submit_bundle(executor.folder)
    monkeypatch.setattr(slurm, "query_job_states", lambda jobs: {"7": JobState("RUNNING")})
    ((_, running),) = executor.adopted(lambda bundle: True)
    second = executor.submit(work_through, Bundle((CELL,), Context(executor.folder)), finish)
    time.sleep(0.2)
    assert not second.done() and not running.done()
    assert all("QOS policy" in line for line in executor.lines)
    assert len(executor.lines) == 1
    Job(str(files.bundle), WORK)()
    assert running.result(timeout=10) == {CELL.hash: DONE}
    assert isinstance(failure(second), WorkerStartError)  # no other job can free resources


def test_a_node_with_a_wrong_clock_is_reported_once(tmp_path: Path) -> None:
    lines: list[str] = []
    clock, files = ClockCheck(lines.append), BundleFiles(tmp_path, "one")
    for skew in (0.0, 500.0, 900.0):
        files.start_file.write_text(json.dumps({"time": time.time() - skew, "node": "n3"}))
        clock.check(files)
    assert len(lines) == 1 and "n3" in lines[0] and "500 s" in lines[0]
    os.utime(files.start_file, (0, 0))
    clock.check(BundleFiles(tmp_path, "missing"))
    assert len(lines) == 1


def test_an_exceeded_disk_quota_is_reported_as_the_error_of_the_bundle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = submit_bundle(tmp_path)
    monkeypatch.setattr(f"{__name__}.finish", _over_quota)
    Job(str(files.bundle), WORK)()
    result = files.result()
    assert isinstance(result, IclbenchError) and "quota" in str(result).lower()


def _over_quota(each: GridCell, context: Context) -> Outcome:
    raise OSError(122, "Disk quota exceeded")


@pytest.mark.parametrize("damage", ["null", "[]", '{"a": 3}', '{"error": null, "unfit": false, "outcomes": [1]}', "{"])
def test_a_damaged_end_file_counts_as_incomplete(damage: str, tmp_path: Path) -> None:
    files = submit_bundle(tmp_path)
    files.end_file.write_text(damage)
    files.outcomes.write_text(damage)
    with pytest.raises(ValueError):
        files.result()
    assert files.stored_outcomes() == {}
    files.bundle.write_text(damage)
    with refused("unreadable-file", files.bundle, exit_code=1):
        Bundle.read(files.bundle)


def test_a_job_file_that_cannot_be_removed_does_not_block_the_sweep(
    executor: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = submit_bundle(executor.folder)
    ((_, future),) = executor.adopted(lambda bundle: True)

    unlink = Path.unlink

    def raise_stale(self: Path, missing_ok: bool = False) -> None:
        if self.suffix == ".job":
            raise OSError(116, "Stale file handle")
        unlink(self, missing_ok)

    monkeypatch.setattr(Path, "unlink", raise_stale)
    files.end(None, {CELL.hash: DONE})
    assert future.result(timeout=10) == {CELL.hash: DONE}


def test_jobs_that_cannot_be_polled_keep_their_files_and_can_be_cancelled(
    executor: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = submit_bundle(executor.folder)
    calls: list[tuple[str, ...]] = []

    def fail(jobs: Sequence[str]) -> dict[str, JobState]:
        raise RuntimeError("no such thing")

    monkeypatch.setattr(slurm, "query_job_states", fail)
    ((_, future),) = executor.adopted(lambda bundle: True)
    error = failure(future)
    assert isinstance(error, WorkerStartError) and "jobs" in str(error) and files.job.exists()
    files.job.rename(files.job.with_suffix(".hidden"))
    submit_bundle(executor.folder, "later").job.write_text("8")
    ((_, future_of_later_bundle),) = executor.adopted(lambda bundle: True)
    assert isinstance(failure(future_of_later_bundle), WorkerStartError)
    files.job.with_suffix(".hidden").rename(files.job)
    monkeypatch.setattr(slurm, "_call", lambda *words, ignored_error="": calls.append(words) or "")
    monkeypatch.setattr(slurm, "query_job_states", lambda jobs: {})
    executor.stop(0.1)
    assert calls == [("scancel", "7", "8")] and files.cancel_file.exists() and not files.job.exists()


def test_the_sweep_ends_after_three_jobs_fail_before_starting(executor: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slurm, "_FAILURE_SECONDS", 0.0)
    (executor.folder / "logs").mkdir()
    (executor.folder / "logs" / "7_0_log.out").touch()
    monkeypatch.setattr(slurm, "query_job_states", lambda jobs: {"7": JobState("FAILED", exit_code="3:0")})
    errors = []
    for name in ("a", "b", "c"):
        files = submit_bundle(executor.folder, name)
        ((_, future),) = executor.adopted(lambda bundle: True)
        errors.append(failure(future))
        # Another thread removes the files of a job that has ended.
        deadline = time.monotonic() + 5
        while name != "c" and files.job.exists() and time.monotonic() < deadline:
            time.sleep(0.01)
    assert [type(error) for error in errors] == [WorkerDiedError, WorkerDiedError, WorkerStartError]
    assert "engines.toml" in str(errors[-1])


def test_the_job_status_is_available_even_if_files_are_damaged_or_missing(
    executor: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = submit_bundle(executor.folder)
    monkeypatch.setattr(slurm, "query_job_states", lambda jobs: {"7": JobState("RUNNING")})
    assert executor.progress("one") == (0, 1)
    files.bundle.unlink()
    assert executor.progress("one") == (0, 0) and executor.queue() == {"one": JobState("RUNNING")}
    files.job.write_bytes(b"\xff\xfe")
    assert executor.job("one") == "" and executor.queue() == {}

    def unreachable(jobs: Sequence[str]) -> dict[str, JobState]:
        raise subprocess.SubprocessError("Unable to contact slurm controller")

    monkeypatch.setattr(slurm, "query_job_states", unreachable)
    with refused("failed", "slurm controller", exit_code=1):
        executor.queue()


def test_results_folders_with_characters_that_slurm_cannot_use_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slurm.shutil, "which", lambda program: program)
    for name in ("it's", "a%j", 'a"b'):
        with refused("bad-value", "--results", tmp_path / name):
            SlurmExecutor(tmp_path / name, EngineSettings())


def test_a_job_started_by_an_earlier_sweep_does_not_hide_three_start_failures(
    executor: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    submit_bundle(executor.folder, "earlier", has_job_file=False).start_file.write_text("{}")
    test_the_sweep_ends_after_three_jobs_fail_before_starting(executor, monkeypatch)


def test_the_limit_on_parallel_jobs_is_split_in_proportion_to_array_sizes(
    executor: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of ten parallel jobs, the array of nine one-hour bundles gets nine, and the bundle of two days gets one."""
    arrays: list[tuple[int, int]] = []
    minutes = iter([60] * 9 + [2880])
    monkeypatch.setattr(executor, "_minutes", lambda bundle: next(minutes))
    monkeypatch.setattr(
        executor, "_submit", lambda limit, group, parallel_tasks: arrays.append((len(group), parallel_tasks))
    )
    executor.slots = 10
    executor._stopping.set()
    executor._thread.join()
    for i in range(10):
        executor.submit(work_through, Bundle((cell("train", f"run-{i}"),), Context(executor.folder)), finish)
    executor.flush()
    assert arrays == [(9, 9), (1, 1)]


def test_only_accepted_jobs_count_as_submitted(executor: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The scheduler refuses the second array."""
    limits = iter([60, 120, 120])

    def submit(limit: int, group: Sequence[Any], parallel_tasks: int) -> None:
        if limit == 120:
            raise subprocess.SubprocessError("sbatch: error: Job violates QOS")
        for future, bundle, _ in group:
            future.set_running_or_notify_cancel()
            executor._running.append(slurm._SlurmBundle(future, BundleFiles.new(executor.folder, bundle.name), "7"))

    monkeypatch.setattr(executor, "_minutes", lambda bundle: next(limits))
    monkeypatch.setattr(executor, "_submit", submit)
    monkeypatch.setattr(executor, "queued", list)
    executor._stopping.set()
    executor._thread.join()
    cells = tuple(cell("train", f"run-{i}") for i in range(3))
    todo = Plan(cells, dict.fromkeys((each.hash for each in cells), "todo"), cells)
    context = Context(tmp_path)
    bundling = engine.Bundling(0.0, lambda each: None)
    submission = engine.submit(todo, CellStore(tmp_path), executor, context, bundling, finish)
    counts = (submission.jobs, submission.cells, submission.refused_jobs, submission.refused_cells)
    assert counts == (1, 1, 2, 2)
    assert "Job violates QOS" in submission.reason


def test_refused_jobs_are_reported_and_fail_the_command(
    executor: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    submission = engine.Submission(1, 2, 3, 3, "Job violates QOS")
    monkeypatch.setattr("iclbench.cli.sweep_jobs.engine.submit", lambda *arguments: submission)
    todo, bundling = Plan((), {}, (CELL,) * 6), engine.Bundling(0.0, lambda each: None)
    with pytest.raises(typer.Exit) as exit_error:
        Cluster("slurm", EngineSettings())._submit(executor, todo, CellStore(tmp_path), Context(tmp_path), bundling)
    assert exit_error.value.exit_code == 1
    err = capsys.readouterr().err
    assert all(text in err for text in ("1 job", "2 cells", "1 more cell", "3 jobs", "3 cells", submission.reason))
