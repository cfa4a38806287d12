"""The sweep engine: the order of cells, and outcomes after failures, worker deaths and interruptions."""

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest

from iclbench.config.resolution import TaskConfig, resolve_task
from iclbench.core.context import Context
from iclbench.core.errors import IclbenchError
from iclbench.store.cells import CellStore
from iclbench.store.outcome import Outcome
from iclbench.sweep import engine
from iclbench.sweep.bundle import Bundle
from iclbench.sweep.cells import SUMMARY, GridCell
from iclbench.sweep.executor import WorkerDiedError, WorkerStartError
from iclbench.sweep.makespan import Makespan, simulate
from iclbench.sweep.plan import Plan, select_cells

LINEAR = resolve_task("linear", "smoke")[0]
DONE = Outcome("done")


class Cell(GridCell):
    """A cell with a readable hash."""

    @cached_property
    def hash(self) -> str:
        return f"{self.kind}-{self.run}-{self.task}"


class Threads(ThreadPoolExecutor):
    """A thread pool with the interface of a sweep executor."""

    def __init__(self, slots: int) -> None:
        super().__init__(slots)
        self.slots, self.is_stopped = slots, False

    def stop(self, grace: float) -> None:
        self.is_stopped = True
        self.shutdown(cancel_futures=True)


class RefusingExecutor(Threads):
    """An executor whose workers cannot start."""

    def submit(self, fn: Callable[..., Any], /, *args: Any) -> Future[Any]:  # type: ignore[override]
        future: Future[Any] = Future()
        future.set_exception(WorkerStartError("no such device"))
        return future


class Recorder:
    """An observer that records started and retried cells."""

    def __init__(self) -> None:
        self.started_cells: list[str] = []
        self.retries: list[str] = []

    def on_start(self, cell: GridCell) -> None:
        self.started_cells.append(cell.hash)

    def on_finish(self, cell: GridCell, outcome: Outcome) -> None:
        pass

    def on_retry(self, cell: GridCell, reason: str) -> None:
        self.retries.append(f"{cell.hash}: {reason}")


def cell(kind: str, run: str, needs: tuple[GridCell, ...] = (), task: str = "t", reason: str | None = None) -> Cell:
    task_config: TaskConfig = LINEAR.model_copy(update={"name": task})
    return Cell(kind, run, run, task_config, "smoke", needs=tuple(need.hash for need in needs), reason=reason)  # type: ignore[arg-type]


def task_cells(task: str, runs: tuple[str, ...]) -> list[Cell]:
    """Return the training, evaluation and probe cells of every run, and the summary cell."""
    cells: list[Cell] = []
    for run in runs:
        train = cell("train", run, task=task)
        cells += [train, *(cell(kind, run, (train,), task) for kind in ("evaluate", "probe"))]
    return [*cells, cell("evaluate", SUMMARY, tuple(c for c in cells if c.kind == "evaluate"), task)]


def sweep(
    cells: list[Cell],
    results: Path,
    work: Callable[[GridCell, Context], Outcome],
    slots: int = 1,
    executor: Threads | None = None,
    recorder: Recorder | None = None,
    done: tuple[Cell, ...] = (),
) -> dict[str, Outcome]:
    states = {cell.hash: "done" if cell in done else "todo" for cell in cells}
    plan = Plan(tuple(cells), states, tuple(cell for cell in cells if cell not in done))
    context = Context(results)
    return engine.run(plan, CellStore(results), executor or Threads(slots), context, recorder or Recorder(), work)


def test_cells_start_after_the_cells_they_need_and_use_all_slots(tmp_path: Path) -> None:
    cells = [cell for task in ("a", "b") for cell in task_cells(task, ("gpt2", "cnp", "mamba"))]
    finished: list[str] = []
    lock, running_count, max_count = threading.Lock(), 0, 0

    def work(cell: GridCell, context: Context) -> Outcome:
        nonlocal running_count, max_count
        with lock:
            assert set(cell.needs) <= set(finished), cell.hash
            running_count += 1
            max_count = max(max_count, running_count)
        time.sleep(0.01)
        with lock:
            running_count -= 1
            finished.append(cell.hash)
        return DONE

    outcomes = sweep(cells[::-1], tmp_path, work, slots=3)
    assert set(outcomes.values()) == {DONE} and len(outcomes) == len(cells)
    assert sorted(finished) == sorted(cell.hash for cell in cells), "each cell is computed once"
    assert max_count == 3


