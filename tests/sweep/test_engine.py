"""The engine: what is started when, and what becomes of cells whose needs, workers or users fail them."""

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
from iclbench.store.cells import Store
from iclbench.store.outcome import Outcome
from iclbench.sweep import engine
from iclbench.sweep.bundle import Bundle
from iclbench.sweep.cells import SUMMARY, GridCell
from iclbench.sweep.executor import WorkerDiedError, WorkerStartError
from iclbench.sweep.makespan import Makespan, simulate
from iclbench.sweep.plan import Plan, only

LINEAR = resolve_task("linear", "smoke")[0]
DONE = Outcome("done")


class Cell(GridCell):
    """A cell that is told apart by its name."""

    @cached_property
    def hash(self) -> str:
        return f"{self.kind}-{self.run}-{self.task}"


class Threads(ThreadPoolExecutor):
    """The standard library's pool is an executor, but for its end."""

    def __init__(self, slots: int) -> None:
        super().__init__(slots)
        self.slots, self.stopped = slots, False

    def stop(self, grace: float) -> None:
        self.stopped = True
        self.shutdown(cancel_futures=True)


class Refusing(Threads):
    """Workers cannot be set up."""

    def submit(self, fn: Callable[..., Any], /, *args: Any) -> Future[Any]:  # type: ignore[override]
        future: Future[Any] = Future()
        future.set_exception(WorkerStartError("no such device"))
        return future


class Watch:
    """Notes what it is told."""

    def __init__(self) -> None:
        self.started_cells: list[str] = []
        self.tried_again: list[str] = []

    def started(self, cell: GridCell) -> None:
        self.started_cells.append(cell.hash)

    def finished(self, cell: GridCell, outcome: Outcome) -> None:
        pass

    def retried(self, cell: GridCell, reason: str) -> None:
        self.tried_again.append(f"{cell.hash}: {reason}")


def cell(kind: str, run: str, needs: tuple[GridCell, ...] = (), task: str = "t", reason: str | None = None) -> Cell:
    frozen: TaskConfig = LINEAR.model_copy(update={"name": task})
    return Cell(kind, run, run, frozen, "smoke", needs=tuple(each.hash for each in needs), reason=reason)  # type: ignore[arg-type]


def rows(task: str, runs: tuple[str, ...]) -> list[Cell]:
    """A training, an evaluation and a probe of every run, and the summary of all."""
    found: list[Cell] = []
    for run in runs:
        train = cell("train", run, task=task)
        found += [train, *(cell(kind, run, (train,), task) for kind in ("evaluate", "probe"))]
    return [*found, cell("evaluate", SUMMARY, tuple(c for c in found if c.kind == "evaluate"), task)]


def sweep(
    cells: list[Cell],
    results: Path,
    work: Callable[[GridCell, Context], Outcome],
    slots: int = 1,
    executor: Threads | None = None,
    watch: Watch | None = None,
    done: tuple[Cell, ...] = (),
) -> dict[str, Outcome]:
    status = {each.hash: "done" if each in done else "todo" for each in cells}
    plan = Plan(tuple(cells), status, tuple(each for each in cells if each not in done))
    context = Context(results)
    return engine.run(plan, Store(results), executor or Threads(slots), context, watch or Watch(), work)


def test_nothing_starts_before_what_it_needs_has_ended_and_all_slots_are_busy(tmp_path: Path) -> None:
    cells = [each for task in ("a", "b") for each in rows(task, ("gpt2", "cnp", "mamba"))]
    ended: list[str] = []
    lock, now, most = threading.Lock(), 0, 0

    def work(each: GridCell, context: Context) -> Outcome:
        nonlocal now, most
        with lock:
            assert set(each.needs) <= set(ended), each.hash
            now += 1
            most = max(most, now)
        time.sleep(0.01)
        with lock:
            now -= 1
            ended.append(each.hash)
        return DONE

    outcomes = sweep(cells[::-1], tmp_path, work, slots=3)
    assert set(outcomes.values()) == {DONE} and len(outcomes) == len(cells)
    assert sorted(ended) == sorted(each.hash for each in cells), "each once"
    assert most == 3


