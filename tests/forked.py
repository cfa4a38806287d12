"""Commands and functions in processes that are forked from one that has imported torch: some seconds less for each of
them, which tests that start and kill many have to wait for, and a heap in which nothing else was done."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")

# Also for processes that a test starts itself.
FORKS = get_context("forkserver")
FORKS.set_forkserver_preload(["iclbench.api.train", "iclbench.cli.eval_runs", "iclbench.training.run", "torch._dynamo"])


class Command:
    """`iclbench ARGUMENTS`, begun; what it writes to the error stream goes to a file."""

    def __init__(self, arguments: Sequence[str], errors: Path) -> None:
        self._errors = errors
        self._process = FORKS.Process(target=_run, args=(list(arguments), str(errors)))
        self._process.start()

    @property
    def pid(self) -> int:
        return self._process.pid or 0

    @property
    def code(self) -> int | None:
        """The exit code; None while it runs."""
        return self._process.exitcode

    @property
    def errors(self) -> str:
        return self._errors.read_text()

    def kill(self) -> None:
        """Kill it, or do nothing where it has ended."""
        self._process.kill()
        self._process.join()

    def interrupted(self, within: float) -> int | None:
        """The exit code after a Ctrl-C."""
        os.kill(self.pid, signal.SIGINT)
        self._process.join(within)
        return self.code

    def ends(self, within: float | None = None) -> bool:
        """Whether it ends by itself within so many seconds (None: however long it takes), or is killed then.

        Raises:
            AssertionError: it failed.
        """
        self._process.join(within)
        if self._process.is_alive():
            self.kill()
            return False
        assert self.code == 0, self.errors
        return True


def answer(function: Callable[..., T], *arguments: object) -> T:
    """What a function of a module returns, called in a process of its own."""
    here, there = FORKS.Pipe(duplex=False)
    process = FORKS.Process(target=_call, args=(there, function, arguments))
    process.start()
    there.close()
    found: T = here.recv()
    process.join()
    return found


def printed(arguments: Sequence[str], folder: Path, environment: dict[str, str], site: str) -> tuple[int, str, str]:
    """Exit code, output and errors of `iclbench ARGUMENTS` in a folder, with packages of one more `site` folder."""
    return printed_each([arguments], folder, environment, site)[0]


def printed_each(
    commands: Sequence[Sequence[str]], folder: Path, environment: dict[str, str], site: str
) -> list[tuple[int, str, str]]:
    """The same of several commands, one after the other in one process."""
    return answer(_printed, [list(arguments) for arguments in commands], str(folder), environment, site)


def _printed(
    commands: list[list[str]], folder: str, environment: dict[str, str], site: str
) -> list[tuple[int, str, str]]:
    from iclbench.cli.main import main

    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.path.insert(0, site)
    found = []
    for arguments in commands:
        out, errors = StringIO(), StringIO()
        with redirect_stdout(out), redirect_stderr(errors):
            code = main(arguments)
        found.append((code, out.getvalue(), errors.getvalue()))
    return found


def _call(answers: Connection, function: Callable[..., object], arguments: tuple[object, ...]) -> None:
    answers.send(function(*arguments))


def _run(arguments: list[str], errors: str) -> None:
    from iclbench.cli.main import main

    signal.signal(signal.SIGINT, signal.default_int_handler)  # whatever a shell's background job inherits
    with Path(errors).open("w", buffering=1) as stream, redirect_stderr(stream), redirect_stdout(stream):
        sys.exit(main(arguments))