def test_all_cells_of_a_run_are_computed_before_the_next_run_except_near_the_end(tmp_path: Path) -> None:
    """With one slot and five runs, the last training starts before the evaluation of the fourth run."""
    recorder = Recorder()
    sweep(task_cells("t", ("a", "b", "c", "d", "e")), tmp_path, lambda cell, context: DONE, recorder=recorder)
    order = [key.removesuffix("-t") for key in recorder.started_cells]
    by_run = [f"{kind}-{run}" for run in "abc" for kind in ("train", "evaluate", "probe")]
    assert order[:7] == by_run[:7]
    assert order.index("train-e") < order.index("evaluate-d"), "the last training starts early"
    assert order[-1] == "evaluate-summary"


def test_tasks_are_computed_one_after_the_other(tmp_path: Path) -> None:
    recorder = Recorder()
    cells = [*task_cells("first", ("a", "b", "c", "d")), cell("evaluate", "zero", task="second")]
    cells += task_cells("second", ("a", "b"))
    sweep(cells, tmp_path, lambda cell, context: DONE, recorder=recorder)
    order = recorder.started_cells
    assert order.index("probe-c-first") < order.index("evaluate-zero-second")


def test_a_failed_run_fails_only_the_cells_that_need_it(tmp_path: Path) -> None:
    calls: list[str] = []

    def work(cell: GridCell, context: Context) -> Outcome:
        calls.append(cell.hash)
        is_failed = (cell.kind, cell.run) == ("train", "cnp")
        return Outcome("failed", "the loss is nan at step 7") if is_failed else DONE

    store = CellStore(tmp_path)
    outcomes = sweep(task_cells("t", ("gpt2", "cnp")), tmp_path, work)
    for kind in ("evaluate", "probe"):
        outcome = outcomes[f"{kind}-cnp-t"]
        assert outcome.status == "failed" and "'cnp'" in str(outcome.reason)
        assert f"{kind}-cnp-t" not in calls
        assert store.rows.loc[f"{kind}-cnp-t", "reason"].endswith("the loss is nan at step 7")
        assert outcomes[f"{kind}-gpt2-t"] == DONE
    assert outcomes["evaluate-summary-t"] == DONE, "the summary covers the finished evaluations"


def test_a_cell_whose_worker_dies_is_retried_once_and_then_fails(tmp_path: Path) -> None:
    attempts: list[str] = []

    def work(cell: GridCell, context: Context) -> Outcome:
        attempts.append(cell.hash)
        if cell.run == "large" or (attempts.count("train-unlucky-t") == 1 and cell.run == "unlucky"):
            raise WorkerDiedError("the worker was killed by signal 9")
        return DONE

    recorder, store = Recorder(), CellStore(tmp_path)
    cells = [cell("train", run) for run in ("large", "unlucky", "fine")]
    outcomes = sweep(cells, tmp_path, work, slots=2, recorder=recorder)
    assert outcomes["train-unlucky-t"] == outcomes["train-fine-t"] == DONE
    assert outcomes["train-large-t"].status == "failed"
    assert "signal 9" in (outcomes["train-large-t"].reason or "")
    assert attempts.count("train-large-t") == 2
    assert sorted(line.split(":")[0] for line in recorder.retries) == ["train-large-t", "train-unlucky-t"]
    assert store.rows.loc["train-large-t", "status"] == "failed"


def test_inapplicable_cells_are_recorded_with_a_reason_and_not_computed(tmp_path: Path) -> None:
    train = cell("train", "cnp", reason="no related datasets")
    cells = [train, cell("evaluate", "cnp", (train,), "t", "no related datasets")]

    def work(cell: GridCell, context: Context) -> Outcome:
        raise AssertionError(cell)

    assert set(sweep(cells, tmp_path, work).values()) == {Outcome("skipped", "no related datasets")}
    assert set(CellStore(tmp_path).rows["reason"]) == {"no related datasets"}


def test_finished_cells_are_not_repeated_and_cells_that_need_them_are_computed(tmp_path: Path) -> None:
    cells = task_cells("t", ("gpt2",))
    recorder = Recorder()
    outcomes = sweep(cells, tmp_path, lambda cell, context: DONE, recorder=recorder, done=(cells[0],))
    assert "train-gpt2-t" not in recorder.started_cells
    assert outcomes["evaluate-gpt2-t"] == DONE


def test_cells_that_need_an_excluded_kind_of_cell_are_not_computed(tmp_path: Path) -> None:
    cells = task_cells("t", ("gpt2", "cnp"))
    done = {"train-gpt2-t"}
    states = {cell.hash: "done" if cell.hash in done else "todo" for cell in cells}
    full_plan = Plan(tuple(cells), states, tuple(cell for cell in cells if cell.hash not in done))
    plan = select_cells(full_plan, CellStore(tmp_path), ["evaluate"])
    assert [cell.hash for cell in plan.todo] == ["evaluate-gpt2-t"]
    assert [cell.hash for cell in plan.waiting] == ["evaluate-cnp-t", "evaluate-summary-t"]
    outcomes = engine.run(
        plan, CellStore(tmp_path), Threads(1), Context(tmp_path), Recorder(), lambda cell, context: DONE
    )
    assert set(outcomes) == {"evaluate-gpt2-t"}