def test_rows_are_finished_before_the_next_training_begins_except_near_the_end(tmp_path: Path) -> None:
    """One slot; of five trainings the last two count as the end."""
    watch = Watch()
    sweep(rows("t", ("a", "b", "c", "d", "e")), tmp_path, lambda each, context: DONE, watch=watch)
    of_runs = [key.removesuffix("-t") for key in watch.started_cells]
    first = [f"{kind}-{run}" for run in "abc" for kind in ("train", "evaluate", "probe")]
    assert of_runs[:7] == first[:7]
    assert of_runs.index("train-e") < of_runs.index("evaluate-d"), "the last training does not begin last"
    assert of_runs[-1] == "evaluate-summary"


def test_tasks_are_worked_on_one_after_the_other(tmp_path: Path) -> None:
    watch = Watch()
    cells = [*rows("first", ("a", "b", "c", "d")), cell("evaluate", "zero", task="later"), *rows("later", ("a", "b"))]
    sweep(cells, tmp_path, lambda each, context: DONE, watch=watch)
    started = watch.started_cells
    assert started.index("probe-c-first") < started.index("evaluate-zero-later")


def test_a_failed_training_fails_its_own_row_with_its_reason_and_nobody_else(tmp_path: Path) -> None:
    asked: list[str] = []

    def work(each: GridCell, context: Context) -> Outcome:
        asked.append(each.hash)
        bad = (each.kind, each.run) == ("train", "cnp")
        return Outcome("failed", "the loss is nan at step 7") if bad else DONE

    store = Store(tmp_path)
    outcomes = sweep(rows("t", ("gpt2", "cnp")), tmp_path, work)
    for kind in ("evaluate", "probe"):
        assert outcomes[f"{kind}-cnp-t"] == Outcome(
            "failed", "its training failed (run 'cnp'): the loss is nan at step 7"
        )
        assert f"{kind}-cnp-t" not in asked
        assert store.rows.loc[f"{kind}-cnp-t", "reason"].endswith("the loss is nan at step 7"), "a row says so"
        assert outcomes[f"{kind}-gpt2-t"] == DONE
    assert outcomes["evaluate-summary-t"] == DONE, "of those that there are"


def test_a_cell_whose_worker_dies_is_tried_once_more_and_then_failed(tmp_path: Path) -> None:
    attempts: list[str] = []

    def work(each: GridCell, context: Context) -> Outcome:
        attempts.append(each.hash)
        if each.run == "large" or (attempts.count("train-unlucky-t") == 1 and each.run == "unlucky"):
            raise WorkerDiedError("the worker was killed by signal 9")
        return DONE

    watch, store = Watch(), Store(tmp_path)
    cells = [cell("train", run) for run in ("large", "unlucky", "fine")]
    outcomes = sweep(cells, tmp_path, work, slots=2, watch=watch)
    assert outcomes["train-unlucky-t"] == outcomes["train-fine-t"] == DONE
    assert outcomes["train-large-t"].status == "failed"
    assert "signal 9, 2 times; the same command tries again" in (outcomes["train-large-t"].reason or "")
    assert attempts.count("train-large-t") == 2
    assert sorted(line.split(":")[0] for line in watch.tried_again) == ["train-large-t", "train-unlucky-t"]
    assert store.rows.loc["train-large-t", "status"] == "failed"


def test_pairs_that_make_no_sense_are_rows_with_the_reason_and_cost_nothing(tmp_path: Path) -> None:
    train = cell("train", "cnp", reason="no related datasets")
    cells = [train, cell("evaluate", "cnp", (train,), "t", "no related datasets")]

    def work(each: GridCell, context: Context) -> Outcome:
        raise AssertionError(each)

    assert set(sweep(cells, tmp_path, work).values()) == {Outcome("skipped", "no related datasets")}
    assert set(Store(tmp_path).rows["reason"]) == {"no related datasets"}


def test_what_is_done_already_is_not_done_again_but_serves_those_that_need_it(tmp_path: Path) -> None:
    cells = rows("t", ("gpt2",))
    watch = Watch()
    outcomes = sweep(cells, tmp_path, lambda each, context: DONE, watch=watch, done=(cells[0],))
    assert "train-gpt2-t" not in watch.started_cells
    assert outcomes["evaluate-gpt2-t"] == DONE


def test_with_some_kinds_only_cells_whose_needs_are_missing_are_left_alone(tmp_path: Path) -> None:
    cells = rows("t", ("gpt2", "cnp"))
    done = {"train-gpt2-t"}
    status = {each.hash: "done" if each.hash in done else "todo" for each in cells}
    whole = Plan(tuple(cells), status, tuple(each for each in cells if each.hash not in done))
    plan = only(whole, Store(tmp_path), ["evaluate"])
    assert [each.hash for each in plan.todo] == ["evaluate-gpt2-t"]
    assert [each.hash for each in plan.waiting] == ["evaluate-cnp-t", "evaluate-summary-t"]
    outcomes = engine.run(plan, Store(tmp_path), Threads(1), Context(tmp_path), Watch(), lambda each, context: DONE)
    assert set(outcomes) == {"evaluate-gpt2-t"}, "neither trained nor summed up without what that needs"


