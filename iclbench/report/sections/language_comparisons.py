"""Language models compared: methods with plain in-context learning, query by query, and ours with published numbers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pandas as pd

from iclbench.core.formats import fixed, integer, signed
from iclbench.report.blocks import Column, Table
from iclbench.report.language import HEADLINE, SHUFFLED, Language, mean_over_tasks
from iclbench.report.sections.language_tables import ALL
from iclbench.report.sections.overview import shade
from iclbench.report.titles import source

# A table of more rows is folded.
_UNFOLDED = 60
FIRST_TOKEN = "accuracy_first_token"
_WHO = ["task", "contestant", "n_context"]
_DATA = {"data": "published data", "our_data": "our data"}
_GAINS = (
    "Accuracy with each method minus that of plain in-context learning on the same queries, with paired 95 % "
    "intervals, and both accuracies after demonstrations with shuffled labels."
)


def gains(found: Language) -> Table | None:
    """A row per task and method at the task's number of demonstrations, and the mean over tasks."""
    rows = found.at_main_shots(found.gains)
    rows = rows[rows["shift"] == "none"]
    if rows.empty:
        return None
    every = found.scores[found.scores["metric"] == HEADLINE]
    frame = rows[["family", *_WHO, "model", "value", "low", "high"]].rename(columns={"value": "gain"})
    for name, shift in (("none", "none"), ("shuffled", SHUFFLED)):
        own = every[every["shift"] == shift]
        with_method = own[[*_WHO, "value"]].rename(columns={"value": f"{name}_method"})
        plain = own[own["method"] == ""][["task", "model", "n_context", "value"]]
        plain = plain.rename(columns={"value": f"{name}_plain"})
        frame = frame.merge(with_method, "left", _WHO).merge(plain, "left", ["task", "model", "n_context"])
    means = _means(rows)
    frame = pd.concat([frame.sort_values(["family", *_WHO]), means], ignore_index=True)
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
        folded=len(frame) > _UNFOLDED,
    )


def _means(rows: pd.DataFrame) -> pd.DataFrame:
    """The gain of every method over all of its tasks, where there are several; how many, where others have more."""
    parts, every = [], rows["task"].nunique()
    for contestant, own in rows.groupby("contestant"):
        tasks = sorted(own["task"].unique())
        if len(tasks) > 1:
            mean = mean_over_tasks(own, tasks, ["contestant"]).rename(columns={"value": "gain"})
            name = ALL if len(tasks) == every else f"mean of its {len(tasks)} tasks"
            parts.append(mean.assign(task=name, contestant=contestant))
    return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame(columns=["task", "contestant", "gain"])


def published(found: Language) -> list[Table]:
    """Contestants x tasks that have published numbers: ours first, theirs below; and where theirs come from."""
    members = {str(name): members_of(str(name), own, found) for name, own in found.published.groupby("task")}
    known = {name: tasks for name, tasks in members.items() if tasks}
    theirs = found.published[found.published["task"].isin(list(known))]
    ours = [
        mean_over_tasks(own, tasks, ["contestant"]).assign(task=name, n_context=n)
        for name, tasks in known.items()
        for n, own in _asked(found, name, theirs)
    ]
    if not any(len(own) for own in ours):
        return []
    both = pd.concat([pd.concat(ours).assign(whose="ours"), theirs.assign(whose="published")], ignore_index=True)
    # The number of demonstrations tells rows apart where a task has several published ones.
    several = both.groupby("task")["n_context"].transform("nunique").groupby(both["contestant"]).transform("max") > 1
    both["n"] = both["n_context"].where(several).astype("Int64")
    keys = ["whose", "contestant", "n"]
    frame = both[keys].drop_duplicates().sort_values(keys, ignore_index=True)
    for name in known:
        renamed = {"value": name, "low": f"{name} low", "high": f"{name} high"}
        own = both[both["task"] == name].drop_duplicates(keys)
        frame = frame.merge(own[[*keys, *renamed]].rename(columns=renamed), "left", keys)
    headers = {name: name if tasks == [name] else f"{name} ({len(tasks)} tasks)" for name, tasks in known.items()}
    said = {name: _data(found, tasks) for name, tasks in known.items()}
    theirs = theirs.assign(our_data=theirs["task"].map(said).astype("string"))
    other = theirs.loc[theirs["data"].ne(theirs["our_data"]).fillna(False), "task"].unique()
    headers |= {name: f"{headers[name]}, other data" for name in other}
    columns = [
        Column(name, header, fixed, True, f"{name} low", f"{name} high", shade) for name, header in headers.items()
    ]
    numbers = (Column("n", "n", integer, numeric=True),) if frame["n"].notna().any() else ()
    side = Table(
        name="language-published",
        title="Published results",
        caption="Accuracy after n demonstrations, ours (with 95 % intervals) and published, on other samples of "
        "queries and demonstrations. Groups of tasks: the mean over the evaluated tasks.",
        frame=frame,
        columns=(Column("contestant", "contestant"), *numbers, Column("whose", "origin"), *columns),
        group="whose",
    )
    return [side, _sources(theirs)]


def _asked(found: Language, name: str, theirs: pd.DataFrame) -> Iterator[tuple[float, pd.DataFrame]]:
    """Our scores at every published number of demonstrations of a task, or at the tasks' own where none is printed."""
    rows = found.scores[(found.scores["kind"] == "backbone") & (found.scores["shift"] == "none")]
    whole, first = (rows[rows["metric"] == metric] for metric in (HEADLINE, FIRST_TOKEN))
    # Where all answers are one token both are the same.
    both = first.merge(whole, on=_WHO, suffixes=("", "_whole"))
    others = both.loc[both["value"] != both["value_whole"], "contestant"].unique()
    first = first[first["contestant"].isin(others)]
    scores = pd.concat([whole, first.assign(contestant=first["contestant"] + ", first token")])
    for n in theirs.loc[theirs["task"] == name, "n_context"].unique():
        yield (np.nan, found.at_main_shots(scores)) if pd.isna(n) else (float(n), scores[scores["n_context"] == n])


def _data(found: Language, tasks: Sequence[str]) -> str:
    """The data of our examples of these tasks, where known."""
    own = found.rows[found.rows["task"].isin(tasks) & found.rows["kind"].ne("published")]
    said = own["data"].dropna().unique()
    return ", ".join(sorted(map(str, said))) or "not said"


def _sources(theirs: pd.DataFrame) -> Table:
    order = ["task", "contestant", "n_context"]
    shown = [*order, "value", "data", "our_data", "evaluator", "reason"]
    return Table(
        name="language-published-sources",
        title="Sources of published numbers",
        caption="Published numbers of the evaluated tasks, with their sources.",
        frame=theirs.sort_values(order, ignore_index=True)[shown],
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


def members_of(name: str, published: pd.DataFrame, found: Language) -> list[str]:
    """Our tasks that published numbers speak of: the task of that name; the members of the suite, which its rows name;
    or the subsets of the card."""
    tasks = [task for own in found.families.values() for task in own]
    if name in tasks:
        return [name]
    if (named := published["mean_of"].dropna()).size:
        return [task for task in str(named.iloc[0]).split(", ") if task in tasks]
    return [task for task in tasks if task.startswith(f"{name}-")]
