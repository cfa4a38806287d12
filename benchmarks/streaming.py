"""A stream of a million points through `cmanp` at the paper's size: memory, speed, and how exact its state is.

    python benchmarks/streaming.py    # some ten minutes; writes streaming.md, exits with 1 below a promise
    python benchmarks/streaming.py --points 20000 --dry    # a try, no file

- the stream comes in portions of 1 to 255 points and is compared with one `condition` on all points by portions of
  1,024; resident memory is read along the way, live tensor bytes at both ends;
- live bytes of condition and query against the number of points, beside the figures of the papers' released code as
  the protocol of this project quotes them (d = 64, 128 latents, 6 layers, 64 targets, portions of 64);
- what recomputation costs a training step and saves.

One thread; seconds are of the CPU (`time.process_time`).
"""

from __future__ import annotations

import argparse
import platform
import sys
import time
from collections.abc import Callable, Iterator
from datetime import date
from pathlib import Path

import torch

from iclbench.backbones.base import Backbone, TaskShape
from iclbench.config.registry import BACKBONES
from iclbench.core.episodes import Episodes, Points
from iclbench.evaluation.costs.live_bytes import LiveBytes
from iclbench.layers.running_softmax import RunningSoftmax
from iclbench.streaming.lines import LineFormat
from iclbench.streaming.stream import Stream

SHAPE = TaskShape(x_dim=2, points=200, y_dim=3, head="gaussian", question="targets")
# Released code, MB at 256, 1,024 and 4,096 points.
RELEASED = {"streamed": (6.02, 6.03, 6.09), "at once": (5.85, 11.37, 33.45), "lbanp": (3.64, 7.35, 23.14)}
SIZES = (256, 1024, 4096)


def model(name: str = "cmanp", **settings: object) -> Backbone:
    torch.manual_seed(0)
    cls = BACKBONES.get(name)
    return cls(cls.Settings(**settings), SHAPE).eval()


def draw(count: int, batch: int = 1) -> Points:
    """Colours of a smooth image with noise, at random places."""
    torch.manual_seed(1)
    x = 2 * torch.rand(batch, count, 2) - 1
    y = 0.5 * torch.sin(3 * x @ torch.randn(2, 3)) + 0.05 * torch.randn(batch, count, 3)
    return Points.full(x, y)


def portions(points: Points, largest: int = 255) -> Iterator[Points]:
    """All points, 1 to `largest` at a time."""
    sizes = torch.randint(1, largest + 1, (points.count,), generator=torch.Generator().manual_seed(2)).tolist()
    start = 0
    while start < points.count:
        size = sizes.pop()
        yield points.span(start, start + size)
        start += size


