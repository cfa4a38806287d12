"""Memory and speed of models on a stream of a million events from lines of text.

    python benchmarks/event_stream.py    # five minutes; writes event_stream.md, exits with 1 if a target is missed
    python benchmarks/event_stream.py --events 20000 --dry    # a trial that writes no file

The engine of `iclbench stream` reads and checks lines, converts times to gaps and updates the state, with a query every
10,000 events. Resident memory is read at every tenth of the stream. Its growth is the minimum of the last three
readings minus the minimum of the first three. Models have about 25 thousand parameters (preset `grid`) and random
weights, and events are a Poisson process with three marks. Seconds are CPU seconds of one thread (`time.process_time`).
"""

from __future__ import annotations

import argparse
import platform
import random
import sys
import time
from collections.abc import Iterator
from datetime import date
from pathlib import Path

import torch

from iclbench.backbones.base import Backbone
from iclbench.config.sizes import budget_settings
from iclbench.core.task import TaskShape
from iclbench.registry import BACKBONES
from iclbench.streaming.clock import Clock
from iclbench.streaming.event_lines import EventFormat
from iclbench.streaming.stream import Stream

SHAPE = TaskShape(x_dim=0, points=32, y_dim=3, marks=3, head="event", question="next")
BUDGET = 25_000
CONSTANT = ("mamba", "s4d", "s4", "cmhp")
GROWING = ("gpt2",)
# Maximum number of events for models with a growing state.
FEW = 20_000
QUERY_EVERY = 10_000


def model(name: str) -> Backbone:
    torch.manual_seed(0)
    cls = BACKBONES.get(name)
    return cls(cls.Settings(**budget_settings(name, cls, BUDGET, SHAPE, {})), SHAPE).eval()


def text(count: int) -> Iterator[str]:
    """Yield lines of events at rate 1, with queries between them."""
    draw, now = random.Random(1), 0.0
    for number in range(count):
        now += draw.expovariate(1.0)
        yield f"{now!r},{draw.randrange(SHAPE.outputs)}\n"
        if (number + 1) % QUERY_EVERY == 0:
            yield "?,?\n"


def resident() -> float:
    """Return the resident memory of this process in MB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS")) / 1024


def run(backbone: Backbone, count: int) -> tuple[Stream, float, list[float]]:
    """Run a stream. Return the finished stream, CPU seconds, and the resident memory after every tenth of the
    events.
    """
    numbers, clock, memory = torch.finfo(torch.float32), Clock(), []
    stream = Stream(backbone, answer_immediately=False, clock=clock)
    columns = EventFormat.of_events(SHAPE, numbers.tiny, numbers.max, clock)

    def watched() -> Iterator[str]:
        for number, line in enumerate(text(count)):
            if number * 10 // count > len(memory):
                memory.append(resident())
            yield line

    started = time.process_time()
    answers = [answer.time for answer in stream.run(columns.read(watched(), "benchmark"))]
    assert all(later is not None for later in answers)
    return stream, time.process_time() - started, [*memory, resident()]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument("--dry", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    report = [
        "# A stream of events",
        "",
        f"`python benchmarks/event_stream.py`, {date.today()}, {platform.machine()}, torch {torch.__version__}, one "
        f"thread, CPU seconds. Models of about {BUDGET:,} parameters, random weights, float32; lines of text with a "
        f"time and one of {SHAPE.outputs} marks, a query every {QUERY_EVERY:,} events. Resident memory in MB: the "
        "minimum over the first three tenths of the stream, and the growth to the minimum over the last three tenths.",
        "",
        "| model | events | events per second | bytes of the state | resident memory | growth |",
        "| --- " * 6 + "|",
    ]
    flat = True
    for name in (*CONSTANT, *GROWING):
        backbone, count = model(name), options.events if name in CONSTANT else min(FEW, options.events)
        run(backbone, QUERY_EVERY)  # a warm-up, which loads threads, buffers and code pages
        stream, taken, memory = run(backbone, count)
        growth = min(memory[-3:]) - min(memory[:3])  # buffers are allocated and freed in between
        flat = flat and (name in GROWING or growth <= 5)
        speed, size = count / taken, stream.state.nbytes
        report.append(f"| {name} | {count:,} | {speed:,.0f} | {size:,} | {min(memory[:3]):.0f} | {growth:.1f} |")
        print(report[-1], flush=True)
    report += [
        "",
        f"Promised: a growth of at most 5 MB for {', '.join(CONSTANT[:-1])} and {CONSTANT[-1]}. The state of "
        f"{GROWING[0]} has an entry for every event.",
    ]
    if not options.dry:
        Path(__file__).with_suffix(".md").write_text("\n".join(report) + "\n")
    print("\n".join(report))
    sys.exit(not flat)


if __name__ == "__main__":
    main()
