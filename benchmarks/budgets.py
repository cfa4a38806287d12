"""Deviation of every backbone from the parameter budgets of the presets, on every task, and the size of its state.

    python benchmarks/budgets.py                          # a few minutes; writes budgets.md

Parameters are counted in the models that a run builds, without image encoders. States are counted in float32 values per
episode, after the context of `linear` (of `point-process` for models of events) at preset `grid`.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import pandas as pd
from command import state_size

from iclbench.config.cards import BUDGET_TOLERANCE, PRESETS, card_names, deviation, load_task
from iclbench.config.resolution import resolve_run, unfit_reason
from iclbench.core.errors import DataError
from iclbench.core.formats import integer, plural
from iclbench.registry import BACKBONES

# Tasks on which states are counted: for most backbones, and for models of events.
_STATE_TASKS = ("linear", "point-process")


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
    lines = [_line(["backbone", "state", *titles]), "|" + "---|" * (2 + len(titles))]
    for backbone, backbone_rows in frame.groupby("backbone"):
        spans = (backbone_rows.loc[backbone_rows["preset"].eq(preset), "off"] for preset in presets)
        percentages = [_percent(end) for off in spans for end in (off.min(), off.max())]
        lines.append(_line([str(backbone), integer(_state(str(backbone))), *percentages]))
    worst = frame.loc[frame["off"].abs().idxmax()]
    tasks = {preset: frame.loc[frame["preset"].eq(preset), "task"].nunique() for preset in presets}
    text = (
        "Made by `benchmarks/budgets.py`: parameters against the budget of the preset, without image encoders, over "
        + ", ".join(f"{plural(n, 'task')} at `{preset}`" for preset, n in tasks.items())
        + f". Budgets: {', '.join(integer(b) for b in sorted(frame['budget'].unique()))}. "
        f"The largest deviation of {integer(len(frame))} models is that of {worst['backbone']} on `{worst['task']}` at "
        f"`{worst['preset']}`, {_percent(worst['off'])}; the search stops within {BUDGET_TOLERANCE:.0%}. "
        f"`state`: float32 values that a model stores per episode after the context of `{_STATE_TASKS[0]}` (models of "
        f"events: of `{_STATE_TASKS[1]}`) at preset `grid`."
    )
    out.write_text(f"# Parameters against the budget\n\n{text}\n\n" + "\n".join(lines) + "\n")


def _state(backbone: str) -> int:
    task = next(task for task in _STATE_TASKS if unfit_reason(backbone, load_task(task)[1]) is None)
    return state_size(resolve_run(task, backbone, "grid"))


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
