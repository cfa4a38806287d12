"""Run commands and functions in processes forked from a process that has imported torch, which saves seconds per
process."""

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

# Tests also start other processes from this context.
FORKS = get_context("forkserver")
FORKS.set_forkserver_preload(["iclbench.api.train", "iclbench.cli.eval_runs", "iclbench.training.run", "torch._dynamo"])


class Command:
    """A running command `iclbench ARGUMENTS`, whose output is written to a file."""

    def __init__(self, arguments: Sequence[str], errors: Path) -> None:
        self._errors = errors
        self._process = FORKS.Process(target=_run, args=(list(arguments), str(errors)))
        self._process.start()

    @property
    def pid(self) -> int:
        return self._process.pid or 0

    @property
    def code(self) -> int | None:
        """The exit code, or None while the command runs."""
        return self._process.exitcode

    @property
    def errors(self) -> str:
        return self._errors.read_text()

    def kill(self) -> None:
        """Kill the command if it is still running."""
        self._process.kill()
        self._process.join()

    def interrupt(self, within: float) -> int | None:
        """Send Ctrl-C. Return the exit code, or None if the command still runs after `within` seconds."""
        os.kill(self.pid, signal.SIGINT)
        self._process.join(within)
        return self.code

    def wait(self, within: float | None = None) -> bool:
        """Wait for the command. Return False if it was killed after `within` seconds (default: no limit).

        Raises:
            AssertionError: the command failed.
        """
        self._process.join(within)
        if self._process.is_alive():
            self.kill()
            return False
        assert self.code == 0, self.errors
        return True


def call_in_new_process(function: Callable[..., T], *arguments: object) -> T:
    """Call a module-level function in a new process and return its result."""
    receiver, sender = FORKS.Pipe(duplex=False)
    process = FORKS.Process(target=_call, args=(sender, function, arguments))
    process.start()
    sender.close()
    result: T = receiver.recv()
    process.join()
    return result


def run_command(arguments: Sequence[str], folder: Path, environment: dict[str, str], site: str) -> tuple[int, str, str]:
    """Run `iclbench ARGUMENTS` in `folder`, with the packages in `site`. Return exit code, output and errors."""
    return run_commands([arguments], folder, environment, site)[0]


def run_commands(
    commands: Sequence[Sequence[str]], folder: Path, environment: dict[str, str], site: str
) -> list[tuple[int, str, str]]:
    """Run several commands in one process, as `run_command` runs a single one."""
    return call_in_new_process(
        _run_commands, [list(arguments) for arguments in commands], str(folder), environment, site
    )


def _run_commands(
    commands: list[list[str]], folder: str, environment: dict[str, str], site: str
) -> list[tuple[int, str, str]]:
    from iclbench.cli.main import main

    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.path.insert(0, site)
    results = []
    for arguments in commands:
        out, errors = StringIO(), StringIO()
        with redirect_stdout(out), redirect_stderr(errors):
            code = main(arguments)
        results.append((code, out.getvalue(), errors.getvalue()))
    return results


def _call(sender: Connection, function: Callable[..., object], arguments: tuple[object, ...]) -> None:
    sender.send(function(*arguments))


def _run(arguments: list[str], errors: str) -> None:
    from iclbench.cli.main import main

    signal.signal(signal.SIGINT, signal.default_int_handler)  # background jobs of a shell ignore Ctrl-C
    with Path(errors).open("w", buffering=1) as stream, redirect_stderr(stream), redirect_stdout(stream):
        sys.exit(main(arguments))
