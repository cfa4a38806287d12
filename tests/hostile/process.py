"""Run one command in a new process: a fork of this process, which has imported torch, or a new Python interpreter.

A fork takes milliseconds, and a new interpreter takes seconds. Both can be killed, limited, and run without standard
streams. Only trials of Python's startup need a new interpreter.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import io
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

SECONDS = 120.0  # a command that takes longer is considered hung
# Modules that are imported once, before any fork. `cli.terminal` is excluded, because it inspects stdout on import.
MODULES = (
    "torch",
    "pandas",
    "pyarrow.parquet",
    "safetensors.torch",
    "altair",
    "rich.progress",
    "rich.table",
    "rich.markup",
    "iclbench.cli.main",
    "iclbench.cli.eval_runs",
    "iclbench.cli.probe_runs",
    "iclbench.cli.stream_run",
    "iclbench.cli.sweep_cells",
    "iclbench.cli.sweep_run",
    "iclbench.config.resolution",
    "iclbench.registry",
    "iclbench.store.runs",
    "iclbench.training.run",
    "iclbench.evaluation.evaluate",
    "iclbench.probing.probe",
    "iclbench.probing.rank",
    "iclbench.report",
    "iclbench.families.linear",
    "iclbench.backbones.gpt2",
    "iclbench.backbones.cnp",
    "iclbench.estimators.knn",
    "iclbench.estimators.least_squares",
    "iclbench.streaming.stream",
    "iclbench.streaming.answers",
    "torch._dynamo",
    "transformers.models.gpt2.modeling_gpt2",
)


@dataclass(frozen=True)
class Limits:
    """Limits of a process. None means that a limit does not change.

    Attributes:
        memory: bytes of address space. For a fork, the address space of this process is added.
        file_size: the maximum number of bytes of a file.
        powerless: whether permissions also apply to root (forks only).
        closed: the standard streams (0, 1, 2) to close.
    """

    memory: int | None = None
    file_size: int | None = None
    powerless: bool = False
    closed: tuple[int, ...] = ()

    def apply(self, forked: bool) -> None:
        import resource

        if self.file_size is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (self.file_size, self.file_size))
        if self.memory is not None:
            limit = self.memory + (_address_space() if forked else 0)
            resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        for stream in self.closed:
            os.close(stream)
        if self.powerless:
            _give_up_capabilities()


@dataclass(frozen=True)
class Outcome:
    """The end of a command: its exit code (negative for a fatal signal), its output, and whether it hung."""

    arguments: tuple[str, ...]
    code: int
    out: str
    err: str
    seconds: float
    hung: bool = False

    @property
    def last(self) -> str:
        """The last line of stderr."""
        return next(reversed(self.err.strip().splitlines()), "")


@dataclass
class Command:
    """A running command.

    Attributes:
        arguments: arguments of `iclbench`.
        folder: the working folder.
        environment: variables to change. None removes a variable.
        stdin: the standard input.
        limits: limits of the process.
        path: folders with plug-ins.
        fresh: whether to start a new interpreter instead of a fork.
        stdout: an output file (default: the output is read at the end).
    """

    arguments: Sequence[str]
    folder: Path
    environment: Mapping[str, str | None] = field(default_factory=dict)
    stdin: bytes = b""
    limits: Limits = field(default_factory=Limits)
    path: Sequence[Path] = ()
    fresh: bool = False
    stdout: str | None = None

    def start(self) -> Command:
        self._files = [tempfile.TemporaryFile() for _ in range(3)]  # noqa: SIM115
        self._piped: list[bytes] = [b"", b""]
        self._ends: list[int] = []
        if self.limits.file_size is not None:  # the limit would truncate output files
            for stream in (1, 2):
                end, other = os.pipe()
                os.set_blocking(end, False)
                self._ends.append(end)
                self._files[stream] = os.fdopen(other, "wb", buffering=0)
        self._files[0].write(self.stdin)
        self._files[0].seek(0)
        if self.stdout is not None:
            self._files[1] = open(self.stdout, "wb+" if self.stdout == "/dev/null" else "wb")  # noqa: PTH123, SIM115
        self.pid = self._spawn() if self.fresh else self._fork()
        for stream in (1, 2) if self._ends else ():
            self._files[stream].close()
        self.started = time.monotonic()
        return self

    def kill(self, sent_signal: signal.Signals) -> None:
        """Send a signal to the process of the command only, like `kill`."""
        if self._code is None and self._wait(os.WNOHANG) is None:
            os.kill(self.pid, sent_signal)

    def poll(self) -> int | None:
        return self._code if self._code is not None else self._wait(os.WNOHANG)

    def end(self, seconds: float = SECONDS) -> Outcome:
        """Wait for the command, and kill the other processes of its group."""
        deadline, hung = self.started + seconds, False
        while self.poll() is None:
            self._drain()
            if time.monotonic() > deadline:
                hung = True
                os.killpg(self.pid, signal.SIGKILL)
                self._wait(0)
                break
            time.sleep(0.005)
        assert self._code is not None
        seconds = time.monotonic() - self.started
        self._drain()
        texts = [""]
        for stream, file in enumerate(self._files[1:]):
            if self._ends:
                os.close(self._ends[stream])
                texts.append(self._piped[stream].decode(errors="replace"))
            elif file.readable():
                file.seek(0)
                texts.append(file.read().decode(errors="replace"))
            else:
                texts.append("")
        for file in self._files:
            file.close()
        return Outcome(tuple(self.arguments), self._code, texts[1], texts[2], seconds, hung)

    _code: int | None = None

    def _drain(self) -> None:
        """Read the available output from the pipes."""
        for stream, end in enumerate(self._ends):
            with contextlib.suppress(BlockingIOError):
                while chunk := os.read(end, 65536):
                    self._piped[stream] += chunk

    def _wait(self, options: int) -> int | None:
        pid, status = os.waitpid(self.pid, options)
        if pid:
            self._code = os.waitstatus_to_exitcode(status)
        return self._code

    def _spawn(self) -> int:
        environment = os.environ | {k: v for k, v in self.environment.items() if v is not None}
        for name in (name for name, value in self.environment.items() if value is None):
            environment.pop(name, None)
        root = str(Path(__file__).parents[2])
        environment["PYTHONPATH"] = os.pathsep.join([*map(str, self.path), root])

        def prepare() -> None:
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            self.limits.apply(forked=False)

        process = subprocess.Popen(
            [sys.executable, "-m", "iclbench", *self.arguments],
            cwd=os.fsencode(self.folder),
            env=environment,
            stdin=self._files[0],
            stdout=self._files[1],
            stderr=self._files[2],
            preexec_fn=prepare,
            start_new_session=True,
        )
        process.returncode = 0  # prevents a warning of `Popen`, because `_wait` waits for the process
        return process.pid

    def _fork(self) -> int:
        ready, ready_writer = os.pipe()
        pid = os.fork()
        if pid == 0:
            code = 70
            try:
                os.close(ready)
                code = self._child(ready_writer)
            finally:
                os._exit(code)
        os.close(ready_writer)
        os.read(ready, 1)
        os.close(ready)
        return pid

    def _child(self, ready_writer: int) -> int:
        os.setsid()
        signal.signal(signal.SIGINT, signal.default_int_handler)
        os.chdir(self.folder)
        for name, value in self.environment.items():
            os.environ.pop(name, None) if value is None else os.environ.__setitem__(name, value)
        sys.path[:0] = map(str, self.path)
        for stream, file in enumerate(self._files):
            os.dup2(file.fileno(), stream)
        self.limits.apply(forked=True)
        sys.stdin = None if 0 in self.limits.closed else io.TextIOWrapper(io.FileIO(0))
        sys.stdout = None if 1 in self.limits.closed else io.TextIOWrapper(io.FileIO(1, "w"), write_through=True)
        sys.stderr = None if 2 in self.limits.closed else io.TextIOWrapper(io.FileIO(2, "w"), write_through=True)
        from iclbench.cli.main import run

        os.write(ready_writer, b".")
        os.close(ready_writer)
        try:
            run(list(self.arguments))
        except SystemExit as end:
            if isinstance(end.code, int | None):
                return end.code or 0
            print(end.code, file=sys.stderr)  # noqa: T201  (as Python itself does)
            return 1
        except BaseException:  # printed like an uncaught exception in Python
            import traceback

            traceback.print_exc()
        return 1


def call(arguments: Sequence[str], folder: Path, **options: object) -> Outcome:
    """Run one command to the end."""
    return Command(arguments, folder, **options).start().end()  # type: ignore[arg-type]


def preload() -> None:
    """Import all modules that forks need."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    for module in MODULES:
        importlib.import_module(module)
    import torch

    torch.set_num_threads(1)


def _give_up_capabilities() -> None:
    """Drop all capabilities with capset(2) (version 3 of its interface)."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.capset((ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()):
        raise OSError(ctypes.get_errno(), "capset")


def _address_space() -> int:
    """Return the size of the address space of this process in bytes."""
    fields = Path("/proc/self/statm").read_text().split()
    return int(fields[0]) * os.sysconf("SC_PAGE_SIZE")
