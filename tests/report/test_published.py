"""Published numbers and ours: places and differences."""

import pandas as pd
import pytest

from iclbench import tables
from iclbench.report.data import of_values
from iclbench.report.sections.published import compared

THEIRS = {"nll_published": 0.25, "squared_sum_error": 0.04, "accuracy": 0.5}
OURS = {"nll_published": -0.05, "squared_sum_error": 0.08, "accuracy": 0.4}


def events(preset: str = "paper", data: str = "path=mooc.npz") -> pd.DataFrame:
    """Numbers of whole sequences of events, without a context size, of a paper and of a run."""
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
    both = [(paper, THEIRS), (ours, OURS)]
    return tables.frame("values", [row | {"metric": m, "value": v} for row, own in both for m, v in own.items()])


def test_numbers_of_whole_sequences_meet_ours_and_likelihoods_have_no_ratio() -> None:
    (task,) = of_values(events()).slices
    both = compared(task)
    assert both is not None
    found = both.set_index("metric")
    assert found["ours"].to_dict() == OURS
    assert found.loc["squared_sum_error", "ratio"] == pytest.approx(2)
    assert pd.isna(found.loc["nll_published", "ratio"])
    assert found.loc["nll_published", "difference"] == pytest.approx(-0.3)
    assert found.loc["accuracy", "difference"] == pytest.approx(-0.1)


@pytest.mark.parametrize("change", [{"preset": "small"}, {"data": "path=retweets.npz"}])
def test_differences_are_given_at_equal_preset_and_data_only(change: dict[str, str]) -> None:
    (task,) = of_values(events(**change)).slices
    both = compared(task)
    assert both is not None
    assert both.set_index("metric")["ours"].to_dict() == OURS
    assert both[["ratio", "difference"]].isna().all(axis=None)
