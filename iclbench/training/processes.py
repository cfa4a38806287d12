"""Data-parallel training in several processes, each of which computes its share of each batch.

All processes draw the complete batch from the same random stream, and each takes its share of the episodes. Losses are
weighted by these shares and gradients are summed, so training equals training in one process up to rounding. This does
not hold for backbones whose loss draws random numbers or is not a mean over episodes, which are therefore refused. Only
the first process writes files.
"""

from __future__ import annotations

import logging
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from tempfile import TemporaryFile
from threading import Event, Thread, Timer
from typing import IO, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.rendezvous import rendezvous

from iclbench.backbones.base import Backbone
from iclbench.core import cores
from iclbench.core.episodes import Episodes
from iclbench.core.errors import IclbenchError, UsageError
from iclbench.core.signals import end_with_parent

log = logging.getLogger("iclbench")

# Environment variables that hold the rank of a process and the number of processes. torchrun and `start_processes` set
# them.
_RANK, _WORLD_SIZE, _LOCAL_RANK = "RANK", "WORLD_SIZE", "LOCAL_RANK"
# Environment variable that holds the process id of the first process. The other processes end when this process ends.
_PARENT = "ICLBENCH_PARENT"
# Timeouts for the start of the other processes and for their answers. The second one is long, because the first process
# may evaluate for hours.
_START_TIMEOUT, _TIMEOUT = timedelta(minutes=2), timedelta(hours=4)
# A process that has waited for the others for this many seconds logs a note.
_SECONDS_BEFORE_NOTE = 5.0
# If another process fails, this process has this many seconds to raise an error before `_watch` ends it.
_SECONDS_TO_NOTICE = 10.0


