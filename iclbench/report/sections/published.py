"""Published numbers beside ours."""

from __future__ import annotations

import pandas as pd

from iclbench.report import accuracies
from iclbench.report.blocks import Column, Section, Table
from iclbench.report.data import Slice
from iclbench.report.evaluators import HEADLINE, is_test, meaning
from iclbench.report.formats import integer, number, signed
from iclbench.report.metrics import metric
from iclbench.report.target_scores import overall


def section(task: Slice) -> Section | None:
    """Numbers published for the task, beside what this preset measured at the same place.

    The published size (often `paper`) is named, because smaller presets are not expected to reach it.
    """
    values = task.results.rows
    theirs = values[(values["kind"] == "published") & (values["task"] == task.task) & (values["status"] == "ok")]
    if theirs.empty:
        return None
    # The two questions are told apart by their metrics; a test that a family has of its own goes by its name.
    theirs = theirs.assign(test=theirs["evaluator"].where(is_test(theirs["evaluator"])))
    place = ["contestant", "shift", "test", "metric", "n_context", "n_related"]
    theirs = theirs[[*place, "preset", "value", "low", "high", "reason"]].rename(
        columns={"preset": "published_preset", "value": "published", "low": "published_low", "high": "published_high"}
    )
    tests = accuracies.final(task).assign(shift="none", metric=HEADLINE)
    tests = tests[is_test(tests["evaluator"])].rename(columns={"evaluator": "test"})
    measured = pd.concat([task.curves, overall(task.targets), tests])
    measured = measured.reindex(columns=[*place, "value", "low", "high"])
    # What neither of the two questions has is missing, in the same type on both sides.
    measured = measured.astype({"test": "string", "n_context": "Int64", "n_related": "Int64"})
    ours = measured.rename(columns={"value": "ours", "low": "ours_low", "high": "ours_high"})
    both = theirs.merge(ours.drop_duplicates(place), "left", place).assign(our_preset=task.preset)
    # Log-likelihoods have no zero that a ratio could refer to.
    errors = both["metric"].map(lambda name: metric(name).lower_is_better).astype(bool)
    both = both.assign(
        ratio=both["ours"] / both["published"].where(errors & both["published"].ne(0)),
        difference=(both["ours"] - both["published"]).where(~errors),
    )
    both = both.sort_values([*place, "published_preset"], ignore_index=True)
    columns = (
        Column("contestant", "contestant"),
        Column("shift", "shift"),
        Column("test", "test", lambda name: meaning(name).title),
        Column("metric", "metric", lambda name: str(name).replace("_", " ")),
        Column("n_context", "n", integer, numeric=True),
        Column("n_related", "related datasets", integer, numeric=True),
        Column("published", "published", number, True, "published_low", "published_high"),
        Column("published_preset", "its preset"),
        Column("ours", f"ours ({task.preset})", number, True, "ours_low", "ours_high"),
        Column("ratio", "ours / published", number, numeric=True),
        Column("difference", "ours − published", signed, numeric=True),
        Column("reason", "source and how it was read"),
    )
    of_one_question = ("test", "n_context", "n_related", "ratio", "difference")
    table = Table(
        name=f"{task.id}-published",
        title=f"{task.task}: published numbers beside ours",
        caption=f"Ours: preset {task.preset}. Numbers of another preset are of another size (dimension, examples, "
        "training) and are not expected to agree. A dash: not measured here.",
        frame=both,
        columns=tuple(c for c in columns if c.key not in of_one_question or both[c.key].notna().any()),
    )
    return Section(f"{task.id}-published", "Published numbers", (table,))
