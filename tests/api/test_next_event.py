"""The next event from arrays: what the contract answers, and one line for what does not fit."""

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
from tests.families.events import made

TIMES, MARKS = np.array([0.5, 1.25, 4.0]), np.array([0, 2, 1])


@pytest.fixture(scope="module")
def model() -> Backbone:
    return icl.GPT2(icl.task("point-process", "smoke"), layers=1, width=16, heads=2)


def test_rows_are_the_answers_after_every_number_of_events(model: Backbone) -> None:
    found = icl.next_event(model, TIMES, MARKS)
    y = torch.tensor([[[0.5, 0, 0.5], [0.75, 2, 1.25], [2.75, 1, 4.0]]])
    context = Points.full(torch.empty(1, 3, 0), y)
    for n in range(4):
        with torch.no_grad():
            answer = model.predict_targets(context.span(0, n), torch.empty(1, 1, 0))
        row = found.iloc[n]
        assert row["gap"] == pytest.approx(float(answer.mean()), rel=1e-5)
        assert row["time"] == pytest.approx([0, *TIMES][n] + float(answer.mean()), rel=1e-5)
        np.testing.assert_allclose(
            row[["p0", "p1", "p2"]].to_numpy(float), answer.mark_probabilities()[0, 0], rtol=1e-4
        )
        assert row["low"] < row["median"] < row["high"]
    assert found["mark"].dtype.kind == "i"


def test_an_empty_sequence_asks_for_the_first_event(model: Backbone) -> None:
    assert len(icl.next_event(model, [])) == 1


@pytest.mark.parametrize(
    ("times", "marks", "line"),
    [
        ([1.0, 1.0], None, "event 1: time is 1, .* event 0"),
        ([-1.0], None, "event 0: time is -1, before the 0 of the start of the observation"),
        ([1.0, np.nan], None, "finite numbers"),
        ([[1.0]], None, r"shape \(1, 1\)"),
        (["soon"], None, "an array of numbers"),
        (["1.5", "2.5"], None, r"times: expected an array of numbers \(dtype <U3\)"),
        (np.array(["2020-01-01"], dtype="datetime64[s]"), None, r"an array of numbers \(dtype datetime64"),
        ([torch.ones(1, requires_grad=True)], None, r"times: expected an array of numbers \(.*grad"),
        ([1.0], [torch.ones(1, requires_grad=True)], r"marks: expected an array of whole numbers \(.*grad"),
        ([1.0], [3], "event 0: mark is 3; write an integer from 0 to 2"),
        ([1.0], [0.5], "whole numbers"),
        ([1.0, 2.0], [1], "2 whole numbers"),
        ([1.0, 2.0], [[1], [1, 2]], "marks: expected an array of whole numbers"),
        ([1.0, 1e300], None, r"event 1: time is 1e\+300, and its gap of 1e\+300 to event 0"),
        (
            [1e-300, 1.0],
            None,
            "event 0: time is 1e-300, .* gap of 1e-300 to the start",
        ),
        ([1.0, 1e38], None, "not finite"),
    ],
)
def test_what_is_no_sequence_is_one_line(model: Backbone, times: list[float], marks: list[int], line: str) -> None:
    with pytest.raises(UsageError, match=line):
        icl.next_event(model, times, marks)


def test_models_of_functions_and_of_events_name_each_others_question(model: Backbone) -> None:
    with pytest.raises(UsageError, match=r"icl\.next_event"):
        icl.predict(model, TIMES, MARKS, TIMES)
    with pytest.raises(UsageError, match=r"icl\.predict"):
        icl.next_event(icl.CNP(icl.task("linear", "smoke")), TIMES)


def test_a_run_is_asked_in_the_unit_of_the_file_that_it_was_trained_on(tmp_path: Path) -> None:
    times, marks = made.sequences(count=20, kinds=3)
    path = made.write_jsonl(tmp_path / "own.jsonl", [64 * when for when in times], marks)
    run = icl.train(icl.task("events", "smoke", path=str(path)), "thp", results=tmp_path / "results", steps=5)
    trained = icl.load(run)
    unit = trained.family.time_unit
    assert unit > 10  # mean gaps
    alone = icl.next_event(trained.model, TIMES, MARKS)
    for asked in (run, trained):
        found = icl.next_event(asked, unit * TIMES, MARKS)
        for name in ("time", "gap", "median", "low", "high"):
            np.testing.assert_allclose(found[name], unit * alone[name], rtol=1e-5)
        np.testing.assert_allclose(found["p1"], alone["p1"], rtol=1e-5)


