"""What help says, letter by letter."""

import inspect
import subprocess
import sys
from importlib import import_module
from typing import get_type_hints

import pytest

from iclbench.cli import commands
from iclbench.cli.main import command, main

COMMANDS = {(name,): command for name, command in commands.COMMANDS.items()}
COMMANDS |= {("lm", name): command for name, command in commands.OF_LANGUAGE_MODELS.items()}
PARSERS = {path: command.load(path[-1]) for path, command in COMMANDS.items()}
PARSERS |= {(): command(), ("lm",): command().commands["lm"]}


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


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_options_and_work_of_a_command_fit_together(path: tuple[str, ...]) -> None:
    module, _, function = COMMANDS[path].target.partition(":")
    typed, work = (getattr(import_module(f"iclbench.cli{room}.{module}"), function) for room in (".commands", ""))
    offered = {name: type_ for name, type_ in get_type_hints(typed).items() if name not in ("trust", "max_bytes")}
    assert offered == get_type_hints(work)
    summary, *_ = str(inspect.getdoc(typed)).split("\n\n")
    assert COMMANDS[path].summary == " ".join(summary.split())


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
    assert "tables [task] [backbone] [train]" in " ".join(shown(capsys.readouterr().out).split())


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
