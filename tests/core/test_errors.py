"""Exceptions: pickling, error codes, and the test helper `refused`."""

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
from iclbench.store.runs import CodeChangedError, DivergedError, Run, SettingsChangedError
from iclbench.sweep.executor import WorkerDiedError
from iclbench.sweep.work import _PartialFailureError
from iclbench.training.fit import TrainingDivergedError
from tests.refusals import refused

# Examples of exceptions whose constructors take more than a message.
EXAMPLES: dict[type[IclbenchError], Callable[[], IclbenchError]] = {
    UnknownNameError: lambda: UnknownNameError("task", "linaer", ["linear"], hint="(h)", listed_by="list"),
    DataChangedError: lambda: DataChangedError("a1", "b2"),
    TrainingDivergedError: lambda: TrainingDivergedError(3, "the loss is nan"),
    DivergedError: lambda: DivergedError(Run(Path("results/runs/x")), 3, "the loss is nan", is_recorded=True),
    SettingsChangedError: lambda: SettingsChangedError(Run(Path("results/runs/x")), ["seed: 0 -> 1"]),
    CodeChangedError: lambda: CodeChangedError("x", "linear", 1, 2),
    WorkerDiedError: lambda: WorkerDiedError("x", {}),
    _PartialFailureError: lambda: _PartialFailureError("x", [Path("a")]),
}


def package_exceptions() -> list[type[Exception]]:
    """Return every exception class of the package. Only modules that define exceptions are imported, because importing
    all modules takes seconds."""
    root = Path(iclbench.__file__).parent
    exceptions = re.compile(r"^class \w*(Error|Exception|Interrupted)|^class \w+\(.*(Error|Exception)", re.MULTILINE)
    for path in root.rglob("*.py"):
        if exceptions.search(path.read_text()):
            importlib.import_module(".".join(path.relative_to(root.parent).with_suffix("").parts))

    def subclasses(cls: type[Exception]) -> Iterator[type[Exception]]:
        for subclass in cls.__subclasses__():
            yield subclass
            yield from subclasses(subclass)

    return [cls for cls in subclasses(Exception) if cls.__module__.startswith("iclbench.")]


def test_every_exception_survives_pickle() -> None:
    exceptions = package_exceptions()
    assert {IclbenchError, UsageError, *EXAMPLES} <= set(exceptions)
    for cls in exceptions:
        error = EXAMPLES[cls]() if cls in EXAMPLES else cls("x")  # type: ignore[index]
        copy = pickle.loads(pickle.dumps(error))
        assert type(copy) is cls and str(copy) == str(error) and copy.args == error.args
        assert {name: str(value) for name, value in vars(copy).items()} == {k: str(v) for k, v in vars(error).items()}


def _raise_unknown_name(name: str) -> None:
    raise UnknownNameError("task", name, ["linear"])


def test_a_process_pool_propagates_an_unknown_name_error() -> None:
    with multiprocessing.get_context("fork").Pool(1) as pool:
        result = pool.map_async(_raise_unknown_name, ["linaer"])
        with refused("unknown-name", "linaer", "linear"):
            result.get(timeout=10)


def test_every_error_code_in_the_package_is_listed() -> None:
    assignment = re.compile(r'\bcode(?:: ClassVar\[str\])? ?= ?"([a-z-]+)"')
    root = Path(iclbench.__file__).parent
    codes = {code for path in root.rglob("*.py") for code in assignment.findall(path.read_text())}
    assert codes <= set(CODES)
    assert {cls.code for cls in package_exceptions() if issubclass(cls, IclbenchError)} <= set(CODES)


@pytest.mark.parametrize(
    ("code", "names", "exit_code"),
    [("bad-value", ["linaer"], 2), ("unknown-name", ["quadratic"], 2), ("unknown-name", ["linaer"], 1)],
)
def test_refused_fails_if_the_code_names_or_exit_code_differ(code: str, names: list[str], exit_code: int) -> None:
    with pytest.raises(AssertionError), refused(code, *names, exit_code=exit_code):
        _raise_unknown_name("linaer")


def test_an_unknown_name_lists_at_most_600_characters_of_known_names() -> None:
    names = [f"reference/a-long-name-of-a-run-{n:02}" for n in range(40)]
    message = str(UnknownNameError("run", "zzz", names))
    listed = message.partition("known: ")[2].partition(" and ")[0].split(", ")
    assert listed == names[: len(listed)]
    assert sum(len(name) + 2 for name in listed) <= 600 < sum(len(name) + 2 for name in names[: len(listed) + 1])
    assert message.endswith(f"and {40 - len(listed)} more")
    assert "and 1 more" in str(UnknownNameError("run", "zzz", ["x" * 700, "y"]))
