"""The texts of `--help`."""

import re
import subprocess
import sys
from itertools import pairwise

import pytest

from iclbench.cli.lazy import COMMANDS, command_parser, command_summary
from iclbench.cli.main import main, parser
from iclbench.cli.report import SECTIONS
from iclbench.report.sections import section_names

PARSERS = {(*name.split(),): command_parser(name) for name in COMMANDS}
PARSERS |= {(): parser(), ("lm",): parser().commands["lm"]}


def plain_text(out: str) -> str:
    """The help text on one line, without box-drawing characters."""
    return " ".join(re.sub("[│╭╮╰╯─]", " ", out).split())


@pytest.mark.parametrize("path", PARSERS, ids=" ".join)
def test_help_contains_the_complete_description_of_every_parameter(
    path: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*path, "--help"]) == 0
    out = capsys.readouterr().out
    words = set(plain_text(out).split())
    for parameter in PARSERS[path].params:
        text = str(getattr(parameter, "help", None) or "")
        text = text.replace("\\[", "[")
        assert set(text.split()) <= words, f"{parameter.name}: {text}"
    assert "--debug" in words
    assert "--help" in words and "bool" not in out


def test_paragraphs_are_wrapped_to_the_width_of_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    """The next word does not fit on any line but the last line of a paragraph."""
    assert main(["tune", "--help"]) == 0
    text = capsys.readouterr().out.partition("╭")[0]
    paragraphs = [
        [line.strip() for line in paragraph.splitlines()]
        for paragraph in re.split(r"\n *\n", text)[2:]
        if paragraph.strip()
    ]
    pairs = [pair for lines in paragraphs for pair in pairwise(lines)]
    assert pairs and all(len(line) + 1 + len(following.split()[0]) > 78 for line, following in pairs)


@pytest.mark.parametrize("group", ["", "lm"])
def test_the_help_of_a_group_summarises_its_commands(group: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*group.split(), "--help"]) == 0
    out = plain_text(capsys.readouterr().out)
    commands = [name for name in COMMANDS if name.rpartition(" ")[0] == group]
    assert commands and all(f"{name.split()[-1]} {command_summary(name)}" in out for name in commands)


def test_the_help_of_commands_does_not_import_large_libraries() -> None:
    heavy = {"torch", "pandas", "numpy", "sklearn", "transformers", "pyarrow"}
    code = (
        f"import sys; from iclbench.cli.main import main; [main([*path, '--help']) for path in {[*PARSERS]!r}];"
        f"sys.exit(', '.join({heavy!r} & set(sys.modules)) or 0)"
    )
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert process.returncode == 0, process.stderr


def test_the_help_of_train_names_the_tables_of_a_configuration_file(capsys: pytest.CaptureFixture[str]) -> None:
    main(["train", "--help"])
    text = plain_text(capsys.readouterr().out)
    assert all(table in text for table in ("[task]", "[backbone]", "[train]"))


@pytest.mark.parametrize("arguments", [[], ["lm"]])
def test_a_command_without_arguments_prints_help(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 0
    out, err = capsys.readouterr()
    assert "Usage: iclbench" in out + err and "error: " not in err


@pytest.mark.parametrize("position", [0, 1, 2])
def test_the_option_debug_prints_the_traceback_at_any_position(
    position: int, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["show", "linaer"]
    arguments.insert(position, "--debug")
    assert main(arguments) == 2
    err = capsys.readouterr().err
    assert "Traceback" in err and err.splitlines()[-1].startswith("error: ") and "'linaer'" in err


def test_the_help_of_the_demo_names_its_results_folder(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--help"]) == 0
    assert "./results/demo" in plain_text(capsys.readouterr().out)


def test_the_help_of_report_lists_its_sections(capsys: pytest.CaptureFixture[str]) -> None:
    assert list(SECTIONS) == section_names()
    assert main(["report", "--help"]) == 0
    text = plain_text(capsys.readouterr().out)
    assert all(re.search(rf"\b{name}\b", text) for name in SECTIONS)
    assert main(["report", "--only", "heatmap"]) == 2
    err = capsys.readouterr().err
    assert "'heatmap'" in err and all(name in err for name in SECTIONS)
