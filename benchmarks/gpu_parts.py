"""The measurements of `benchmarks/gpu.py`: each part runs in a separate process and prints one line of JSON per row.

CUDA errors, compiled code and peak memory of one part therefore do not affect other parts. A row has the measurements,
or a `reason` if they failed. `--measured` lists rows that are skipped.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from iclbench.backbones.base import TaskShape
from iclbench.config import cards
from iclbench.config.cards import TrainSettings
from iclbench.config.resolution import TaskConfig, resolve_run
from iclbench.families.request import Request
from iclbench.layers.linear_recurrence import CHUNK, Terms, full_pass
from iclbench.layers.scan import scan_mamba_ssm, scan_torch, scan_triton
from iclbench.layers.scan.scan import resolve_backend
from iclbench.registry import BACKBONES, FAMILIES
from iclbench.sweep.grids import GridRun, grid_runs, load_grid
from iclbench.sweep.language_grids import is_language_grid
from iclbench.training.fit import Training
from iclbench.training.step import TrainingData, make_optimiser

NAMES = ["y", "last", "u", "dt", "A", "B", "C", "h0"]
PRECISIONS = ["float32", "tf32", "bf16"]


@dataclass(frozen=True)
class Sizes:
    """The sizes of the scan of a layer and of models, and the minimum duration of measurements."""

    batch: int = 64
    points: int = 41
    dim: int = 20
    channels: int = 512
    state: int = 16
    seconds: float = 1.0
    preset: str = "paper"
    device: str = "cuda"
    compiler: str = "inductor"
    models: dict[str, dict[str, Any]] = field(
        default_factory=lambda: {
            "gpt2": {"layers": 12, "width": 256, "heads": 8},
            "mamba": {"layers": 24, "width": 256},
        }
    )


SMOKE = Sizes(
    2,
    4,
    3,
    8,
    2,
    0.01,
    "smoke",
    "cpu",
    "aot_eager",
    {"gpt2": {"layers": 1, "width": 16, "heads": 2}, "mamba": {"layers": 1, "width": 16, "state": 2}},
)


# The names of rows that exist already.
MEASURED: set[str] = set()


def row(what: str, work: Callable[[], dict[str, Any]]) -> None:
    """Measure and print a row. If an error occurs, the row has it as the reason. Skip a row that exists already."""
    if what in MEASURED:
        return
    try:
        measurements = work()
    except Exception as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [""]
        measurements = {"reason": f"{type(error).__name__}: {lines[0][:160]}"}
    print(json.dumps({"what": what} | measurements), flush=True)


def wait(sizes: Sizes) -> None:
    if sizes.device == "cuda":
        torch.cuda.synchronize()


def seconds(work: Callable[[], object], sizes: Sizes) -> float:
    """Return the seconds per call, averaged over at least `sizes.seconds` seconds, after three calls as a warm-up."""
    for _ in range(3):
        work()
    calls = 1
    while True:
        wait(sizes)
        start = time.perf_counter()
        for _ in range(calls):
            work()
        wait(sizes)
        elapsed = time.perf_counter() - start
        if elapsed >= sizes.seconds:
            return elapsed / calls
        calls = max(2 * calls, int(1.2 * calls * sizes.seconds / max(elapsed, 1e-6)) if calls > 1 else 2)


def peak(work: Callable[[], object], sizes: Sizes) -> float:
    """Return the peak of bytes that the call allocates in addition to those before it."""
    if sizes.device != "cuda":
        return 0.0
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    work()
    wait(sizes)
    return float(torch.cuda.max_memory_allocated() - before)


def captured(work: Callable[[], object], generator: torch.Generator | None = None) -> Callable[[], None]:
    """Return the work as a CUDA graph, captured after a warm-up on a separate stream, as torch requires."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            work()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    if generator is not None:
        graph.register_generator_state(generator)
    with torch.cuda.graph(graph):
        work()
    return graph.replay


