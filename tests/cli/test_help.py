"""What help says, letter by letter."""

import subprocess
import sys

import pytest

from iclbench.cli.lazy import COMMANDS, load, summary
from iclbench.cli.main import main, parser

PARSERS = {(*name.split(),): load(name) for name in COMMANDS}
PARSERS |= {(): parser(), ("lm",): parser().commands["lm"]}


def shown(out: str) -> str:
    """The words of help without the frames around them."""
    return " ".join("".join(" " if letter in "│╭╮╰╯─" else letter for letter in out).split())


@pytest.mark.parametrize("path", PARSERS, ids=" ".join)
def test_help_prints_every_text_as_it_is_written(path: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*path, "--help"]) == 0
    out = capsys.readouterr().out
    words = set(shown(out).split())
    for parameter in PARSERS[path].params:
        said = str(getattr(parameter, "help", None) or "")
        said = said.replace("\\[", "[")
        assert set(said.split()) <= words, f"{parameter.name}: {said}"
    assert "--debug" in words


@pytest.mark.parametrize("group", ["", "lm"])
def test_a_list_of_commands_has_the_first_paragraph_of_each(group: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*group.split(), "--help"]) == 0
    out = shown(capsys.readouterr().out)
    names = [name for name in COMMANDS if name.rpartition(" ")[0] == group]
    assert names and all(f"{name.split()[-1]} {summary(name)}" in out for name in names)


def test_help_of_no_command_imports_anything_heavy() -> None:
    heavy = {"torch", "pandas", "numpy", "sklearn", "transformers", "pyarrow"}
    code = (
        f"import sys; from iclbench.cli.main import main; [main([*path, '--help']) for path in {[*PARSERS]!r}];"
        f"sys.exit(', '.join({heavy!r} & set(sys.modules)) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_the_tables_of_a_configuration_file_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    main(["train", "--help"])
    text = " ".join(shown(capsys.readouterr().out).split())
    assert all(table in text for table in ("[task]", "[backbone]", "[train]"))


@pytest.mark.parametrize("arguments", [[], ["lm"]])
def test_without_arguments_there_is_help(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 0
    out, err = capsys.readouterr()
    assert "Usage: iclbench" in out + err and "error" not in err


@pytest.mark.parametrize("where", [0, 1, 2])
def test_debug_may_stand_anywhere_and_shows_the_traceback(where: int, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["show", "linaer"]
    arguments.insert(where, "--debug")
    assert main(arguments) == 2
    err = capsys.readouterr().err
    assert "Traceback" in err and err.splitlines()[-1].startswith("error: unknown name 'linaer'")


def test_help_of_the_demo_says_where_it_writes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--help"]) == 0
    assert "./results/demo" in shown(capsys.readouterr().out)
