"""The blocks of a page, run in order in an empty folder."""

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
from tests.pages.compare import difference, shortened

# The width of tables on the pages, in characters.
WIDTH = "88"
# The name of the folder in the output of a page.
HOME = "/home/you"
# An `iclbench` for commands that need a shell; other commands are forked, which saves seconds each.
_SHELL = f'iclbench() {{ "{sys.executable}" -m iclbench "$@"; }}; python() {{ "{sys.executable}" "$@"; }}; '
_PIP = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-index", "--no-deps"]


@dataclass(frozen=True)
class Printed:
    """The output of a command or an expression of a page.

    Attributes:
        line: the number of the line on the page, from 0, below which the output is shown.
        shown: the lines on the page.
        lines: the printed lines.
        what: the command.
        failed: the reason of a failure that does not depend on the output.
    """

    line: int
    shown: tuple[str, ...]
    lines: tuple[str, ...]
    what: str
    failed: str = ""

    @property
    def wrong(self) -> str:
        """The error in one line. A command without shown lines may print anything."""
        return self.failed or (difference(self.shown, self.lines) if self.shown else "")


class Session:
    """The folder, names and installed packages of one page.

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

    def run(self, markdown: str) -> Iterator[Printed]:
        """The output of all commands and expressions of a page."""
        environment = {name: value for name, value in os.environ.items() if "ICLBENCH" not in name}
        environment |= {"COLUMNS": WIDTH, "PYTHONPATH": os.pathsep.join([str(self.site), *sys.path])}
        with contextlib.chdir(self.work), mock.patch.dict(os.environ, environment, clear=True):
            for block in blocks(markdown):
                if block.mark == "not run" or (block.mark == "long" and not self.long):
                    continue
                yield from self._block(block)

    def _block(self, block: Block) -> Iterator[Printed]:
        if block.caption:
            path = Path(block.caption)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(block.text)
        elif block.language == "console":
            for command in block.commands():
                code, out, errors = self._command(command.text)
                out, errors = (text.replace(str(self.work), HOME) for text in (out, errors))
                lines = tuple(line.rstrip() for line in out.rstrip("\n").split("\n"))
                said = errors.strip().split("\n")[-1]
                # A page may show an error message.
                expected = bool(command.shown) and bool(code) and command.shown[0].startswith("error: ")
                lines = tuple(errors.rstrip().split("\n")) if expected else lines
                failed = f"exit code {code}: {said}" if code and not expected else ""
                shown = tuple(command.shown)
                while shown and not shown[-1].strip():
                    shown = shown[:-1]
                yield Printed(command.line, shown, lines, f"$ {command.text}", failed)
        elif block.language == "python" and block.examples():
            for example in block.examples():
                out, failed = self._python(example.source, "single")
                want = tuple(example.want.rstrip("\n").split("\n")) if example.want else ()
                lines = tuple(line.rstrip() for line in out.rstrip("\n").split("\n")) if out.strip() else ()
                line = block.line + example.lineno + example.source.count("\n")
                if failed or want or lines:
                    failed = failed or ("" if want or not lines else f"it prints '{lines[0]}'")
                    yield Printed(line, want, lines, f">>> {example.source.strip()}", failed)
        elif block.language == "python":
            _, failed = self._python(block.text, "exec")
            yield Printed(block.line, (), (), block.lines[0], failed)

    def _command(self, text: str) -> tuple[int, str, str]:
        words = shlex.split(text)
        if words[:2] == ["pip", "install"]:
            return self._install(words[2:])
        if words[0] == "cd":
            os.chdir(words[1])
            return 0, "", ""
        if words[0] == "iclbench" and not re.search(r"[|<>;&*$]", re.sub(r"'[^']*'", "", text)):
            return forked.printed(words[1:], Path.cwd(), dict(os.environ), str(self.site))
        done = subprocess.run(["bash", "-c", _SHELL + text], capture_output=True, text=True)
        return done.returncode, done.stdout, done.stderr

    def _install(self, words: list[str]) -> tuple[int, str, str]:
        """Install a package of the page next to the environment, not into it."""
        command = [sys.executable, *_PIP, "--no-build-isolation", "--upgrade", "--target", str(self.site), *words]
        done = subprocess.run(command, capture_output=True, text=True)
        return done.returncode, "", done.stderr

    def _python(self, source: str, mode: str) -> tuple[str, str]:
        """The output of an expression, and its error."""
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


def rewritten(markdown: str, found: list[Printed]) -> str:
    """The page with the printed output. Excerpts have the same number of lines."""
    lines = markdown.split("\n")
    for each in reversed(found):
        if each.shown and each.wrong and not each.failed:
            new = [line.rstrip() for line in shortened(each.shown, each.lines)]
            lines[each.line : each.line + len(each.shown)] = new
    return "\n".join(lines)
