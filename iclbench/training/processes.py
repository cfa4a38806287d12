"""One training by several processes: each takes its share of every batch, and all have the same weights.

All of them draw the whole batch, from the same counted stream, and take their part of it, so that the losses are those
of one process to rounding, however many there are: each loss counts as much as its share, and gradients are summed up.
Where a loss draws something, or weighs episodes otherwise, it would not be so, and several processes are refused. The
first process writes; the others follow it.
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

# What torchrun and `started` tell a process of its place.
_RANK, _WORLD, _LOCAL = "RANK", "WORLD_SIZE", "LOCAL_RANK"
# The process id of the first process, with which the others end.
_PARENT = "ICLBENCH_PARENT"
# How long a process waits for the others: to begin, and then while the first one evaluates.
_MEETING, _PATIENCE = timedelta(minutes=2), timedelta(hours=4)
# Seconds after which a process says that it waits for the others to begin.
_SILENCE = 5.0
# Seconds that this process has to notice by itself that another one is gone.
_NOTICE = 10.0


@dataclass(frozen=True)
class Processes:
    """A process among those of one training.

    Attributes:
        rank: which one it is; 0 writes.
        count: how many there are.
    """

    rank: int = 0
    count: int = 1

    @property
    def alone(self) -> bool:
        return self.count == 1

    @property
    def leads(self) -> bool:
        return self.rank == 0

    def share(self, backbone: Backbone, batch: Episodes) -> tuple[Episodes, float]:
        """The part of a batch that is this process's, and what its mean counts in that of all."""
        size = len(batch.scored)
        own_batch = batch[self.rank * size // self.count : (self.rank + 1) * size // self.count]
        total = _counted(backbone, batch)
        return own_batch, _counted(backbone, own_batch) / total if total else 0.0

    def sum_gradients(self, backbone: Backbone) -> None:
        """Sum the gradients of all processes, in each of them."""
        gradients = [weight.grad for weight in backbone.parameters() if weight.grad is not None]
        for dtype in dict.fromkeys(gradient.dtype for gradient in gradients):
            same_dtype = [gradient for gradient in gradients if gradient.dtype == dtype]
            flat = torch.cat([gradient.reshape(-1) for gradient in same_dtype])
            with self.connected():
                dist.all_reduce(torch.view_as_real(flat) if flat.is_complex() else flat)
            for gradient, summed in zip(
                same_dtype, flat.split([gradient.numel() for gradient in same_dtype]), strict=True
            ):
                gradient.copy_(summed.view_as(gradient))

    def summed(self, loss: Tensor, stop: bool) -> tuple[Tensor, bool]:
        """The loss of all, and whether any was asked to stop."""
        values = torch.stack([loss, loss.new_full((), float(stop))])
        with self.connected():
            dist.all_reduce(values)
        return values[0], bool(values[1] > 0)

    def agree(self, word: str | None = None) -> str:
        """The word of the first process; only that one gives a word."""
        return str(self.same(lambda: word))

    def same(self, compute: Callable[[], Any]) -> Any:
        """A value computed by the first process for all of them, since files may become visible late to the others."""
        objects = [compute() if self.leads else None]
        if not self.alone:
            with self.connected():
                dist.broadcast_object_list(objects, src=0)
        return objects[0]

    @contextmanager
    def connected(self) -> Iterator[None]:
        """Raises `IclbenchError` where another process is gone."""
        try:
            yield
        except RuntimeError as error:
            raise IclbenchError(
                f"another of the {self.count} processes of this training is gone ({str(error).splitlines()[0]:.80}); "
                "the same command goes on from the last checkpoint"
            ) from None

    def check(self, backbone: Backbone, batch: int) -> None:
        """Raises `UsageError` where the losses would not be those of one process."""
        if self.alone:
            return
        if batch < self.count:
            raise UsageError(f"a batch of {batch} cannot be shared by {self.count} processes")
        if not backbone.shares_batches:
            raise UsageError(
                "the loss of this backbone draws something, or is no mean over episodes: several processes would have "
                "another one; train it in one process (shares_batches says of which it is so)"
            )
        if any(isinstance(module, nn.modules.batchnorm._BatchNorm) for module in backbone.modules()):
            raise UsageError(
                "batch norm takes its means over the whole batch, which no process has: train this backbone in one "
                "process, or choose an image encoder without it (contours-64)"
            )


ALONE = Processes()


def _counted(backbone: Backbone, batch: Episodes) -> int:
    """What a mean over these episodes is divided by."""
    scored = batch.scored
    if backbone.shape.marks is None:
        return int(scored.any(1).sum())
    return max(1, int(scored.sum()))  # of windows without events the loss is a sum


def this_process() -> Processes:
    """This process's place, as set by torchrun; alone without torchrun.

    Raises:
        UsageError: the variables are inconsistent.
    """
    settings = [os.environ.get(name, default) for name, default in ((_RANK, "0"), (_WORLD, "1"))]
    if not all(setting.isdigit() for setting in settings) or not int(settings[0]) < max(1, int(settings[1])):
        raise UsageError(f"{_RANK}={settings[0]} and {_WORLD}={settings[1]} are no place among processes; unset them")
    count = int(settings[1])
    if count > 1 and not os.environ.get("MASTER_ADDR"):
        raise UsageError(f"{_WORLD}={count} without MASTER_ADDR: start the command with torchrun, or unset {_WORLD}")
    return Processes(int(settings[0]), count) if count > 1 else ALONE


def check_count(count: int, device: str) -> None:
    """Raises `UsageError` for more processes than there are cores to be used, or GPUs, which are one each's, and where
    they would share one."""
    if count > 1 and device.startswith("cuda:"):
        raise UsageError(f"--processes {count} take a GPU each: --device cuda, not {device}")
    most = torch.cuda.device_count() if device.startswith("cuda") else max(2, cores.available())
    if count > most:
        resource = "GPUs of this machine" if device.startswith("cuda") else "cores that it may use here"
        raise UsageError(f"--processes {count} is more than the {most} {resource}")


def own_device(device: str) -> str:
    """The device of this process among several: of GPUs one each."""
    return f"cuda:{os.environ.get(_LOCAL, '0')}" if device == "cuda" and not this_process().alone else device


@contextmanager
def joined(device: str) -> Iterator[Processes]:
    """Within the block the processes that torchrun or `started` has started know each other.

    Raises:
        IclbenchError: not all of them begin within two minutes.
    """
    process = this_process()
    if process.alone:
        yield process
        return
    if (parent := os.environ.get(_PARENT)) is not None and not process.leads:
        end_with_parent(int(parent))
    backend = "gloo"
    if device.startswith("cuda"):
        torch.cuda.set_device(int(os.environ.get(_LOCAL, "0")))
        backend = "cpu:gloo,cuda:nccl"
    store = _rendezvous(process)
    dist.init_process_group(backend, store=store, rank=process.rank, world_size=process.count, timeout=_PATIENCE)
    try:
        yield process
    finally:
        dist.destroy_process_group()


def _rendezvous(process: Processes) -> dist.Store:
    """The store through which the processes exchange their addresses, once all of them have begun."""
    address = f"{os.environ['MASTER_ADDR']}:{os.environ.get('MASTER_PORT', '')}"
    other_processes = (
        f"the other {process.count - 1} of {process.count} processes of this training at {address} (MASTER_ADDR)"
    )
    patience = f"{_MEETING.total_seconds():g} seconds"
    remark = Timer(_SILENCE, log.info, (f"waiting for {other_processes}, for at most {patience}",))
    remark.daemon = True
    remark.start()
    result: Future[dist.Store] = Future()

    def meet() -> None:
        try:
            store, *_ = next(rendezvous("env://", process.rank, process.count, timeout=_MEETING))
            store.set(f"begun/{process.rank}", "")
            store.wait([f"begun/{rank}" for rank in range(process.count)], _MEETING)
            result.set_result(store)
        except BaseException as error:
            result.set_exception(error)

    # In a thread, since torch waits without looking for Ctrl-C.
    Thread(target=meet, daemon=True).start()
    try:
        store = result.result()
    except (RuntimeError, ValueError) as error:
        raise IclbenchError(
            f"waited {patience} for {other_processes}; start all {process.count} with the same address, or unset "
            f"{_WORLD} to train "
            f"in one process ({str(error).splitlines()[0]:.80})"
        ) from None
    finally:
        remark.cancel()
    store.set_timeout(_PATIENCE)
    return store


@contextmanager
def started(count: int, words: Sequence[str]) -> Iterator[None]:
    """Within the block this process is the first of so many; the others run `iclbench` with these words.

    Raises:
        UsageError: somebody else, torchrun, has started several already.
    """
    if count == 1 or not this_process().alone:
        if count > 1 and this_process().count != count:
            raise UsageError(f"--processes {count} under {this_process().count} processes of torchrun: leave it out")
        yield
        return
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), _WORLD: str(count)}
    command = [sys.executable, "-m", "iclbench", *words]
    errors = TemporaryFile()  # noqa: SIM115  # closed with the process
    others: list[subprocess.Popen[bytes]] = []
    over = Event()
    before = {name: os.environ.get(name) for name in (*place, _RANK, _LOCAL)}
    try:
        for rank in range(1, count):
            variables = place | {_RANK: str(rank), _LOCAL: str(rank), _PARENT: str(os.getpid())}
            others.append(
                subprocess.Popen(command, env=os.environ | variables, stdout=subprocess.DEVNULL, stderr=errors)
            )
        Thread(target=_follow, args=(others, errors, over), daemon=True).start()
        os.environ |= place | {_RANK: "0", _LOCAL: "0"}
        yield
        over.set()
        for other in others:
            with suppress(subprocess.TimeoutExpired):  # what it has to do is done
                other.wait(60)
    finally:
        over.set()
        for other in others:
            other.kill()
            other.wait()
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _follow(others: list[subprocess.Popen[bytes]], errors: IO[bytes], over: Event) -> None:
    """End this process where another one is gone and it does not notice: it may be waiting for it, deaf to signals."""
    while not over.wait(0.5):
        dead = next((other for other in others if other.poll() not in (None, 0)), None)
        if dead is None:
            continue
        if over.wait(_NOTICE):
            return
        errors.seek(0)
        last_line = errors.read().decode(errors="replace").strip().splitlines()[-1:]
        reason = last_line[0] if last_line else f"exit code {dead.returncode}"
        sys.stderr.write(f"error: another process of this training is gone ({reason:.200}); the same command goes on\n")
        sys.stderr.flush()
        for other in others:
            other.kill()
        os._exit(1)
