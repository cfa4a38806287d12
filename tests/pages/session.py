"""Run the blocks of a page in order in an empty folder."""

from __future__ import annotations

import ast
import contextlib
import io
import os
import re
import shlex
import subprocess
import sys
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

from tests import forked
from tests.pages.blocks import Block, blocks
from tests.pages.compare import difference, new_excerpt

# The width of the terminal in characters.
WIDTH = "88"
# The name of the folder of the session in the shown output.
HOME = "/home/you"
# Defines `iclbench` and `python` for commands that run in a shell. `iclbench` commands without shell syntax run in
# forked processes, which saves seconds per command.
_SHELL = f'iclbench() {{ "{sys.executable}" -m iclbench "$@"; }}; python() {{ "{sys.executable}" "$@"; }}; '
_PIP = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-index", "--no-deps"]


@dataclass(frozen=True)
class Output:
    """The output of a command or an expression of a page.

    Attributes:
        line: the index of the first line of the shown output in the page.
        shown: the lines that the page shows.
        lines: the printed lines.
        source: the command or the expression.
        failure: the reason why the command failed, or "".
    """

    line: int
    shown: tuple[str, ...]
    lines: tuple[str, ...]
    source: str
    failure: str = ""

    @property
    def problem(self) -> str:
        """The failure, or the difference from the shown output, in one line. If the page
        shows no output, the command may print any text.
        """
        return self.failure or (difference(self.shown, self.lines) if self.shown else "")


class Session:
    """Runs the blocks of a page, which share a folder, names and installed packages.

    Args:
        folder: an empty folder.
        long: whether to run blocks that take minutes.
    """

    def __init__(self, folder: Path, long: bool = False) -> None:
        self.work, self.site = folder / "work", folder / "site"
        self.work.mkdir()
        self.site.mkdir()
        self.long = long
        self.names: dict[str, Any] = {"__name__": "page"}

    def run(self, markdown: str) -> Iterator[Output]:
        """Yield the outputs of all commands and expressions of a page."""
        environment = {name: value for name, value in os.environ.items() if "ICLBENCH" not in name}
        environment |= {"COLUMNS": WIDTH, "PYTHONPATH": os.pathsep.join([str(self.site), *sys.path])}
        with contextlib.chdir(self.work), mock.patch.dict(os.environ, environment, clear=True):
            for block in blocks(markdown):
                if block.mark == "not run" or (block.mark == "long" and not self.long):
                    continue
                yield from self._block(block)

    def _block(self, block: Block) -> Iterator[Output]:
        if block.caption:
            path = Path(block.caption)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(block.text)
        elif block.language == "console":
            for command in block.commands():
                code, out, errors = self._command(command.text)
                out, errors = (text.replace(str(self.work), HOME) for text in (out, errors))
                lines = tuple(line.rstrip() for line in out.rstrip("\n").split("\n"))
                message = errors.strip().split("\n")[-1]
                # The page may show an error message as the expected output.
                is_expected = bool(command.output) and bool(code) and command.output[0].startswith("error: ")
                lines = tuple(errors.rstrip().split("\n")) if is_expected else lines
                failure = f"exit code {code}: {message}" if code and not is_expected else ""
                shown = tuple(command.output)
                while shown and not shown[-1].strip():
                    shown = shown[:-1]
                yield Output(command.line, shown, lines, f"$ {command.text}", failure)
        elif block.language == "python" and block.examples():
            for example in block.examples():
                out, failure = self._python(example.source, "single")
                shown = tuple(example.want.rstrip("\n").split("\n")) if example.want else ()
                lines = tuple(line.rstrip() for line in out.rstrip("\n").split("\n")) if out.strip() else ()
                line = block.line + example.lineno + example.source.count("\n")
                if failure or shown or lines:
                    failure = failure or ("" if shown or not lines else f"it prints '{lines[0]}'")
                    yield Output(line, shown, lines, f">>> {example.source.strip()}", failure)
        elif block.language == "python":
            _, failure = self._python(block.text, "exec")
            yield Output(block.line, (), (), block.lines[0], failure)

    def _command(self, text: str) -> tuple[int, str, str]:
        words = shlex.split(text)
        if words[:2] == ["pip", "install"]:
            return self._install(words[2:])
        if words[0] == "cd":
            os.chdir(words[1])
            return 0, "", ""
        if words[0] == "iclbench" and not re.search(r"[|<>;&*$]", re.sub(r"'[^']*'", "", text)):
            return forked.run_command(words[1:], Path.cwd(), dict(os.environ), str(self.site))
        done = subprocess.run(["bash", "-c", _SHELL + text], capture_output=True, text=True)
        return done.returncode, done.stdout, done.stderr

    def _install(self, words: list[str]) -> tuple[int, str, str]:
        """Install a package of the page into the session, not into the environment."""
        command = [sys.executable, *_PIP, "--no-build-isolation", "--upgrade", "--target", str(self.site), *words]
        done = subprocess.run(command, capture_output=True, text=True)
        return done.returncode, "", done.stderr

    def _python(self, source: str, mode: str) -> tuple[str, str]:
        """Run Python source, and return the printed text and the last line of the traceback."""
        out = io.StringIO()
        with (
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(io.StringIO()),
            mock.patch.object(sys, "path", [str(self.work), str(self.site), *sys.path]),
            mock.patch.object(sys, "displayhook", sys.__displayhook__),
        ):
            try:
                exec(compile(ast.parse(source) if mode == "exec" else source, "page", mode), self.names)
            except Exception:
                return out.getvalue(), traceback.format_exc().strip().split("\n")[-1]
        return out.getvalue(), ""


def with_new_output(markdown: str, outputs: list[Output]) -> str:
    """Return the page with the printed output in place of the shown output. Excerpts remain excerpts of the same
    lines.
    """
    lines = markdown.split("\n")
    for output in reversed(outputs):
        if output.shown and output.problem and not output.failure:
            new_lines = [line.rstrip() for line in new_excerpt(output.shown, output.lines)]
            lines[output.line : output.line + len(output.shown)] = new_lines
    return "\n".join(lines)
