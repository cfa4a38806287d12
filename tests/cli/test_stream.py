"""`iclbench stream` of runs on points: predictions, saved states, windows and errors."""

import io
import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import tomli_w
import torch

from iclbench.cli.main import main
from iclbench.core.episodes import Points
from iclbench.core.errors import UsageError
from iclbench.core.predictor import State
from iclbench.store.runs import find
from tests.cli.conftest import InterruptedInput, Stream
from tests.conftest import restore_ctrl_c, small_card
from tests.texts import numbers

RUN = "tiny-linear-cmanp-smoke-s0"
DATA = "x1,x2,x3,y1\n1,2,3,0.5\n0,1,0,-1\n0.1,0.2,0.3,?\n1,1,1,2\n0.1,0.2,0.3,\n"


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trained")
    card = small_card(head="gaussian")
    card["presets"]["smoke"]["backbones"]["cmanp"] = {"layers": 2, "width": 8, "heads": 2, "hidden": 8, "latents": 3}
    (folder / "tiny-linear.toml").write_text(tomli_w.dumps(card))
    assert main(["train", str(folder / "tiny-linear.toml"), "cmanp", "-p", "smoke", "--results", str(folder)]) == 0
    return folder


def answer(results: Path, points: list[list[float]], x: list[float]) -> tuple[float, float]:
    """Return the mean and the standard deviation that the model predicts at x after these points."""
    data = torch.tensor([points], dtype=torch.float32)
    with torch.no_grad():
        model, points_read = find(results, RUN).load(), Points.full(data[..., :3], data[..., 3:])
        prediction = model.predict_targets(points_read, torch.tensor([[x]]))
    return prediction.mean.item(), prediction.std.item()


def test_answers_to_a_csv_file_equal_the_predictions_of_the_model(
    results: Path, tmp_path: Path, stream: Stream
) -> None:
    (tmp_path / "data.csv").write_text(DATA)
    code, out, err = stream(RUN, "--csv", tmp_path / "data.csv")
    assert code == 0
    assert out[0] == "x1,x2,x3,mean1,std1,low1,high1"
    points = [[1, 2, 3, 0.5], [0, 1, 0, -1], [1, 1, 1, 2]]
    for line, count in zip(out[1:], (2, 3), strict=True):
        x1, x2, x3, mean, std, low, high = map(float, line.split(","))
        assert (x1, x2, x3) == (0.1, 0.2, 0.3)
        assert (mean, std) == pytest.approx(answer(results, points[:count], [0.1, 0.2, 0.3]), rel=1e-4, abs=1e-5)
        assert (low + high) / 2 == pytest.approx(mean, abs=1e-5) and high - low == pytest.approx(2 * 1.644854 * std)
    assert numbers(err)[:2] == [3, 2] and 240 in numbers(err)


def test_points_can_be_read_from_standard_input_and_answers_written_as_json(
    stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(DATA))
    code, out, _ = stream(RUN, "--json")
    assert code == 0
    rows = [json.loads(line) for line in out]
    assert [row["line"] for row in rows] == [4, 6]
    assert all(row["x"] == [0.1, 0.2, 0.3] and len(row["mean"]) == len(row["high"]) == 1 for row in rows)


