"""What help says, letter by letter."""

from collections.abc import Iterator
from typing import Any

import pytest
import typer

from iclbench.cli.main import app, main


def commands(group: Any, *path: str) -> Iterator[tuple[tuple[str, ...], Any]]:
    yield path, group
    for name, command in getattr(group, "commands", {}).items():
        yield from commands(command, *path, name)


ALL = dict(commands(typer.main.get_command(app)))


def shown(out: str) -> str:
    """The words of help without the frames around them."""
    return " ".join("".join(" " if letter in "│╭╮╰╯─" else letter for letter in out).split())


@pytest.mark.parametrize("path", ALL, ids=" ".join)
def test_help_prints_every_text_as_it_is_written(path: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*path, "--help"]) == 0
    out = capsys.readouterr().out
    words = set(shown(out).split())
    for parameter in ALL[path].params:
        said = str(getattr(parameter, "help", None) or "")
        assert set(said.split()) <= words, f"{parameter.name}: {said}"
    assert "--debug" in words


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
