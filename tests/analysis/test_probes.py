"""The metrics that score the layers of a model."""

from iclbench import tables
from iclbench.analysis.probes import layer_scores

SHARED = {"task": "t", "family": "f", "preset": "smoke", "shift": "none", "prompt_set": "p", "card": "c"}
SHARED |= {"version": "0", "run": "m-s0", "contestant": "m", "kind": "backbone", "axis": "layer", "axis_value": 1}


def test_layer_scores_are_metrics_of_finished_probes_except_fitted_scales_and_shifts() -> None:
    row = SHARED | {"evaluator": "probe", "status": "ok", "value": 1.0}
    names = ("squared_error_raw", "slope", "scale", "shift", "scale_std", "shift_std", "offset")
    rows = [
        *(row | {"metric": name} for name in names),
        row | {"metric": "slope", "axis_value": 2},
        row | {"metric": "search", "evaluator": "gamma_search"},
        row | {"metric": "failed", "status": "failed", "reason": "r", "value": None},
    ]
    assert layer_scores(tables.frame("values", rows)) == ["slope", "offset"]