def test_a_window_uses_the_last_points(results: Path, tmp_path: Path, stream: Stream) -> None:
    (tmp_path / "data.csv").write_text(DATA)
    code, out, err = stream(RUN, "--csv", tmp_path / "data.csv", "--window", 2)
    assert code == 0 and numbers(err)[-2:] == [2, 240]
    points = [[1, 2, 3, 0.5], [0, 1, 0, -1], [1, 1, 1, 2]]
    for line, window_points in zip(out[1:], (points[:2], points[1:]), strict=True):
        mean, std = map(float, line.split(",")[3:5])
        assert (mean, std) == pytest.approx(answer(results, window_points, [0.1, 0.2, 0.3]), rel=1e-4, abs=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("window", [[], ["--window", "2"]])
@pytest.mark.parametrize("precision", [[], ["--float64"]])
def test_a_stream_in_two_parts_gives_the_same_answers(
    precision: list[str], window: list[str], tmp_path: Path, stream: Stream
) -> None:
    options = [*precision, *window]
    lines = DATA.splitlines(keepends=True)
    for name, part in {"all": lines, "one": lines[:3], "two": lines[3:]}.items():
        (tmp_path / name).write_text("".join(part))
    expected_lines = stream(RUN, "--csv", tmp_path / "all", *options)[1]
    code, out, err = stream(RUN, "--csv", tmp_path / "one", "--save", tmp_path / "s", *options)
    assert code == 0 and len(out) == 1 and f"saved to {tmp_path / 's'}" in err
    code, out, _ = stream(RUN, "--csv", tmp_path / "two", "--state", tmp_path / "s", *options)
    assert (code, out) == (0, expected_lines)


def test_an_invalid_line_changes_neither_earlier_answers_nor_the_saved_state(tmp_path: Path, stream: Stream) -> None:
    (tmp_path / "bad.csv").write_text(DATA + "1,nan,3,4\n9,9,9,9\n")
    (tmp_path / "good.csv").write_text(DATA)
    code, out, err = stream(RUN, "--csv", tmp_path / "bad.csv", "--save", tmp_path / "bad")
    assert code == 2 and len(out) == 3
    (line,) = [line for line in err.splitlines() if line.startswith("error: ")]
    assert all(name in line for name in (str(tmp_path / "bad.csv"), "line 7", "x2", "nan"))
    stream(RUN, "--csv", tmp_path / "good.csv", "--save", tmp_path / "good")
    states = [State.load(tmp_path / name) for name in ("bad", "good")]
    assert torch.equal(states[0].e, states[1].e) and torch.equal(states[0].log_c, states[1].log_c)


def _files(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_the_option_save_overwrites_only_states_and_empty_files(results: Path, tmp_path: Path, stream: Stream) -> None:
    data, state, empty, record = (tmp_path / name for name in ("data.csv", "state", "empty", "record"))
    data.write_text(DATA)
    run = find(results, RUN)
    Points.full(torch.zeros(1, 1, 1), torch.zeros(1, 1, 1)).save(record)
    other_files = [data, record, run.weights, run.path / "config.toml", run.path / "values.parquet"]
    before = _files(tmp_path) | _files(results)
    for path in other_files:
        code, out, err = stream(RUN, "--csv", data, "--save", path)
        assert (code, out) == (2, []) and str(path) in err
    assert before == _files(tmp_path) | _files(results)
    empty.touch()
    for path in (state, state, empty):
        assert stream(RUN, "--csv", data, "--save", path)[0] == 0
    assert stream(RUN, "--csv", data, "--state", state, "--save", state)[0] == 0


def test_save_state_and_save_overwrite_only_files_of_the_same_kind(results: Path, tmp_path: Path) -> None:
    model, path = find(results, RUN).load(), tmp_path / "mine"
    points = Points.full(torch.zeros(1, 2, 3), torch.zeros(1, 2, 1))
    with torch.no_grad():
        state = model.condition(points)
    for content in (b"mine", find(results, RUN).weights.read_bytes()):
        path.write_bytes(content)
        for save in (lambda: model.save_state(state, path), lambda: state.save(path), lambda: points.save(path)):
            with pytest.raises(UsageError) as error:
                save()
            assert str(path) in str(error.value)
        assert path.read_bytes() == content
    path.unlink()
    points.save(path)
    with pytest.raises(UsageError):
        model.save_state(state, path)
    points.save(path)
    path.unlink()
    for _ in range(2):
        model.save_state(state, path)
    assert torch.equal(model.load_state(path).e, state.e)


@pytest.mark.parametrize(
    ("text", "options", "names"),
    [
        ("1,2,3,?\n", [], ("line 1",)),
        ("1,2,3\n", [], ("line 1", "3", "4", "x1,x2,x3,y1")),
        (DATA, ["--related", "{here}/data.csv"], ("--related",)),
        (DATA, ["--related", "x", "--state", "y"], ("--related", "--state")),
        (DATA, ["--window", "2", "--state", "{results}/state"], ("/state",)),
        (DATA, ["--state", "{results}/window"], ("--window 2",)),
        (DATA, ["--window", "3", "--state", "{results}/window"], ("--window 2",)),
        (DATA, ["--state", "{here}/data.csv"], ("data.csv", "--save")),
        ("?,2,3,4\n", [], ("line 1", "x1", "'?'")),
        (DATA, ["--save", "{here}"], ("--save {here}",)),
        (DATA, ["--csv", "{here}/none.csv"], ("{here}/none.csv", "--csv")),
    ],
)
def test_invalid_requests_are_refused_in_one_line(
    text: str,
    options: list[str],
    names: tuple[str, ...],
    results: Path,
    tmp_path: Path,
    stream: Stream,
) -> None:
    (tmp_path / "data.csv").write_text(text)
    if any("{results}" in option for option in options) and not (results / "window").exists():
        (tmp_path / "one.csv").write_text("1,2,3,0.5\n")
        for name, window in {"state": [], "window": ["--window", 2]}.items():
            stream(RUN, "--csv", tmp_path / "one.csv", "--save", results / name, *window)
    words = [option.format(here=tmp_path, results=results) for option in options]
    code, _, err = stream(RUN, "--csv", tmp_path / "data.csv", *words)
    (line,) = [line for line in err.splitlines() if line.startswith("error: ")]
    assert code == 2
    assert all(name.format(here=tmp_path, results=results) in line for name in names), line


@pytest.mark.slow
def test_queries_are_answered_while_the_input_is_open_and_an_interrupt_saves_the_state(
    results: Path, tmp_path: Path, stream: Stream
) -> None:
    command = [sys.executable, "-m", "iclbench", "stream", RUN, "--results", str(results), "--device", "cpu"]
    with subprocess.Popen(
        [*command, "--save", str(tmp_path / "state")],
        text=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        preexec_fn=restore_ctrl_c,
    ) as process:
        assert process.stdin and process.stdout and process.stderr
        process.stdin.write("1,2,3,0.5\n0.1,0.2,0.3,?\n")
        process.stdin.flush()
        assert process.stdout.readline().startswith("x1,")
        mean = float(process.stdout.readline().split(",")[3])
        assert mean == pytest.approx(answer(results, [[1, 2, 3, 0.5]], [0.1, 0.2, 0.3])[0], rel=1e-4, abs=1e-5)
        process.stdin.write("0,1,0,-1\n0,0,0,?\n")
        process.stdin.flush()
        assert process.stdout.readline().startswith("0.0,0.0,0.0,"), "the second point was read"
        # Python handles a signal that arrives just before it waits for the next line only after that line.
        time.sleep(0.5)
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
        assert numbers(process.stderr.read())[:2] == [2, 2]
    (tmp_path / "query.csv").write_text("0.1,0.2,0.3,?\n")
    _, out, err = stream(RUN, "--csv", tmp_path / "query.csv", "--state", tmp_path / "state")
    assert len(out) == 2 and numbers(err)[:2] == [0, 1]


@pytest.mark.parametrize("window", [[], ["--window", "2"]])
def test_sigterm_saves_the_state_like_ctrl_c(
    window: list[str],
    results: Path,
    tmp_path: Path,
    stream: Stream,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    points = [[1, 2, 3, 0.5], [0, 1, 0, -1], [1, 1, 1, 2]]

    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr(sys, "stdin", InterruptedInput("1,2,3,0.5\n0,1,0,-1\n1,1,1,2\n9,9,9,9\n"))
    code, _, err = stream(RUN, "--save", tmp_path / "state", *window)
    assert (code, signal.getsignal(signal.SIGTERM)) == (130, before)
    assert numbers(err)[:2] == [3, 0]
    (tmp_path / "query.csv").write_text("0.1,0.2,0.3,?\n")
    out = stream(RUN, "--csv", tmp_path / "query.csv", "--state", tmp_path / "state", *window)[1]
    assert float(out[1].split(",")[3]) == pytest.approx(
        answer(results, points[1:] if window else points, [0.1, 0.2, 0.3])[0], rel=1e-4, abs=1e-5
    )
