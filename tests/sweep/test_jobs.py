"""Jobs and whoever submitted them, without a scheduler: what their files say of each other is enough."""

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
from iclbench.core.errors import IclbenchError, Interrupted, UsageError
from iclbench.store.cells import Store
from iclbench.store.outcome import Outcome
from iclbench.sweep import engine, slurm
from iclbench.sweep.bundle import Bundle, work_through
from iclbench.sweep.cells import GridCell
from iclbench.sweep.engines import EngineSettings
from iclbench.sweep.executor import WorkerDiedError, WorkerStartError
from iclbench.sweep.jobs import Clock, Files
from iclbench.sweep.plan import Plan
from iclbench.sweep.slurm import Job, SlurmExecutor, State
from tests.sweep.test_engine import DONE, cell

CELL = cell("train", "a")
WORK = f"{__name__}:finish"


def finish(each: GridCell, context: Context) -> Outcome:
    return DONE


def interrupt(each: GridCell, context: Context) -> Outcome:
    raise Interrupted("a signal")


@pytest.fixture(autouse=True)
def _threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """A job has its process for itself; a test has not."""
    monkeypatch.setattr("iclbench.sweep.jobs.share_cores", lambda threads: None)


def handed(folder: Path, name: str = "one", noted: bool = True) -> Files:
    """The files of a bundle that was handed in."""
    files = Files(folder, name)
    Bundle((CELL,), Context(folder)).write(files.bundle)
    if noted:
        files.job.write_text("7")
    return files


@pytest.fixture
def executor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """One whose scheduler takes no job and knows of none, and what it has told the user."""
    said: list[str] = []

    def refuse(self: SlurmExecutor, *group: Any) -> None:
        raise subprocess.SubprocessError("sbatch: error: Job violates accounting/QOS policy (job submit limit)")

    monkeypatch.setattr(slurm.shutil, "which", lambda program: program)
    monkeypatch.setattr(slurm, "states", lambda jobs: {})
    monkeypatch.setattr(slurm, "array_limit", lambda: 1000)
    monkeypatch.setattr(SlurmExecutor, "_submit", refuse)
    found = SlurmExecutor(tmp_path, EngineSettings(poll=0.01), lambda bundle: None, said.append)
    found.said = said  # type: ignore[attr-defined]
    yield found
    found.shutdown()


def failure(future: Future[Any]) -> BaseException:
    error = future.exception(timeout=10)
    assert error is not None
    return error


def test_a_job_works_through_its_bundle_and_says_so(tmp_path: Path) -> None:
    files = handed(tmp_path)
    Job(str(files.bundle), WORK)()
    assert files.result() == {CELL.hash: DONE}


def test_a_job_that_nobody_has_noted_leaves_its_cells_to_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(slurm, "_FILE_SECONDS", 0.0)
    files = handed(tmp_path, noted=False)
    Job(str(files.bundle), WORK)()
    assert not files.start_file.exists() and not files.end_file.exists()
    assert caplog.text


def test_a_job_that_is_put_back_no_more_says_why(tmp_path: Path) -> None:
    files = handed(tmp_path)

    def timed_out(number: int, frame: object) -> None:
        raise RuntimeError("Job not requeued because: timed-out too many times.")

    before = signal.signal(signal.SIGTERM, timed_out)
    try:
        with pytest.raises(RuntimeError, match="timed-out"):
            Job(str(files.bundle), f"{__name__}:interrupt")()
    finally:
        signal.signal(signal.SIGTERM, before)
    result = files.result()
    assert isinstance(result, WorkerDiedError)
    assert str(result) == "Job not requeued because: timed-out too many times. Raise minutes in [slurm]"


def test_a_job_that_was_taken_out_of_the_queue_does_not_come_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    for state in ("CANCELLED", "COMPLETING", "PENDING"):
        monkeypatch.setattr(slurm, "_call", lambda *words, state=state: f"JobId=7 JobState={state} Reason=None")
        assert slurm._has_ended()
    monkeypatch.setattr(slurm, "_call", lambda *words: "JobId=7 JobState=RUNNING Reason=None")
    assert not slurm._has_ended()

    def away(*words: str) -> str:
        raise subprocess.SubprocessError("Unable to contact slurm controller")

    monkeypatch.setattr(slurm, "_call", away)
    assert not slurm._has_ended()


def test_a_job_of_another_schema_is_a_line_and_one_of_another_commit_a_warning(tmp_path: Path) -> None:
    files = handed(tmp_path)
    about = json.loads(files.bundle.read_text())
    files.bundle.write_text(json.dumps(about | {"code": {"version": "0.0.1", "commit": None}}))
    Job(str(files.bundle), WORK)()
    result = files.result()
    assert isinstance(result, dict)
    (line,) = result[CELL.hash].warnings
    assert result[CELL.hash].status == "done" and "0.0.1" in line
    files.outcomes.unlink()
    files.bundle.write_text(json.dumps(about | {"schema": 0}))
    Job(str(files.bundle), WORK)()
    refused = files.result()
    assert isinstance(refused, WorkerStartError) and "schema" in str(refused) and "\n" not in str(refused)