def test_where_no_worker_can_be_set_up_the_sweep_ends_at_once(tmp_path: Path) -> None:
    executor = Refusing(2)
    with pytest.raises(WorkerStartError, match="no such device"):
        sweep(rows("t", ("gpt2",)), tmp_path, lambda each, context: DONE, executor=executor)
    assert executor.stopped


def test_ctrl_c_stops_the_workers_and_what_they_had_finished_is_reported(tmp_path: Path) -> None:
    both = threading.Barrier(2)
    finished: list[str] = []

    class User(Watch):
        def finished(self, cell: GridCell, outcome: Outcome) -> None:
            finished.append(cell.hash)
            if len(finished) == 1:
                raise KeyboardInterrupt

    def work(each: GridCell, context: Context) -> Outcome:
        if each.run in ("a", "b"):
            both.wait()
        return DONE

    executor = Threads(2)
    cells = [cell("train", run) for run in ("a", "b", "c", "d", "e", "f")]
    with pytest.raises(KeyboardInterrupt):
        sweep(cells, tmp_path, work, executor=executor, watch=User())
    assert executor.stopped
    assert 1 <= len(finished) <= 3


def test_what_a_broken_worker_raises_is_a_failed_cell(tmp_path: Path) -> None:
    def work(each: GridCell, context: Context) -> Outcome:
        raise IclbenchError("ValueError: odd")

    (outcome,) = sweep([cell("train", "a")], tmp_path, work).values()
    assert outcome.status == "failed" and "ValueError: odd" in (outcome.reason or "")


class Dealt(Threads):
    """Notes what goes together, and dies where it is told to."""

    def __init__(self, slots: int = 1) -> None:
        super().__init__(slots)
        self.bundles: list[list[str]] = []
        self.outcomes: dict[str, Outcome] = {}

    def submit(self, fn: Callable[..., Any], /, *args: Any) -> Future[Any]:  # type: ignore[override]
        self.bundles.append([cell.hash for cell in args[0].cells])
        return super().submit(fn, *args)


def grouped(cells: list[Cell], results: Path, work: Callable[[GridCell, Context], Outcome], seconds: float) -> Dealt:
    """A sweep of bundles that are worth so many seconds, every cell taking one."""
    executor = Dealt()
    plan = Plan(tuple(cells), {each.hash: "todo" for each in cells}, tuple(cells))
    bundling = engine.Bundling(seconds, lambda cell: 1.0)
    executor.outcomes = engine.run(plan, Store(results), executor, Context(results), Watch(), work, bundling)
    return executor


def test_what_waits_for_a_cell_alone_goes_with_it_and_others_until_they_are_worth_a_job(tmp_path: Path) -> None:
    cells = rows("t", ("a", "b", "c"))
    alone = grouped(cells, tmp_path, lambda each, context: DONE, seconds=0)
    assert alone.bundles == [
        *(["train-" + run + "-t", "evaluate-" + run + "-t", "probe-" + run + "-t"] for run in "abc"),
        ["evaluate-summary-t"],
    ]
    assert set(alone.outcomes) == {each.hash for each in cells}
    together = grouped(cells, tmp_path, lambda each, context: DONE, seconds=4)
    assert [len(each) for each in together.bundles] == [6, 3, 1]
    assert together.outcomes == alone.outcomes


def test_a_training_that_fails_in_a_bundle_fails_what_follows_it(tmp_path: Path) -> None:
    def work(each: GridCell, context: Context) -> Outcome:
        return Outcome("failed", "no room") if each.hash == "train-a-t" else DONE

    found = grouped(rows("t", ("a", "b")), tmp_path, work, seconds=100).outcomes
    assert {name for name, each in found.items() if each.status == "failed"} == {
        "train-a-t", "evaluate-a-t", "probe-a-t"
    }  # fmt: skip
    assert "no room" in str(found["probe-a-t"].reason)


