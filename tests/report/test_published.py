"""Published numbers and ours: matched rows, ratios and differences."""

import pandas as pd
import pytest

from iclbench import tables
from iclbench.report.data import of_values
from iclbench.report.sections.published import comparison

PUBLISHED = {"nll_published": 0.25, "squared_sum_error": 0.04, "accuracy": 0.5}
OURS = {"nll_published": -0.05, "squared_sum_error": 0.08, "accuracy": 0.4}


def events(preset: str = "paper", data: str = "path=mooc.npz") -> pd.DataFrame:
    """Published numbers of event sequences, which have no context size, and those of a run."""
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


def test_errors_have_ratio_and_other_metrics_difference() -> None:
    (task,) = of_values(events()).slices
    frame = comparison(task)
    assert frame is not None
    by_metric = frame.set_index("metric")
    assert by_metric["ours"].to_dict() == OURS
    assert by_metric.loc["squared_sum_error", "ratio"] == pytest.approx(2)
    assert pd.isna(by_metric.loc["nll_published", "ratio"])
    assert by_metric.loc["nll_published", "difference"] == pytest.approx(-0.3)
    assert by_metric.loc["accuracy", "difference"] == pytest.approx(-0.1)


@pytest.mark.parametrize("change", [{"preset": "small"}, {"data": "path=retweets.npz"}])
def test_numbers_of_other_preset_or_data_have_no_difference(change: dict[str, str]) -> None:
    (task,) = of_values(events(**change)).slices
    frame = comparison(task)
    assert frame is not None
    assert frame.set_index("metric")["ours"].to_dict() == OURS
    assert frame[["ratio", "difference"]].isna().all(axis=None)
