"""Tables of language models: accuracy by task, model and number of demonstrations, controls, and other scores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pandas as pd

from iclbench.core.formats import fixed, integer, slug
from iclbench.report.blocks import Column, Table, Text
from iclbench.report.language import ACCURACY, MAJORITY, SHUFFLED, LanguageResults, mean_over_tasks
from iclbench.report.sections.overview import shade

# A family with more tasks than this has a separate table, and the main table has only its mean.
_MAX_TASKS = 12
ALL_TASKS = "mean of all tasks"
# With more models, the tables of controls are folded.
_MAX_UNFOLDED_MODELS = 3
_IN_CONTEXT, _SHUFFLED_LABELS = "in context", ", shuffled labels"
_NUMBERS = ("value", "sd", "low", "high")
_ACCURACY_CAPTION = (
    "Accuracy: mean ± standard deviation over sets of demonstrations or, with one set, the 95 % interval over queries. "
    "Majority is the accuracy of the most frequent answer. A dash means not evaluated, or failed."
)
# Metric of an answer -> header of its column.
_HEADERS = {
    ACCURACY: "accuracy",
    "accuracy_per_token": "per token",
    "accuracy_per_character": "per character",
    "accuracy_per_byte": "per byte",
    "accuracy_first_token": "first token",
    "balanced_accuracy": "balanced",
    "log_likelihood": "log-likelihood",
}


def by_model(language: LanguageResults) -> list[Table]:
    """A table of tasks x contestants at the main number of demonstrations of each task, and a table per large
    family."""
    rows = language.at_main_shots(_backbone_scores(language, ACCURACY))
    rows = rows[rows["shift"] == "none"].assign(column=lambda r: r["contestant"])
    columns = {name: name for name in language.contestants if name in set(rows["column"])}
    return _by_task(
        language,
        with_majority(language, rows),
        columns,
        "language-accuracy",
        "Accuracy by task and model",
        _ACCURACY_CAPTION,
    )


def controls(language: LanguageResults) -> list[Text | Table]:
    """The controls of each model: no demonstrations, shuffled labels, repeated demonstrations."""
    accuracies = _backbone_scores(language, ACCURACY)
    is_plain = (accuracies["method"] == "") & (accuracies["shift"] == "none")
    zero_shot = accuracies[is_plain & (accuracies["n_context"] == 0)]
    main = language.at_main_shots(accuracies)
    main = main[main["n_context"] > 0]
    balanced_scores = language.at_main_shots(_backbone_scores(language, "balanced_accuracy"))
    balanced_scores = balanced_scores[
        (balanced_scores["method"] == "") & (balanced_scores["shift"] == "none") & (balanced_scores["n_context"] > 0)
    ]
    methods = main["method"].str.removeprefix("+").where(main["method"] != "", _IN_CONTEXT)
    is_shuffled = main["shift"] == SHUFFLED
    rows = pd.concat(
        [
            zero_shot.assign(column="zero-shot"),
            main.assign(column=methods.where(~is_shuffled, methods + _SHUFFLED_LABELS)),
            balanced_scores.assign(column="balanced"),
        ],
        ignore_index=True,
    )
    models = sorted(rows["model"].unique())
    blocks: list[Text | Table] = []
    for model in models:
        model_rows = rows[rows["model"] == model]
        names = set(model_rows["column"])
        if names <= {_IN_CONTEXT, "balanced"}:
            continue
        columns = {"zero-shot": "zero-shot"} if "zero-shot" in names else {}
        columns |= {name: name for name in sorted(names - {"zero-shot", "balanced"}, key=_sort_key)}
        columns |= {"balanced": "balanced accuracy, in context"} if "balanced" in names else {}
        blocks += [Text(f"{model}:")] if 1 < len(models) <= _MAX_UNFOLDED_MODELS else []
        blocks += _by_task(
            language,
            with_majority(language, model_rows),
            columns,
            f"language-controls-{slug(model)}",
            f"{model} and its controls",
            "Accuracy with demonstrations and under controls: zero-shot, shuffled labels, repeated demonstrations. "
            "Intervals as above.",
            folded=len(models) > _MAX_UNFOLDED_MODELS,
        )
    return blocks


def _sort_key(name: str) -> tuple[bool, bool, str]:
    """The sort key of a column of controls: true labels first, then plain in-context learning before methods."""
    return _SHUFFLED_LABELS in name, not name.startswith(_IN_CONTEXT), name


def scores(language: LanguageResults) -> Table | None:
    """A table with a row per task and contestant, and a column per metric of `_HEADERS`."""
    rows = language.at_main_shots(language.scores[language.scores["shift"] == "none"])
    rows = rows[rows["metric"].isin(list(_HEADERS)) & rows["kind"].eq("backbone")].assign(column=lambda r: r["metric"])
    if rows.empty:
        return None
    keys = ["family", "task", "contestant"]
    frame = _with_columns(rows[keys].drop_duplicates(), rows, keys, list(_HEADERS))
    frame = frame.sort_values(keys, ignore_index=True)
    columns = (
        _column(name, header, shaded=name != "log_likelihood") for name, header in _HEADERS.items() if name in frame
    )
    return Table(
        name="language-scores",
        title="Scores by metric",
        caption="Accuracy for each rule that selects the answer (log-probability in total, per token, per character or "
        "per byte; for greedy decoding, also the first token only), balanced accuracy and log-likelihood. Intervals as "
        "above.",
        frame=frame,
        columns=(Column("task", "task"), Column("contestant", "contestant"), *columns),
        group="task",
        folded=True,
    )


def by_shots(language: LanguageResults) -> Table | None:
    """A table with a row per task and contestant, and a column per number of demonstrations."""
    rows = _backbone_scores(language, ACCURACY)
    rows = rows[rows["shift"] == "none"]
    sizes = sorted(int(n) for n in rows["n_context"].dropna().unique())
    if sum(n > 0 for n in sizes) < 2:
        return None
    rows = rows.assign(column="n" + rows["n_context"].astype("string"))
    keys = ["family", "task", "contestant"]
    frame = _with_columns(rows[keys].drop_duplicates(), rows, keys, [f"n{n}" for n in sizes])
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
    language: LanguageResults,
    rows: pd.DataFrame,
    columns: Mapping[str, str],
    name: str,
    title: str,
    caption: str,
    folded: bool = False,
) -> list[Table]:
    """A table with a row per task and per mean of a family, and a column per value of `column`; and a table per large
    family.

    `columns` maps the values of `column` to headers.
    """
    if rows.empty:
        return []
    families = {f: [t for t in tasks if t in set(rows["task"])] for f, tasks in language.families.items()}
    families = {family: tasks for family, tasks in families.items() if tasks}
    large_families = [family for family, tasks in families.items() if len(tasks) > _MAX_TASKS]
    entries = with_means(rows, families)
    headers = columns if MAJORITY not in set(rows["column"]) else {MAJORITY: MAJORITY, **columns}

    def table(entries: pd.DataFrame, stem: str, heading: str, text: str, is_folded: bool) -> Table:
        keys = ["family", "place", "name"]
        frame = _with_columns(entries[keys].drop_duplicates(), entries, keys, list(headers))
        frame = frame.assign(shots=frame["name"].map(language.main_shots).astype("Int64"))
        frame = frame.sort_values(["place", "name"], ignore_index=True).drop(columns="place")
        accuracies = (_column(key, header, shaded=True) for key, header in headers.items() if key in frame)
        shots = (Column("shots", "demonstrations", integer, numeric=True),) if frame["shots"].notna().any() else ()
        return Table(stem, heading, text, frame, (Column("name", "task"), *accuracies, *shots), "family", is_folded)

    without_large = entries[~entries["family"].isin(large_families) | entries["task"].isna()]
    reference = f" Further tables below: {', '.join(large_families)}." if large_families else ""
    tables = [table(without_large, name, title, caption + reference, folded)]
    for family in large_families:
        family_entries = entries[entries["family"] == family]
        tables.append(table(family_entries, f"{name}-{slug(family)}", f"{title}: {family}", caption, True))
    return tables


def with_majority(language: LanguageResults, rows: pd.DataFrame) -> pd.DataFrame:
    """The rows, and the accuracy of the most frequent answer on each of their tasks."""
    majority = language.majority[language.majority["metric"] == ACCURACY]
    majority = majority[majority["task"].isin(rows["task"].unique())]
    return pd.concat([rows, majority.assign(column=MAJORITY)], ignore_index=True)


def with_means(rows: pd.DataFrame, families: Mapping[str, Sequence[str]]) -> pd.DataFrame:
    """The rows with their `name` and `place` in a table, and the means over each family and over all tasks."""
    order = {family: i for i, family in enumerate(families)}
    frames = [rows.assign(name=rows["task"], place=2 * rows["family"].map(order))]
    for family, tasks in families.items():
        if len(tasks) > 1:
            mean = mean_over_tasks(rows, tasks, ["column"])
            frames.append(mean.assign(family=family, name=f"mean of {family}", place=2 * order[family] + 1))
    if len(families) > 1:
        all_tasks = [task for tasks in families.values() for task in tasks]
        frames.append(
            mean_over_tasks(rows, all_tasks, ["column"]).assign(family=ALL_TASKS, name=ALL_TASKS, place=2 * len(order))
        )
    return pd.concat([frame for frame in frames if len(frame)], ignore_index=True).reindex(
        columns=["family", "task", "name", "place", "column", *_NUMBERS]
    )


def _backbone_scores(language: LanguageResults, name: str) -> pd.DataFrame:
    rows = language.scores
    return rows[(rows["metric"] == name) & (rows["kind"] == "backbone")]


def _with_columns(frame: pd.DataFrame, rows: pd.DataFrame, keys: list[str], names: Sequence[str]) -> pd.DataFrame:
    """The frame with columns for each of `names`: the value, standard deviation and interval of the rows that have this
    name in `column`."""
    for name in names:
        named_rows = rows[rows["column"] == name]
        if named_rows.empty:
            continue
        new_names = {number: name if number == "value" else f"{name} {number}" for number in _NUMBERS}
        frame = frame.merge(named_rows[[*keys, *_NUMBERS]].rename(columns=new_names), "left", keys)
    return frame


def _column(key: str, header: str, shaded: bool) -> Column:
    return Column(key, header, fixed, True, f"{key} low", f"{key} high", shade if shaded else None, spread=f"{key} sd")
