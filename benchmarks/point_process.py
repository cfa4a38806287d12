"""Gaps of backbones and classical methods to the exact point process after n events, and the sizes of their states.

for b in gpt2 mamba s4d thp cmhp; do
    iclbench train point-process $b --preset small --results FOLDER        # at most a quarter of an hour each
done
iclbench eval --results FOLDER; iclbench cost --points 1000 --results FOLDER
python benchmarks/point_process.py FOLDER              # writes point_process.md
"""

from __future__ import annotations

from pathlib import Path

import pandas as pd
from command import folder_and_page, table_head

from iclbench.api.results import open_results
from iclbench.core.formats import fixed, nbytes

SIZES = (0, 1, 2, 3, 6, 11, 20, 35, 64)
HEAD = """# Point processes learned in context

Task `point-process` at preset `small`: sequences of {points} events from different processes, {episodes} frozen
sequences, one seed, one thread per run. Nats per event above `oracle-events`, which has access to the process
({oracle} nats per event itself), after n events; the mean over n with its 95 % interval over sequences.
The gap of the best model without access to the process (`oracle-bayes-events`) is part of every gap and is not shown.
`state`: bytes of the state after n events, per sequence. Made by `benchmarks/point_process.py`.
"""


def main(folder: Path, out: Path) -> None:
    values, costs = open_results(folder).values(), open_results(folder).costs()
    values = values[values["shift"].eq("none") & values["axis"].isna() & values["status"].eq("ok")]
    gaps = values[values["metric"].eq("gap")]
    means = gaps[gaps["n_context"].isna()].sort_values("value")
    oracle = values[values["metric"].eq("auc") & values["run"].eq("oracle-events")].iloc[0]
    states = costs[costs["metric"].eq("state_bytes")]
    state_sizes = sorted(int(n) for n in states["n_points"].dropna().unique())
    header = ["contestant", *(f"n = {n}" for n in SIZES), "mean", *(f"state, n = {n:,}" for n in state_sizes)]
    lines = table_head(header)
    for _, row in means.iterrows():
        curve = gaps[gaps["run"].eq(row["run"]) & gaps["n_context"].notna()].set_index("n_context")["value"]
        state_bytes = states[states["run"].eq(row["run"])].drop_duplicates("n_points").set_index("n_points")["value"]
        cells = [fixed(curve[n]) if n in curve.index else "–" for n in SIZES]
        mean = f"{fixed(row['value'])} [{fixed(row['low'])}, {fixed(row['high'])}]"
        sizes = [nbytes(state_bytes[n]) if n in state_bytes.index else "" for n in state_sizes]
        lines.append(f"| {row['contestant']} | {' | '.join([*cells, mean, *sizes])} |")
    head = HEAD.format(
        points=int(gaps["n_context"].max()) + 1, episodes=int(oracle["n_episodes"]), oracle=fixed(oracle["value"])
    )
    out.write_text(f"{head}\n" + "\n".join(lines) + "\n" + _parts(values))


def _parts(values: pd.DataFrame) -> str:
    """Return the table of log-likelihoods of times and marks, and of calibration, over all events."""
    metrics = ("nll_time", "nll_mark", "absolute_error", "accuracy", "covered_50", "covered_90")
    rows = values[values["n_context"].isna() & values["metric"].isin(metrics)]
    wide = rows.pivot_table("value", index="contestant", columns="metric")
    lines = table_head(["contestant", *metrics])
    lines += [
        f"| {name} | {' | '.join(fixed(row[metric]) for metric in metrics)} |"
        for name, row in wide.sort_values("nll_time").iterrows()
    ]
    return "\n## Over all events\n\n" + "\n".join(lines) + "\n"


if __name__ == "__main__":
    main(*folder_and_page(__doc__, __file__))
