"""Exceptions: all of them cross to other processes."""

from __future__ import annotations

import importlib
import multiprocessing
import pickle
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import iclbench
from iclbench.core.errors import CODES, DataChangedError, IclbenchError, UnknownNameError, UsageError
from iclbench.store.runs import CodeChangedError, DivergedError, Run, TrainedOtherwiseError
from iclbench.sweep.executor import WorkerDiedError
from iclbench.sweep.work import _PartialFailureError
from iclbench.training.fit import TrainingDivergedError
from tests.refusals import refused

# How the exceptions are made that take more than a message.
MADE: dict[type[IclbenchError], Callable[[], IclbenchError]] = {
    UnknownNameError: lambda: UnknownNameError("task", "linaer", ["linear"], hint="(h)", listed_by="list"),
    DataChangedError: lambda: DataChangedError("a1", "b2"),
    TrainingDivergedError: lambda: TrainingDivergedError(3, "the loss is nan"),
    DivergedError: lambda: DivergedError(Run(Path("results/runs/x")), 3, "the loss is nan", remembered=True),
    TrainedOtherwiseError: lambda: TrainedOtherwiseError(Run(Path("results/runs/x")), ["seed: 0 -> 1"]),
    CodeChangedError: lambda: CodeChangedError("x", "linear", 1, 2),
    WorkerDiedError: lambda: WorkerDiedError("x", {}),
    _PartialFailureError: lambda: _PartialFailureError("x", [Path("a")]),
}


def ours() -> list[type[Exception]]:
    """Every exception of the package. Modules without a class of an exception are not imported: all of them would take
    seconds."""
    root = Path(iclbench.__file__).parent
    exceptions = re.compile(r"^class \w*(Error|Exception|Interrupted)|^class \w+\(.*(Error|Exception)", re.MULTILINE)
    for path in root.rglob("*.py"):
        if exceptions.search(path.read_text()):
            importlib.import_module(".".join(path.relative_to(root.parent).with_suffix("").parts))

    def below(cls: type[Exception]) -> Iterator[type[Exception]]:
        for each in cls.__subclasses__():
            yield each
            yield from below(each)

    return [each for each in below(Exception) if each.__module__.startswith("iclbench.")]


def test_every_exception_survives_pickle() -> None:
    found = ours()
    assert {IclbenchError, UsageError, *MADE} <= set(found)
    for cls in found:
        error = MADE[cls]() if cls in MADE else cls("x")  # type: ignore[index]
        again = pickle.loads(pickle.dumps(error))
        assert type(again) is cls and str(again) == str(error) and again.args == error.args
        assert {name: str(value) for name, value in vars(again).items()} == {k: str(v) for k, v in vars(error).items()}


def _mistyped(name: str) -> None:
    raise UnknownNameError("task", name, ["linear"])


def test_a_mistyped_name_ends_a_pool() -> None:
    with multiprocessing.get_context("fork").Pool(1) as pool:
        answer = pool.map_async(_mistyped, ["linaer"])
        with refused("unknown-name", "linaer", "linear"):
            answer.get(timeout=10)


def test_every_code_in_the_package_is_listed() -> None:
    written = re.compile(r'\bcode(?:: ClassVar\[str\])? ?= ?"([a-z-]+)"')
    root = Path(iclbench.__file__).parent
    codes = {code for path in root.rglob("*.py") for code in written.findall(path.read_text())}
    assert codes <= set(CODES)
    assert {cls.code for cls in ours() if issubclass(cls, IclbenchError)} <= set(CODES)


@pytest.mark.parametrize(
    ("code", "names", "exit_code"),
    [("bad-value", ["linaer"], 2), ("unknown-name", ["quadratic"], 2), ("unknown-name", ["linaer"], 1)],
)
def test_refused_notices_another_code_name_and_exit_code(code: str, names: list[str], exit_code: int) -> None:
    with pytest.raises(AssertionError), refused(code, *names, exit_code=exit_code):
        _mistyped("linaer")
