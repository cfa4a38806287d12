"""Vega in a process of its own: pictures as PNG and SVG, and the script that draws the figures on the page.

vl-convert brings V8, which holds the interpreter's lock while it works and takes its whole process with it when it gets
no memory. A page is worth more than its pictures: what cannot be drawn is missing, with a reason.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, ClassVar

from iclbench.core.files import atomic, write_text

# What the process runs.
CHILD = "from iclbench.report.drawing import serve; serve()"


class Child:
    """A process that answers lines of JSON with lines of JSON; it starts with the first that it is asked."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None
        self._errors = TemporaryFile("w+", encoding="utf-8", errors="replace")  # noqa: SIM115  # as long as the process

    def send(self, **job: Any) -> None:
        """Ask for something; `receive` waits for the answer."""
        if self._process is None:
            self._process = subprocess.Popen(
                [sys.executable, "-c", CHILD],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                encoding="utf-8",
            )
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(job, allow_nan=False) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass  # it has ended, which `receive` finds out

    def receive(self) -> dict[str, Any]:
        """The next answer; raises `ChildProcessError` with the reason if the process has ended without one."""
        assert self._process is not None
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line.endswith("\n"):
            process = self._process
            self.close()
            self._errors.seek(0)
            code, said = process.returncode, self._errors.read()
            self._errors.seek(0)
            self._errors.truncate()
            raise ChildProcessError(why_ended(code, said))
        answer: dict[str, Any] = json.loads(line)
        return answer

    def close(self) -> None:
        """End the process."""
        if self._process is None:
            return
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            with suppress(BrokenPipeError):
                pipe.close()
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process = None


class Drawer:
    """Draws one picture after the other; `version` is that of Vega-Lite, like 6.4."""

    def __init__(self, version: str) -> None:
        self._child = Child()
        self._version = version
        self._drawn = 0
        self._never: str | None = None

    def draw(self, picture: Mapping[str, Any] | str, stem: Path, formats: Sequence[str]) -> str | None:
        """Write a Vega-Lite specification, or an SVG, as `stem` with the ending of each format; the reason if it cannot
        be drawn. A process that ends before its first picture is not started again.

        Raises:
            OSError: the file system refuses.
        """
        if self._never is not None:
            return self._never
        self._child.send(picture=picture, stem=str(stem), formats=list(formats), version=self._version)
        try:
            answer = self._child.receive()
        except ChildProcessError as error:
            self._never = None if self._drawn else str(error)
            self._drawn = 0
            return str(error)
        if "errno" in answer:
            raise OSError(answer["errno"], answer["strerror"])
        self._drawn += 1
        reason: str | None = answer["reason"]
        return reason

    def close(self) -> None:
        self._child.close()


class Script:
    """Vega, Vega-Lite (of this version) and vega-embed as one script, prepared while the page is; once in a process."""

    _known: ClassVar[dict[str, str]] = {}

    def __init__(self, version: str) -> None:
        self._child = Child()
        self._version = version
        if version not in self._known:
            self._child.send(script=version)

    @property
    def text(self) -> str:
        """The script; raises `ChildProcessError` with the reason if there is none."""
        if self._version not in self._known:
            self._known[self._version] = self._child.receive()["script"]
        return self._known[self._version]

    def close(self) -> None:
        self._child.close()


def why_ended(code: int, said: str) -> str:
    """Why a process that draws has ended, in a line.

    >>> why_ended(-6, "# Fatal process out of memory: Oilpan: CagedHeap reservation.")
    'V8, which draws, got no memory: give it more (ulimit -v) or leave pictures out'
    >>> why_ended(1, "Traceback ...\\nModuleNotFoundError: No module named 'vl_convert'\\n")
    "the process that draws has ended: ModuleNotFoundError: No module named 'vl_convert'"
    """
    if "out of memory" in said or "MemoryError" in said or "Cannot allocate" in said:
        return "V8, which draws, got no memory: give it more (ulimit -v) or leave pictures out"
    last = next((line.strip() for line in reversed(said.splitlines()) if line.strip()), "")
    if code < 0:
        last = f"killed by {signal.Signals(-code).name}"
    return f"the process that draws has ended: {last[:200] or f'exit code {code}'}"


def serve() -> None:
    """Answer jobs from stdin on stdout, until there are no more: the other end of `Child`."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # whoever asked ends this process
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what libraries print is no answer
    for line in sys.stdin:
        job = json.loads(line)
        answer = {"script": _script(job["script"])} if "script" in job else _drawn(job)
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


def _drawn(job: Mapping[str, Any]) -> dict[str, Any]:
    import vl_convert

    picture, stem, formats = job["picture"], job["stem"], job["formats"]
    try:
        svg = picture if isinstance(picture, str) else vl_convert.vegalite_to_svg(picture, vl_version=job["version"])
        if "svg" in formats:
            write_text(Path(f"{stem}.svg"), svg, sync=False)
        if "png" in formats:
            with atomic(Path(f"{stem}.png"), sync=False) as temporary:
                temporary.write_bytes(vl_convert.svg_to_png(svg, scale=2))
    except OSError as error:
        return {"errno": error.errno, "strerror": error.strerror}
    except ValueError as error:  # what vl-convert raises
        return {"reason": f"it cannot be drawn: {(str(error).splitlines() or [''])[0][:200]}"}
    return {"reason": None}


def _script(version: str) -> str:
    import vl_convert

    script: str = vl_convert.javascript_bundle(vl_version=version)  # type: ignore[call-arg]  # the stub lacks the default
    return script.replace("</script", "<\\/script")
