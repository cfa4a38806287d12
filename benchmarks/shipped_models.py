"""The models of the package on real tables that were not used in training, and baselines with the same 50 rows.

    python benchmarks/shipped_models.py DATA    # minutes; writes shipped_models.md

DATA is a data folder with `tabular/` (autos and fertility). The hashes of the tables are in `grids/tables.toml`.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from iclbench.cli.eval_runs import TABLE_BASELINES
from iclbench.store.shipped import TABLE_RUNS

OUT = Path(__file__).with_suffix(".md")
# The task of each model.
TASKS = {"class": "real-tables-classes", "number": "real-tables-unseen"}
# A search over settings, as a further baseline.
SEARCHES = {"class": (), "number": ("xgboost-search",)}
# Every table has ten splits with this number of context rows.
ROWS = 50


def evaluation(kind: str, data: str, results: str) -> str:
    """Return the printed leaderboard of a model for this kind of target, without the one for the number of rows of the
    preset."""
    command = [
        sys.executable,
        "-m",
        "iclbench",
        "eval",
        TABLE_RUNS[kind],
        "--task",
        TASKS[kind],
        "--shift",
        f"points-{ROWS}",
    ]
    for baseline in (*TABLE_BASELINES[kind], *SEARCHES[kind]):
        command += ["--baseline", baseline]
    command += ["--data-dir", data, "--results", results]
    printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    blocks = [block for block in printed.strip().split("\n\n") if "shift none" not in block]
    lines = "\n\n".join(blocks).splitlines()
    return "\n".join(line for line in lines if "of every table" not in line or f": {ROWS} rows" in line)


def main() -> None:
    data = sys.argv[1]
    with TemporaryDirectory() as results:
        parts = [evaluation(kind, data, results) for kind in TABLE_RUNS]
    header = "# Models of the package on real tables\n\nWritten by `shipped_models.py`: one training of each model.\n\n"
    OUT.write_text(header + "\n".join(f"```\n{part}\n```\n" for part in parts), encoding="utf-8")


if __name__ == "__main__":
    main()
