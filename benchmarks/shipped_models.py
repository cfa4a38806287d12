"""The models of the package on real tables that were not used in training, and baselines with the same 50 rows.

    python benchmarks/judging_tables.py FOLDER DATA    # writes the tables
    python benchmarks/shipped_models.py FOLDER         # minutes; writes shipped_models.md

The hashes of the tables are in `grids/tables.toml`. Differences are the score of a method less that of the packaged
model, averaged over the tables, with Student's interval over the tables.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from command import table_head
from judging_tables import eval_command

from iclbench import tables
from iclbench.analysis.table_ranks import ranks_over_tables
from iclbench.cli.eval_runs import TABLE_BASELINES
from iclbench.core.formats import fixed
from iclbench.store.shipped import TABLE_RUNS
from iclbench.tables.means import student_interval

OUT = Path(__file__).with_suffix(".md")
# The task of each model.
TASKS = {"class": "real-tables-classes", "number": "real-tables-unseen"}
# A search over settings, as a further baseline.
SEARCHES = {"class": (), "number": ("xgboost-search",)}
# The main score of each kind of target.
SCORES = {"class": "roc_auc", "number": "r_squared"}
# Every table has ten splits with this number of context rows.
ROWS = 50


def evaluation(kind: str, folder: Path, results: str) -> str:
    """Return the printed leaderboard of a model for this kind of target, without the one for the number of rows of the
    preset."""
    baselines = (*TABLE_BASELINES[kind], *SEARCHES[kind])
    command = eval_command(kind, folder, [TABLE_RUNS[kind]], TASKS[kind], baselines, results)
    command += ["--shift", f"points-{ROWS}"]
    printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    blocks = [block for block in printed.strip().split("\n\n") if "shift none" not in block]
    lines = "\n\n".join(blocks).splitlines()
    return "\n".join(line for line in lines if "of every table" not in line or f": {ROWS} rows" in line)


def scores_by_table(kind: str, results: str) -> list[str]:
    """Return the scores on every table, and differences from the packaged model, as lines of a Markdown table."""
    rows = tables.read_all("values", Path(results))
    rows = rows[rows["task"].eq(TASKS[kind]) & rows["shift"].eq(f"points-{ROWS}")]
    ranks = ranks_over_tables(rows, SCORES[kind])
    if ranks is None:
        raise SystemExit(f"{results} has no scores of {TASKS[kind]}")
    (model,) = (name for name in ranks.scores if "@" in name)  # the model, with the task on which it was trained
    packaged = Path(TABLE_RUNS[kind]).name
    scores = ranks.scores.rename(columns={model: packaged})
    lines = table_head([SCORES[kind], *scores])
    for table, values in scores.iterrows():
        lines.append(f"| {table} | {' | '.join(fixed(value, 3) for value in values)} |")
    differences = scores.sub(scores[packaged], axis="index")
    intervals = [student_interval(differences[name].to_numpy(float)) for name in differences]
    for title, key in (("difference", "value"), ("lower end", "low"), ("upper end", "high")):
        lines.append(f"| {title} | {' | '.join(fixed(each[key], 3) for each in intervals)} |")
    return lines


def main() -> None:
    folder = Path(sys.argv[1])
    parts = []
    with TemporaryDirectory() as results:
        for kind in TABLE_RUNS:
            board = evaluation(kind, folder, results)
            parts.append("\n".join(["```", board, "```", "", *scores_by_table(kind, results)]))
    about = (__doc__ or "").rpartition("\n\n")[2].replace("\n", " ").strip()
    header = (
        "# Models of the package on real tables\n\nWritten by `shipped_models.py`: one training of each model. "
        f"{about}\n\n"
    )
    OUT.write_text(header + "\n\n".join(parts) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
