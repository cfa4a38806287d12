"""What a text shows of a command's output is what it prints."""

from pathlib import Path

import pytest

from tests.findings import outputs
from tests.findings.outputs import output_of, rewritten, shown, wrong
from tests.findings.quantities import ROOT

PACKED = ROOT / "results" / "reference"
TEXT = """Text.

    $ iclbench show ridge --card      # nothing
    $ iclbench thing
    first  1

    second 2
    third, fourth, ...
    ...

    last   3

    $ make nothing

Text.
"""


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "commands.md"
    output = "first  1\n\nsecond 2\nthird, fourth, fifth\nand more\nmuch more\n\nlast   3\n"
    path.write_text(f"# Kept\n\n```\n$ iclbench thing\n{output}```\n")
    monkeypatch.setattr(outputs, "COMMANDS", path)
    return path


def test_an_excerpt_is_what_was_printed(kept: Path) -> None:
    (block,) = shown(TEXT)
    assert (block.line, block.command, block.lines[0], block.lines[-1]) == (4, "iclbench thing", "first  1", "last   3")
    assert wrong("a.md", TEXT, PACKED) == []
    assert rewritten(TEXT, PACKED) == TEXT


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("second 2", "second 3", "'second 3' is printed as 'second 2'"),
        ("    second 2\n", "", "'third, fourth, ...' is printed as 'second 2'"),
        ("    ...\n\n", "", "'last   3' is printed as 'and more'"),
        ("last   3", "last   4", "'last   4' is printed as 'no such line'"),
        ("    last   3\n", "    last   3\n    and 4\n", "'and 4' is printed as 'no such line'"),
        ("    ...\n\n    last   3\n", "", "'and more' is printed, too"),
        ("$ iclbench thing", "$ iclbench another", "neither printed from packed results nor kept"),
    ],
)
def test_what_is_not_printed_names_its_command(kept: Path, old: str, new: str, said: str) -> None:
    (problem,) = wrong("a.md", TEXT.replace(old, new, 1), PACKED)
    assert problem.where == "a.md:4" and problem.sentence.startswith("$ iclbench") and said in problem.wrong


def test_what_changed_is_written_as_it_is_printed_in_as_many_lines(kept: Path) -> None:
    kept.write_text(kept.read_text().replace("second 2", "second 9").replace("fourth, fifth", "seventh, eighth"))
    expected = TEXT.replace("second 2", "second 9").replace("third, fourth, ...", "third, seventh, ...")
    assert rewritten(TEXT, PACKED) == expected and wrong("a.md", expected, PACKED) == []


def test_packed_runs_are_printed_from_their_rows() -> None:
    lines = output_of("iclbench eval bursty-coqe-small-s0 bursty-mamba-small-s0", PACKED)
    assert lines[0] == "bursty, small: accuracy among the labels that are admitted"
    assert {line.split()[0] for line in lines[2:-1]} == {
        "nearest-class-mean",
        "bursty-coqe-small-s0",
        "pixel-1nn",
        "majority",
        "bursty-mamba-small-s0",
        "chance",
    }
    assert lines[-1].startswith("from the reference results") and "coqe" not in lines[-1]
    with pytest.raises(LookupError, match="linear-gpt3-grid-s0: no rows"):
        output_of("iclbench eval linear-gpt2-grid-s0 linear-gpt3-grid-s0", PACKED)
    costs = output_of("iclbench cost linear-gpt2-grid-s0 --points 64 --points 256", PACKED)
    assert costs[0] == "linear, grid: cpu, 1 thread" and max(map(len, costs)) <= int(outputs.WIDTH)
    assert [line.split()[1] for line in costs if line.startswith("linear-")] == ["64", "256", "64", "256"]
    assert output_of("iclbench list families", PACKED)[0].startswith("family")