def test_a_folder_that_nodes_do_not_share_is_a_line(executor: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slurm, "_FAILURE_SECONDS", 0.0)
    handed(executor.folder)
    monkeypatch.setattr(slurm, "states", lambda jobs: {"7": State("FAILED", exit_code="1:0", node="n3")})
    ((bundle, future),) = executor.adopted(lambda bundle: True)
    assert bundle.cells == (CELL,)
    error = failure(future)
    assert isinstance(error, WorkerStartError)
    assert "n3" in str(error) and "--results" in str(error)
    # On a node that shares it, the same end is that job's own.
    handed(executor.folder).start_file.write_text("{}")
    ((_, future),) = executor.adopted(lambda bundle: True)
    assert isinstance(failure(future), WorkerDiedError)


def test_a_queue_that_is_full_is_waited_for_and_without_any_job_is_a_line(
    executor: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = executor.submit(work_through, Bundle((CELL,), Context(executor.folder)), finish)
    assert "Job violates accounting/QOS policy" in str(failure(first))
    # While others run, it waits, and says so once.
    files = handed(executor.folder)
    monkeypatch.setattr(slurm, "states", lambda jobs: {"7": State("RUNNING")})
    ((_, running),) = executor.adopted(lambda bundle: True)
    second = executor.submit(work_through, Bundle((CELL,), Context(executor.folder)), finish)
    time.sleep(0.2)
    assert not second.done() and not running.done()
    assert all("QOS policy" in line for line in executor.said)
    assert len(executor.said) == 1
    Job(str(files.bundle), WORK)()
    assert running.result(timeout=10) == {CELL.hash: DONE}
    assert isinstance(failure(second), WorkerStartError)  # nobody is left whose end would make room


def test_a_clock_that_is_off_is_told_once(tmp_path: Path) -> None:
    said: list[str] = []
    clock, files = Clock(said.append), Files(tmp_path, "one")
    for off in (0.0, 500.0, 900.0):
        files.start_file.write_text(json.dumps({"time": time.time() - off, "node": "n3"}))
        clock.check(files)
    assert len(said) == 1 and "node n3" in said[0] and "500 s" in said[0]
    os.utime(files.start_file, (0, 0))
    clock.check(Files(tmp_path, "never"))
    assert len(said) == 1


def test_a_quota_is_the_reason_of_the_bundle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = handed(tmp_path)
    monkeypatch.setattr(f"{__name__}.finish", _over_quota)
    Job(str(files.bundle), WORK)()
    result = files.result()
    assert isinstance(result, IclbenchError) and "quota" in str(result).lower()


def _over_quota(each: GridCell, context: Context) -> Outcome:
    raise OSError(122, "Disk quota exceeded")


@pytest.mark.parametrize("damage", ["null", "[]", '{"a": 3}', '{"error": null, "unfit": false, "outcomes": [1]}', "{"])
def test_an_end_that_is_damaged_is_one_that_is_half_seen(damage: str, tmp_path: Path) -> None:
    files = handed(tmp_path)
    files.end_file.write_text(damage)
    files.outcomes.write_text(damage)
    with pytest.raises(ValueError):
        files.result()
    assert files.finished() == {}
    files.bundle.write_text(damage)
    with pytest.raises(IclbenchError, match="is damaged"):
        Bundle.read(files.bundle)


def test_a_note_that_cannot_be_removed_keeps_nobody_waiting(executor: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    files = handed(executor.folder)
    ((_, future),) = executor.adopted(lambda bundle: True)

    unlink = Path.unlink

    def stale(self: Path, missing_ok: bool = False) -> None:
        if self.suffix == ".job":
            raise OSError(116, "Stale file handle")
        unlink(self, missing_ok)

    monkeypatch.setattr(Path, "unlink", stale)
    files.end(None, {CELL.hash: DONE})
    assert future.result(timeout=10) == {CELL.hash: DONE}


def test_jobs_that_cannot_be_followed_stay_noted_and_are_ended(executor: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    files = handed(executor.folder)
    called: list[tuple[str, ...]] = []

    def fail(jobs: Sequence[str]) -> dict[str, State]:
        raise RuntimeError("no such thing")

    monkeypatch.setattr(slurm, "states", fail)
    ((_, future),) = executor.adopted(lambda bundle: True)
    error = failure(future)
    assert isinstance(error, WorkerStartError) and "jobs" in str(error) and files.job.exists()
    monkeypatch.setattr(slurm, "_call", lambda *words, ignored_error="": called.append(words) or "")
    monkeypatch.setattr(slurm, "states", lambda jobs: {})
    executor.stop(0.1)
    assert called == [("scancel", "7")] and files.cancel_file.exists() and not files.job.exists()


def test_three_jobs_that_end_before_they_begin_are_enough(executor: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slurm, "_FAILURE_SECONDS", 0.0)
    (executor.folder / "logs").mkdir()
    (executor.folder / "logs" / "7_0_log.out").touch()
    monkeypatch.setattr(slurm, "states", lambda jobs: {"7": State("FAILED", exit_code="3:0")})
    found = []
    for name in ("a", "b", "c"):
        files = handed(executor.folder, name)
        ((_, future),) = executor.adopted(lambda bundle: True)
        found.append(failure(future))
        # Another thread removes the files of a job that has ended.
        ended = time.monotonic() + 5
        while name != "c" and files.job.exists() and time.monotonic() < ended:
            time.sleep(0.01)
    assert [type(error) for error in found] == [WorkerDiedError, WorkerDiedError, WorkerStartError]
    assert "setup and python" in str(found[-1])


def test_a_status_is_told_whatever_files_have_become(executor: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    files = handed(executor.folder)
    monkeypatch.setattr(slurm, "states", lambda jobs: {"7": State("RUNNING")})
    assert executor.progress("one") == (0, 1)
    files.bundle.unlink()
    assert executor.progress("one") == (0, 0) and executor.queue() == {"one": State("RUNNING")}
    files.job.write_bytes(b"\xff\xfe")
    assert executor.job("one") == "" and executor.queue() == {}

    def away(jobs: Sequence[str]) -> dict[str, State]:
        raise subprocess.SubprocessError("Unable to contact slurm controller")

    monkeypatch.setattr(slurm, "states", away)
    with pytest.raises(IclbenchError, match="scheduler"):
        executor.queue()


def test_a_folder_that_the_scheduler_cannot_name_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slurm.shutil, "which", lambda program: program)
    for name in ("it's", "a%j", 'a"b'):
        with pytest.raises(UsageError, match="--results"):
            SlurmExecutor(tmp_path / name, EngineSettings())


def test_jobs_that_began_in_an_earlier_sweep_do_not_hide_that_none_begins_now(
    executor: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    handed(executor.folder, "earlier", noted=False).start_file.write_text("{}")
    test_three_jobs_that_end_before_they_begin_are_enough(executor, monkeypatch)


def test_jobs_run_side_by_side_in_proportion_to_the_arrays_they_are_in(
    executor: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nine of an hour and one of two days may be ten at once, and not five and one."""
    arrays: list[tuple[int, int]] = []
    minutes = iter([60] * 9 + [2880])
    monkeypatch.setattr(executor, "_minutes", lambda bundle: next(minutes))
    monkeypatch.setattr(executor, "_submit", lambda limit, group, at_once: arrays.append((len(group), at_once)))
    executor.slots = 10
    executor._stopping.set()
    executor._thread.join()
    for i in range(10):
        executor.submit(work_through, Bundle((cell("train", f"run-{i}"),), Context(executor.folder)), finish)
    executor.flush()
    assert arrays == [(9, 9), (1, 1)]


def test_of_what_is_submitted_and_left_only_jobs_that_the_scheduler_took_are_counted(
    executor: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The second array is one too many."""
    limits = iter([60, 120, 120])

    def submit(limit: int, group: Sequence[Any], at_once: int) -> None:
        if limit == 120:
            raise subprocess.SubprocessError("sbatch: error: Job violates QOS")
        for future, bundle, _ in group:
            future.set_running_or_notify_cancel()
            executor._running.append(slurm._Running(future, Files.new(executor.folder, bundle.name), "7"))

    monkeypatch.setattr(executor, "_minutes", lambda bundle: next(limits))
    monkeypatch.setattr(executor, "_submit", submit)
    monkeypatch.setattr(executor, "queued", list)
    executor._stopping.set()
    executor._thread.join()
    cells = tuple(cell("train", f"run-{i}") for i in range(3))
    todo = Plan(cells, dict.fromkeys((each.hash for each in cells), "todo"), cells)
    context = Context(tmp_path)
    found = engine.submit(todo, Store(tmp_path), executor, context, engine.Bundling(0.0, lambda each: None), finish)
    assert (found.jobs, found.cells, found.refused_jobs, found.refused_cells) == (1, 1, 2, 2)
    assert "Job violates QOS" in found.reason


def test_jobs_that_were_refused_are_told_and_fail_the_command(
    executor: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = engine.Submitted(1, 2, 3, 3, "SLURM takes no job: Job violates QOS")
    monkeypatch.setattr("iclbench.cli.sweep_jobs.engine.submit", lambda *arguments: found)
    todo, bundling = Plan((), {}, (CELL,) * 6), engine.Bundling(0.0, lambda each: None)
    with pytest.raises(typer.Exit) as left:
        Cluster("slurm", EngineSettings())._submit(executor, todo, Store(tmp_path), Context(tmp_path), bundling)
    assert left.value.exit_code == 1
    said = " ".join(capsys.readouterr().err.split())
    assert "1 job submitted with 2 cells; 1 more cell" in said
    assert f"3 jobs with 3 cells refused: {found.reason}" in said
