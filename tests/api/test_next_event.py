"""`icl.next_event`: agreement with the model and with a stream, and errors for invalid sequences."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import iclbench as icl
from iclbench.api.estimators import InContextRegressor
from iclbench.api.predict import Trained
from iclbench.backbones.base import Backbone
from iclbench.core.episodes import Points
from iclbench.core.errors import UsageError
from iclbench.streaming.clock import Clock
from iclbench.streaming.event_lines import EventFormat
from iclbench.streaming.stream import Stream
from tests.families.events import sequence_files
from tests.refusals import refused

TIMES, MARKS = np.array([0.5, 1.25, 4.0]), np.array([0, 2, 1])


@pytest.fixture(scope="module")
def model() -> Backbone:
    return icl.GPT2(icl.task("point-process", "smoke"), layers=1, width=16, heads=2)


def test_row_n_is_the_prediction_of_the_model_after_n_events(model: Backbone) -> None:
    frame = icl.next_event(model, TIMES, MARKS)
    y = torch.tensor([[[0.5, 0, 0.5], [0.75, 2, 1.25], [2.75, 1, 4.0]]])
    context = Points.full(torch.empty(1, 3, 0), y)
    for n in range(4):
        with torch.no_grad():
            prediction = model.predict_targets(context.span(0, n), torch.empty(1, 1, 0))
        row = frame.iloc[n]
        assert row["gap"] == pytest.approx(float(prediction.mean()), rel=1e-5)
        assert row["time"] == pytest.approx([0, *TIMES][n] + float(prediction.mean()), rel=1e-5)
        np.testing.assert_allclose(
            row[["p0", "p1", "p2"]].to_numpy(float), prediction.mark_probabilities()[0, 0], rtol=1e-4
        )
        assert row["low"] < row["median"] < row["high"]
    assert frame["mark"].dtype.kind == "i"


def test_an_empty_sequence_predicts_the_first_event(model: Backbone) -> None:
    assert len(icl.next_event(model, [])) == 1


@pytest.mark.parametrize(
    ("times", "marks", "code", "names"),
    [
        ([1.0, 1.0], None, "bad-data", ["times", "event 1", "event 0"]),
        ([-1.0], None, "bad-data", ["times", "event 0", -1, 0]),
        ([1.0, np.nan], None, "bad-value", ["times", "finite"]),
        ([[1.0]], None, "bad-value", ["times", "(1, 1)"]),
        (["soon"], None, "bad-value", ["times"]),
        (["1.5", "2.5"], None, "bad-value", ["times", "<U3"]),
        (np.array(["2020-01-01"], dtype="datetime64[s]"), None, "bad-value", ["times", "datetime64"]),
        ([torch.ones(1, requires_grad=True)], None, "bad-value", ["times", "grad"]),
        ([1.0], [torch.ones(1, requires_grad=True)], "bad-value", ["marks", "grad"]),
        ([1.0], [3], "bad-data", ["event 0", "mark", 3, "0 to 2"]),
        ([1.0], [0.5], "bad-value", ["marks", "float64"]),
        ([1.0, 2.0], [1], "bad-value", ["marks", 2, "(1,)"]),
        ([1.0, 2.0], [[1], [1, 2]], "bad-value", ["marks"]),
        ([1.0, 1e300], None, "bad-data", ["event 1", "1e+300", "event 0"]),
        ([1e-300, 1.0], None, "bad-data", ["event 0", "1e-300"]),
        ([1.0, 1e38], None, "not-finite", ["times"]),
    ],
)
def test_invalid_sequences_are_refused(
    model: Backbone, times: list[float], marks: list[int], code: str, names: list[object]
) -> None:
    with refused(code, *names):
        icl.next_event(model, times, marks)


def test_the_error_for_an_unsuitable_model_names_the_function_to_use(model: Backbone) -> None:
    with refused("not-applicable", "icl.next_event"):
        icl.predict(model, TIMES, MARKS, TIMES)
    with refused("not-applicable", "icl.predict"):
        icl.next_event(icl.CNP(icl.task("linear", "smoke")), TIMES)


def test_times_for_a_run_are_in_the_unit_of_its_training_file(tmp_path: Path) -> None:
    times, marks = sequence_files.sequences(count=20, kinds=3)
    path = sequence_files.write_jsonl(tmp_path / "events.jsonl", [64 * time for time in times], marks)
    run = icl.train(icl.task("events", "smoke", path=str(path)), "thp", results=tmp_path / "results", steps=5)
    trained = icl.load(run)
    unit = trained.family.time_unit
    assert unit > 10  # the unit of time is the mean gap in the training file
    expected = icl.next_event(trained.model, TIMES, MARKS)
    for model in (run, trained):
        frame = icl.next_event(model, unit * TIMES, MARKS)
        for name in ("time", "gap", "median", "low", "high"):
            np.testing.assert_allclose(frame[name], unit * expected[name], rtol=1e-5)
        np.testing.assert_allclose(frame["p1"], expected["p1"], rtol=1e-5)


def test_a_run_on_events_cannot_be_used_as_a_regressor(tmp_path_factory: pytest.TempPathFactory) -> None:
    results = tmp_path_factory.mktemp("results")
    run = icl.train(icl.task("point-process", "smoke"), "thp", results=results, steps=5)
    assert len(icl.next_event(icl.load(run), TIMES, MARKS)) == 4
    with pytest.raises(ValueError, match=r"icl\.next_event"):
        InContextRegressor(run).fit(np.eye(3), np.arange(3.0))


def test_the_range_of_times_is_checked_in_the_unit_of_the_model(
    model: Backbone, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = icl.next_event(model, [1.0, 2.0])
    monkeypatch.setattr("iclbench.api.next_event._clock", lambda *_: Clock(0.0, 1e39))
    np.testing.assert_allclose(icl.next_event(model, [1e39, 2e39])["time"], 1e39 * expected["time"], rtol=1e-5)
    with refused("bad-data", "event 1", "1e+78"):
        icl.next_event(model, [1e39, 1e78])


@pytest.fixture(scope="module")
def date_models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Trained]:
    """Models that were trained on times in seconds since 1970. Each sequence is observed from its first event."""
    folder = tmp_path_factory.mktemp("dates")
    times, marks = sequence_files.sequences(count=20, kinds=3)
    path = sequence_files.write_jsonl(folder / "events.jsonl", [1.7e9 + 64 * time for time in times], marks)
    task = icl.task("events", "smoke", path=str(path), start="first")
    return {name: icl.load(icl.train(task, name, results=folder / "results", steps=5)) for name in ("cnp", "gpt2")}


@pytest.mark.parametrize("start", [None, 1.7e9 - 30.0])
@pytest.mark.parametrize("name", ["cnp", "gpt2"])
def test_predictions_equal_those_of_a_stream(name: str, start: float | None, date_models: dict[str, Trained]) -> None:
    """The observation starts at the first event, as in training, or at a given time."""
    trained, times, marks = date_models[name], 1.7e9 + 40 * TIMES, MARKS
    frame = icl.next_event(trained, times, marks, start=start)
    assert len(frame) == (3 if start is None else 4), "without a start, the first event is not predicted"
    limits = torch.finfo(torch.float32)
    clock = Clock.of_family(trained.family, start)
    lines = [f"{t!r},{m}" for t, m in zip(times.tolist(), marks.tolist(), strict=True)]
    stream_lines = [text for line in lines for text in (line, "?,?")]
    stream_lines = stream_lines if start is None else ["?,?", *stream_lines]
    event_format = EventFormat.of_events(trained.model.shape, limits.tiny, limits.max, clock)
    answers = list(Stream(trained.model.eval(), clock=clock).run(event_format.read(stream_lines, "log")))
    assert frame["n"].tolist() == list(range(len(answers)))
    np.testing.assert_allclose(frame["time"], [answer.time for answer in answers], rtol=1e-12)
    for column in ("gap", "median", "low", "high", "mark"):
        np.testing.assert_allclose(frame[column], [answer.columns[column][0] for answer in answers], rtol=1e-4)
    assert np.isfinite(frame.to_numpy(float)).all()


@pytest.mark.parametrize("name", ["cnp", "gpt2"])
def test_predictions_for_dates_are_finite_or_raise_an_error(name: str, date_models: dict[str, Trained]) -> None:
    """The sequence starts at 0 and contains dates in seconds since 1970."""
    try:
        frame = icl.next_event(date_models[name], 1.7e9 + 40 * TIMES, MARKS, start=0.0)
    except UsageError as error:
        assert error.code == "not-finite" and "times" in str(error)
    else:
        assert np.isfinite(frame.to_numpy(float)).all()


def test_the_start_must_be_a_time_before_the_first_event_or_the_word_first(model: Backbone) -> None:
    assert len(icl.next_event(model, TIMES, MARKS, start="first")) == 3
    with refused("bad-value", "start", "'soon'"):
        icl.next_event(model, TIMES, MARKS, start="soon")
    with refused("bad-value", "times"):
        icl.next_event(model, [], start="first")
    with refused("bad-data", "event 0", 0.5, "start="):
        icl.next_event(model, TIMES, MARKS, start=1.0)