def scan_inputs(sizes: Sizes, tokens: int, channels: int, steps: float | None = None) -> list[Tensor]:
    """Return u, dt, A, B, C and h0 in float64 on the CPU, with A of Mamba, and step sizes near 0.05 or all equal to
    `steps`.
    """
    draw = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=draw, dtype=torch.float64)

    dt = torch.exp(normal(sizes.batch, tokens, channels) - 3)
    return [
        normal(sizes.batch, tokens, channels),
        dt if steps is None else torch.full_like(dt, steps),
        -torch.arange(1, sizes.state + 1, dtype=torch.float64).repeat(channels, 1),
        normal(sizes.batch, tokens, sizes.state),
        normal(sizes.batch, tokens, sizes.state),
        normal(sizes.batch, sizes.state, channels),
    ]


def outputs_and_gradients(scan: Callable[..., tuple[Tensor, Tensor]], given: list[Tensor]) -> list[Tensor]:
    given = [t.requires_grad_() for t in given]
    y, last = scan(*given)
    return [y.detach(), last.detach(), *torch.autograd.grad([y, last], given, [torch.cos(y), last])]


def check(sizes: Sizes) -> None:
    """Measure the largest error of the Triton kernel relative to the largest value of the float64 scan on the CPU,
    by tensor.
    """

    def errors(tokens: int, channels: int, steps: float | None) -> dict[str, Any]:
        if (reason := scan_triton.unavailable()) is not None:
            return {"reason": reason}
        exact = scan_inputs(small, tokens, channels, steps)
        ours = [t.to(sizes.device, torch.float32) for t in exact]
        actual = outputs_and_gradients(scan_triton.selective_scan, ours)
        expected = outputs_and_gradients(scan_torch.selective_scan, [t.double().cpu().detach() for t in ours])
        return {
            name: float((one.double().cpu() - other).abs().max() / other.abs().max())
            for name, one, other in zip(NAMES, actual, expected, strict=True)
        }

    small = Sizes(batch=2, state=sizes.state)
    tokens, channels = 2 * sizes.points, sizes.channels
    for steps in (None, 1e-6, 0.7, 20.0):
        label = "" if steps is None else f", every dt {steps:g}"
        row(f"{tokens} tokens, {channels} channels{label}", lambda steps=steps: errors(tokens, channels, steps))
    for length, width in ((1, channels), (128, channels), (129, channels), (tokens, channels - 3)):
        row(f"{length} tokens, {width} channels", lambda length=length, width=width: errors(length, width, None))


def measured_scan(
    scan: Callable[..., tuple[Tensor, Tensor]], sizes: Sizes, reason: str | None = None
) -> dict[str, Any]:
    """Measure the scan of one layer: the forward pass, and forward and backward pass together."""
    if reason is not None:
        return {"reason": reason}
    inputs = [
        t.to(sizes.device, torch.float32).requires_grad_() for t in scan_inputs(sizes, 2 * sizes.points, sizes.channels)
    ]
    return forward_and_backward(lambda *inputs: scan(*inputs)[0], inputs, sizes, graphs=True)


def forward_and_backward(
    function: Callable[..., Tensor], inputs: list[Tensor], sizes: Sizes, graphs: bool
) -> dict[str, Any]:
    """Measure the time of the forward pass alone and with the backward pass (on a GPU optionally as CUDA graphs), and
    the peak memory of both passes."""
    slope = torch.ones_like(function(*inputs))

    def forward() -> None:
        with torch.no_grad():
            function(*inputs)

    def both() -> None:
        torch.autograd.grad(function(*inputs), inputs, slope, allow_unused=True)

    both()
    measurements = {"peak_bytes": peak(both, sizes)}
    for name, work in (("forward_s", forward), ("both_s", both)):
        measurements[name] = seconds(captured(work) if graphs and sizes.device == "cuda" else work, sizes)
    return measurements


