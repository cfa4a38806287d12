"""Comparisons of language models: methods against plain in-context learning, and our accuracies against published
ones."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pandas as pd

from iclbench.core.formats import fixed, integer, signed
from iclbench.report.blocks import Column, Table
from iclbench.report.language import ACCURACY, SHUFFLED, LanguageResults, mean_over_tasks
from iclbench.report.sections.language_tables import ALL_TASKS
from iclbench.report.sections.overview import shade
from iclbench.report.titles import source

# Longer tables are folded.
_MAX_UNFOLDED_ROWS = 60
_FIRST_TOKEN = "accuracy_first_token"
_KEYS = ["task", "contestant", "n_context"]
_GAINS = (
    "Accuracy with each method minus the accuracy of plain in-context learning on the same queries, with paired 95 % "
    "intervals, and both accuracies after demonstrations with shuffled labels."
)


def gains(language: LanguageResults) -> Table | None:
    """A table of the gains of methods by task, at the task's number of demonstrations, and their means over tasks."""
    rows = language.at_main_shots(language.gains)
    rows = rows[rows["shift"] == "none"]
    if rows.empty:
        return None
    accuracies = language.scores[language.scores["metric"] == ACCURACY]
    frame = rows[["family", *_KEYS, "model", "value", "low", "high"]].rename(columns={"value": "gain"})
    for name, shift in (("none", "none"), ("shuffled", SHUFFLED)):
        shift_scores = accuracies[accuracies["shift"] == shift]
        with_method = shift_scores[[*_KEYS, "value"]].rename(columns={"value": f"{name}_method"})
        plain = shift_scores[shift_scores["method"] == ""][["task", "model", "n_context", "value"]]
        plain = plain.rename(columns={"value": f"{name}_plain"})
        frame = frame.merge(with_method, "left", _KEYS).merge(plain, "left", ["task", "model", "n_context"])
    frame = pd.concat([frame.sort_values(["family", *_KEYS]), _mean_gains(rows)], ignore_index=True)
    verdict = pd.Series("not different", index=frame.index)
    verdict = verdict.mask(frame["low"] > 0, "better").mask(frame["high"] < 0, "worse")
    frame = frame.assign(verdict=verdict.where(frame["low"].notna()))
    columns = (
        Column("task", "task"),
        Column("contestant", "contestant"),
        Column("n_context", "demonstrations", integer, numeric=True),
        Column("none_plain", "plain", fixed, numeric=True),
        Column("none_method", "with the method", fixed, numeric=True),
        Column("gain", "gain", signed, True, "low", "high"),
        Column("verdict", "verdict"),
        Column("shuffled_plain", "labels shuffled: plain", fixed, numeric=True),
        Column("shuffled_method", "labels shuffled: with the method", fixed, numeric=True),
    )
    return Table(
        name="language-gains",
        title="Methods against plain in-context learning",
        caption=_GAINS,
        frame=frame,
        columns=tuple(c for c in columns if frame[c.key].notna().any()),
        group="task",
        folded=len(frame) > _MAX_UNFOLDED_ROWS,
    )


def _mean_gains(rows: pd.DataFrame) -> pd.DataFrame:
    """The mean gain of each method with several tasks, over all of its tasks. The column `task` contains the number of
    tasks."""
    means, n_tasks = [], rows["task"].nunique()
    for contestant, method_rows in rows.groupby("contestant"):
        tasks = sorted(method_rows["task"].unique())
        if len(tasks) > 1:
            mean = mean_over_tasks(method_rows, tasks, ["contestant"]).rename(columns={"value": "gain"})
            name = ALL_TASKS if len(tasks) == n_tasks else f"mean of its {len(tasks)} tasks"
            means.append(mean.assign(task=name, contestant=contestant))
    return pd.concat(means, ignore_index=True) if means else pd.DataFrame(columns=["task", "contestant", "gain"])