@dataclass(frozen=True)
class Processes:
    """One of the processes that train together.

    Attributes:
        rank: number of this process, from 0. Process 0 writes files and sends its decisions to the others.
        count: number of processes.
    """

    rank: int = 0
    count: int = 1

    @property
    def is_single(self) -> bool:
        return self.count == 1

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    def share(self, backbone: Backbone, batch: Episodes) -> tuple[Episodes, float]:
        """Return this process's part of a batch, and the weight of the mean loss on this part in the loss of the
        batch."""
        size = len(batch.scored)
        part = batch[self.rank * size // self.count : (self.rank + 1) * size // self.count]
        total = _loss_denominator(backbone, batch)
        return part, _loss_denominator(backbone, part) / total if total else 0.0

    def sum_gradients(self, backbone: Backbone) -> None:
        """Replace the gradients in all processes by their sum over the processes."""
        gradients = [weight.grad for weight in backbone.parameters() if weight.grad is not None]
        for dtype in dict.fromkeys(gradient.dtype for gradient in gradients):
            same_dtype = [gradient for gradient in gradients if gradient.dtype == dtype]
            flat = torch.cat([gradient.reshape(-1) for gradient in same_dtype])
            with self._connection_errors():
                dist.all_reduce(torch.view_as_real(flat) if flat.is_complex() else flat)
            for gradient, summed in zip(
                same_dtype, flat.split([gradient.numel() for gradient in same_dtype]), strict=True
            ):
                gradient.copy_(summed.view_as(gradient))

    def sum_losses(self, loss: Tensor, stop: bool) -> tuple[Tensor, bool]:
        """Return the sum of the losses of all processes, and whether any process should stop."""
        values = torch.stack([loss, loss.new_full((), float(stop))])
        with self._connection_errors():
            dist.all_reduce(values)
        return values[0], bool(values[1] > 0)

    def broadcast(self, text: str | None = None) -> str:
        """Send a text from the first process to all processes, and return it in all of them."""
        return str(self.from_first(lambda: text))

    def from_first(self, compute: Callable[[], Any]) -> Any:
        """Compute a value in the first process and return it in all processes.

        Values that depend on files must be computed in this way, since other processes may see changes of files later.
        """
        objects = [compute() if self.is_first else None]
        if not self.is_single:
            with self._connection_errors():
                dist.broadcast_object_list(objects, src=0)
        return objects[0]

    @contextmanager
    def _connection_errors(self) -> Iterator[None]:
        """Within the block, convert connection errors to an `IclbenchError`: another process has ended."""
        try:
            yield
        except RuntimeError as error:
            raise IclbenchError(
                f"another of the {self.count} processes of this training run has ended "
                f"({str(error).splitlines()[0]:.80}); the same command continues from the last checkpoint",
                code="worker-died",
            ) from None

    def check(self, backbone: Backbone, batch: int) -> None:
        """Raise `UsageError` if training in several processes would give different losses than training in one."""
        if self.is_single:
            return
        if batch < self.count:
            raise UsageError(
                f"train.batch = {batch} is smaller than the number of processes, {self.count}", code="bad-value"
            )
        if not backbone.shares_batches:
            raise UsageError(
                "this backbone does not support several processes (shares_batches is False): its loss draws random "
                "numbers or is not a mean over episodes; train it in one process",
                code="not-applicable",
            )
        if any(isinstance(module, nn.modules.batchnorm._BatchNorm) for module in backbone.modules()):
            raise UsageError(
                "batch norm does not support several processes; train this backbone in one process, or choose an image "
                "encoder without batch norm (contours-64)",
                code="not-applicable",
            )


SINGLE_PROCESS = Processes()


def _loss_denominator(backbone: Backbone, batch: Episodes) -> int:
    """Return the denominator of the mean loss on these episodes."""
    scored = batch.scored
    if backbone.shape.marks is None:
        return int(scored.any(1).sum())
    return max(1, int(scored.sum()))  # as in `mean_by_event`


def this_process() -> Processes:
    """Return the rank of this process and the number of processes from the variables of torchrun. Without these
    variables, return `SINGLE_PROCESS`.

    Raises:
        UsageError: the variables are inconsistent.
    """
    settings = [os.environ.get(name, default) for name, default in ((_RANK, "0"), (_WORLD_SIZE, "1"))]
    if not all(setting.isdigit() for setting in settings) or not int(settings[0]) < max(1, int(settings[1])):
        raise UsageError(
            f"{_RANK}={settings[0]} and {_WORLD_SIZE}={settings[1]} are not a rank and a number of processes; unset "
            "them",
            code="bad-value",
        )
    count = int(settings[1])
    if count > 1 and not os.environ.get("MASTER_ADDR"):
        raise UsageError(
            f"{_WORLD_SIZE}={count} without MASTER_ADDR: start the command with torchrun, or unset {_WORLD_SIZE}",
            code="missing-value",
        )
    return Processes(int(settings[0]), count) if count > 1 else SINGLE_PROCESS


def check_count(count: int, device: str) -> None:
    """Raise `UsageError` if the number of processes exceeds the number of GPUs or available cores, if several processes
    would share one GPU, or if torch cannot connect processes on GPUs (on Windows). On the CPU, two processes are always
    allowed."""
    if count > 1 and device.startswith("cuda:"):
        raise UsageError(
            f"--processes {count} needs a GPU for each process; pass --device cuda, not {device}", code="conflict"
        )
    available = torch.cuda.device_count() if device.startswith("cuda") else max(2, cores.count_available())
    if count > available:
        resource = "GPUs of this machine" if device.startswith("cuda") else "available cores"
        raise UsageError(f"--processes {count} is more than the {available} {resource}", code="bad-value")
    if count > 1 and device.startswith("cuda") and not dist.is_nccl_available():
        raise UsageError(
            f"--processes {count} on GPUs needs NCCL, which this build of torch lacks; train in one process",
            code="not-supported",
        )


def device_of_process(device: str) -> str:
    """Return the device of this process. With `cuda` and several processes, each process has its own GPU."""
    return f"cuda:{os.environ.get(_LOCAL_RANK, '0')}" if device == "cuda" and not this_process().is_single else device


@contextmanager
def join_processes(device: str) -> Iterator[Processes]:
    """Within the block, connect the processes that torchrun or `start_processes` has started.

    Raises:
        IclbenchError: not all processes start within two minutes.
    """
    process = this_process()
    if process.is_single:
        yield process
        return
    if (parent := os.environ.get(_PARENT)) is not None and not process.is_first:
        end_with_parent(int(parent))
    backend = "gloo"
    if device.startswith("cuda"):
        torch.cuda.set_device(int(os.environ.get(_LOCAL_RANK, "0")))
        backend = "cpu:gloo,cuda:nccl"
    store = _rendezvous(process)
    dist.init_process_group(backend, store=store, rank=process.rank, world_size=process.count, timeout=_TIMEOUT)
    try:
        yield process
    finally:
        dist.destroy_process_group()


def _rendezvous(process: Processes) -> dist.Store:
    """Wait until all processes have started. Return the store through which they exchange their addresses."""
    address = f"{os.environ['MASTER_ADDR']}:{os.environ.get('MASTER_PORT', '')}"
    other_processes = (
        f"the other {process.count - 1} of {process.count} processes of this training run at {address} (MASTER_ADDR)"
    )
    timeout_text = f"{_START_TIMEOUT.total_seconds():g} seconds"
    note = Timer(_SECONDS_BEFORE_NOTE, log.info, (f"waiting for {other_processes}, for at most {timeout_text}",))
    note.daemon = True
    note.start()
    future_store: Future[dist.Store] = Future()

    def meet() -> None:
        try:
            store, *_ = next(rendezvous("env://", process.rank, process.count, timeout=_START_TIMEOUT))
            store.set(f"begun/{process.rank}", "")
            store.wait([f"begun/{rank}" for rank in range(process.count)], _START_TIMEOUT)
            future_store.set_result(store)
        except BaseException as error:
            future_store.set_exception(error)

    # `meet` runs in a thread, because torch does not react to Ctrl-C while it waits.
    Thread(target=meet, daemon=True).start()
    try:
        store = future_store.result()
    except (RuntimeError, ValueError) as error:
        raise IclbenchError(
            f"waited {timeout_text} for {other_processes}; start all {process.count} with the same address, or unset "
            f"{_WORLD_SIZE} to train in one process ({str(error).splitlines()[0]:.80})",
            code="worker-died",
        ) from None
    finally:
        note.cancel()
    store.set_timeout(_TIMEOUT)
    return store


@contextmanager
def start_processes(count: int, arguments: Sequence[str]) -> Iterator[None]:
    """Within the block, train in `count` processes. This process is the first one; the others are started and run
    `iclbench` with these arguments. If torchrun has already started the processes, do nothing.

    Raises:
        UsageError: torchrun has started a different number of processes.
    """
    if count == 1 or not this_process().is_single:
        if count > 1 and this_process().count != count:
            raise UsageError(
                f"torchrun has started {this_process().count} processes; remove --processes {count}", code="conflict"
            )
        yield
        return
    with socket.socket() as free_socket:
        free_socket.bind(("127.0.0.1", 0))
        port = free_socket.getsockname()[1]
    shared_variables = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), _WORLD_SIZE: str(count)}
    command = [sys.executable, "-m", "iclbench", *arguments]
    errors = TemporaryFile()  # noqa: SIM115  # closed when this process ends
    others: list[subprocess.Popen[bytes]] = []
    finished = Event()
    previous = {name: os.environ.get(name) for name in (*shared_variables, _RANK, _LOCAL_RANK)}
    try:
        for rank in range(1, count):
            variables = shared_variables | {_RANK: str(rank), _LOCAL_RANK: str(rank), _PARENT: str(os.getpid())}
            others.append(
                subprocess.Popen(command, env=os.environ | variables, stdout=subprocess.DEVNULL, stderr=errors)
            )
        Thread(target=_watch, args=(others, errors, finished), daemon=True).start()
        os.environ |= shared_variables | {_RANK: "0", _LOCAL_RANK: "0"}
        yield
        finished.set()
        # A process that has not ended after 60 seconds has finished its work, so it is killed below.
        for other in others:
            with suppress(subprocess.TimeoutExpired):
                other.wait(60)
    finally:
        finished.set()
        for other in others:
            other.kill()
            other.wait()
        for name, value in previous.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _watch(others: list[subprocess.Popen[bytes]], errors: IO[bytes], finished: Event) -> None:
    """End this process if another process has failed, since this process may be waiting for the failed process."""
    while not finished.wait(0.5):
        dead = next((other for other in others if other.poll() not in (None, 0)), None)
        if dead is None:
            continue
        if finished.wait(_SECONDS_TO_NOTICE):
            return
        errors.seek(0)
        last_line = errors.read().decode(errors="replace").strip().splitlines()[-1:]
        reason = last_line[0] if last_line else f"exit code {dead.returncode}"
        sys.stderr.write(
            f"error: another process of this training run has ended ({reason:.200}); the same command continues "
            "from the last checkpoint\n"
        )
        sys.stderr.flush()
        for other in others:
            other.kill()
        os._exit(1)