def resident() -> float:
    """MB of this process in memory."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS")) / 1024


def streamed(backbone: Backbone, points: Points) -> tuple[RunningSoftmax, float, list[float]]:
    """The state after all points, CPU seconds, and the resident memory at every tenth of the way."""
    state, done, memory = backbone.condition(points.span(0, 0)), 0, []
    started = time.process_time()
    for part in portions(points):
        state, done = backbone.update(state, part), done + part.count
        if done * 10 // points.count > len(memory):
            memory.append(resident())
    return state, time.process_time() - started, memory


def seconds(work: Callable[[], object]) -> float:
    started = time.process_time()
    work()
    return time.process_time() - started


def live(work: Callable[[], object]) -> float:
    with LiveBytes() as count:
        work()
    return count.peak / 1e6


def distance(a: RunningSoftmax, b: RunningSoftmax) -> float:
    return max((a.e - b.e).abs().max().item(), (a.log_c - b.log_c).abs().max().item())


def lines_per_second(backbone: Backbone, points: Points) -> float:
    """Through the engine of `iclbench stream`, from lines of text, a query after the last."""
    rows = torch.cat([points.x, points.y], -1)[0].tolist()
    text = [",".join(f"{value:.6g}" for value in row) for row in rows] + ["0,0,?,?,?"]
    columns = LineFormat.of(SHAPE, 3e38)
    return len(rows) / seconds(lambda: list(Stream(backbone).run(columns.read(text, "benchmark"))))


@torch.no_grad()
def the_stream(count: int) -> tuple[list[str], bool]:
    """Lines of the report about the long stream, and whether the promises hold."""
    points, ahead = draw(count), draw(10_000)
    double, single = model(state_dtype="float64"), model()
    streamed(single, ahead)  # threads, buffers and code pages are there
    state64, taken64, memory = streamed(double, points)
    state32, taken32, memory32 = streamed(single, points)
    whole = model(state_dtype="float64", chunk=1024).condition(points)
    start = single.condition(points.span(0, 0))
    ends = [live(lambda state=state: single.update(state, points.span(0, 128))) for state in (start, state32)]
    one = ahead.span(0, 1)
    alone = 2000 / seconds(lambda: [single.update(state32, one) for _ in range(2000)])
    exact, lost = distance(state64, whole), distance(state32.to(dtype=torch.float64), whole)
    x = points.x[:, :64]
    answers = single.query(state32, x).mean - single.query(whole.to(dtype=torch.float32), x).mean
    growth = max(max(m) - m[0] for m in (memory, memory32))
    report = [
        f"## {count:,} points, in portions of 1 to 255",
        "",
        "| what | float32 state | float64 state | promised |",
        "| --- | --- | --- | --- |",
        f"| points per second | {count / taken32:,.0f} | {count / taken64:,.0f} | |",
        f"| bytes of the state | {state32.nbytes:,} | {state64.nbytes:,} | |",
        f"| largest distance of the state (e, log C) from one `condition` in float64 | {lost:.1e} | {exact:.1e} | 1e-8 "
        "(float64) |",
        "",
        f"Resident memory grew by {growth:.1f} MB at most between the first tenth of the way and its end (promised: at "
        f"most 5 MB); it was {', '.join(f'{m:.0f}' for m in memory32)} MB at the tenths.",
        "",
        f"Live tensor bytes of an update by 128 points: {ends[0]:.3f} MB at the start, {ends[1]:.3f} MB after all "
        f"points. Answers from the float32 state differ by {answers.abs().max().item():.1e} at most.",
        "",
        f"One point at a time: {alone:,.0f} points per second; from lines of text, as `iclbench stream` reads them: "
        f"{lines_per_second(single, ahead):,.0f}.",
        "",
    ]
    return report, exact <= 1e-8 and growth <= 5 and ends[1] <= 1.05 * ends[0]


@torch.no_grad()
def memory_table() -> tuple[list[str], bool]:
    """Live MB of condition and query."""
    ways = {"streamed": model(chunk=64), "at once": model(chunk=10**6), "lbanp": model("lbanp")}
    x, contexts = draw(64).x, [draw(n) for n in SIZES]
    found = {
        way: [live(lambda own=own, context=context: own.query(own.condition(context), x)) for context in contexts]
        for way, own in ways.items()
    }
    report = ["## Live tensor MB of condition and query", "", "| | " + " | ".join(f"N = {n:,}" for n in SIZES) + " |"]
    report.append("| --- " * (len(SIZES) + 1) + "|")
    for way, values in found.items():
        name = way if way == "lbanp" else f"cmanp, {way}"
        for label, row in ((name, values), (f"{name}, released code", RELEASED[way])):
            report.append(f"| {label} | " + " | ".join(f"{value:.2f}" for value in row) + " |")
    ratios = found["streamed"][2] / found["streamed"][0], found["at once"][2] / found["at once"][0]
    report += [
        "",
        f"4,096 over 256 points: streamed {ratios[0]:.3f} (promised: below 1.05), at once {ratios[1]:.1f}.",
        "",
    ]
    return report, ratios[0] < 1.05


def training_table() -> list[str]:
    """A step forwards and backwards on 4 episodes."""
    report = [
        "## Training step, 4 episodes, 64 targets",
        "",
        "| context | portions | CPU seconds | live MB |",
        "| --- " * 4 + "|",
    ]
    targets = draw(64, batch=4)
    for n in (1024, 4096):
        episodes = Episodes(context=draw(n, batch=4), targets=targets, scored=targets.mask)
        for chunk in (128, 10**6):
            own = model(chunk=chunk).train()

            def step(own: Backbone = own, episodes: Episodes = episodes) -> None:
                own.loss(episodes, 0.5, torch.Generator())[0].backward()

            step()
            taken, held = min(seconds(step) for _ in range(2)), live(step)
            report.append(f"| {n:,} | {'at once' if chunk > n else chunk} | {taken:.2f} | {held:.0f} |")
    return report


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--points", type=int, default=1_000_000)
    parser.add_argument("--dry", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    long, held = the_stream(options.points)
    table, flat = memory_table()
    text = "\n".join(
        [
            "# A stream through `cmanp`",
            "",
            f"`python benchmarks/streaming.py`, {date.today()}, {platform.machine()}, torch {torch.__version__}, one "
            "thread, seconds of the CPU. The paper's size: d = 64, 6 blocks, 128 latents, 4 heads; dx = 2, dy = 3; "
            "random weights.",
            "",
            *long,
            *table,
            *training_table(),
        ]
    )
    print(text)
    if not options.dry:
        Path(__file__).with_suffix(".md").write_text(text + "\n")
    sys.exit(not (held and flat))


if __name__ == "__main__":
    main()