def published(language: LanguageResults) -> list[Table]:
    """A table of contestants x tasks with our accuracies, followed by published ones, and a table of the sources."""
    members = {
        str(name): members_of(str(name), rows, language) for name, rows in language.published_rows.groupby("task")
    }
    evaluated_tasks = {name: tasks for name, tasks in members.items() if tasks}
    theirs = language.published_rows[language.published_rows["task"].isin(list(evaluated_tasks))]
    ours = [
        mean_over_tasks(rows, tasks, ["contestant"]).assign(task=name, n_context=n)
        for name, tasks in evaluated_tasks.items()
        for n, rows in _our_scores(language, name, theirs)
    ]
    if not any(len(means) for means in ours):
        return []
    rows = pd.concat([pd.concat(ours).assign(origin="ours"), theirs.assign(origin="published")], ignore_index=True)
    # If a task has several published numbers of demonstrations, each of them has a row.
    has_several_counts = (
        rows.groupby("task")["n_context"].transform("nunique").groupby(rows["contestant"]).transform("max") > 1
    )
    rows["n"] = rows["n_context"].where(has_several_counts).astype("Int64")
    keys = ["origin", "contestant", "n"]
    frame = rows[keys].drop_duplicates().sort_values(keys, ignore_index=True)
    for name in evaluated_tasks:
        new_names = {"value": name, "low": f"{name} low", "high": f"{name} high"}
        task_rows = rows[rows["task"] == name].drop_duplicates(keys)
        frame = frame.merge(task_rows[[*keys, *new_names]].rename(columns=new_names), "left", keys)
    headers = {
        name: name if tasks == [name] else f"{name} ({len(tasks)} tasks)" for name, tasks in evaluated_tasks.items()
    }
    our_data = {name: _our_data(language, tasks) for name, tasks in evaluated_tasks.items()}
    theirs = theirs.assign(our_data=theirs["task"].map(our_data).astype("string"))
    with_other_data = theirs.loc[theirs["data"].ne(theirs["our_data"]).fillna(False), "task"].unique()
    headers |= {name: f"{headers[name]}, other data" for name in with_other_data}
    columns = [
        Column(name, header, fixed, True, f"{name} low", f"{name} high", shade) for name, header in headers.items()
    ]
    n_column = (Column("n", "n", integer, numeric=True),) if frame["n"].notna().any() else ()
    table = Table(
        name="language-published",
        title="Published results",
        caption="Accuracy after n demonstrations, ours (with 95 % intervals) and published. The published numbers are "
        "for other samples of queries and demonstrations. Groups of tasks: the mean over the evaluated tasks.",
        frame=frame,
        columns=(Column("contestant", "contestant"), *n_column, Column("origin", "origin"), *columns),
        group="origin",
    )
    return [table, _source_table(theirs)]


def _our_scores(language: LanguageResults, name: str, theirs: pd.DataFrame) -> Iterator[tuple[float, pd.DataFrame]]:
    """Our scores at each published number of demonstrations of a task. If the published number is missing (NaN), the
    task's main number is used."""
    rows = language.scores[(language.scores["kind"] == "backbone") & (language.scores["shift"] == "none")]
    complete, first_token = (rows[rows["metric"] == metric] for metric in (ACCURACY, _FIRST_TOKEN))
    # The accuracy on the first token is listed only if it differs. It does not differ if all answers have one token.
    paired_scores = first_token.merge(complete, on=_KEYS, suffixes=("", "_complete"))
    differing_contestants = paired_scores.loc[
        paired_scores["value"] != paired_scores["value_complete"], "contestant"
    ].unique()
    first_token = first_token[first_token["contestant"].isin(differing_contestants)]
    scores = pd.concat([complete, first_token.assign(contestant=first_token["contestant"] + ", first token")])
    for n in theirs.loc[theirs["task"] == name, "n_context"].unique():
        yield (np.nan, language.at_main_shots(scores)) if pd.isna(n) else (float(n), scores[scores["n_context"] == n])


def _our_data(language: LanguageResults, tasks: Sequence[str]) -> str:
    """The data sets of our evaluations of these tasks; "not stated" if no row contains them."""
    rows = language.rows[language.rows["task"].isin(tasks) & language.rows["kind"].ne("published")]
    names = rows["data"].dropna().unique()
    return ", ".join(sorted(map(str, names))) or "not stated"


def _source_table(theirs: pd.DataFrame) -> Table:
    keys = [*_KEYS, "value", "data", "our_data", "evaluator", "reason"]
    return Table(
        name="language-published-sources",
        title="Sources of published numbers",
        caption="Published numbers of the evaluated tasks, with their sources.",
        frame=theirs.sort_values(_KEYS, ignore_index=True)[keys],
        columns=(
            Column("task", "task"),
            Column("contestant", "contestant"),
            Column("n_context", "demonstrations", integer, numeric=True),
            Column("value", "accuracy", fixed, numeric=True),
            *(
                (Column("data", "published data"), Column("our_data", "our data"))
                if theirs["data"].notna().any()
                else ()
            ),
            Column("evaluator", "answers"),
            Column("reason", "source", source),
        ),
        group="task",
        folded=True,
    )


def members_of(name: str, published: pd.DataFrame, language: LanguageResults) -> list[str]:
    """The evaluated tasks of a published number: the task with this name, the members of the suite that the published
    rows list, or the subsets of the card."""
    tasks = [task for members in language.families.values() for task in members]
    if name in tasks:
        return [name]
    if (listed_tasks := published["mean_of"].dropna()).size:
        return [task for task in str(listed_tasks.iloc[0]).split(", ") if task in tasks]
    return [task for task in tasks if task.startswith(f"{name}-")]
