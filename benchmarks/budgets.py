"""Deviation of every backbone from the parameter budgets of the presets, on every task.

    python benchmarks/budgets.py                          # a minute or two; writes budgets.md

Parameters are counted in the models that a run builds, without image encoders.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from iclbench.config.cards import BUDGET_TOLERANCE, PRESETS, card_names, deviation, load_task
from iclbench.config.resolution import resolve_run, unfit_reason
from iclbench.core.errors import DataError
from iclbench.core.formats import integer, plural
from iclbench.registry import BACKBONES


def main(out: Path, data_dir: Path | None) -> None:
    rows = []
    for task in card_names("tasks"):
        card = load_task(task)[1]
        for preset, sizes in card.presets.items():
            if sizes.budget is None:
                continue
            for backbone in BACKBONES.builtin_entries:
                if unfit_reason(backbone, card) is not None:
                    continue
                try:
                    config = resolve_run(task, backbone, preset, data_dir=data_dir)
                    model = config.build(config.task.build(data_dir))
                except DataError:
                    continue  # without the data of a task, its models cannot be built
                off = deviation(model.parameter_count - model.encoder_parameter_count, sizes.budget)
                rows.append((task, preset, backbone, sizes.budget, off))
    frame = pd.DataFrame(rows, columns=["task", "preset", "backbone", "budget", "off"])
    presets = [preset for preset in PRESETS if preset in set(frame["preset"])]
    titles = [f"{preset}: {end}" for preset in presets for end in ("least", "most")]
    lines = [_line(["backbone", *titles]), "|" + "---|" * (1 + len(titles))]
    for backbone, backbone_rows in frame.groupby("backbone"):
        spans = (backbone_rows.loc[backbone_rows["preset"].eq(preset), "off"] for preset in presets)
        lines.append(_line([str(backbone), *(_percent(end) for off in spans for end in (off.min(), off.max()))]))
    worst = frame.loc[frame["off"].abs().idxmax()]
    tasks = {preset: frame.loc[frame["preset"].eq(preset), "task"].nunique() for preset in presets}
    text = (
        "Made by `benchmarks/budgets.py`: parameters against the budget of the preset, without image encoders, over "
        + ", ".join(f"{plural(n, 'task')} at `{preset}`" for preset, n in tasks.items())
        + f". Budgets: {', '.join(integer(b) for b in sorted(frame['budget'].unique()))}. "
        f"Of {integer(len(frame))} models the farthest is {worst['backbone']} on `{worst['task']}` at "
        f"`{worst['preset']}`, {_percent(worst['off'])}; the rule stops within {BUDGET_TOLERANCE:.0%}."
    )
    out.write_text(f"# Parameters against the budget\n\n{text}\n\n" + "\n".join(lines) + "\n")


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _percent(off: float) -> str:
    return f"{100 * off:+.1f} %"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path(__file__).with_suffix(".md"))
    parser.add_argument("--data-dir", type=Path)
    arguments = parser.parse_args()
    main(arguments.out, arguments.data_dir)
