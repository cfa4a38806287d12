"""The measurements of `benchmarks/gpu.py`: each part runs in a separate process and prints one line of JSON per row.

CUDA errors, compiled code and peak memory of one part therefore do not affect other parts. A row has the measurements,
or a `reason` if they failed.
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
from iclbench.config.cards import TrainSettings
from iclbench.config.resolution import TaskConfig
from iclbench.families.request import Request
from iclbench.layers.scan import scan_mamba_ssm, scan_torch, scan_triton
from iclbench.layers.scan.scan import resolved_backend
from iclbench.registry import BACKBONES, FAMILIES
from iclbench.training.step import TrainingData, make_optimiser

NAMES = ["y", "last", "u", "dt", "A", "B", "C", "h0"]
PRECISIONS = ["float32", "tf32", "bf16"]


@dataclass(frozen=True)
class Sizes:
    """Sizes of the scan of a layer and of models, and the minimum duration of measurements."""

    batch: int = 64
    points: int = 41
    dim: int = 20
    channels: int = 512
    state: int = 16
    seconds: float = 2.0
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
    "cpu",
    "aot_eager",
    {"gpt2": {"layers": 1, "width": 16, "heads": 2}, "mamba": {"layers": 1, "width": 16, "state": 2}},
)


def row(what: str, work: Callable[[], dict[str, Any]]) -> None:
    """Measure and print a row; an error is its reason."""
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
    """Seconds per call, over at least `sizes.seconds` of them, after three calls of warm-up."""
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
    """Peak of allocated bytes during the call, beyond those before."""
    if sizes.device != "cuda":
        return 0.0
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    work()
    wait(sizes)
    return float(torch.cuda.max_memory_allocated() - before)


def captured(work: Callable[[], object], generator: torch.Generator | None = None) -> Callable[[], None]:
    """The work as a CUDA graph, after a warm-up on a separate stream, as torch requires."""
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
    """u, dt, A, B, C, h0 in float64 on the CPU: A of Mamba, and step sizes around 0.05 or all equal."""
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
    """Largest error of the Triton kernel over the largest value of the float64 scan on the CPU, by tensor."""

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


def blocks(sizes: Sizes) -> None:
    """Forward, and forward with backward, of one layer's scan: by block size, and by the other back ends."""

    def measure(scan: Callable[..., tuple[Tensor, Tensor]], reason: str | None = None) -> dict[str, Any]:
        if reason is not None:
            return {"reason": reason}
        inputs = [
            t.to(sizes.device, torch.float32).requires_grad_()
            for t in scan_inputs(sizes, 2 * sizes.points, sizes.channels)
        ]
        slope = torch.ones_like(inputs[0])

        def forward() -> None:
            with torch.no_grad():
                scan(*inputs)

        def forward_and_backward() -> None:
            torch.autograd.grad(scan(*inputs)[0], inputs, slope, allow_unused=True)

        forward_and_backward()
        measurements = {"peak_bytes": peak(forward_and_backward, sizes)}
        for name, work in (("forward_s", forward), ("both_s", forward_and_backward)):
            measurements[name] = seconds(captured(work) if sizes.device == "cuda" else work, sizes)
        return measurements

    def tuned(channels: int, warps: int) -> Callable[..., tuple[Tensor, Tensor]]:
        return lambda *inputs: scan_triton.selective_scan(*inputs, channels=channels, warps=warps)

    default = (scan_triton.CHANNELS, scan_triton.WARPS)
    sweep = [(channels, warps) for channels in (8, 16, 32) for warps in (2, 4, 8)]
    for channels, warps in [default, *(pair for pair in sweep if pair != default)]:
        name = f"triton, {channels} channels, {warps} warps"
        row(name, lambda c=channels, w=warps: measure(tuned(c, w), scan_triton.unavailable()))
    row("mamba-ssm", lambda: measure(scan_mamba_ssm.selective_scan, scan_mamba_ssm.unavailable()))
    row("torch, this package's", lambda: measure(scan_torch.selective_scan))
    row("torch, transformers' path", lambda: measure(transformers_scan))


def transformers_scan(u: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, h0: Tensor) -> tuple[Tensor, Tensor]:
    """The scan without CUDA kernels, which has no initial state."""
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
    """Steps per second: as in `iclbench train`, without waiting for the device, as one graph, compiled."""
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
        label += f", scan {resolved_backend('auto', torch.device(sizes.device))}"
    row(f"{label}: as trained", lambda: measure(Step(name, precision, sizes, as_trained=True), False))
    row(f"{label}: eager", lambda: measure(Step(name, precision, sizes), False))
    row(f"{label}: CUDA graph", lambda: measure(Step(name, precision, sizes), True))
    row(f"{label}: compiled", lambda: compiled(False))
    row(f"{label}: compiled, CUDA graph", lambda: compiled(True))


PARTS: dict[str, Callable[[Sizes], None]] = {"check": check, "blocks": blocks} | {
    f"{name}-{precision}": lambda sizes, name=name, precision=precision: training(name, precision, sizes)
    for precision in PRECISIONS
    for name in ("gpt2", "mamba")
}


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("part", choices=PARTS)
    parser.add_argument("--smoke", action="store_true")
    arguments = parser.parse_args()
    PARTS[arguments.part](SMOKE if arguments.smoke else Sizes())
