"""Published numbers next to our numbers."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle

import numpy as np
import pandas as pd

from iclbench.analysis import accuracies
from iclbench.analysis.evaluators import is_test, meaning
from iclbench.analysis.target_scores import over_all_episodes
from iclbench.core.formats import integer, number, plural, signed, slug
from iclbench.core.metrics import metric
from iclbench.report.blocks import Column, Figure, Section, Table, Text
from iclbench.report.data import Results, Slice
from iclbench.report.figures import dots
from iclbench.report.style import INK, STRONG, Look
from iclbench.report.titles import ADJUSTED_NOTE, paper, shift_title, source
from iclbench.tables.evaluators import MAIN_ACCURACY

# Columns by which a published number is matched with our number.
_KEYS = ["contestant", "shift", "test", "metric", "n_context", "n_related"]
_OTHER_SETTINGS = "Numbers of other presets or data are not expected to agree."


def section(task: Slice) -> Section | None:
    """The published numbers of the task next to our numbers at this preset, and a line per paper on numbers without a
    match."""
    numbers = comparison(task)
    if numbers is None:
        return None
    frame = numbers.dropna(subset="ours").reset_index(drop=True)
    table = Table(
        name=f"{task.id}-published",
        title=f"{task.task}: published results",
        caption=f"Published numbers and ours at preset {task.preset}. {_OTHER_SETTINGS}{_adjusted_note(frame)}",
        frame=frame,
        columns=_columns(frame),
        notes=_sources(frame),
    )
    tables = (table,) if len(frame) else ()
    texts = _missing_texts([numbers.assign(task=task.task)])
    return Section(f"{task.id}-published", "Published results", (*tables, *texts), rules=("Published results",))


def all_tasks(results: Results) -> Section | None:
    """The published numbers of all tasks that match one of our numbers at any preset, next to our numbers."""
    frames = [rows.assign(task=task.task) for task in results.slices if (rows := comparison(task)) is not None]
    measured_rows = pd.concat(frames, ignore_index=True).dropna(subset="ours") if frames else pd.DataFrame()
    if measured_rows.empty:
        return None
    measured_rows = measured_rows.drop_duplicates(
        [*_KEYS, "task", "published_preset", "our_preset", "published", "reason"]
    )
    frame = measured_rows.sort_values(["task", *_KEYS, "published_preset", "our_preset"], ignore_index=True)
    frame = frame[["task", *(name for name in frame.columns if name != "task")]]
    table = Table(
        name="published",
        title="Published results",
        caption=f"Published numbers and ours for the same task and model. {_OTHER_SETTINGS}{_adjusted_note(frame)}",
        frame=frame,
        columns=(Column("task", "task"), *_columns(frame)),
        group="task",
        notes=_sources(frame),
    )
    figures = (_figure(str(task), str(name), rows) for (task, name), rows in frame.groupby(["task", "metric"]))
    return Section(
        "published", "Published results", (*figures, table, *_missing_texts(frames)), rules=("Published results",)
    )


def _missing_texts(frames: Sequence[pd.DataFrame]) -> tuple[Text, ...]:
    """A text with a line per paper on its numbers without a match in any frame; empty if all numbers have a match."""
    rows = pd.concat(frames, ignore_index=True).assign(paper=lambda all_rows: all_rows["reason"].map(paper))
    keys = ["paper", "task", "published_preset", "published_run", *_KEYS]
    counts = rows.groupby(keys, dropna=False, sort=False)["ours"].count().reset_index()
    missing = counts[counts["ours"].eq(0)]
    items = []
    for name, numbers in missing.groupby("paper", sort=False):
        models, tasks = (", ".join(sorted(set(numbers[column].astype(str)))) for column in ("contestant", "task"))
        items.append(f"{name}: {plural(len(numbers), 'number')} of {models} on {tasks}.")
    return (Text("Published numbers that were not measured here:", tuple(items)),) if items else ()


def _adjusted_note(frame: pd.DataFrame) -> str:
    """A sentence that explains ceiling-adjusted numbers; empty if the frame has none."""
    return f" {ADJUSTED_NOTE}" if frame["adjusted"].notna().any() else ""


def _figure(task: str, name: str, frame: pd.DataFrame) -> Figure:
    """A figure of one metric with a panel per shift, and published numbers and ours in one row per contestant and
    size."""
    row = frame["contestant"].astype(str)
    for key, template in (("test", "{}"), ("n_context", "n = {}"), ("n_related", "{} related")):
        row += frame[key].map(lambda value, template=template: "" if pd.isna(value) else ", " + template.format(value))
    shared = frame.assign(panel=frame["shift"].map(shift_title), row=row, part="mean", note=row)

    def series_of(name: str, contestant: str | pd.Series, run: pd.Series) -> pd.DataFrame:
        ends = {end: shared[f"{name}_{end}"] for end in ("low", "high")}
        return shared.assign(contestant=contestant, run=run, value=shared[name], **ends)

    their_data, our_data = (
        (" (" + shared[column] + ")").where(shared["other_data"], "") for column in ("published_data", "our_data")
    )
    for suffix in ("", "_low", "_high"):
        shared[f"ours{suffix}"] = shared[f"adjusted{suffix}"].fillna(shared[f"ours{suffix}"])
    theirs = series_of("published", "published" + their_data, shared["published_run"])
    ours = series_of("ours", "ours, " + shared["our_preset"] + our_data, shared["run"])
    data = pd.concat([theirs, ours], ignore_index=True)[dots.COLUMNS].drop_duplicates(["panel", "row", "contestant"])
    series = list(dict.fromkeys(data["contestant"]))
    looks = {label: Look(colour) for label, colour in zip(series, cycle((INK, *STRONG)), strict=False)}
    measure = metric(name)
    numbers = data[["value", "low", "high"]].to_numpy(float)
    low, high = float(np.nanmin(numbers)), float(np.nanmax(numbers))
    log, margin = measure.logarithmic and low > 0, 0.05 * (high - low) or 0.5
    domain = (low / 1.2, high * 1.2) if log else (low - margin, high + margin)
    return dots.figure(
        f"published-{slug(task, name)}",
        f"{task}: published results",
        f"{measure.label.capitalize()}, published (black) and ours (in colour, by preset). {_OTHER_SETTINGS}"
        f"{_adjusted_note(frame)}",
        data,
        list(dict.fromkeys(data["panel"])),
        list(dict.fromkeys(data["row"])),
        looks,
        dots.Scale(measure.label, domain, log=log),
    )


def comparison(task: Slice) -> pd.DataFrame | None:
    """A row per published number of the task, with our number for the same `_KEYS` and its preset, steps and runs.

    Our number is missing if it was not measured. The result is None if the task has no published numbers.
    """
    theirs = task.results.published_rows
    theirs = theirs[(theirs["task"] == task.task) & (theirs["status"] == "ok")]
    if theirs.empty:
        return None
    # The questions `next` and `targets` differ in their metrics; tests of a family are matched by name.
    theirs = theirs.assign(test=theirs["evaluator"].where(is_test(theirs["evaluator"])))
    names = {
        "preset": "published_preset",
        "value": "published",
        "low": "published_low",
        "high": "published_high",
        "run": "published_run",
        "data": "published_data",
    }
    theirs = theirs[[*_KEYS, *names, "reason"]].rename(columns=names)
    tests = accuracies.final(task).assign(shift="none", metric=MAIN_ACCURACY)
    tests = tests[is_test(tests["evaluator"])].rename(columns={"evaluator": "test"})
    # Metrics with one number per curve or sequence, such as the error per event.
    summaries = task.summaries[task.summaries["evaluator"].eq("next")]
    measured_rows = pd.concat([task.curves, summaries, over_all_episodes(task.targets), tests])
    measured_rows = measured_rows.reindex(columns=[*_KEYS, "value", "low", "high", "run"])
    # Keys must have the same type in both frames, even if all values are missing.
    measured_rows = measured_rows.astype({"test": "string", "n_context": "Int64", "n_related": "Int64"})
    ours = measured_rows.rename(columns={"value": "ours", "low": "ours_low", "high": "ours_high"})
    frame = theirs.merge(ours.drop_duplicates(_KEYS), "left", _KEYS).assign(our_preset=task.preset)
    frame = frame.merge(_adjusted_scores(task), "left", _KEYS)
    training_rows = task.rows[task.rows["axis"].eq("train_step").fillna(False).astype(bool)]
    frame["steps"] = frame["contestant"].map(training_rows.groupby("contestant")["axis_value"].max())
    frame["our_data"] = pd.Series(task.data or "not stated", index=frame.index, dtype="string")
    frame["other_data"] = frame["published_data"].ne(frame["our_data"]).fillna(False).astype(bool)
    is_comparable = ~frame["other_data"] & frame["published_preset"].eq(frame["our_preset"])
    # A ratio needs a natural zero, which log-likelihoods do not have.
    has_ratio = frame["metric"].map(lambda name: metric(name).lower_is_better and metric(name).unit != "nats")
    has_ratio = has_ratio.astype(bool)
    frame = frame.assign(
        ratio=frame["ours"] / frame["published"].where(is_comparable & has_ratio & frame["published"].ne(0)),
        difference=(frame["adjusted"].fillna(frame["ours"]) - frame["published"]).where(is_comparable & ~has_ratio),
    )
    return frame.sort_values([*_KEYS, "published_preset"], ignore_index=True)


def _adjusted_scores(task: Slice) -> pd.DataFrame:
    """Our ceiling-adjusted log-likelihoods; empty if the task has no ceiling."""
    rows = over_all_episodes(task.targets, "log_likelihood_adjusted").assign(metric="log_likelihood")
    rows = rows.rename(columns={"value": "adjusted", "low": "adjusted_low", "high": "adjusted_high"})
    rows = rows.reindex(columns=[*_KEYS, "adjusted", "adjusted_low", "adjusted_high"])
    rows = rows.astype({"test": "string", "n_context": "Int64", "n_related": "Int64"})
    return rows.astype(dict.fromkeys(["adjusted", "adjusted_low", "adjusted_high"], "Float64"))


def _sources(frame: pd.DataFrame) -> tuple[str, ...]:
    """The sources of the published numbers, which are the footnotes of the table."""
    return tuple(dict.fromkeys(frame["reason"].map(source)))


def _columns(frame: pd.DataFrame) -> tuple[Column, ...]:
    """The columns of a table of published numbers, without empty optional columns."""
    sources = _sources(frame)
    columns = (
        Column("contestant", "contestant"),
        Column("shift", "shift"),
        Column("test", "test", lambda name: meaning(name).title),
        Column("metric", "metric", lambda name: str(name).replace("_", " ")),
        Column("n_context", "n", integer, numeric=True),
        Column("n_related", "related datasets", integer, numeric=True),
        Column("published", "published", number, True, "published_low", "published_high"),
        Column("published_preset", "published preset"),
        Column("published_data", "published data"),
        Column("ours", "ours", number, True, "ours_low", "ours_high"),
        Column("adjusted", "ours, ceiling-adjusted", number, True, "adjusted_low", "adjusted_high"),
        Column("our_preset", "our preset"),
        Column("our_data", "our data"),
        Column("steps", "our training steps", integer, numeric=True),
        Column("ratio", "ours / published", number, numeric=True),
        Column("difference", "ours − published", signed, numeric=True),
        Column("reason", "source", lambda reason: f"note {sources.index(source(reason)) + 1}"),
    )
    optional = ("test", "n_context", "n_related", "published_data", "adjusted", "steps", "ratio", "difference")
    hidden_keys = {key for key in optional if frame[key].isna().all()}
    if "published_data" in hidden_keys:
        hidden_keys.add("our_data")
    return tuple(c for c in columns if c.key not in hidden_keys)
