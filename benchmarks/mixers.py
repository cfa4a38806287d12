"""Sequence models with equal numbers of parameters: training, memory, state and queries, and the shared recurrence.

    python benchmarks/mixers.py

Every mixer is part of a model with the budget of preset `grid` on `linear` (25 thousand parameters). `gpt2` and `mamba`
are measured for comparison. A training step consists of loss, gradients and Adam. Longer episodes have smaller batches,
so that a batch has 2,560 points or one episode. Memory is the peak of live tensors of loss and gradients in addition to
weights (counted, not measured). A state is the memory of one episode after n points. The measure of time is CPU seconds
of one thread: the minimum of three repeats, in which the contestants of a size alternate.

Other parts compare the recurrence with its matrix products, and the forward and backward passes of mixers with those of
layers of transformers and mambapy (`pip install mambapy`) of the same sizes. The script writes benchmarks/mixers.md.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterator
from datetime import date
from functools import partial
from itertools import product
from pathlib import Path
from statistics import geometric_mean

import torch
from mambapy.mamba import MambaBlock
from mambapy.mamba import MambaConfig as MambapyConfig
from timing import least_in_turn, warm
from torch import Tensor, nn

from iclbench.backbones.base import Backbone
from iclbench.backbones.sequence_model import SequenceModel
from iclbench.config.cards import TrainSettings
from iclbench.config.resolution import resolve_run
from iclbench.core.episodes import Episodes, Points
from iclbench.core.formats import nbytes
from iclbench.evaluation.costs.live_bytes import LiveBytes
from iclbench.layers.linear_recurrence import CHUNK, Terms, linear_recurrence, plan
from iclbench.layers.mixers.gated_deltanet import GatedDeltaNet
from iclbench.layers.mixers.kda import KDA
from iclbench.layers.mixers.mamba import Mamba
from iclbench.layers.mixers.mamba2 import Mamba2
from iclbench.layers.mixers.mixer import Mixer, Sizes
from iclbench.registry import BACKBONES
from iclbench.training.step import make_optimiser

POINTS, TOTAL, QUERIES = (20, 100, 500, 2000), 2560, 40
# The target for the recurrence, as a multiple of the time of its products.
ASKED = 1.5
NAMES = (
    "gpt2",
    "mamba",
    *(
        name
        for name in BACKBONES.architectures()
        if issubclass(BACKBONES.get(name), SequenceModel) and name != "hybrid"
    ),
)


def model(name: str) -> Backbone:
    longest = ["backbone.max_points=2001"] if name == "hyena" else []
    config = resolve_run("linear", name, "grid", overrides=longest)
    torch.manual_seed(0)
    return config.build(config.task.build())


def episodes(model: Backbone, points: int, batch: int) -> Episodes:
    context = Points.full(torch.randn(batch, points, model.shape.x_dim), torch.randn(batch, points, 1))
    return Episodes(context=context, scored=context.mask)


def step(model: Backbone, batch: Episodes) -> Callable[[], None]:
    optimiser = make_optimiser(model, TrainSettings(steps=1))

    def work() -> None:
        optimiser.zero_grad(set_to_none=True)
        model.loss(batch, 0.0, torch.Generator())[0].backward()
        optimiser.step()

    return work


def contestants() -> list[dict[str, object]]:
    models = {name: model(name) for name in NAMES}
    rows: dict[str, dict[str, object]] = {
        name: {"model": name, "parameters": built.parameter_count} for name, built in models.items()
    }
    for n, (name, built) in product(POINTS, models.items()):
        row, batch = rows[name], episodes(built, n, batch_of(n))
        row[f"step {n}"] = warm(step(built, batch)) / len(batch.context)
        built.zero_grad(set_to_none=True)
        with LiveBytes() as count:
            built.loss(batch, 0.0, torch.Generator())[0].backward()
        row[f"memory {n}"] = count.peak / len(batch.context)
        with torch.inference_mode():
            state = built.condition(batch.context[:1])
            queries = torch.randn(1, QUERIES, built.shape.x_dim)
            row[f"query {n}"] = warm(partial(built.query, state, queries)) / QUERIES
        row[f"state {n}"] = state.nbytes
        print(name, n, flush=True)
    return list(rows.values())


def batch_of(points: int) -> int:
    """Return the number of episodes in a step."""
    return max(1, TOTAL // points)


def terms(decay: str, delta: bool, batch: int, tokens: int, size: int) -> tuple[Terms, Tensor]:
    heads = 4
    q, k, v = (torch.randn(batch, heads, tokens, size) for _ in range(3))
    k = nn.functional.normalize(k, dim=-1)
    rows = torch.rand(batch, heads, tokens, size)
    g = {"none": None, "head": -rows[..., :1], "row": -rows, "strong": -20 * rows}
    both = (k, -0.5 * k) if delta else (None, None)
    return Terms(q, k, v, g[decay], *both), torch.zeros(batch, heads, size, size)


def products(given: Terms, state: Tensor, sizes: list[int]) -> list[Tensor]:
    """Compute only the matrix products (and triangular systems) of chunks, without decays and sums."""
    parts = {name: t.split(sizes, 2) for name, t in given.tensors().items()}
    outputs = []
    for n in range(len(sizes)):
        part = Terms(**{name: part[n] for name, part in parts.items()})
        scores, before = part.q @ part.k.mT, part.q @ state
        out = scores @ part.v
        if part.a is not None and part.b is not None:
            first, system, seen = part.a @ part.k.mT, part.a @ part.b.mT, part.a @ state
            taken = torch.linalg.solve_triangular(system, first @ part.v, upper=False, unitriangular=True)
            out = (part.q @ part.b.mT) @ taken
            _, _ = seen, part.b.mT @ taken
        state = part.k.mT @ part.v
        outputs += [out, before]
    return [*outputs, state]


def kernel() -> Iterator[tuple[str, str, float, float, float]]:
    for batch, tokens, size in ((64, 82, 16), (64, 82, 64), (16, 1000, 64)):
        for decay in ("none", "head", "row", "strong"):
            for delta in (False, True):
                given, state = terms(decay, delta, batch, tokens, size)
                sizes = [part.tokens for part in plan(given.g, given.v)]
                with torch.inference_mode():
                    ours, alone = least_in_turn(
                        lambda: linear_recurrence(given, state),  # noqa: B023
                        lambda: products(given, state, sizes),  # noqa: B023
                    )
                leaves = [t.requires_grad_() for t in given.tensors().values()]
                weight = torch.randn_like(given.v)

                def back() -> None:
                    outputs, _ = linear_recurrence(given, state)  # noqa: B023
                    torch.autograd.grad(outputs, leaves, weight)  # noqa: B023

                both = warm(back, 7)
                what = {"none": "no decay", "strong": "decay per row, strong"}.get(decay, f"decay per {decay}")
                yield f"{batch} x 4 heads, {tokens} tokens, K = V = {size}", what + ", delta" * delta, alone, ours, both


def layers(width: int, heads: int) -> Iterator[tuple[str, str, Mixer, nn.Module]]:
    """Yield mixers with layers of other libraries of the same sizes (weights differ)."""
    from transformers.models.kimi_linear.configuration_kimi_linear import KimiLinearConfig
    from transformers.models.kimi_linear.modeling_kimi_linear import KimiLinearDeltaAttention
    from transformers.models.mamba.configuration_mamba import MambaConfig
    from transformers.models.mamba.modeling_mamba import MambaMixer
    from transformers.models.mamba2.configuration_mamba2 import Mamba2Config
    from transformers.models.mamba2.modeling_mamba2 import Mamba2Mixer
    from transformers.models.qwen3_next.configuration_qwen3_next import Qwen3NextConfig
    from transformers.models.qwen3_next.modeling_qwen3_next import Qwen3NextGatedDeltaNet

    sizes, value = Sizes(width, heads), 3 * width // (4 * heads)
    mamba2 = Mamba2Config(
        num_heads=heads, head_dim=2 * width // heads, hidden_size=width, state_size=64, n_groups=1, chunk_size=64
    )
    qwen = Qwen3NextConfig(
        hidden_size=width,
        linear_key_head_dim=value,
        linear_value_head_dim=2 * value,
        linear_num_key_heads=heads,
        linear_num_value_heads=heads,
    )
    kimi = KimiLinearConfig(hidden_size=width, linear_head_dim=width // heads, linear_num_heads=heads)
    yield "mamba", "mambapy", Mamba(sizes), MambaBlock(MambapyConfig(d_model=width, n_layers=1))
    yield "mamba", "transformers", Mamba(sizes), MambaMixer(MambaConfig(hidden_size=width), 0)
    yield "mamba2", "transformers", Mamba2(sizes), Mamba2Mixer(mamba2, 0)
    yield "gated-deltanet", "transformers", GatedDeltaNet(sizes), Qwen3NextGatedDeltaNet(qwen, 0)
    yield "kda", "transformers", KDA(sizes), KimiLinearDeltaAttention(kimi, 0)


def rivals() -> Iterator[tuple[str, str, str, float, float]]:
    for width, batch, tokens in ((64, 32, 82), (64, 4, 1000), (256, 16, 82)):
        for name, rival, ours, theirs in layers(width, 4):
            for weight in theirs.parameters():
                nn.init.normal_(weight, std=0.1)
            x = torch.randn(batch, tokens, width, requires_grad=True)

            def their_step(theirs: nn.Module = theirs, x: Tensor = x) -> None:
                out = theirs(x)
                (out[0] if isinstance(out, tuple) else out).sum().backward()

            def our_step(ours: Mixer = ours, x: Tensor = x) -> None:
                ours(x, ours.start(len(x)))[0].sum().backward()

            their_seconds, our_seconds = least_in_turn(their_step, our_step, repeats=5)
            yield name, rival, f"width {width}, {batch} x {tokens} tokens", their_seconds, our_seconds


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    rows = contestants()
    unit = next(row for row in rows if row["model"] == "mamba")
    lines = [
        "# Sequence models: training, memory, state and queries at equal parameters",
        "",
        f"`python benchmarks/mixers.py`, {date.today()}, {platform.machine()}, one thread, torch {torch.__version__}.",
        "Models of preset `grid` on `linear`. A training step, memory and state are per episode, a query per query "
        f"of {QUERIES} in one call; times are CPU seconds over those of `mamba` (Mamba's scan) in the same run. A "
        f"step has {', '.join(f'{batch_of(n)} at n = {n:,}' for n in POINTS)} episodes, "
        "so constant costs count most for the longest.",
        "",
        "| model | parameters | "
        + " | ".join(f"{what}, n = {n:,}" for what in ("step", "query") for n in POINTS) + " |",
        "| --- " * (2 + 2 * len(POINTS)) + "|",
    ]  # fmt: skip
    for row in rows:
        cells = [str(row["model"]), f"{row['parameters']:,}"]
        cells += [f"{row[f'{what} {n}'] / unit[f'{what} {n}']:.2f}" for what in ("step", "query") for n in POINTS]  # type: ignore[operator]
        lines.append(f"| {' | '.join(cells)} |")
    lines += [
        "",
        "| model | " + " | ".join(f"{what}, n = {n:,}" for what in ("memory", "state") for n in POINTS) + " |",
        "| --- " * (1 + 2 * len(POINTS)) + "|",
    ]
    for row in rows:
        cells = [nbytes(int(row[f"{what} {n}"])) for what in ("memory", "state") for n in POINTS]  # type: ignore[call-overload]
        lines.append(f"| {row['model']} | {' | '.join(cells)} |")
    times = ", ".join(f"{1e3 * float(str(unit[f'step {n}'])):.2f} ms at n = {n:,}" for n in POINTS)
    lines += ["", f"One episode of a training step of `mamba` takes {times}.", "", "## The recurrence alone", ""]
    lines += [
        f"Chunks of {CHUNK} tokens, or fewer if decays are strong, compared with only the matrix products and "
        "triangular systems of the same chunks, measured in turn: forward; and forward and backward, compared with "
        "three times these products.",
        "",
        "| size | recurrence | products, ms | forward, ms | forward / products | forward and backward, ms | "
        "both / 3 products |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    above: list[str] = []
    slow_back = 0
    for size, what, alone, ours, both in kernel():
        above += [what] * (ours / alone > ASKED)
        slow_back += both / alone / 3 > ASKED
        times = [f"{1e3 * alone:.1f}", f"{1e3 * ours:.1f}", f"{ours / alone:.2f}"]
        times += [f"{1e3 * both:.1f}", f"{both / alone / 3:.2f}"]
        lines.append(f"| {size} | {what} | {' | '.join(times)} |")
    where = f" ({'; '.join(sorted(set(above)))})" if above else ""
    lines += [
        "",
        f"The target is at most {ASKED} times the products forward: {len(above)} rows are above it{where}. Forward and "
        f"backward, {slow_back} rows are above {ASKED} times three times the products.",
        "",
        "## Against layers of other libraries",
        "",
        "Forward and backward of one layer, untrained, in PyTorch on a CPU. Without its CUDA kernels, Mamba of "
        "transformers processes one token after the other, and its Kimi delta attention is also slow: these two "
        "account for much of the mean of all.",
        "",
    ]
    lines += [
        "| mixer | rival | size | rival, ms | ours, ms | times as fast |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    ratios: dict[tuple[str, str], list[float]] = {}
    for name, rival, size, theirs, ours in rivals():
        ratios.setdefault((name, rival), []).append(theirs / ours)
        lines.append(f"| {name} | {rival} | {size} | {1e3 * theirs:.1f} | {1e3 * ours:.1f} | {theirs / ours:.1f} |")
    every = [ratio for group in ratios.values() for ratio in group]
    for (name, rival), group in {**ratios, ("all", "all"): every}.items():
        lines.append(f"| {name} | {rival} | geometric mean | | | {geometric_mean(group):.1f} |")
    Path(__file__).with_suffix(".md").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