def test_the_sweep_ends_if_no_worker_can_start(tmp_path: Path) -> None:
    executor = RefusingExecutor(2)
    with pytest.raises(WorkerStartError):
        sweep(task_cells("t", ("gpt2",)), tmp_path, lambda cell, context: DONE, executor=executor)
    assert executor.is_stopped


def test_ctrl_c_stops_the_workers_and_reports_finished_cells(tmp_path: Path) -> None:
    barrier = threading.Barrier(2)
    finished: list[str] = []

    class InterruptingObserver(Recorder):
        def on_finish(self, cell: GridCell, outcome: Outcome) -> None:
            finished.append(cell.hash)
            if len(finished) == 1:
                raise KeyboardInterrupt

    def work(cell: GridCell, context: Context) -> Outcome:
        if cell.run in ("a", "b"):
            barrier.wait()
        return DONE

    executor = Threads(2)
    cells = [cell("train", run) for run in ("a", "b", "c", "d", "e", "f")]
    with pytest.raises(KeyboardInterrupt):
        sweep(cells, tmp_path, work, executor=executor, recorder=InterruptingObserver())
    assert executor.is_stopped
    assert 1 <= len(finished) <= 3


def test_an_error_raised_in_a_worker_fails_the_cell(tmp_path: Path) -> None:
    def work(cell: GridCell, context: Context) -> Outcome:
        raise IclbenchError("ValueError: odd")

    (outcome,) = sweep([cell("train", "a")], tmp_path, work).values()
    assert outcome.status == "failed" and "ValueError: odd" in (outcome.reason or "")


class BundleRecorder(Threads):
    """An executor that records the cells of each bundle."""

    def __init__(self, slots: int = 1) -> None:
        super().__init__(slots)
        self.bundles: list[list[str]] = []
        self.outcomes: dict[str, Outcome] = {}

    def submit(self, fn: Callable[..., Any], /, *args: Any) -> Future[Any]:  # type: ignore[override]
        self.bundles.append([cell.hash for cell in args[0].cells])
        return super().submit(fn, *args)


def sweep_bundles(
    cells: list[Cell], results: Path, work: Callable[[GridCell, Context], Outcome], seconds: float
) -> BundleRecorder:
    """Run a sweep with bundles of about `seconds` seconds. Every cell is estimated to take one second."""
    executor = BundleRecorder()
    plan = Plan(tuple(cells), {cell.hash: "todo" for cell in cells}, tuple(cells))
    bundling = engine.Bundling(seconds, lambda cell: 1.0)
    executor.outcomes = engine.run(plan, CellStore(results), executor, Context(results), Recorder(), work, bundling)
    return executor


def test_bundles_are_filled_up_to_their_duration_and_keep_dependent_cells_together(tmp_path: Path) -> None:
    cells = task_cells("t", ("a", "b", "c"))
    small_bundles = sweep_bundles(cells, tmp_path, lambda cell, context: DONE, seconds=0)
    assert small_bundles.bundles == [
        *(["train-" + run + "-t", "evaluate-" + run + "-t", "probe-" + run + "-t"] for run in "abc"),
        ["evaluate-summary-t"],
    ]
    assert set(small_bundles.outcomes) == {cell.hash for cell in cells}
    large_bundles = sweep_bundles(cells, tmp_path, lambda cell, context: DONE, seconds=4)
    assert [len(bundle) for bundle in large_bundles.bundles] == [6, 3, 1]
    assert large_bundles.outcomes == small_bundles.outcomes


def test_a_failed_run_in_a_bundle_fails_the_cells_that_need_it(tmp_path: Path) -> None:
    def work(cell: GridCell, context: Context) -> Outcome:
        return Outcome("failed", "no memory") if cell.hash == "train-a-t" else DONE

    outcomes = sweep_bundles(task_cells("t", ("a", "b")), tmp_path, work, seconds=100).outcomes
    assert {name for name, outcome in outcomes.items() if outcome.status == "failed"} == {
        "train-a-t", "evaluate-a-t", "probe-a-t"
    }  # fmt: skip
    assert "no memory" in str(outcomes["probe-a-t"].reason)


