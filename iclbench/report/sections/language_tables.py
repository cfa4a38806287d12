"""Tables of the section on language models: accuracy by task and model, controls, and kinds of scores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pandas as pd

from iclbench.core.formats import fixed, integer, slug
from iclbench.report.blocks import Column, Table, Text
from iclbench.report.language import HEADLINE, MAJORITY, SHUFFLED, Language, mean_over_tasks
from iclbench.report.sections.overview import shade

# A family of more tasks is shown by its mean; its tasks have a table of their own.
AT_MOST = 12
ALL = "mean of all tasks"
# Of more models than these the tables of controls are folded.
_OPEN = 3
_PLAIN, _WRONG = "in context", ", shuffled labels"
_PARTS = ("value", "sd", "low", "high")
_READING = (
    "Accuracy: mean ± standard deviation over sets of demonstrations, or the 95 % interval over queries with one set. "
    "Majority: always the most frequent answer; a dash: not evaluated, or failed."
)
# The scores by which an answer can be chosen or judged, as they are called.
SCORES = {
    HEADLINE: "accuracy",
    "accuracy_per_token": "per token",
    "accuracy_per_character": "per character",
    "accuracy_per_byte": "per byte",
    "accuracy_first_token": "first token",
    "balanced_accuracy": "balanced",
    "log_likelihood": "log-likelihood",
}


def by_model(found: Language) -> list[Table]:
    """Tasks x contestants at the number of demonstrations of each task, and a folded table per long family."""
    rows = found.at_main_shots(_backbones(found, HEADLINE))
    rows = rows[rows["shift"] == "none"].assign(column=lambda r: r["contestant"])
    columns = {name: name for name in found.contestants if name in set(rows["column"])}
    return _by_task(
        found, with_majority(found, rows), columns, "language-accuracy", "Accuracy by task and model", _READING
    )


def controls(found: Language) -> list[Text | Table]:
    """The controls of every model: no demonstrations, wrong labels, repetition."""
    every = _backbones(found, HEADLINE)
    zero = every[(every["n_context"] == 0) & (every["method"] == "") & (every["shift"] == "none")]
    main = found.at_main_shots(every)
    main = main[main["n_context"] > 0]
    balanced = found.at_main_shots(_backbones(found, "balanced_accuracy"))
    balanced = balanced[(balanced["method"] == "") & (balanced["shift"] == "none") & (balanced["n_context"] > 0)]
    asked = main["method"].str.removeprefix("+").where(main["method"] != "", _PLAIN)
    wrong = main["shift"] == SHUFFLED
    rows = pd.concat(
        [
            zero.assign(column="zero-shot"),
            main.assign(column=asked.where(~wrong, asked + _WRONG)),
            balanced.assign(column="balanced"),
        ],
        ignore_index=True,
    )
    models = sorted(rows["model"].unique())
    blocks: list[Text | Table] = []
    for model in models:
        own = rows[rows["model"] == model]
        seen = set(own["column"])
        if seen <= {_PLAIN, "balanced"}:
            continue
        named = sorted(seen - {"zero-shot", "balanced"}, key=lambda n: (_WRONG in n, not n.startswith(_PLAIN), n))
        order = ["zero-shot", *named]
        columns = {name: name for name in order if name in seen}
        columns |= {"balanced": "balanced accuracy, in context"} if "balanced" in seen else {}
        blocks += [Text(f"{model}:")] if 1 < len(models) <= _OPEN else []
        blocks += _by_task(
            found,
            with_majority(found, own),
            columns,
            f"language-controls-{slug(model)}",
            f"{model} and its controls",
            "Accuracy with demonstrations and of its controls: zero-shot, shuffled labels, repeated demonstrations. "
            "Intervals as above.",
            folded=len(models) > _OPEN,
        )
    return blocks


def scores(found: Language) -> Table | None:
    """A row per task and contestant, a column per kind of score."""
    rows = found.at_main_shots(found.scores[found.scores["shift"] == "none"])
    rows = rows[rows["metric"].isin(list(SCORES)) & rows["kind"].eq("backbone")].assign(column=lambda r: r["metric"])
    if rows.empty:
        return None
    keys = ["family", "task", "contestant"]
    frame = _spread(rows[keys].drop_duplicates(), rows, keys, list(SCORES))
    frame = frame.sort_values(keys, ignore_index=True)
    shown = (_column(name, SCORES[name], shaded=name != "log_likelihood") for name in SCORES if name in frame)
    return Table(
        name="language-scores",
        title="Scores by name",
        caption="Accuracy by the rule that selects the answer (log-probability in total, per token, per character or "
        "per byte; greedy: first token), balanced accuracy and log-likelihood. Intervals as above.",
        frame=frame,
        columns=(Column("task", "task"), Column("contestant", "contestant"), *shown),
        group="task",
        folded=True,
    )


def by_shots(found: Language) -> Table | None:
    """A row per task and contestant, a column per number of demonstrations."""
    rows = _backbones(found, HEADLINE)
    rows = rows[rows["shift"] == "none"]
    sizes = sorted(int(n) for n in rows["n_context"].dropna().unique())
    if sum(n > 0 for n in sizes) < 2:
        return None
    rows = rows.assign(column="n" + rows["n_context"].astype("string"))
    keys = ["family", "task", "contestant"]
    frame = _spread(rows[keys].drop_duplicates(), rows, keys, [f"n{n}" for n in sizes])
    return Table(
        name="language-shots",
        title="Numbers behind the figure",
        caption="Accuracy after n demonstrations. Intervals as above.",
        frame=frame.sort_values(keys, ignore_index=True),
        columns=(
            Column("task", "task"),
            Column("contestant", "contestant"),
            *(_column(f"n{n}", f"n = {n}", shaded=True) for n in sizes),
        ),
        group="task",
        folded=True,
    )


def _by_task(
    found: Language,
    rows: pd.DataFrame,
    columns: Mapping[str, str],
    name: str,
    title: str,
    caption: str,
    folded: bool = False,
) -> list[Table]:
    """A row per task, the mean of every family, a column per value of `column`; long families fold into own tables."""
    if rows.empty:
        return []
    asked = {f: [t for t in tasks if t in set(rows["task"])] for f, tasks in found.families.items()}
    asked = {family: tasks for family, tasks in asked.items() if tasks}
    long = [family for family, tasks in asked.items() if len(tasks) > AT_MOST]
    entries = with_means(rows, asked)
    short = entries[~entries["family"].isin(long) | entries["task"].isna()]
    shown = columns if MAJORITY not in set(rows["column"]) else {MAJORITY: MAJORITY, **columns}

    def table(own: pd.DataFrame, stem: str, heading: str, more: str, closed: bool) -> Table:
        keys = ["family", "place", "name"]
        frame = _spread(own[keys].drop_duplicates(), own, keys, list(shown))
        frame = frame.assign(shots=frame["name"].map(found.shots).astype("Int64"))
        frame = frame.sort_values(["place", "name"], ignore_index=True).drop(columns="place")
        written = (_column(key, header, shaded=True) for key, header in shown.items() if key in frame)
        numbers = (Column("shots", "demonstrations", integer, numeric=True),) if frame["shots"].notna().any() else ()
        return Table(stem, heading, more, frame, (Column("name", "task"), *written, *numbers), "family", closed)

    more = f" Further tables below: {', '.join(long)}." if long else ""
    tables = [table(short, name, title, caption + more, folded)]
    for family in long:
        own = entries[entries["family"] == family]
        tables.append(table(own, f"{name}-{slug(family)}", f"{title}: {family}", caption, True))
    return tables


def with_majority(found: Language, rows: pd.DataFrame) -> pd.DataFrame:
    """The rows, and on each of their tasks what the most frequent answer gets."""
    common = found.majority[found.majority["metric"] == HEADLINE]
    common = common[common["task"].isin(rows["task"].unique())]
    return pd.concat([rows, common.assign(column=MAJORITY)], ignore_index=True)


def with_means(rows: pd.DataFrame, families: Mapping[str, Sequence[str]]) -> pd.DataFrame:
    """The rows with their name and place in a table, and the means over families and over everything."""
    order = {family: i for i, family in enumerate(families)}
    parts = [rows.assign(name=rows["task"], place=2 * rows["family"].map(order))]
    for family, tasks in families.items():
        if len(tasks) > 1:
            mean = mean_over_tasks(rows, tasks, ["column"])
            parts.append(mean.assign(family=family, name=f"mean of {family}", place=2 * order[family] + 1))
    if len(families) > 1:
        every = [task for tasks in families.values() for task in tasks]
        parts.append(mean_over_tasks(rows, every, ["column"]).assign(family=ALL, name=ALL, place=2 * len(order)))
    return pd.concat([part for part in parts if len(part)], ignore_index=True).reindex(
        columns=["family", "task", "name", "place", "column", *_PARTS]
    )


def _backbones(found: Language, name: str) -> pd.DataFrame:
    rows = found.scores
    return rows[(rows["metric"] == name) & (rows["kind"] == "backbone")]


def _spread(frame: pd.DataFrame, rows: pd.DataFrame, keys: list[str], names: Sequence[str]) -> pd.DataFrame:
    """The frame with the value of every `column` in a column of its own, and its spread and ends."""
    for name in names:
        own = rows[rows["column"] == name]
        if own.empty:
            continue
        renamed = {part: name if part == "value" else f"{name} {part}" for part in _PARTS}
        frame = frame.merge(own[[*keys, *_PARTS]].rename(columns=renamed), "left", keys)
    return frame


def _column(key: str, header: str, shaded: bool) -> Column:
    return Column(key, header, fixed, True, f"{key} low", f"{key} high", shade if shaded else None, spread=f"{key} sd")
