"""Provenance of the numbers: versions, task cards, prompt sets and episodes."""

from __future__ import annotations

from iclbench.core.formats import integer, plural
from iclbench.report.blocks import Column, Section, Table, Text
from iclbench.report.data import Results


def section(results: Results) -> Section:
    measured_rows = results.rows[results.rows["kind"] != "published"]
    language = results.language
    frame = measured_rows.groupby(["task", "preset", "family", "shift", "prompt_set", "card"], as_index=False).agg(
        episodes=("n_episodes", "max"), contestants=("contestant", "nunique"), runs=("run", "nunique")
    )
    versions = ", ".join(sorted({*measured_rows["version"].unique(), *language.rows["version"].unique()}))
    text = Text(
        f"Written by iclbench {versions} from {plural(len(results.rows) + len(language.rows), 'row')} of values and "
        f"{plural(len(results.costs) + len(language.costs), 'row')} of costs. Numbers with equal hashes of prompt set "
        "and card are comparable. Figures show four significant digits; CSV files contain all digits."
    )
    table = Table(
        name="provenance",
        title="Prompt sets",
        caption="The prompt sets on which the numbers in this report were measured, with hashes of their task cards.",
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
    return Section("provenance", "Provenance", (text,) if measured_rows.empty else (text, table))
