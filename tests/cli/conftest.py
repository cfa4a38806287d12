"""Fixtures that run a command in this process and return what it prints."""

import io
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from iclbench.cli.main import main

RunCommand = Callable[..., tuple[int, str, str]]
Stream = Callable[..., tuple[int, list[str], str]]


def run_command(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str, str]:
    code = main([str(word) for word in words])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> RunCommand:
    """Run `iclbench` with these words, and return the exit code, the output and the errors."""
    return partial(run_command, capsys)


@pytest.fixture
def stream(results: Path, capsys: pytest.CaptureFixture[str]) -> Stream:
    """Run `iclbench stream` with the name of a run in `results` and other words. Return the exit code, the lines of the
    output, and the errors."""

    def run_stream(*words: object) -> tuple[int, list[str], str]:
        code, out, err = run_command(capsys, "stream", *words, "--results", results, "--device", "cpu")
        return code, out.splitlines(), err

    return run_stream


class InterruptedInput(io.StringIO):
    """An input that is interrupted by SIGTERM while its last line is read."""

    def readline(self, size: int | None = -1, /) -> str:
        line = super().readline(size)
        if line and self.tell() == len(self.getvalue()):
            signal.raise_signal(signal.SIGTERM)
        return line
