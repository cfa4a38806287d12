"""The metrics that score the layers of a model."""

from iclbench import tables
from iclbench.analysis.probes import layer_scores
from tests.analysis.hand_made import FAILED, MODEL


def test_layer_scores_are_metrics_of_finished_probes_except_fitted_scales_and_shifts() -> None:
    row = MODEL | {"evaluator": "probe", "axis": "layer", "axis_value": 1}
    names = ("squared_error_raw", "slope", "scale", "shift", "scale_std", "shift_std", "offset")
    rows = [
        *(row | {"metric": name} for name in names),
        row | {"metric": "slope", "axis_value": 2},
        row | {"metric": "search", "evaluator": "gamma_search"},
        row | FAILED | {"metric": "failed"},
    ]
    assert layer_scores(tables.frame("values", rows)) == ["slope", "offset"]
