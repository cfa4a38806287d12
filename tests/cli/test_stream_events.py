"""`iclbench stream` of runs on event sequences."""

import json
import sys
from pathlib import Path

import pytest
import torch

from iclbench.cli.main import main
from iclbench.core.episodes import Points
from iclbench.store.runs import find
from tests.cli.conftest import InterruptedInput, Stream
from tests.texts import numbers

DATA = "time,mark\n30,0\n90,2\n?,?\n100.5,1\n,\n"
UNIT = 60.0


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A results folder with three runs. The times of their event log are in seconds, and the unit of the models is a
    minute. Sequences are observed from time 0 or, for the run `first`, from their first event."""
    folder = tmp_path_factory.mktemp("trained")
    times = torch.rand(8, 20, generator=torch.Generator().manual_seed(0)).cumsum(1)
    rows = [json.dumps({"times": (60 * sequence).tolist(), "marks": [n % 3 for n in range(20)]}) for sequence in times]
    (folder / "log.jsonl").write_text("\n".join(rows))
    options = ["-o", f"task.path={folder / 'log.jsonl'}", "-o", f"task.time_scale={UNIT}", "-o", "train.steps=3"]
    options += ["-o", "backbone.layers=1", "-o", "backbone.width=8"]
    for name, run_options in {
        "minutes": ["mamba"],
        "first": ["mamba", "-o", "task.start=first"],
        "forgetful": ["cmhp"],
    }.items():
        words = ["train", "events", *run_options, "-p", "smoke", *options, "--name", name, "--results", str(folder)]
        assert main(words) == 0
    return folder


def expected_answer(
    results: Path, events: list[tuple[float, float]], run: str = "minutes"
) -> tuple[float, float, float]:
    """Return the mean gap, the median gap and the probability of mark 0 that the model predicts after these events."""
    y, last_time = [], 0.0
    for time, mark in events:
        y.append([(time - last_time) / UNIT, mark, time / UNIT])
        last_time = time
    points = Points.full(torch.zeros(1, len(y), 0), torch.tensor([y], dtype=torch.float32))
    with torch.no_grad():
        prediction = find(results, run).load().predict_targets(points, torch.zeros(1, 1, 0))
    mean, median = UNIT * prediction.mean().item(), UNIT * prediction.quantile(0.5).item()
    return mean, median, prediction.mark_probabilities()[0, 0, 0].item()


def assert_row(
    line: str, events: list[tuple[float, float]], results: Path, run: str = "minutes", start: float = 0
) -> None:
    time, gap, median, low, high, mark, *p = map(float, line.split(","))
    assert (gap, median, p[0]) == pytest.approx(expected_answer(results, events, run), rel=1e-4)
    assert time == pytest.approx(start + events[-1][0] + gap, rel=1e-8)
    assert low < median < high and mark == p.index(max(p)) and sum(p) == pytest.approx(1, abs=1e-6)


def test_answers_to_a_csv_file_equal_the_predictions_of_the_model(
    results: Path, tmp_path: Path, stream: Stream
) -> None:
    (tmp_path / "data.csv").write_text(DATA)
    code, out, err = stream("minutes", "--csv", tmp_path / "data.csv")
    assert code == 0 and out[0] == "time,gap,median,low,high,mark,p0,p1,p2"
    events = [(30.0, 0.0), (90.0, 2.0), (100.5, 1.0)]
    for line, count in zip(out[1:], (2, 3), strict=True):
        assert_row(line, events[:count], results)
    assert numbers(err)[:2] == [3, 2] and "events/s" in err


def test_json_lines_contain_the_predicted_time(tmp_path: Path, stream: Stream) -> None:
    (tmp_path / "data.csv").write_text(DATA)
    code, out, _ = stream("minutes", "--csv", tmp_path / "data.csv", "--json")
    rows = [json.loads(line) for line in out]
    assert code == 0 and [row["line"] for row in rows] == [4, 6]
    assert all(row["time"] == pytest.approx(last + row["gap"][0]) for row, last in zip(rows, (90, 100.5), strict=True))
    assert set(rows[0]) == {"line", "time", "gap", "median", "low", "high", "mark", "p"}


@pytest.mark.parametrize(
    ("run", "options", "times"),
    [("minutes", ["--start", "1.7e9"], [1.7e9 + 30]), ("first", [], [1.7e9, 1.7e9 + 30])],
)
def test_an_observation_starts_at_the_given_time_or_at_the_first_event(
    run: str,
    options: list[str],
    times: list[float],
    results: Path,
    tmp_path: Path,
    stream: Stream,
) -> None:
    """Without the option `--start`, observations start as in training. Large times do not reduce the precision of
    answers."""
    text = "".join(f"{time!r},0\n" for time in times)
    (tmp_path / "data.csv").write_text(text + "1700000090.25,2\n?,?\n")
    code, out, err = stream(run, "--csv", tmp_path / "data.csv", *options)
    assert code == 0 and numbers(err)[:2] == [2, 1]
    assert_row(out[1], [(30.0, 0.0), (90.25, 2.0)], results, run, 1.7e9)


@pytest.mark.parametrize("options", [[], ["--start", "10"], ["--float64"]])
def test_a_stream_in_two_parts_gives_the_same_answers(options: list[str], tmp_path: Path, stream: Stream) -> None:
    lines = DATA.splitlines(keepends=True)
    for name, part in {"all": lines, "one": lines[:3], "two": lines[3:]}.items():
        (tmp_path / name).write_text("".join(part))
    expected_lines = stream("minutes", "--csv", tmp_path / "all", *options)[1]
    assert stream("minutes", "--csv", tmp_path / "one", "--save", tmp_path / "s", *options)[0] == 0
    options = [option for option in options if option == "--float64"]
    code, out, _ = stream("minutes", "--csv", tmp_path / "two", "--state", tmp_path / "s", *options)
    assert (code, out) == (0, expected_lines)


def test_an_interrupt_saves_the_time_of_the_last_event(
    results: Path, tmp_path: Path, stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", InterruptedInput("30,0\n90,2\n99,1\n"))
    code, _, err = stream("minutes", "--save", tmp_path / "state")
    assert code == 130 and numbers(err)[:2] == [2, 0]
    (tmp_path / "more.csv").write_text("100.5,1\n?,?\n")
    out = stream("minutes", "--csv", tmp_path / "more.csv", "--state", tmp_path / "state")[1]
    assert_row(out[1], [(30.0, 0.0), (90.0, 2.0), (100.5, 1.0)], results)


def test_a_stream_without_lines_can_be_continued(results: Path, tmp_path: Path, stream: Stream) -> None:
    (tmp_path / "none.csv").write_text("time,mark\n")
    (tmp_path / "data.csv").write_text("1700000000,1\n1700000090.25,2\n?,?\n")
    state, options = tmp_path / "state", ["--start", "first"]
    assert stream("minutes", "--csv", tmp_path / "none.csv", "--save", state, *options)[0] == 0
    code, out, _ = stream("minutes", "--csv", tmp_path / "data.csv", "--state", state)
    assert code == 0
    assert_row(out[1], [(90.25, 2.0)], results, start=1.7e9)


def test_an_event_before_the_last_event_of_a_loaded_state_is_refused(tmp_path: Path, stream: Stream) -> None:
    (tmp_path / "start.csv").write_text("30,1\n")
    (tmp_path / "data.csv").write_text("20,1\n")
    state = tmp_path / "state"
    options = ["--save", state, "--start", "first"]
    assert stream("minutes", "--csv", tmp_path / "start.csv", *options)[0] == 0
    code, _, err = stream("minutes", "--csv", tmp_path / "data.csv", "--state", state)
    assert code == 2 and "20" in err and "30" in err


def test_a_window_can_be_used_for_events(tmp_path: Path, stream: Stream) -> None:
    (tmp_path / "data.csv").write_text("1,0\n30,0\n90,2\n?,?\n")
    code, out, err = stream("forgetful", "--csv", tmp_path / "data.csv", "--window", 2)
    assert code == 0 and numbers(err)[-2] == 2 and len(out) == 2


@pytest.mark.parametrize(
    ("text", "options", "names"),
    [
        ("30,0\n20,0\n", [], ("data.csv", "line 2", "20", "30", "line 1")),
        ("30,3\n", [], ("data.csv", "line 1", "3", "0", "2")),
        (DATA, ["--start", "noon"], ("--start noon", "first")),
        (DATA, ["--start", "nan"], ("--start nan", "first")),
        (DATA, ["--start", "5", "--state", "x"], ("--start", "--state")),
        (DATA, ["--window", "5"], ("--window", "cmanp", "cmhp")),
        (DATA, ["--related", "{here}/data.csv"], ("--related",)),
    ],
)
def test_invalid_requests_are_refused_in_one_line(
    text: str,
    options: list[str],
    names: tuple[str, ...],
    tmp_path: Path,
    stream: Stream,
) -> None:
    (tmp_path / "data.csv").write_text(text)
    words = [option.format(here=tmp_path) for option in options]
    code, _, err = stream("minutes", "--csv", tmp_path / "data.csv", *words)
    (line,) = [line for line in err.splitlines() if line.startswith("error: ")]
    assert code == 2 and all(name in line for name in names), line