def test_a_run_of_events_is_no_regressor(tmp_path_factory: pytest.TempPathFactory) -> None:
    results = tmp_path_factory.mktemp("results")
    run = icl.train(icl.task("point-process", "smoke"), "thp", results=results, steps=5)
    assert len(icl.next_event(icl.load(run), TIMES, MARKS)) == 4
    with pytest.raises(ValueError, match=r"icl\.next_event"):
        InContextRegressor(run).fit(np.eye(3), np.arange(3.0))


def test_what_a_model_computes_with_is_measured_in_its_unit(model: Backbone, monkeypatch: pytest.MonkeyPatch) -> None:
    alone = icl.next_event(model, [1.0, 2.0])
    monkeypatch.setattr("iclbench.api.next_event._clock", lambda *_: Clock(0.0, 1e39))
    np.testing.assert_allclose(icl.next_event(model, [1e39, 2e39])["time"], 1e39 * alone["time"], rtol=1e-5)
    with pytest.raises(UsageError, match="gap"):
        icl.next_event(model, [1e39, 1e78])


@pytest.fixture(scope="module")
def dated(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Trained]:
    """Models of sequences in seconds since 1970, each observed from its first event on."""
    folder = tmp_path_factory.mktemp("dated")
    times, marks = made.sequences(count=20, kinds=3)
    path = made.write_jsonl(folder / "own.jsonl", [1.7e9 + 64 * when for when in times], marks)
    task = icl.task("events", "smoke", path=str(path), start="first")
    return {name: icl.load(icl.train(task, name, results=folder / "results", steps=5)) for name in ("cnp", "gpt2")}


@pytest.mark.parametrize("start", [None, 1.7e9 - 30.0])
@pytest.mark.parametrize("name", ["cnp", "gpt2"])
def test_answers_are_those_of_a_stream(name: str, start: float | None, dated: dict[str, Trained]) -> None:
    """Where the first event is the start, by the run's own word, and where another start is given."""
    trained, times, marks = dated[name], 1.7e9 + 40 * TIMES, MARKS
    found = icl.next_event(trained, times, marks, start=start)
    assert len(found) == (3 if start is None else 4), "a start is not an event"
    numbers = torch.finfo(torch.float32)
    clock = Clock.of_family(trained.family, start)
    lines = [f"{t!r},{m}" for t, m in zip(times.tolist(), marks.tolist(), strict=True)]
    asked = [text for line in lines for text in (line, "?,?")]
    asked = asked if start is None else ["?,?", *asked]
    columns = EventFormat.of_events(trained.model.shape, numbers.tiny, numbers.max, clock)
    streamed = list(Stream(trained.model.eval(), clock=clock).run(columns.read(asked, "log")))
    assert found["n"].tolist() == list(range(len(streamed)))
    np.testing.assert_allclose(found["time"], [answer.time for answer in streamed], rtol=1e-12)
    for column in ("gap", "median", "low", "high", "mark"):
        np.testing.assert_allclose(found[column], [answer.columns[column][0] for answer in streamed], rtol=1e-4)
    assert np.isfinite(found.to_numpy(float)).all()


@pytest.mark.parametrize("name", ["cnp", "gpt2"])
def test_no_answer_is_infinite(name: str, dated: dict[str, Trained]) -> None:
    """Dates where times count from 0: answers, or one line."""
    try:
        found = icl.next_event(dated[name], 1.7e9 + 40 * TIMES, MARKS, start=0.0)
    except UsageError as error:
        assert "not finite" in str(error) and "\n" not in str(error)
    else:
        assert np.isfinite(found.to_numpy(float)).all()


def test_a_start_is_a_time_or_the_first_event(model: Backbone) -> None:
    assert len(icl.next_event(model, TIMES, MARKS, start="first")) == 3
    with pytest.raises(UsageError, match="'soon'"):
        icl.next_event(model, TIMES, MARKS, start="soon")
    with pytest.raises(UsageError, match="times"):
        icl.next_event(model, [], start="first")
    with pytest.raises(UsageError, match=r"event 0: time is 0\.5, before the 1 of the start .*start="):
        icl.next_event(model, TIMES, MARKS, start=1.0)
