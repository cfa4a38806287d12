"""Gaps of neural processes to the exact posterior of a Gaussian process, for single targets and for joint densities.

for b in two-path-cnp np canp anp bnp banp tnp-d tnp-nd tnp-a eqtnp cmanp-and cnp tnp icicl-tnp; do
    iclbench train gp-mixture $b --preset small --results FOLDER        # at most a quarter of an hour each
done
iclbench eval --results FOLDER
python benchmarks/joint_gaps.py FOLDER              # writes joint_gaps.md
"""

from __future__ import annotations

from pathlib import Path

import pandas as pd
from command import folder_and_page, table_head

from iclbench.api.results import open_results
from iclbench.core.formats import count, fixed

HEAD = """# Joint and marginal gaps of neural processes

Task `gp-mixture` at preset `small`: {episodes} frozen episodes of up to 64 context points and 64 targets, one seed, one
thread per run (7,000 steps, `banp` 6,000), no related datasets. Nats per target below `oracle-kernel`, the exact
posterior under the true kernel, with 95 % intervals over the {asked} episodes on which `oracle-bayes` was
also evaluated. This oracle infers the kernel and is the ceiling of models without access to it. `gap`: the mean over
targets of the marginal log-likelihood. `joint gap`: the joint log-density of all targets, divided by their number. The
oracle itself has {marginal} nats per target by the first and {joint} by the second; the difference is the information
that targets contain about one another. A model with independent predictions loses it. `tnp-a` and `cmanp-and` predict
targets one after the other, given the true earlier targets (in blocks of 100, here all at once); `np`, `anp`, `bnp` and
`banp` are mixtures of 50 functions. `icicl-tnp` is evaluated without related datasets. Made by
`benchmarks/joint_gaps.py`.
"""


def main(folder: Path, out: Path) -> None:
    values, costs = open_results(folder).values(), open_results(folder).costs()
    is_selected = (
        values["shift"].eq("none") & values["axis"].isna() & values["status"].eq("ok") & values["n_related"].eq(0)
    )
    rows = {name: metric_rows.set_index("run") for name, metric_rows in values[is_selected].groupby("metric")}
    sizes = costs[costs["phase"].eq("model") & costs["metric"].eq("parameters")].set_index("run")["value"]
    header = ["contestant", "parameters", "gap", "joint gap", "squared error", "in the 90 % interval"]
    lines = table_head(header)
    for run, gap in rows["gap"].sort_values("value").iterrows():
        cells = [
            str(gap["contestant"]),
            count(sizes[run]) if run in sizes.index else "",
            _interval(gap),
            _interval(rows["gap_joint"].loc[run]) if run in rows["gap_joint"].index else "",
            fixed(rows["squared_error"].loc[run, "value"]),
            f"{100 * rows['covered_90'].loc[run, 'value']:.1f} %",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    oracle = {name: rows[name].loc["oracle-kernel"] for name in ("log_likelihood", "log_likelihood_joint")}
    head = HEAD.format(
        episodes=int(oracle["log_likelihood"]["n_episodes"]),
        asked=int(rows["gap"]["n_episodes"].max()),
        marginal=fixed(oracle["log_likelihood"]["value"]),
        joint=fixed(oracle["log_likelihood_joint"]["value"]),
    )
    out.write_text(f"{head}\n" + "\n".join(lines) + "\n")


def _interval(row: pd.Series) -> str:
    return f"{fixed(row['value'])} [{fixed(row['low'])}, {fixed(row['high'])}]"


if __name__ == "__main__":
    main(*folder_and_page(__doc__, __file__))
