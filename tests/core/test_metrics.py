"""One registry says what is known of a metric; whoever produces, draws or tabulates one asks it."""

from pathlib import Path

import pyarrow.parquet as pq
import pytest

from iclbench.core.heads import HEADS
from iclbench.core.metrics import METRICS, Metric, metric

REFERENCE = Path(__file__).parents[2] / "results" / "reference"


@pytest.mark.parametrize("head", HEADS)
def test_predictions_are_scored_by_metrics_that_the_registry_knows(head: str) -> None:
    own = HEADS[head]
    assert own.metrics and not set(own.metrics) - METRICS.keys(), (
        "every metric has an entry in iclbench/core/metrics.py"
    )
    assert own.headline in own.metrics


def test_every_metric_of_the_packed_results_has_an_entry() -> None:
    files = REFERENCE.glob("*.values.parquet")
    names = {name for path in files for name in pq.read_table(path, columns=["metric"])["metric"].unique().to_pylist()}
    assert names - {"gamma", "scale", "scale_std", "shift", "shift_std"} <= METRICS.keys(), (
        "but the probe's own numbers"
    )


def test_every_packed_cost_is_printed_drawn_and_told_from_other_machines_by_its_entry() -> None:
    files = REFERENCE.glob("*.costs.parquet")
    names = {name for path in files for name in pq.read_table(path, columns=["metric"])["metric"].unique().to_pylist()}
    assert {"seconds", "bytes", "parameters"} <= names <= METRICS.keys()
    assert all(METRICS[name].logarithmic and METRICS[name].lower_is_better for name in names)
    assert {name for name in names if METRICS[name].of_machine} == {"seconds", "bytes"}
    assert [metric(name).show(2048) for name in ("seconds", "bytes", "flops", "parameters", "gap")] == [
        "34 min 8 s",
        "2.00 KiB",
        "2.05 kFLOP",
        "2.05 k",
        "2048.000",
    ]


def test_errors_alone_are_divided_by_the_normaliser_of_the_task() -> None:
    assert {name for name, one in METRICS.items() if one.normaliser(4.0) != 1.0} == {
        "squared_error",
        "squared_error_raw",
    }
    assert {one.area for one in METRICS.values() if one.area} <= METRICS.keys()


def test_a_metric_without_an_entry_goes_by_its_name() -> None:
    assert metric("pinball_loss") == Metric("pinball_loss", "pinball loss")
    assert not metric("sharpness").lower_is_better and metric("sharpness").label == "sharpness"
    assert metric("accuracy_on_weekdays").yes_or_no
