"""What related datasets are worth: log-likelihood against their number, on the training distribution and shifted."""

from __future__ import annotations

import pandas as pd

from iclbench.formats import fixed
from iclbench.report.blocks import Block, Column, Section, Table
from iclbench.report.data import KINDS, Slice, data_note
from iclbench.report.figures import targets
from iclbench.report.target_scores import counts, levelled, overall, shift_title, shifts


def section(task: Slice) -> Section | None:
    lines = overall(task.target_lines, "log_likelihood")
    asked = counts(lines)
    if lines.empty or (len(asked) < 2 and lines["shift"].nunique() < 2):
        return None
    blocks: list[Block] = []
    published = _published(task)
    if len(asked) > 1:
        panels = {
            shift_title(shift): pd.concat(
                [levelled(lines[lines["shift"] == shift], asked), published[published["shift"] == shift]]
            )
            for shift in shifts(lines)
        }
        blocks.append(
            targets.figure(
                task, panels, targets.related(counts(pd.concat(panels.values()))), name="related",
                title=f"{task.task}: log-likelihood against the number of related datasets",
                caption="Log-likelihood per target (nats; higher is better) with so many related datasets beside the "
                "context; level lines: contestants that do not use them. Panels share their axes.",
            )
        )  # fmt: skip
    blocks.append(_numbers(task, overall(task.targets, "log_likelihood"), published))
    title = "Related datasets" if len(asked) > 1 else "Shifts"
    return Section(f"{task.id}-related", title, tuple(blocks))


def _published(task: Slice) -> pd.DataFrame:
    """Published log-likelihoods of any preset; a model without related datasets stands at none."""
    rows = task.results.rows
    rows = rows[(rows["kind"] == "published") & (rows["task"] == task.task) & rows["axis"].isna()]
    rows = rows[(rows["metric"] == "log_likelihood") & rows["n_context"].isna()]
    source = " (published, preset " + rows["preset"] + data_note(rows) + ")"
    return rows.assign(note=source, level=False, n_related=rows["n_related"].fillna(0))


def _numbers(task: Slice, rows: pd.DataFrame, published: pd.DataFrame) -> Table:
    """A row per shift and contestant, a column per number of related datasets."""
    theirs = published.assign(contestant=published["contestant"] + published["note"])
    theirs = theirs.drop_duplicates(["shift", "contestant", "n_related"])
    both = pd.concat([rows, theirs[theirs["shift"].isin(rows["shift"])]], ignore_index=True)
    asked = counts(both)
    frame = both[["shift", "kind", "contestant"]].drop_duplicates()
    for n in asked:
        own = both.loc[both["n_related"] == n, ["shift", "kind", "contestant", "value", "low", "high"]]
        names = {"value": f"r{n}", "low": f"r{n}_low", "high": f"r{n}_high"}
        frame = frame.merge(own.rename(columns=names), "left", ["shift", "kind", "contestant"])
    ranked = {kind: i for i, kind in enumerate(KINDS)} | {shift: i for i, shift in enumerate(shifts(rows))}
    order = ["shift", "kind", "contestant"]
    frame = frame.sort_values(order, key=lambda c: c.map(ranked).fillna(0) if c.name != "contestant" else c)
    frame = frame.reset_index(drop=True)
    return Table(
        name=f"{task.id}-related-numbers",
        title="Numbers behind the figure" if len(asked) > 1 else "Log-likelihood under shifts",
        caption="Log-likelihood per target (nats), mean and 95 % interval over episodes, by shift and number of "
        "related datasets. A dash: the contestant does not use them, or was not asked.",
        frame=frame,
        columns=(
            Column("contestant", "contestant"),
            Column("shift", "prompts", shift_title),
            *(Column(f"r{n}", f"{n} related", fixed, True, f"r{n}_low", f"r{n}_high") for n in asked),
        ),
        group="shift",
        folded=len(asked) > 1,
    )
