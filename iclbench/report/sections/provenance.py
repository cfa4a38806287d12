"""Where the numbers come from: versions, cards, prompt sets, episodes."""

from __future__ import annotations

from iclbench.core.formats import integer, plural
from iclbench.report.blocks import Column, Section, Table, Text
from iclbench.report.data import Results


def section(results: Results) -> Section:
    own = results.rows[results.rows["kind"] != "published"]
    of_models = results.language
    frame = own.groupby(["task", "preset", "family", "shift", "prompt_set", "card"], as_index=False).agg(
        episodes=("n_episodes", "max"), contestants=("contestant", "nunique"), runs=("run", "nunique")
    )
    versions = ", ".join(sorted({*own["version"], *of_models.rows["version"]}))
    text = Text(
        f"Written by iclbench {versions} from {plural(len(results.rows) + len(of_models.rows), 'row')} of values and "
        f"{plural(len(results.costs) + len(of_models.costs), 'row')} of costs. Numbers with equal hashes of prompt set "
        "and card are comparable. Figures have six significant digits, CSV files all digits."
    )
    table = Table(
        name="provenance",
        title="Prompt sets",
        caption="Prompt sets of all numbers in this report, with the hash of their task card.",
        frame=frame,
        columns=(
            Column("task", "task"),
            Column("preset", "preset"),
            Column("family", "family"),
            Column("shift", "shift"),
            Column("prompt_set", "prompt set"),
            Column("card", "card"),
            Column("episodes", "episodes", integer, numeric=True),
            Column("contestants", "contestants", integer, numeric=True),
            Column("runs", "runs", integer, numeric=True),
        ),
        folded=True,
    )
    return Section("provenance", "Provenance", (text,) if own.empty else (text, table))
