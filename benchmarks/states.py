"""Accuracy of recall with states of several sizes.

    iclbench sweep states --results results     # about two hours on one core; resumes if interrupted
    python benchmarks/states.py results         # writes states.md and docs/figures/states.svg

Grid `states` trains ten recurrent mixers on `recall` with states of about 512, 1,024 and 2,048 numbers, at the same
number of parameters, once per size. The other models have one size: the cache of attention and hybrids grows with the
context, and the states of `s4d` and `gru` follow from their width. `budget` is the requested size, and `state` is the
number of float32 values that a model stores per episode after the context of the preset. `recurrence` is the part of
them in recurrences; the others are the last inputs of short convolutions and token shifts, and the embedding of the
last element. `rows` is the number of rows of the recurrence of a head, the dimension of its keys. The accuracy is the
share of queried values that are most probable under the model, with the numbers of pairs in training and with 16 pairs.
`recalled pairs` is 16 times the latter. The figure also shows the reference runs, which the folder `results` of a
checkout contains.
"""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pandas as pd
from command import folder_and_page, state_after_context, state_size, table_head, write_page

from iclbench import tables
from iclbench.backbones.recurrent import RecurrentState
from iclbench.backbones.stream_elements import StreamState
from iclbench.config.resolution import RunConfig
from iclbench.core.formats import fixed, integer
from iclbench.report.blocks import Figure
from iclbench.report.data import load_results
from iclbench.report.drawing import Drawer
from iclbench.report.sections import state_sizes
from iclbench.report.style import vega_lite
from iclbench.sweep.grids import grid_runs

TASK, PAIRS = "recall", 16
FIGURE = Path(__file__).resolve().parents[1] / "docs" / "figures" / "states"
COLUMNS = ("mixer", "budget", "state", "recurrence", "rows", "accuracy", f"accuracy, {PAIRS} pairs", "recalled pairs")


def main(folder: Path, out: Path) -> None:
    values = tables.read_all("values", folder)
    values = values[values["metric"].eq("accuracy") & values["n_context"].isna() & values["axis"].isna()]
    accuracies = values[values["status"].eq("ok")].set_index(["run", "shift"])["value"].astype(float)
    rows = []
    for run in grid_runs("states"):
        try:
            accuracy, many_pairs = accuracies[run.name, "none"], accuracies[run.name, f"pairs-{PAIRS}"]
        except KeyError:
            raise SystemExit(f"'{run.name}' has no accuracy in {folder}") from None
        budget = run.config.backbone.settings.get("state_budget")
        sizes = (state_size(run.config), *(("", "") if budget is None else recurrence(run.config)))
        rows.append((run.backbone, budget, *sizes, accuracy, many_pairs))
    columns = ["mixer", "budget", "state", "recurrence", "rows", "accuracy", "many_pairs"]
    frame = pd.DataFrame(rows, columns=columns)
    frame["best"] = frame.groupby("mixer")["many_pairs"].transform("max")
    frame = frame.sort_values(["best", "mixer", "state"], ascending=[False, True, True])
    lines = table_head(COLUMNS)
    for row in frame.itertuples(index=False):
        sizes = [integer(size) if size and not pd.isna(size) else "" for size in row[1:5]]
        cells = (*sizes, *(fixed(share) for share in (row.accuracy, row.many_pairs)))
        lines.append(" | ".join([f"| {row.mixer}", *cells, fixed(PAIRS * row.many_pairs, 1)]) + " |")
    write_page(out, "Recall and the size of the state", __doc__, lines)
    with closing(Drawer(vega_lite())) as drawer:
        if (reason := drawer.draw(_figure(folder).static, FIGURE, ["svg"])) is not None:
            raise SystemExit(reason)


def recurrence(config: RunConfig) -> tuple[int, int]:
    """Return the number of values in the recurrences of a mixer with a state budget, and the rows per head."""
    state = state_after_context(config)
    assert isinstance(state, StreamState) and isinstance(state.trunk, RecurrentState)
    # The first tensor of a layer contains the last inputs of its short convolution or token shift.
    tensors = [tensor for layer in state.trunk.layers for tensor in layer[1:]]
    return sum(tensor.numel() for tensor in tensors), tensors[0].shape[-2]


def _figure(folder: Path) -> Figure:
    (task,) = load_results(folder, [TASK]).slices
    section = state_sizes.section(task)
    if section is None:
        raise SystemExit(f"{folder} has no model with several sizes of its state")
    return next(block for block in section.walk() if isinstance(block, Figure))


if __name__ == "__main__":
    main(*folder_and_page(__doc__, __file__))
