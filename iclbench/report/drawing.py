"""Vega in a separate process: pictures as PNG, SVG and PDF, and the script that draws the figures on the page.

vl-convert contains the JavaScript engine V8, which holds Python's global interpreter lock and ends its process if it
runs out of memory. In a separate process, it can neither block nor end the report. The report omits pictures that
cannot be drawn, and states the reasons.
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

# The Python code of the child process.
CHILD_CODE = "from iclbench.report.drawing import serve; serve()"


class DrawingProcess:
    """A child process that reads jobs and writes answers, both as lines of JSON. It is started with the first job."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None
        self._errors = TemporaryFile("w+", encoding="utf-8", errors="replace")  # noqa: SIM115  # open as long as the process

    def send(self, **job: Any) -> None:
        """Send a job; `receive` waits for the answer."""
        if self._process is None:
            self._process = subprocess.Popen(
                [sys.executable, "-c", CHILD_CODE],
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
            pass  # the process has ended; `receive` raises the error

    def receive(self) -> dict[str, Any]:
        """Wait for the next answer.

        Raises:
            ChildProcessError: the process has ended without an answer; the message is the reason.
        """
        assert self._process is not None
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line.endswith("\n"):
            process = self._process
            self.close()
            self._errors.seek(0)
            code, stderr = process.returncode, self._errors.read()
            self._errors.seek(0)
            self._errors.truncate()
            raise ChildProcessError(exit_reason(code, stderr))
        answer: dict[str, Any] = json.loads(line)
        return answer

    def close(self, seconds: float = 5) -> None:
        """End the process. If it does not end within this time, it is killed."""
        if self._process is None:
            return
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            with suppress(BrokenPipeError):
                pipe.close()
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process = None


class Drawer:
    """Draws pictures in a child process; `version` is the version of Vega-Lite, such as 6.4."""

    def __init__(self, version: str) -> None:
        self._child = DrawingProcess()
        self._version = version
        self._drawn_count = 0
        # Why the process ended before its first picture.
        self._start_failure: str | None = None

    def draw(self, picture: Mapping[str, Any] | str, stem: Path, formats: Sequence[str]) -> str | None:
        """Draw a picture. A process that ends before its first picture is not started again.

        Args:
            picture: a Vega-Lite specification, or an SVG.
            stem: path of the files without ending.
            formats: formats of the files.

        Returns:
            The reason why the picture cannot be drawn; None if it was drawn.

        Raises:
            OSError: the files cannot be written.
        """
        if self._start_failure is not None:
            return self._start_failure
        self._child.send(picture=picture, stem=str(stem), formats=list(formats), version=self._version)
        try:
            answer = self._child.receive()
        except ChildProcessError as error:
            self._start_failure = None if self._drawn_count else str(error)
            self._drawn_count = 0
            return str(error)
        if "errno" in answer:
            raise OSError(answer["errno"], answer["strerror"])
        self._drawn_count += 1
        reason: str | None = answer["reason"]
        return reason

    def close(self) -> None:
        self._child.close()


class Script:
    """Vega, Vega-Lite (of this version) and vega-embed as one script.

    The script is prepared in the background, and only once per process.
    """

    _scripts: ClassVar[dict[str, str]] = {}

    def __init__(self, version: str) -> None:
        self._child = DrawingProcess()
        self._version = version
        if version not in self._scripts:
            self._child.send(script=version)

    @property
    def text(self) -> str:
        """The script.

        Raises:
            ChildProcessError: the script is not available; the message is the reason.
        """
        if self._version not in self._scripts:
            self._scripts[self._version] = self._child.receive()["script"]
        return self._scripts[self._version]

    def close(self) -> None:
        """End the process. A script that is not ready yet is not needed: the report has failed or has no figures."""
        self._child.close(seconds=0)


def exit_reason(code: int, stderr: str) -> str:
    """Why a drawing process has ended, in one line.

    >>> exit_reason(-6, "# Fatal process out of memory: Oilpan: CagedHeap reservation.")
    'the drawing process ran out of memory: raise its limit (ulimit -v) or write no pictures'
    >>> exit_reason(1, "Traceback ...\\nModuleNotFoundError: No module named 'vl_convert'\\n")
    "the drawing process has ended: ModuleNotFoundError: No module named 'vl_convert'"
    """
    if "out of memory" in stderr or "MemoryError" in stderr or "Cannot allocate" in stderr:
        return "the drawing process ran out of memory: raise its limit (ulimit -v) or write no pictures"
    reason = next((line.strip() for line in reversed(stderr.splitlines()) if line.strip()), "")
    if code < 0:
        reason = f"killed by {signal.Signals(-code).name}"
    return f"the drawing process has ended: {reason[:200] or f'exit code {code}'}"


def serve() -> None:
    """Read jobs from stdin and write answers to stdout until stdin ends. This function runs in the child process of
    `DrawingProcess`."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends this process
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # text that libraries print must not be read as an answer
    for line in sys.stdin:
        job = json.loads(line)
        answer = {"script": _script(job["script"])} if "script" in job else _draw(job)
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


def _draw(job: Mapping[str, Any]) -> dict[str, Any]:
    import vl_convert

    picture, stem, formats = job["picture"], job["stem"], job["formats"]
    try:
        svg = picture if isinstance(picture, str) else vl_convert.vegalite_to_svg(picture, vl_version=job["version"])
        if "svg" in formats:
            write_text(Path(f"{stem}.svg"), svg, sync=False)
        if "png" in formats:
            with atomic(Path(f"{stem}.png"), sync=False) as temporary:
                temporary.write_bytes(vl_convert.svg_to_png(svg, scale=2))
        if "pdf" in formats:
            with atomic(Path(f"{stem}.pdf"), sync=False) as temporary:
                temporary.write_bytes(vl_convert.svg_to_pdf(svg))
    except OSError as error:
        return {"errno": error.errno, "strerror": error.strerror}
    except ValueError as error:  # raised by vl-convert
        return {"reason": f"it cannot be drawn: {(str(error).splitlines() or [''])[0][:200]}"}
    return {"reason": None}


def _script(version: str) -> str:
    import vl_convert

    script: str = vl_convert.javascript_bundle(vl_version=version)  # type: ignore[call-arg]  # the stub lacks the default
    return script.replace("</script", "<\\/script")
