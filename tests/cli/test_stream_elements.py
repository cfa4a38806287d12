"""`iclbench stream` of runs on streams of tokens and of vectors."""

import errno
import io
import json
from pathlib import Path

import pytest

from iclbench.cli.main import main
from iclbench.cli.stream_run import _read_lines
from tests.cli.conftest import Stream
from tests.refusals import refused

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


@pytest.mark.parametrize(
    ("run", "lines", "advice"),
    [
        ("markov", ["0", "x"], "an integer from 0 to 2"),
        ("markov", ["0", "3"], "an integer from 0 to 2"),
        ("linear-system", ["0.5", "x"], "a number such as 0.5"),
    ],
)
def test_the_error_for_an_invalid_element_says_what_to_write(
    run: str, lines: list[str], advice: str, stream: Stream
) -> None:
    code, _, err = stream(run, lines)
    assert code == 2 and "line 2" in err and advice in err.splitlines()[-1]


@pytest.mark.parametrize("run", ELEMENTS)
def test_windows_are_refused_without_the_names_of_models_that_do_not_read_streams(run: str, stream: Stream) -> None:
    code, _, err = stream(run, ["?"], "--window", "2")
    assert code == 2 and "--window" in err and "cnp" not in err


def test_a_stream_whose_file_cannot_be_read_to_the_end_is_refused() -> None:
    class Broken(io.StringIO):
        def readline(self, size: int | None = -1) -> str:
            raise OSError(errno.EIO, "Input/output error")

    with refused("unreadable-file", "/mnt/data.csv", "--csv"):
        list(_read_lines(Broken(), "/mnt/data.csv"))
