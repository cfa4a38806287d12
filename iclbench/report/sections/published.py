"""Published numbers and ours, side by side."""

from __future__ import annotations

from itertools import cycle

import numpy as np
import pandas as pd

from iclbench.analysis import accuracies
from iclbench.analysis.evaluators import is_test, meaning
from iclbench.analysis.target_scores import overall
from iclbench.core.formats import integer, number, signed, slug
from iclbench.core.metrics import metric
from iclbench.report.blocks import Column, Figure, Section, Table
from iclbench.report.data import Results, Slice
from iclbench.report.figures import dots
from iclbench.report.style import INK, STRONG, Look
from iclbench.report.titles import ADJUSTED, shift_title, source
from iclbench.tables.evaluators import HEADLINE

_PLACE = ["contestant", "shift", "test", "metric", "n_context", "n_related"]
_THEIRS = "published"
_SCALES = "Numbers of other presets or data are not expected to agree."


def section(task: Slice) -> Section | None:
    """Numbers published for the task, and those of this preset at the same place."""
    both = compared(task)
    if both is None:
        return None
    table = Table(
        name=f"{task.id}-published",
        title=f"{task.task}: published results",
        caption=f"Published numbers and ours at preset {task.preset}; a dash: not measured. {_SCALES}{_hint(both)}",
        frame=both,
        columns=_shown(both),
    )
    return Section(f"{task.id}-published", "Published results", (table,))


def everywhere(results: Results) -> Section | None:
    """All published numbers for which some preset measured the same, the largest preset of ours last."""
    found = [both.assign(task=task.task) for task in results.slices if (both := compared(task)) is not None]
    measured = pd.concat(found, ignore_index=True).dropna(subset="ours") if found else pd.DataFrame()
    if measured.empty:
        return None
    measured = measured.drop_duplicates([*_PLACE, "task", "published_preset", "our_preset", "published", "reason"])
    frame = measured.sort_values(["task", *_PLACE, "published_preset", "our_preset"], ignore_index=True)
    frame = frame[["task", *(name for name in frame.columns if name != "task")]]
    table = Table(
        name="published",
        title="Published results",
        caption=f"Published numbers and ours for the same task and model. {_SCALES}{_hint(frame)}",
        frame=frame,
        columns=(Column("task", "task"), *_shown(frame)),
        group="task",
    )
    figures = (_figure(str(task), str(name), rows) for (task, name), rows in frame.groupby(["task", "metric"]))
    return Section("published", "Published results", (*figures, table))


def _hint(both: pd.DataFrame) -> str:
    """The meaning of ceiling-adjusted, if a number is."""
    return f" {ADJUSTED}" if both["adjusted"].notna().any() else ""


def _figure(task: str, name: str, both: pd.DataFrame) -> Figure:
    """Published and ours in one row for each place, of one metric; a panel per shift."""
    row = both["contestant"].astype(str)
    for key, words in (("test", "{}"), ("n_context", "n = {}"), ("n_related", "{} related")):
        row += both[key].map(lambda value, words=words: "" if pd.isna(value) else ", " + words.format(value))
    shared = both.assign(panel=both["shift"].map(shift_title), row=row, part="mean", note=row)

    def side(name: str, contestant: str | pd.Series, run: pd.Series) -> pd.DataFrame:
        ends = {end: shared[f"{name}_{end}"] for end in ("low", "high")}
        return shared.assign(contestant=contestant, run=run, value=shared[name], **ends)

    of_theirs, of_ours = (
        (" (" + shared[f"{whose}_data"] + ")").where(shared["other_data"], "") for whose in ("published", "our")
    )
    for part in ("", "_low", "_high"):
        shared[f"ours{part}"] = shared[f"adjusted{part}"].fillna(shared[f"ours{part}"])
    theirs = side("published", _THEIRS + of_theirs, shared["published_run"])
    ours = side("ours", "ours, " + shared["our_preset"] + of_ours, shared["run"])
    data = pd.concat([theirs, ours], ignore_index=True)[dots.COLUMNS].drop_duplicates(["panel", "row", "contestant"])
    whose = list(dict.fromkeys(data["contestant"]))
    looks = {who: Look(colour) for who, colour in zip(whose, cycle((INK, *STRONG)), strict=False)}
    measure = metric(name)
    numbers = data[["value", "low", "high"]].to_numpy(float)
    low, high = float(np.nanmin(numbers)), float(np.nanmax(numbers))
    log, margin = measure.logarithmic and low > 0, 0.05 * (high - low) or 0.5
    reach = (low / 1.2, high * 1.2) if log else (low - margin, high + margin)
    return dots.figure(
        f"published-{slug(task, name)}",
        f"{task}: published results",
        f"{measure.label.capitalize()}, published (black) and ours (in colour, by preset). {_SCALES}{_hint(both)}",
        data,
        list(dict.fromkeys(data["panel"])),
        list(dict.fromkeys(data["row"])),
        looks,
        dots.Scale(measure.label, reach, log=log),
    )