def scans(sizes: Sizes) -> None:
    """Measure the scan of one layer by the Triton kernel and the other back ends."""
    triton = scan_triton.selective_scan
    row("triton", lambda: measured_scan(triton, sizes, scan_triton.unavailable()))
    row("mamba-ssm", lambda: measured_scan(scan_mamba_ssm.selective_scan, sizes, scan_mamba_ssm.unavailable()))
    row("torch, this package's", lambda: measured_scan(scan_torch.selective_scan, sizes))
    row("torch, transformers' path", lambda: measured_scan(transformers_scan, sizes))


def blocks(sizes: Sizes) -> None:
    """Measure the scan of one layer by the Triton kernel, for several block sizes."""

    def tuned(channels: int, warps: int) -> Callable[..., tuple[Tensor, Tensor]]:
        return lambda *inputs: scan_triton.selective_scan(*inputs, channels=channels, warps=warps)

    default = (scan_triton.CHANNELS, scan_triton.WARPS)
    sweep = [(channels, warps) for channels in (8, 16, 32) for warps in (2, 4, 8)]
    for channels, warps in [default, *(pair for pair in sweep if pair != default)]:
        name = f"triton, {channels} channels, {warps} warps"
        row(name, lambda c=channels, w=warps: measured_scan(tuned(c, w), sizes, scan_triton.unavailable()))


