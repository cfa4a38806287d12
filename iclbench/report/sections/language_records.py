"""Records of language models: sample answers, notes on answers, prompt sets, and costs of cells."""

from __future__ import annotations

import pandas as pd

from iclbench.core.formats import integer
from iclbench.core.metrics import metric
from iclbench.report.blocks import Column, Table
from iclbench.report.language import ACCURACY, LanguageResults

# Number of characters at the end of a prompt that a table shows.
_END_LENGTH = 90


def samples(language: LanguageResults) -> Table | None:
    """A table of the first answers of every contestant on every task."""
    rows = language.answers
    if rows.empty:
        return None
    frame = rows.assign(
        end=rows["prompt"].map(prompt_end), mark=rows["correct"].map({True: "right", False: "wrong"}).astype("string")
    ).sort_values(["task", "episode", "contestant"], ignore_index=True)
    return Table(
        name="language-samples",
        title="Sample answers",
        caption="The first queries of each task, with the end of the prompt (⏎ is a line break), the right answer and "
        "the answer of the model.",
        frame=frame[["task", "contestant", "episode", "end", "target", "predicted", "mark", "prompt_set"]],
        columns=(
            Column("task", "task"),
            Column("contestant", "contestant"),
            Column("end", "end of the prompt"),
            Column("target", "right answer"),
            Column("predicted", "answer"),
            Column("mark", "right or wrong"),
        ),
        group="task",
        folded=True,
    )


def prompt_end(prompt: str) -> str:
    """The end of a prompt on one line.

    >>> prompt_end("example:a->A\\nexample:b->")
    'example:a->A ⏎ example:b->'
    """
    flat = prompt.replace("\n", " ⏎ ")
    return flat if len(flat) <= _END_LENGTH else "… " + flat[-_END_LENGTH:].lstrip()


def notes(language: LanguageResults) -> Table | None:
    """A table of the notes on the answers of cells: number of passes, dropped demonstrations, and majority answer."""
    cells = language.cells
    keys = ["family", "task", "contestant", "n_context", "shift", "reason"]
    with_note = cells[cells["reason"].notna() & (cells["metric"] == ACCURACY)]
    frame = with_note.groupby(keys, as_index=False, dropna=False).agg(cells=("prompt_set", "nunique"))
    if frame.empty:
        return None
    return Table(
        name="language-notes",
        title="Notes on answers",
        caption="Number of passes and how it was chosen, demonstrations dropped from long prompts, and the majority "
        "answer, with the number of cells.",
        frame=frame.sort_values(keys, ignore_index=True),
        columns=(
            Column("task", "task"),
            Column("contestant", "contestant"),
            Column("n_context", "demonstrations", integer, numeric=True),
            Column("shift", "shift"),
            Column("reason", "note"),
            Column("cells", "cells", integer, numeric=True),
        ),
        group="task",
        folded=True,
    )


def prompt_sets(language: LanguageResults) -> Table:
    """A table of prompt sets, with a row per task, number of demonstrations and shift."""
    keys = ["family", "task", "n_context", "shift", "evaluator", "card"]
    cells = language.cells
    frame = cells.groupby(keys, as_index=False, dropna=False).agg(
        seeds=("demo_seed", "nunique"),
        orders=("order", "nunique"),
        prompt_sets=("prompt_set", "nunique"),
        episodes=("n_episodes", "max"),
        contestants=("contestant", "nunique"),
    )
    return Table(
        name="language-prompt-sets",
        title="Prompt sets",
        caption="Prompt sets by task, number of demonstrations and shift. Answers are chosen among candidates by "
        "log-probability, or decoded greedily.",
        frame=frame.sort_values(keys, ignore_index=True),
        columns=(
            Column("task", "task"),
            Column("family", "family"),
            Column("n_context", "demonstrations", integer, numeric=True),
            Column("shift", "shift"),
            Column("evaluator", "answers"),
            Column("episodes", "queries", integer, numeric=True),
            Column("seeds", "sets of demonstrations", integer, numeric=True),
            Column("orders", "orders", integer, numeric=True),
            Column("contestants", "contestants", integer, numeric=True),
            Column("card", "card"),
        ),
        group="family",
        folded=True,
    )


def costs(language: LanguageResults) -> Table | None:
    """A table of the seconds and bytes of a cell by contestant, number of demonstrations and machine."""
    if language.costs.empty:
        return None
    keys = ["contestant", "n_points", "device", "threads"]
    by_task = language.costs.groupby([*keys, "task", "metric"], as_index=False, dropna=False)["value"].mean()
    wide = by_task.pivot_table("value", index=[*keys, "task"], columns="metric").reset_index()
    wide = wide.reindex(columns=[*keys, "task", "seconds", "bytes"])
    frame = wide.groupby(keys, as_index=False, dropna=False).agg(
        tasks=("task", "nunique"), seconds=("seconds", "mean"), bytes=("bytes", "max")
    )
    columns = (
        Column("contestant", "contestant"),
        Column("n_points", "demonstrations", integer, numeric=True),
        Column("tasks", "tasks", integer, numeric=True),
        Column("seconds", "seconds per cell", metric("seconds").show, numeric=True),
        Column("bytes", "peak memory", metric("bytes").show, numeric=True),
        Column("device", "device"),
        Column("threads", "threads", integer, numeric=True),
    )
    return Table(
        name="language-costs",
        title="Costs",
        caption="Seconds per cell (one set of demonstrations; mean over tasks) and highest additional peak memory, "
        "which depend on the machine.",
        frame=frame,
        columns=tuple(c for c in columns if pd.Series(frame[c.key]).notna().any()),
        group="contestant",
        folded=True,
    )
