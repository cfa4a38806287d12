"""Recorded results are current if they have the expected identities and, for an evaluation, all metrics."""

import pytest

from iclbench.store.state import is_current

RECORD = {"cell": "5e884898", "schema": "3"}


@pytest.mark.parametrize(
    ("recorded", "expected", "current"),
    [
        (RECORD, {}, True),
        (RECORD, {"cell": "5e884898"}, True),
        (RECORD, RECORD, True),
        (RECORD, RECORD | {"schema": "4"}, False),
        ({"cell": "5e884898"}, RECORD, False),
        ({}, {"cell": "5e884898"}, False),
    ],
)
def test_all_expected_identities_must_be_recorded(
    recorded: dict[str, object], expected: dict[str, str], current: bool
) -> None:
    assert is_current(recorded, expected) is current


@pytest.mark.parametrize(
    ("metrics", "current"),
    [
        ("squared_error", True),
        ("squared_error a_metric_of_a_plug_in", True),
        ("log_likelihood squared_error", False),  # predictions with a log-likelihood have further metrics
        (None, True),
        (float("nan"), True),
    ],
)
def test_an_evaluation_must_have_all_metrics(metrics: object, current: bool) -> None:
    evaluation = RECORD | {"metrics": metrics}
    assert is_current(evaluation, RECORD, "next") is current
    assert is_current(evaluation, RECORD), "only evaluations have metrics"
    assert not is_current(evaluation, RECORD | {"cell": "another"}, "next")
    assert is_current(RECORD, RECORD, "next"), "metrics may be missing"
