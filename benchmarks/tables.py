"""Speed of the sampler of synthetic tables against a loop over tables, and its share of a training step.

    python benchmarks/tables.py    # less than a minute; writes tables.md

The reference samples one table at a time, like priors that build a network per table: a torch module with the same
distributions of layers, widths, activations, noise and blocks, applied to the same number of rows. Half of the tables
come from structural causal models and half from Bayesian neural networks, without categories and missing cells, so the
reference does less work than the sampler. Seconds are CPU seconds of one thread.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from sampling_share import HEAD, sampling_share
from timing import least_in_turn
from torch import Tensor, nn

from iclbench.families.request import Request
from iclbench.families.tabular_prior.labels import REFERENCE_ROWS
from iclbench.families.tabular_prior.networks import INIT_STD, LAYERS, MOST_CAUSES, NOISE, WIDTH
from iclbench.families.tabular_prior.tabular_prior import TabularPrior, TabularPriorParameters
from iclbench.sweep.grids import load_grid

OUT = Path(__file__).with_suffix(".md")
COLUMNS = 5
SIZES = ((32, 50), (32, 150), (256, 50), (256, 150))
KINDS = ("mix", "scm", "bnn", "trees", "gp")
ACTIVATIONS = (nn.Identity(), nn.Tanh(), nn.ReLU())


def sampler(kind: str, tables: int, rows: int, classes: int = 0) -> Callable[[], object]:
    parameters = TabularPriorParameters(dim=COLUMNS, kind=kind, classes=classes)  # type: ignore[arg-type]
    family, generator = TabularPrior(parameters), torch.Generator().manual_seed(0)
    return lambda: family.sample(Request(tables, rows, generator))


def loop(tables: int, rows: int) -> Callable[[], object]:
    """Sample tables of random networks, one at a time."""
    draw = np.random.default_rng(0)

    def log_uniform(low: float, high: float) -> float:
        return math.exp(draw.uniform(math.log(low), math.log(high)))

    def linear(inputs: int, outputs: int, std: float, has_blocks: bool) -> nn.Linear:
        layer, blocks = nn.Linear(inputs, outputs), 1
        if has_blocks:
            blocks = int(draw.integers(1, math.ceil(math.sqrt(min(inputs, outputs))), endpoint=True))
        height, width = outputs // blocks, inputs // blocks
        scale = std * math.sqrt(inputs * outputs / (blocks * height * width))
        nn.init.zeros_(layer.weight)
        for block in range(blocks):
            part = layer.weight[height * block : height * (block + 1), width * block : width * (block + 1)]
            nn.init.normal_(part, std=scale)
        return layer

    def table() -> tuple[Tensor, Tensor]:
        columns, is_causal = int(draw.integers(1, COLUMNS, endpoint=True)), draw.random() < 0.5
        layers, units = int(log_uniform(LAYERS[0], LAYERS[1] + 1)), int(log_uniform(WIDTH[0], WIDTH[1] + 1))
        std, noise, has_blocks = log_uniform(*INIT_STD), log_uniform(*NOISE), draw.random() < 0.5
        units = max(units, 1 + 2 * columns) if is_causal else units
        size = int(draw.integers(1, MOST_CAUSES, endpoint=True)) if is_causal else columns
        causes = torch.randn(rows, size) * torch.randn(size) + torch.randn(size)
        hidden, values = linear(size, units, std, has_blocks)(causes), []
        for _ in range(layers - 1):
            hidden = linear(units, units, std, has_blocks)(ACTIVATIONS[draw.integers(3)](hidden))
            hidden = hidden + noise * torch.randn_like(hidden)
            values.append(hidden)
        if is_causal:
            chosen = torch.cat(values, 1)[:, torch.randperm(units * (layers - 1))[: columns + 1]]
            x, y = chosen[:, 1:], chosen[:, 0]
        else:
            x = causes
            y = linear(units, 1, std, has_blocks)(ACTIVATIONS[draw.integers(3)](hidden))[:, 0]
        y = (y - y[:REFERENCE_ROWS].mean()) / y[:REFERENCE_ROWS].std()
        x = (x - x.mean(0)) / x.std(0)
        return nn.functional.pad(x, (0, COLUMNS - columns))[REFERENCE_ROWS:], y[REFERENCE_ROWS:]

    def sample() -> object:
        with torch.no_grad():
            drawn = [table() for _ in range(tables)]
        return torch.stack([x for x, _ in drawn]), torch.stack([y for _, y in drawn])

    rows = rows + REFERENCE_ROWS
    return sample


def rows() -> list[str]:
    lines = []
    for tables, table_rows in SIZES:
        ours, rival = least_in_turn(sampler("mix", tables, table_rows), loop(tables, table_rows), repeats=5)
        lines.append(
            _row("`tabular-prior`", tables, table_rows, ours) + f" {rival * 1e3:.0f} ms | {rival / ours:.0f} |"
        )
    tables, table_rows = SIZES[2]
    for kind in KINDS[1:]:
        (ours,) = least_in_turn(sampler(kind, tables, table_rows), repeats=5)
        lines.append(_row(f"kind `{kind}`", tables, table_rows, ours) + " | |")
    (ours,) = least_in_turn(sampler("mix", tables, table_rows, classes=10), repeats=5)
    lines.append(_row("`tabular-prior-classes`, 10 classes", tables, table_rows, ours) + " | |")
    return lines


def _row(name: str, tables: int, table_rows: int, seconds: float) -> str:
    return f"| {name} | {table_rows} | {tables} | {seconds * 1e3:.1f} ms | {60 * tables / seconds:,.0f} |"


def main() -> int:
    torch.set_num_threads(1)
    trained = load_grid("tables")[1].parts[0]
    table = [
        "| tables | rows | batch | sampler | tables per minute | loop | ratio |",
        "| --- | --- | --- | --- | --- | --- | --- |",
        *rows(),
        "",
        "A training step of `tabular-scm`, preset `grid`:",
        "",
        f"| backbone | {' | '.join(HEAD)} |",
        "| --- | --- | --- | --- |",
        *(f"| `{name}` | {sampling_share('tabular-scm', name, 'grid')} |" for name in trained.backbones),
    ]
    title = (
        f"# Sampler of synthetic tables\n\nCPU time of one batch of tables with {COLUMNS} columns, in one thread, "
        "against a loop over tables that builds one\nnetwork per table (`benchmarks/tables.py`).\n\n"
    )
    OUT.write_text(title + "\n".join(table) + "\n")
    sys.stdout.write("\n".join(table) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
