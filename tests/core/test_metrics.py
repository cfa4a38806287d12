"""The registry of metrics has an entry for each metric of predictions and packed results."""

from pathlib import Path

import pyarrow.parquet as pq
import pytest

from iclbench.core.heads import HEADS
from iclbench.core.metrics import ACCURACY_OF, KL_TO, METRICS, R_SQUARED_OF, Metric, metric

REFERENCE = Path(__file__).parents[2] / "results" / "reference"


@pytest.mark.parametrize("head", HEADS)
def test_every_metric_of_a_head_has_an_entry(head: str) -> None:
    cls = HEADS[head]
    assert cls.metrics and not set(cls.metrics) - METRICS.keys()
    assert cls.headline in cls.metrics


def test_every_metric_of_the_packed_results_has_an_entry() -> None:
    files = REFERENCE.glob("*.values.parquet")
    names = {name for path in files for name in pq.read_table(path, columns=["metric"])["metric"].unique().to_pylist()}
    probe_metrics = {"gamma", "scale", "scale_std", "shift", "shift_std"}
    prefixes = (KL_TO, R_SQUARED_OF, ACCURACY_OF)
    assert {name for name in names - probe_metrics if not name.startswith(prefixes)} <= METRICS.keys()


def test_entries_of_cost_metrics_define_scale_format_and_dependence_on_the_machine() -> None:
    files = REFERENCE.glob("*.costs.parquet")
    names = {name for path in files for name in pq.read_table(path, columns=["metric"])["metric"].unique().to_pylist()}
    assert {"seconds", "bytes", "parameters"} <= names <= METRICS.keys()
    assert all(METRICS[name].logarithmic and METRICS[name].lower_is_better for name in names)
    assert {name for name in names if METRICS[name].depends_on_machine} == {"seconds", "bytes"}
    assert [metric(name).show(2048) for name in ("seconds", "bytes", "flops", "parameters", "gap")] == [
        "34 min 8 s",
        "2.00 KiB",
        "2.05 kFLOP",
        "2.05 k",
        "2048.000",
    ]


def test_only_squared_errors_are_divided_by_the_normaliser_of_the_task() -> None:
    normalised = {name for name, entry in METRICS.items() if entry.normaliser(4.0) != 1.0}
    assert normalised == {"squared_error", "squared_error_raw"}


def test_each_metric_for_the_area_under_a_curve_has_an_entry() -> None:
    assert {entry.area for entry in METRICS.values() if entry.area} <= METRICS.keys()


def test_a_metric_without_an_entry_is_labelled_with_its_name() -> None:
    assert metric("pinball_loss") == Metric("pinball_loss", "pinball loss")
    assert not metric("sharpness").lower_is_better and metric("sharpness").label == "sharpness"
    assert metric("accuracy_on_weekdays").yes_or_no
