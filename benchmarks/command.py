"""Functions for scripts that write a page about a results folder."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import pandas as pd
import torch

from iclbench.config.resolution import RunConfig
from iclbench.core.predictor import State
from iclbench.core.seeds import generator
from iclbench.families.request import Request


def folder_and_page(about: str | None, script: str) -> tuple[Path, Path]:
    """Parse the command line. Return the folder argument and the output file (default: the Markdown file next to the
    script).
    """
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--out", type=Path, default=Path(script).with_suffix(".md"))
    arguments = parser.parse_args()
    return arguments.folder, arguments.out


def available_scores(values: pd.DataFrame, runs: pd.Series) -> pd.Series:
    """Return the in-distribution scores of runs; NaN for a run without a score."""
    selected = values["kind"].eq("backbone") & values["metric"].eq("score") & values["evaluator"].eq("next")
    selected &= values["shift"].eq("none") & values["axis"].isna() & values["n_context"].isna()
    return runs.map(values[selected].set_index("run")["value"].astype(float))


@torch.inference_mode()
def state_after_context(config: RunConfig) -> State:
    """Return the state of an untrained model for one episode, after the context of its preset."""
    family, n = config.task.build(), config.task.points
    context = family.sample_all_related(Request(1, n + 1, generator(0, "costs", n))).context
    return config.build(family).eval().condition(context.span(0, n))


def state_size(config: RunConfig) -> int:
    """Return the size of an untrained model's state after the context of its preset: float32 values per episode."""
    return round(state_after_context(config).nbytes / 4)


def table_head(columns: Sequence[str]) -> list[str]:
    """Return the first two lines of a Markdown table."""
    return [f"| {' | '.join(columns)} |", "|" + " --- |" * len(columns)]


def write_page(out: Path, title: str, about: str | None, lines: Sequence[str], note: str | None = None) -> None:
    """Write a page with a title, the first paragraph of the script's docstring, its last paragraph (or a note), and
    a table.
    """
    question, _, rest = (about or "").partition("\n\n    ")
    remarks = note if note is not None else " ".join(rest.partition("\n\n")[2].split())
    out.write_text(f"# {title}\n\n{question}\n\n{remarks}\n\n" + "\n".join(lines) + "\n")
