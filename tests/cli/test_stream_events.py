"""`iclbench stream` of a run on event sequences, as a user meets it."""

import io
import json
import signal
import sys
from pathlib import Path

import pytest
import torch

from iclbench.cli.main import main
from iclbench.core.episodes import Points
from iclbench.store.runs import find

DATA = "time,mark\n30,0\n90,2\n?,?\n100.5,1\n,\n"
UNIT = 60.0


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of sequences in seconds, read in minutes: one observed from time 0, one from its first event on."""
    folder = tmp_path_factory.mktemp("trained")
    times = torch.rand(8, 20, generator=torch.Generator().manual_seed(0)).cumsum(1)
    rows = [json.dumps({"times": (60 * each).tolist(), "marks": [n % 3 for n in range(20)]}) for each in times]
    (folder / "log.jsonl").write_text("\n".join(rows))
    options = ["-o", f"task.path={folder / 'log.jsonl'}", "-o", f"task.time_scale={UNIT}", "-o", "train.steps=3"]
    options += ["-o", "backbone.layers=1", "-o", "backbone.width=8"]
    for name, more in {
        "minutes": ["mamba"],
        "first": ["mamba", "-o", "task.start=first"],
        "forgetful": ["cmhp"],
    }.items():
        words = ["train", "events", *more, "-p", "smoke", *options, "--name", name, "--results", str(folder)]
        assert main(words) == 0
    return folder


def stream(
    results: Path, *options: object, capsys: pytest.CaptureFixture[str], run: str = "minutes"
) -> tuple[int, list[str], str]:
    capsys.readouterr()
    code = main(["stream", run, "--results", str(results), "--device", "cpu", *map(str, options)])
    captured = capsys.readouterr()
    return code, captured.out.splitlines(), captured.err


def expected(results: Path, events: list[tuple[float, float]], run: str = "minutes") -> tuple[float, float, float]:
    """Expected gap, median gap and the probability of mark 0 after events, times and marks, from the model itself."""
    y, before = [], 0.0
    for time, mark in events:
        y.append([(time - before) / UNIT, mark, time / UNIT])
        before = time
    points = Points.full(torch.zeros(1, len(y), 0), torch.tensor([y], dtype=torch.float32))
    with torch.no_grad():
        found = find(results, run).load().predict_targets(points, torch.zeros(1, 1, 0))
    return UNIT * found.mean().item(), UNIT * found.quantile(0.5).item(), found.mark_probabilities()[0, 0, 0].item()


def assert_row(
    line: str, events: list[tuple[float, float]], results: Path, run: str = "minutes", start: float = 0
) -> None:
    time, gap, median, low, high, mark, *p = map(float, line.split(","))
    assert (gap, median, p[0]) == pytest.approx(expected(results, events, run), rel=1e-4)
    assert time == pytest.approx(start + events[-1][0] + gap, rel=1e-8)
    assert low < median < high and mark == p.index(max(p)) and sum(p) == pytest.approx(1, abs=1e-6)


def test_answers_of_a_file(results: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "data.csv").write_text(DATA)
    code, out, err = stream(results, "--csv", tmp_path / "data.csv", capsys=capsys)
    assert code == 0 and out[0] == "time,gap,median,low,high,mark,p0,p1,p2"
    events = [(30.0, 0.0), (90.0, 2.0), (100.5, 1.0)]
    for line, count in zip(out[1:], (2, 3), strict=True):
        assert_row(line, events[:count], results)
    assert "3 events and 2 queries" in err and "events/s" in err


def test_json_lines_name_the_time(results: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "data.csv").write_text(DATA)
    code, out, _ = stream(results, "--csv", tmp_path / "data.csv", "--json", capsys=capsys)
    rows = [json.loads(line) for line in out]
    assert code == 0 and [row["line"] for row in rows] == [4, 6]
    assert all(row["time"] == pytest.approx(last + row["gap"][0]) for row, last in zip(rows, (90, 100.5), strict=True))
    assert set(rows[0]) == {"line", "time", "gap", "median", "low", "high", "mark", "p"}


@pytest.mark.parametrize(
    ("run", "options", "times"),
    [("minutes", ["--start", "1.7e9"], [1.7e9 + 30]), ("first", [], [1.7e9, 1.7e9 + 30])],
)
def test_an_observation_starts_where_it_is_said(
    run: str,
    options: list[str],
    times: list[float],
    results: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """By the option, or as in training; seconds since 1970 cost no digit of an answer."""
    text = "".join(f"{time!r},0\n" for time in times)
    (tmp_path / "data.csv").write_text(text + "1700000090.25,2\n?,?\n")
    code, out, err = stream(results, "--csv", tmp_path / "data.csv", *options, run=run, capsys=capsys)
    assert code == 0 and "2 events" in err
    assert_row(out[1], [(30.0, 0.0), (90.25, 2.0)], results, run, 1.7e9)


@pytest.mark.parametrize("options", [[], ["--start", "10"], ["--float64"]])
def test_a_stream_in_two_parts_answers_like_one(
    options: list[str], results: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = DATA.splitlines(keepends=True)
    for name, part in {"all": lines, "one": lines[:3], "two": lines[3:]}.items():
        (tmp_path / name).write_text("".join(part))
    whole = stream(results, "--csv", tmp_path / "all", *options, capsys=capsys)[1]
    assert stream(results, "--csv", tmp_path / "one", "--save", tmp_path / "s", *options, capsys=capsys)[0] == 0
    options = [option for option in options if option == "--float64"]
    code, out, _ = stream(results, "--csv", tmp_path / "two", "--state", tmp_path / "s", *options, capsys=capsys)
    assert (code, out) == (0, whole)


def test_an_interrupt_saves_the_time_of_the_last_event(
    results: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Ended(io.StringIO):
        def readline(self, size: int | None = -1, /) -> str:
            if (line := super().readline(size)).startswith("99"):
                signal.raise_signal(signal.SIGTERM)
            return line

    monkeypatch.setattr(sys, "stdin", Ended("30,0\n90,2\n99,1\n"))
    code, _, err = stream(results, "--save", tmp_path / "state", capsys=capsys)
    assert code == 130 and "2 events and 0 queries" in err
    (tmp_path / "more.csv").write_text("100.5,1\n?,?\n")
    out = stream(results, "--csv", tmp_path / "more.csv", "--state", tmp_path / "state", capsys=capsys)[1]
    assert_row(out[1], [(30.0, 0.0), (90.0, 2.0), (100.5, 1.0)], results)


def test_a_stream_without_a_line_can_be_gone_on_with(
    results: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "none.csv").write_text("time,mark\n")
    (tmp_path / "data.csv").write_text("1700000000,1\n1700000090.25,2\n?,?\n")
    state, options = tmp_path / "state", ["--start", "first"]
    assert stream(results, "--csv", tmp_path / "none.csv", "--save", state, *options, capsys=capsys)[0] == 0
    code, out, _ = stream(results, "--csv", tmp_path / "data.csv", "--state", state, capsys=capsys)
    assert code == 0
    assert_row(out[1], [(90.25, 2.0)], results, start=1.7e9)


def test_a_start_that_a_state_says_cannot_be_said_again(
    results: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "start.csv").write_text("30,1\n")
    (tmp_path / "data.csv").write_text("20,1\n")
    state = tmp_path / "state"
    options = ["--save", state, "--start", "first"]
    assert stream(results, "--csv", tmp_path / "start.csv", *options, capsys=capsys)[0] == 0
    code, _, err = stream(results, "--csv", tmp_path / "data.csv", "--state", state, capsys=capsys)
    assert code == 2 and err.endswith("before the 30 of the start of the observation; times must increase\n")


def test_a_window_of_events(results: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "data.csv").write_text("1,0\n30,0\n90,2\n?,?\n")
    code, out, err = stream(results, "--csv", tmp_path / "data.csv", "--window", 2, run="forgetful", capsys=capsys)
    assert code == 0 and "window of 2 events, its state of" in err and len(out) == 2


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        ("30,0\n20,0\n", [], "data.csv, line 2: time is 20, before the 30 of the event of line 1; times must increase"),
        ("30,3\n", [], "data.csv, line 1: mark is 3; write an integer from 0 to 2"),
        (DATA, ["--start", "noon"], "--start noon: write a time, or first"),
        (DATA, ["--start", "nan"], "--start nan: write a time, or first"),
        (DATA, ["--start", "5", "--state", "x"], "--start "),
        (DATA, ["--window", "5"], "--window: this model cannot forget points, cmanp, cmanp-and, cmhp"),
        (DATA, ["--related", "{here}/data.csv"], "--related: this model does not use related datasets"),
    ],
)
def test_what_cannot_be_done_is_one_line(
    text: str, options: list[str], message: str, results: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "data.csv").write_text(text)
    given = [option.format(here=tmp_path) for option in options]
    code, _, err = stream(results, "--csv", tmp_path / "data.csv", *given, capsys=capsys)
    (line,) = [line for line in err.splitlines() if line.startswith("error: ")]
    assert code == 2 and message in line