def test_of_a_bundle_whose_worker_died_what_was_finished_stays_and_the_rest_is_done_again(tmp_path: Path) -> None:
    worked: list[str] = []

    def work(each: GridCell, context: Context) -> Outcome:
        worked.append(each.hash)
        if worked.count("evaluate-a-t") == 1 and each.hash == "evaluate-a-t":
            raise WorkerDiedError("killed", {"train-a-t": DONE})
        return DONE

    found = grouped(rows("t", ("a", "b")), tmp_path, work, seconds=100)
    assert all(each.status == "done" for each in found.outcomes.values()) and len(found.outcomes) == 7
    assert worked.count("train-a-t") == 1 and worked.count("evaluate-a-t") == 2
    assert found.bundles[0][:2] == ["train-a-t", "evaluate-a-t"] and "train-a-t" not in found.bundles[1]


def test_a_cell_of_a_bundle_that_kills_its_worker_twice_is_failed_and_the_others_are_done(tmp_path: Path) -> None:
    def work(each: GridCell, context: Context) -> Outcome:
        if each.hash == "train-b-t":
            raise WorkerDiedError("killed", {})
        return DONE

    found = grouped(rows("t", ("b", "a")), tmp_path, work, seconds=100).outcomes
    assert {name for name, each in found.items() if each.status == "failed"} == {
        "train-b-t", "evaluate-b-t", "probe-b-t"
    }  # fmt: skip
    assert "killed, 2 times" in str(found["train-b-t"].reason)


def test_the_makespan_is_what_list_scheduling_gives(tmp_path: Path) -> None:
    cells = [cell("train", f"r{n}") for n in range(10)]
    plan = Plan(tuple(cells), {each.hash: "todo" for each in cells}, tuple(cells))
    alone = engine.Bundling(0.0, lambda cell: 6.0, is_grouped=False)
    assert simulate(plan, 1, alone).seconds == 60 and simulate(plan, 4, alone).seconds == 18
    assert simulate(plan, 512, alone) == Makespan(6.0, (1,) * 10, 60.0, 512)
    assert simulate(plan, 10, alone, start=4.0).efficiency == pytest.approx(0.6)
    pairs = engine.Bundling(12.0, lambda cell: 6.0)
    assert simulate(plan, 1, pairs, start=4.0) == Makespan(80.0, (2,) * 5, 60.0, 1)
    dying = simulate(plan, 2, alone, failures=0.3, seed=1)
    assert len(dying.jobs) > 10 and dying.busy == 60 and dying.seconds > 30


class Left(Dealt):
    """An earlier sweep has left a bundle, of which one cell has a row already."""

    def __init__(self, bundles: list[Bundle], found: dict[str, Outcome]) -> None:
        super().__init__()
        self.left, self.found = bundles, found

    def adopted(self, wanted: Callable[[Bundle], bool]) -> Iterator[tuple[Bundle, Future[dict[str, Outcome]]]]:
        for bundle in self.left:
            if wanted(bundle):
                future: Future[dict[str, Outcome]] = Future()
                future.set_result(self.found)
                yield bundle, future


def test_what_an_earlier_sweep_has_left_is_collected_and_not_done_again(tmp_path: Path) -> None:
    cells = rows("t", ("a", "b"))
    train, evaluate, probe, *others = cells
    status = {each.hash: "done" if each is train else "todo" for each in cells}
    plan = Plan(tuple(cells), status, tuple(cells[1:]))  # type: ignore[arg-type]
    context = Context(tmp_path)
    foreign = Bundle((cell("train", "x", task="another"),), context)
    found = {train.hash: DONE, evaluate.hash: DONE, probe.hash: DONE}
    executor = Left([foreign, Bundle((train, evaluate, probe), context)], found)
    done = engine.run(plan, Store(tmp_path), executor, context, Watch(), lambda each, context: DONE)
    assert set(done) == {each.hash for each in cells[1:]} and all(each.status == "done" for each in done.values())
    assert [evaluate.hash] not in executor.bundles and len(executor.bundles) == len(others)


def test_a_job_that_ends_without_a_word_about_its_cells_is_not_asked_for_ever(tmp_path: Path) -> None:
    class Silent(Threads):
        def submit(self, fn: Callable[..., Any], /, *args: Any) -> Future[Any]:  # type: ignore[override]
            future: Future[Any] = Future()
            future.set_result({})
            return future

    watch = Watch()
    found = sweep([cell("train", "a")], tmp_path, lambda each, context: DONE, executor=Silent(1), watch=watch)
    assert found["train-a-t"].status == "failed" and found["train-a-t"].reason
    assert len(watch.tried_again) == 1
