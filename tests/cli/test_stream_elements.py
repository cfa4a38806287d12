"""`iclbench stream` of runs on streams of tokens and of vectors."""

import json
from pathlib import Path

import pytest

from iclbench.cli.main import main

ELEMENTS = {"markov": ["0", "2", "1"], "linear-system": ["0.5", "-0.1", "0.2"]}


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A results folder with a run per task. Positions are learned, and training sequences have five elements."""
    folder = tmp_path_factory.mktemp("trained")
    options = ["-o", "task.points=4", "-o", "train.steps=2", "-o", "backbone.layers=1", "-o", "backbone.width=8"]
    for task in ELEMENTS:
        words = ["train", task, "gpt2-learned", "-p", "smoke", *options, "-o", "backbone.heads=2"]
        assert main([*words, "--name", task, "--results", str(folder)]) == 0
    return folder


def stream(
    results: Path, run: str, lines: list[str], *options: str, capsys: pytest.CaptureFixture[str]
) -> tuple[int, list[str], str]:
    (results / "lines.csv").write_text("\n".join(lines))
    capsys.readouterr()
    code = main(["stream", run, "--results", str(results), "--csv", str(results / "lines.csv"), *options])
    captured = capsys.readouterr()
    return code, captured.out.splitlines(), captured.err


def test_json_lines_of_tokens_contain_the_token_as_an_integer(
    results: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = stream(results, "markov", ["?", *ELEMENTS["markov"], "?"], "--json", capsys=capsys)
    rows = [json.loads(line) for line in out]
    assert code == 0 and [row["line"] for row in rows] == [1, 5]
    for row in rows:
        assert set(row) == {"line", "token", "p"} and type(row["token"]) is int and len(row["p"]) == 3
        assert row["p"][row["token"]] == max(row["p"])
    assert "3 elements and 2 queries" in err and "elements/s" in err


def test_json_lines_of_vectors_have_no_inputs(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = stream(results, "linear-system", [*ELEMENTS["linear-system"], "?"], "--json", capsys=capsys)
    (row,) = map(json.loads, out)
    assert code == 0 and set(row) == {"line", "mean", "std", "low", "high"} and len(row["mean"]) == 1


@pytest.mark.parametrize("run", ELEMENTS)
def test_a_stream_longer_than_in_training_is_refused_in_one_line_also_after_a_saved_state(
    run: str, results: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In training, the models read four elements and predict the fifth."""
    first, *others = ELEMENTS[run]
    code, out, err = stream(results, run, [first, first, *others, "?", first, "?"], capsys=capsys)
    (line,) = [line for line in err.splitlines() if line.startswith("error: ")]
    assert code == 2 and len(out) == 2 and "line 7" in line and "after 5 elements" in line
    state = str(tmp_path / "state")
    assert stream(results, run, [first, first, *others], "--save", state, capsys=capsys)[0] == 0
    code, out, err = stream(results, run, ["?", first, "?"], "--state", state, capsys=capsys)
    assert code == 2 and len(out) == 2 and "line 3: after 5 elements" in err