def compared(task: Slice) -> pd.DataFrame | None:
    """A row per published number of the task, with ours (preset, steps and runs named) at the same place, or missing;
    None where nothing is published."""
    theirs = task.results.published
    theirs = theirs[(theirs["task"] == task.task) & (theirs["status"] == "ok")]
    if theirs.empty:
        return None
    # The two questions differ in their metrics; a test of a family has its name.
    theirs = theirs.assign(test=theirs["evaluator"].where(is_test(theirs["evaluator"])))
    place = _PLACE
    names = {
        "preset": "published_preset",
        "value": "published",
        "low": "published_low",
        "high": "published_high",
        "run": "published_run",
        "data": "published_data",
    }
    theirs = theirs[[*place, *names, "reason"]].rename(columns=names)
    tests = accuracies.final(task).assign(shift="none", metric=HEADLINE)
    tests = tests[is_test(tests["evaluator"])].rename(columns={"evaluator": "test"})
    # Curves and sequences also have one number each, such as the error per event.
    whole = task.summaries[task.summaries["evaluator"].eq("next")]
    measured = pd.concat([task.curves, whole, overall(task.targets), tests])
    measured = measured.reindex(columns=[*place, "value", "low", "high", "run"])
    # Missing values have the same type on both sides.
    measured = measured.astype({"test": "string", "n_context": "Int64", "n_related": "Int64"})
    ours = measured.rename(columns={"value": "ours", "low": "ours_low", "high": "ours_high"})
    both = theirs.merge(ours.drop_duplicates(place), "left", place).assign(our_preset=task.preset)
    both = both.merge(_adjusted(task, place), "left", place)
    trained = task.rows[task.rows["axis"].eq("train_step").fillna(False).astype(bool)]
    both["steps"] = both["contestant"].map(trained.groupby("contestant")["axis_value"].max())
    both["our_data"] = pd.Series(task.data or "not said", index=both.index, dtype="string")
    both["other_data"] = both["published_data"].ne(both["our_data"]).fillna(False).astype(bool)
    comparable = ~both["other_data"] & both["published_preset"].eq(both["our_preset"])
    # Log-likelihoods, negative ones too, have no zero that a ratio could refer to.
    errors = both["metric"].map(lambda name: metric(name).lower_is_better and metric(name).unit != "nats").astype(bool)
    both = both.assign(
        ratio=both["ours"] / both["published"].where(comparable & errors & both["published"].ne(0)),
        difference=(both["adjusted"].fillna(both["ours"]) - both["published"]).where(comparable & ~errors),
    )
    return both.sort_values([*place, "published_preset"], ignore_index=True)


def _adjusted(task: Slice, place: list[str]) -> pd.DataFrame:
    """Our log-likelihoods under the task's ceiling instead of that of the prompts, where it is known."""
    found = overall(task.targets, "log_likelihood_adjusted").assign(metric="log_likelihood")
    found = found.rename(columns={"value": "adjusted", "low": "adjusted_low", "high": "adjusted_high"})
    found = found.reindex(columns=[*place, "adjusted", "adjusted_low", "adjusted_high"])
    found = found.astype({"test": "string", "n_context": "Int64", "n_related": "Int64"})
    return found.astype(dict.fromkeys(["adjusted", "adjusted_low", "adjusted_high"], "Float64"))


def _shown(both: pd.DataFrame) -> tuple[Column, ...]:
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
        Column("reason", "source", source),
    )
    of_some = ("test", "n_context", "n_related", "published_data", "adjusted", "steps", "ratio", "difference")
    hidden = {key for key in of_some if both[key].isna().all()}
    if "published_data" in hidden:
        hidden.add("our_data")
    return tuple(c for c in columns if c.key not in hidden)
