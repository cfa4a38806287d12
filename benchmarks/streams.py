"""Speed of the samplers of recall against loops over sequences.

    python benchmarks/streams.py    # a few minutes; writes streams.md

The references are loops over sequences. The one for recall draws like the released code of Zoology (multi-query
associative recall: keys, values and positions of queries of each sequence are sampled without replacement by NumPy's
legacy generator, which permutes the vocabulary). The one for fuzzy recall has the structure of MAD, with one random
number per token; the released code of MAD also permutes all possible keys for each sequence and takes longer. The loops
and the samplers generate sequences of the same sizes. Seconds are CPU seconds of one thread, the minimum over many
rounds. In every round, the sampler generates several batches in succession, because the first call after a loop or
another process finds cold caches, which matters less for the long loop.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from timing import least_in_turn

from iclbench.families.request import Request
from iclbench.families.streams.recall import Recall, RecallParameters

OUT = Path(__file__).with_suffix(".md")
KEYS, VALUES, GAP_POWER = 4096, 4095, 0.01
LENGTHS = ((64, 4), (128, 8), (256, 16))
FUZZY = {"keys": 7, "values": 8, "key_tokens": (1, 3), "value_tokens": (1, 3), "pairs": (4, 16)}
FUZZY_LENGTH = 128
CALLS = 5
ROUNDS = {64: 60, 1024: 15}


def sampler(parameters: dict[str, Any], episodes: int, points: int) -> Callable[[], object]:
    family, generator = Recall(RecallParameters(**parameters)), torch.Generator().manual_seed(0)
    return lambda: family.sample(Request(episodes, points, generator))


def plain_recall(episodes: int, points: int, pairs: int) -> Callable[[], object]:
    """Sample sequences of plain recall with gaps, one at a time."""
    draw, slots = np.random.RandomState(0), (points - 2 * pairs) // 2
    weights = np.arange(1, slots + 1) ** (GAP_POWER - 1)
    weights = weights / weights.sum()

    def sample() -> object:
        sequences = np.full((episodes, points), KEYS + VALUES)
        for row in sequences:
            keys = draw.choice(KEYS, pairs, replace=False)
            values = KEYS + draw.choice(VALUES, pairs, replace=False)
            place = 2 * pairs + 2 * draw.choice(slots, pairs, replace=False, p=weights)
            row[0 : 2 * pairs : 2], row[1 : 2 * pairs : 2] = keys, values
            row[place], row[place + 1] = keys, values
        return sequences

    return sample


def fuzzy_recall(episodes: int) -> Callable[[], object]:
    """Sample sequences of fuzzy recall, one at a time. A key that has occurred before has the same value."""
    draw = np.random.default_rng(0)

    def motif(size: int, first: int) -> tuple[int, ...]:
        return tuple(first + draw.choice(size, draw.integers(1, 4)))

    def sample() -> object:
        sequences = []
        for _ in range(episodes):
            row: list[int] = []
            values: dict[tuple[int, ...], tuple[int, ...]] = {}
            while len(row) < FUZZY_LENGTH:
                key = motif(FUZZY["keys"], 0)
                values.setdefault(key, motif(FUZZY["values"], FUZZY["keys"]))
                row += [*key, *values[key]]
            sequences.append(row[:FUZZY_LENGTH])
        return np.array(sequences)

    return sample


def rows() -> list[str]:
    lines = []
    for episodes in ROUNDS:
        for points, pairs in LENGTHS:
            parameters = {"keys": KEYS, "values": VALUES, "pairs": (pairs, pairs), "gap_power": GAP_POWER}
            ours = sampler(parameters, episodes, points)
            lines.append(
                _row(
                    f"`recall` with gaps, {pairs} pairs", episodes, points, ours, plain_recall(episodes, points, pairs)
                )
            )
        ours = sampler(FUZZY, episodes, FUZZY_LENGTH)
        lines.append(_row("`recall-fuzzy`, 4 to 16 pairs", episodes, FUZZY_LENGTH, ours, fuzzy_recall(episodes)))
    return lines


def _row(name: str, episodes: int, points: int, ours: Callable[[], object], rival: Callable[[], object]) -> str:
    *calls, loop = least_in_turn(*[ours] * CALLS, rival, repeats=ROUNDS[episodes])
    sampling = min(calls)
    times = f"{sampling * 1e3:.2f} ms | {loop * 1e3:.1f} ms | {loop / sampling:.0f}"
    return f"| {name} | {points} | {episodes:,} | {times} |"


def main() -> int:
    torch.set_num_threads(1)
    table = [
        "| task | tokens | sequences | sampler | loop | ratio |",
        "| --- | --- | --- | --- | --- | --- |",
        *rows(),
    ]
    title = (
        "# Samplers of streams\n\nCPU time of one batch of sequences, in one thread, against a loop over sequences "
        "like the released code of Zoology (that of MAD takes longer than its loop here; `benchmarks/streams.py`).\n\n"
    )
    OUT.write_text(title + "\n".join(table) + "\n")
    sys.stdout.write("\n".join(table) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
