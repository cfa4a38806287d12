"""`iclbench stream` of runs on streams of tokens and of vectors."""

import json
from pathlib import Path

import pytest

from iclbench.cli.main import main
from tests.cli.conftest import Stream

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


@pytest.fixture
def stream(stream: Stream, tmp_path: Path) -> Stream:
    """The second argument is the lines of a CSV file."""

    def stream_lines(run: str, lines: list[str], *options: str) -> tuple[int, list[str], str]:
        (tmp_path / "lines.csv").write_text("\n".join(lines))
        return stream(run, "--csv", tmp_path / "lines.csv", *options)

    return stream_lines


def test_json_lines_of_tokens_contain_the_token_as_an_integer(stream: Stream) -> None:
    code, out, err = stream("markov", ["?", *ELEMENTS["markov"], "?"], "--json")
    rows = [json.loads(line) for line in out]
    assert code == 0 and [row["line"] for row in rows] == [1, 5]
    for row in rows:
        assert set(row) == {"line", "token", "p"} and type(row["token"]) is int and len(row["p"]) == 3
        assert row["p"][row["token"]] == max(row["p"])
    assert "3 elements and 2 queries" in err and "elements/s" in err


def test_json_lines_of_vectors_have_no_inputs(stream: Stream) -> None:
    code, out, _ = stream("linear-system", [*ELEMENTS["linear-system"], "?"], "--json")
    (row,) = map(json.loads, out)
    assert code == 0 and set(row) == {"line", "mean", "std", "low", "high"} and len(row["mean"]) == 1


@pytest.mark.parametrize("run", ELEMENTS)
def test_a_stream_longer_than_in_training_is_refused_in_one_line_also_after_a_saved_state(
    run: str, tmp_path: Path, stream: Stream
) -> None:
    """In training, the models read four elements and predict the fifth."""
    first, *others = ELEMENTS[run]
    code, out, err = stream(run, [first, first, *others, "?", first, "?"])
    (line,) = [line for line in err.splitlines() if line.startswith("error: ")]
    assert code == 2 and len(out) == 2 and "line 7" in line and "after 5 elements" in line
    state = str(tmp_path / "state")
    assert stream(run, [first, first, *others], "--save", state)[0] == 0
    code, out, err = stream(run, ["?", first, "?"], "--state", state)
    assert code == 2 and len(out) == 2 and "line 3: after 5 elements" in err