def recurrence(sizes: Sizes) -> None:
    """Measure the linear recurrence of one layer for several numbers of tokens per chunk: gated DeltaNet, with one
    decay per head."""
    heads, width, tokens = max(1, sizes.channels // 64), min(64, sizes.channels), 2 * sizes.points
    draw = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(sizes.batch, heads, tokens, *shape, generator=draw)

    key = torch.nn.functional.normalize(normal(width), dim=-1)
    strength, decay = torch.sigmoid(normal(1)), -torch.exp(normal(1) - 3)
    drawn = [normal(width), strength * key, normal(width), decay, -decay.exp() * strength * key, key]
    inputs = [t.to(sizes.device).requires_grad_() for t in drawn]
    for chunk in dict.fromkeys((CHUNK, 16, 32, 64, 128)):
        name = f"chunks of {chunk}" + " (default)" * (chunk == CHUNK)
        row(
            name,
            lambda chunk=chunk: forward_and_backward(
                lambda *t: full_pass(Terms(*t), chunk), inputs, sizes, graphs=False
            ),
        )


def transformers_scan(u: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, h0: Tensor) -> tuple[Tensor, Tensor]:
    """Compute the scan of transformers without CUDA kernels. It has no initial state, so `h0` is not used."""
    from transformers.models.mamba.modeling_mamba import mamba_selective_scan

    y = mamba_selective_scan(u.mT, dt.mT, A, B.mT, C.mT).mT
    return y, y


class Step:
    """One training step on fresh linear functions, sampled on the device."""

    def __init__(self, name: str, precision: str, sizes: Sizes, as_trained: bool = False) -> None:
        cls = BACKBONES.get(name)
        torch.manual_seed(0)
        self.model = cls(cls.Settings(**sizes.models[name]), TaskShape(sizes.dim, sizes.points)).to(sizes.device)
        family = FAMILIES.get("linear")
        self.family = family(family.Parameters(dim=sizes.dim))
        self.task = TaskConfig(name="linear", card="", code=0, family="linear", points=sizes.points - 1, episodes=1)
        self.sizes, self.precision, self.as_trained, self.count = sizes, precision, as_trained, 0
        self.settings = TrainSettings(steps=1, batch=sizes.batch)
        self.generator = torch.Generator(sizes.device).manual_seed(0)
        self.optimiser = make_optimiser(self.model, self.settings)
        for group in self.optimiser.param_groups:
            group["capturable"] = sizes.device == "cuda" and not as_trained
        self.loss: Callable[..., Any] = self.model.loss

    def __call__(self) -> None:
        self.count += 1
        if self.as_trained:
            episodes = TrainingData.of(self.task, self.family).batch(self.settings, 0, self.count, self.sizes.device)
        else:
            episodes = self.family.sample(Request(self.sizes.batch, self.sizes.points, self.generator))
        bf16 = self.precision == "bf16"
        with torch.autocast(self.sizes.device, torch.bfloat16) if bf16 else contextlib.nullcontext():
            loss, _ = self.loss(episodes, 0.0, self.generator)
        loss.backward()
        self.optimiser.step()
        self.optimiser.zero_grad(set_to_none=True)


def training(name: str, precision: str, sizes: Sizes) -> None:
    """Measure the steps per second: as in `iclbench train`, without waiting for the device, as one graph, and
    compiled.
    """
    torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")

    def measure(step: Step, graph: bool) -> dict[str, Any]:
        start = time.perf_counter()
        step()
        wait(sizes)
        measurements: dict[str, Any] = {"first_s": time.perf_counter() - start, "peak_bytes": peak(step, sizes)}
        if graph and sizes.device != "cuda":
            return {"reason": "a CUDA graph needs CUDA"}
        measurements["step_s"] = seconds(captured(step, step.generator) if graph else step, sizes)
        return measurements

    def compiled(graph: bool) -> dict[str, Any]:
        step = Step(name, precision, sizes)
        step.loss = torch.compile(step.model.loss, backend=sizes.compiler, fullgraph=True)
        return measure(step, graph)

    label = f"{name}, {precision}"
    if name == "mamba":
        label += f", scan {resolve_backend('auto', torch.device(sizes.device))}"
    row(f"{label}: as trained", lambda: measure(Step(name, precision, sizes, as_trained=True), False))
    row(f"{label}: eager", lambda: measure(Step(name, precision, sizes), False))
    row(f"{label}: CUDA graph", lambda: measure(Step(name, precision, sizes), True))
    row(f"{label}: compiled", lambda: compiled(False))
    row(f"{label}: compiled, CUDA graph", lambda: compiled(True))


def published(grid: str, sizes: Sizes) -> None:
    """Measure the trainings of a published figure or table: the seconds of a step as in `iclbench train`, at full
    context size.
    """
    runs: dict[str, list[GridRun]] = {}
    for run in grid_runs(grid, "paper"):
        if run.exclusion is None:
            runs.setdefault(" ".join([run.task, run.backbone, *run.overrides]), []).append(run)

    def measure(run: GridRun) -> dict[str, Any]:
        config = run.config
        if sizes.preset != "paper":
            config = resolve_run(run.task, run.backbone, sizes.preset, seed=0)
        family = config.task.build()
        model, data = config.build(family), TrainingData.of(config.task, family)
        settings = config.train.model_copy(update={"evaluate_every": 0, "branches": ()})
        training = Training(model, data, settings, config.seed, sizes.device)

        def step() -> None:
            training.progress.step = settings.steps - 1  # after the curriculum
            training.step()

        start = time.perf_counter()
        step()
        wait(sizes)
        measurements: dict[str, Any] = {"first_s": time.perf_counter() - start, "peak_bytes": peak(step, sizes)}
        return measurements | {"step_s": seconds(step, sizes), "steps": settings.steps}

    for what, same in runs.items():
        row(what, lambda same=same: {"trainings": len(same)} | measure(same[0]))


def published_grids() -> list[str]:
    """Return the grids with trainings at preset `paper`."""
    names = [name for name in cards.card_names("grids") if not is_language_grid(name)]
    return [name for name in names if any("paper" in part.presets for part in load_grid(name)[1].parts)]


PARTS: dict[str, Callable[[Sizes], None]] = (
    {"check": check, "scans": scans, "blocks": blocks, "recurrence": recurrence}
    | {
        f"{name}-{precision}": lambda sizes, name=name, precision=precision: training(name, precision, sizes)
        for precision in PRECISIONS
        for name in ("gpt2", "mamba")
    }
    | {grid: lambda sizes, grid=grid: published(grid, sizes) for grid in published_grids()}
)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("part", choices=PARTS)
    parser.add_argument("--smoke", action="store_true")
    parser.add_argument("--measured", nargs="*", default=[], metavar="ROW")
    arguments = parser.parse_args()
    MEASURED.update(arguments.measured)
    PARTS[arguments.part](SMOKE if arguments.smoke else Sizes())