def test_finished_cells_of_a_bundle_are_not_repeated_after_its_worker_dies(tmp_path: Path) -> None:
    calls: list[str] = []

    def work(cell: GridCell, context: Context) -> Outcome:
        calls.append(cell.hash)
        if calls.count("evaluate-a-t") == 1 and cell.hash == "evaluate-a-t":
            raise WorkerDiedError("killed", {"train-a-t": DONE})
        return DONE

    executor = sweep_bundles(task_cells("t", ("a", "b")), tmp_path, work, seconds=100)
    assert all(outcome.status == "done" for outcome in executor.outcomes.values()) and len(executor.outcomes) == 7
    assert calls.count("train-a-t") == 1 and calls.count("evaluate-a-t") == 2
    assert executor.bundles[0][:2] == ["train-a-t", "evaluate-a-t"] and "train-a-t" not in executor.bundles[1]


def test_a_cell_that_kills_its_worker_twice_fails_and_other_runs_in_the_bundle_finish(tmp_path: Path) -> None:
    def work(cell: GridCell, context: Context) -> Outcome:
        if cell.hash == "train-b-t":
            raise WorkerDiedError("killed", {})
        return DONE

    outcomes = sweep_bundles(task_cells("t", ("b", "a")), tmp_path, work, seconds=100).outcomes
    assert {name for name, outcome in outcomes.items() if outcome.status == "failed"} == {
        "train-b-t", "evaluate-b-t", "probe-b-t"
    }  # fmt: skip
    assert "killed" in str(outcomes["train-b-t"].reason)


def test_makespans_are_simulated_by_list_scheduling(tmp_path: Path) -> None:
    cells = [cell("train", f"r{n}") for n in range(10)]
    plan = Plan(tuple(cells), {cell.hash: "todo" for cell in cells}, tuple(cells))
    single = engine.Bundling(0.0, lambda cell: 6.0, is_grouped=False)
    assert simulate(plan, 1, single).seconds == 60 and simulate(plan, 4, single).seconds == 18
    assert simulate(plan, 512, single) == Makespan(6.0, (1,) * 10, 60.0, 512)
    assert simulate(plan, 10, single, start_seconds=4.0).efficiency == pytest.approx(0.6)
    pairs = engine.Bundling(12.0, lambda cell: 6.0)
    assert simulate(plan, 1, pairs, start_seconds=4.0) == Makespan(80.0, (2,) * 5, 60.0, 1)
    with_failures = simulate(plan, 2, single, failure_rate=0.3, seed=1)
    assert len(with_failures.jobs) > 10 and with_failures.busy_seconds == 60 and with_failures.seconds > 30


class AdoptingRecorder(BundleRecorder):
    """An executor that adopts the bundles of an earlier sweep."""

    def __init__(self, bundles: list[Bundle], outcomes: dict[str, Outcome]) -> None:
        super().__init__()
        self.earlier_bundles, self.earlier_outcomes = bundles, outcomes

    def adopted(self, is_wanted: Callable[[Bundle], bool]) -> Iterator[tuple[Bundle, Future[dict[str, Outcome]]]]:
        for bundle in self.earlier_bundles:
            if is_wanted(bundle):
                future: Future[dict[str, Outcome]] = Future()
                future.set_result(self.earlier_outcomes)
                yield bundle, future


def test_bundles_of_an_earlier_sweep_are_collected_and_not_repeated(tmp_path: Path) -> None:
    """One cell of the earlier bundle already has a row."""
    cells = task_cells("t", ("a", "b"))
    train, evaluate, probe, *other_cells = cells
    states = {cell.hash: "done" if cell is train else "todo" for cell in cells}
    plan = Plan(tuple(cells), states, tuple(cells[1:]))  # type: ignore[arg-type]
    context = Context(tmp_path)
    foreign = Bundle((cell("train", "x", task="another"),), context)
    earlier_outcomes = {train.hash: DONE, evaluate.hash: DONE, probe.hash: DONE}
    executor = AdoptingRecorder([foreign, Bundle((train, evaluate, probe), context)], earlier_outcomes)
    outcomes = engine.run(plan, CellStore(tmp_path), executor, context, Recorder(), lambda cell, context: DONE)
    assert set(outcomes) == {cell.hash for cell in cells[1:]}
    assert all(outcome.status == "done" for outcome in outcomes.values())
    assert [evaluate.hash] not in executor.bundles and len(executor.bundles) == len(other_cells)


def test_a_job_that_ends_without_outcomes_is_retried_only_once(tmp_path: Path) -> None:
    class SilentExecutor(Threads):
        def submit(self, fn: Callable[..., Any], /, *args: Any) -> Future[Any]:  # type: ignore[override]
            future: Future[Any] = Future()
            future.set_result({})
            return future

    recorder, cells = Recorder(), [cell("train", "a")]
    outcomes = sweep(cells, tmp_path, lambda cell, context: DONE, executor=SilentExecutor(1), recorder=recorder)
    assert outcomes["train-a-t"].status == "failed" and outcomes["train-a-t"].reason
    assert len(recorder.retries) == 1
