"""The learning rates that were tried for the preset `grid`, and their scores.

    iclbench tune BACKBONE... --tasks TASK --results benchmarks/grid_rates    # hours; continues after a stop
    python benchmarks/grid_rates.py                         # writes the sections of these tasks in grid_rates.md

`grid_rates/rates/` contains all trials. Sections of tasks and rows of backbones without trials in this folder are
unchanged. The trials of every task are also in one file next to the reference results, whose report shows the range of
good rates.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import pandas as pd
from command import table_head

from iclbench import tables
from iclbench.config.rates import read_table, shipped_path
from iclbench.core.formats import fixed


def main(folder: Path, out: Path, reference: Path) -> None:
    head, *old = out.read_text().split("\n## ")
    sections = {section.partition("\n")[0].strip("`"): section.partition("\n")[2].strip() for section in old}
    rows = pd.concat(tables.read("trials", path) for path in (folder / "rates" / "grid").glob("*.trials.parquet"))
    for task, task_rows in rows.groupby("task"):
        task_rows = task_rows.sort_values(["contestant", "lr", "variant", "seed"], ignore_index=True)
        tables.write("trials", task_rows, reference / tables.packed_file_name("trials", str(task), "grid"), {})
    sections |= {
        str(task): _section(str(task), task_rows, sections.get(str(task), ""))
        for task, task_rows in rows.groupby("task")
    }
    out.write_text("\n\n".join([head.strip(), *(f"## `{task}`\n\n{text}" for task, text in sections.items())]) + "\n")


def _section(task: str, rows: pd.DataFrame, old: str) -> str:
    chosen = {
        name: choice.lr
        for tuning in read_table(shipped_path("grid")).tuned
        if task in tuning.tasks and tuning.on in ("", task)
        for name, choice in tuning.train.items()
    }
    lines = _rows(old)
    for name, backbone_rows in rows.groupby("contestant"):
        cells = {_rate(rate): _cell(trials) for rate, trials in backbone_rows.groupby("lr")}
        lines[str(name)] = cells | {"chosen": _rate(chosen[str(name)]) if name in chosen else ""}
    columns = [*sorted({key for cells in lines.values() for key in cells} - {"chosen"}, key=float), "chosen"]
    table = table_head(["backbone", *columns])
    table += [
        f"| {name} | {' | '.join(cells.get(key, '') for key in columns)} |" for name, cells in sorted(lines.items())
    ]
    seeds, steps = rows.groupby(["contestant", "lr"])["seed"].nunique().min(), rows["steps"].iloc[0]
    about = f"seeds {rows['seed'].min()} to {rows['seed'].max()} ({seeds} each): mean ± standard deviation over seeds"
    about = about if seeds > 1 else f"seed {rows['seed'].min()}"
    return f"`{rows['metric'].iloc[0]}`, {int(steps):,} steps, {about}.\n\n" + "\n".join(table)


def _rows(section: str) -> dict[str, dict[str, str]]:
    """Return the cells of the existing table, by backbone and column."""
    lines = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in section.split("\n")
        if line.startswith("| ") and "---" not in line
    ]
    return {
        name: {key: cell for key, cell in zip(lines[0][1:], cells, strict=True) if cell} for name, *cells in lines[1:]
    }


def _cell(rows: pd.DataFrame) -> str:
    if rows.empty:
        return ""
    if rows["status"].ne("ok").any():
        return "diverged"
    deviation = f" ± {fixed(rows['value'].std(), 4)}" if len(rows) > 1 else ""
    return fixed(rows["value"].mean(), 4) + deviation


def _rate(rate: float) -> str:
    digits, _, power = f"{rate:.0e}".partition("e")
    return f"{digits}e{int(power)}"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?", default=Path(__file__).with_suffix(""))
    parser.add_argument("--out", type=Path, default=Path(__file__).with_suffix(".md"))
    parser.add_argument("--reference", type=Path, default=Path(__file__).parents[1] / "results" / "reference")
    arguments = parser.parse_args()
    main(arguments.folder, arguments.out, arguments.reference)
