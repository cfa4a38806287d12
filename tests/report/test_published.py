"""Published and measured numbers: matching rows, ratios and differences."""

import pandas as pd
import pytest

from iclbench import tables
from iclbench.report.blocks import Table, Text
from iclbench.report.data import results_from_values
from iclbench.report.exports import latex, markdown
from iclbench.report.sections.published import all_tasks, comparison, section

PUBLISHED = {"nll_published": 0.25, "squared_sum_error": 0.04, "accuracy": 0.5}
OURS = {"nll_published": -0.05, "squared_sum_error": 0.08, "accuracy": 0.4}


def events(preset: str = "paper", data: str = "path=mooc.npz") -> pd.DataFrame:
    """Return published numbers on event sequences, which have no context size, and measured numbers of a run."""
    shared = {
        "task": "events-mooc",
        "family": "event_sequences",
        "contestant": "thp",
        "data": "path=mooc.npz",
        "shift": "none",
        "evaluator": "next",
        "status": "ok",
        "card": "c",
        "version": "0",
    }
    paper = shared | {"kind": "published", "preset": "paper", "run": "published-thp", "reason": "table 3; as printed"}
    ours = shared | {"kind": "backbone", "preset": preset, "data": data, "run": "thp-s0", "seed": 0, "prompt_set": "p"}
    rows = [paper | {"metric": metric, "value": value} for metric, value in PUBLISHED.items()]
    rows += [ours | {"metric": metric, "value": value} for metric, value in OURS.items()]
    return tables.frame("values", rows)


def test_errors_are_compared_by_ratio_and_other_metrics_by_difference() -> None:
    (task,) = results_from_values(events()).slices
    frame = comparison(task)
    assert frame is not None
    by_metric = frame.set_index("metric")
    assert by_metric["ours"].to_dict() == OURS
    assert by_metric.loc["squared_sum_error", "ratio"] == pytest.approx(2)
    assert pd.isna(by_metric.loc["nll_published", "ratio"])
    assert by_metric.loc["nll_published", "difference"] == pytest.approx(-0.3)
    assert by_metric.loc["accuracy", "difference"] == pytest.approx(-0.1)


@pytest.mark.parametrize("change", [{"preset": "small"}, {"data": "path=retweets.npz"}])
def test_numbers_on_different_presets_or_data_have_no_difference(change: dict[str, str]) -> None:
    (task,) = results_from_values(events(**change)).slices
    frame = comparison(task)
    assert frame is not None
    assert frame.set_index("metric")["ours"].to_dict() == OURS
    assert frame[["ratio", "difference"]].isna().all(axis=None)


def test_published_numbers_without_a_measurement_are_listed_by_paper() -> None:
    rows = events()
    part = all_tasks(results_from_values(rows))
    assert part is not None and not any(isinstance(block, Text) for block in part.blocks)
    is_ours = rows["kind"].eq("backbone") & rows["metric"].ne("accuracy")
    part = all_tasks(results_from_values(rows[~is_ours]))
    assert part is not None
    (text,) = (block for block in part.blocks if isinstance(block, Text))
    (item,) = text.items
    assert item.startswith("table 3: 2 ") and "thp" in item and "events-mooc" in item


def test_a_task_has_a_row_per_measured_number_and_a_line_per_paper_with_unmeasured_ones() -> None:
    rows = events()
    is_missing = rows["kind"].eq("backbone") & rows["metric"].eq("accuracy")
    (task,) = results_from_values(rows[~is_missing]).slices
    part = section(task)
    assert part is not None
    table, text = part.blocks
    assert isinstance(table, Table) and set(table.frame["metric"]) == PUBLISHED.keys() - {"accuracy"}
    assert isinstance(text, Text) and [item.split(" of ")[0] for item in text.items] == ["table 3: 1 number"]
    (task,) = results_from_values(rows.assign(shift=rows["shift"].mask(rows["kind"].eq("backbone"), "noisy-1"))).slices
    part = section(task)
    assert part is not None and [type(block) for block in part.blocks] == [Text]


def test_sources_are_footnotes() -> None:
    rows = events()
    reason = rows["reason"].mask(rows["metric"].eq("accuracy") & rows["reason"].notna(), "table 4; as printed")
    part = all_tasks(results_from_values(rows.assign(reason=reason)))
    assert part is not None
    (table,) = (block for block in part.blocks if isinstance(block, Table))
    assert set(table.notes) == {"table 3", "table 4"}
    footnotes = [int(row[-1].value.split()[-1]) for row in table.rows()]
    assert [table.notes[number - 1] for number in footnotes] == [text.split(";")[0] for text in table.frame["reason"]]
    for text in (markdown(table), latex(table)):
        assert text.count("table 3") == text.count("table 4") == 1
