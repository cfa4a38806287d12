"""The list of commands. A command's module is imported only when the command is called or its help is printed."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from copy import copy
from importlib import import_module
from typing import Any, get_type_hints

import typer
from rich.markup import escape
from typer.core import TyperCommand, TyperGroup

# The words after `iclbench`, in the order of the help. For example, the function `command` in
# `iclbench.cli.lm.demo_model` defines the options and the help of `iclbench lm demo-model`, and runs the command. It
# imports large packages in its body, so that the help is printed quickly.
COMMANDS = (
    "demo",
    "list",
    "show",
    "train",
    "eval",
    "predict",
    "probe",
    "cost",
    "stream",
    "sweep",
    "tune",
    "report",
    "export",
    "rm",
    "prune",
    "fetch-reference",
    "check",
    "check-pack",
    "doctor",
    "lm eval",
    "lm tasks",
    "lm demo-model",
)

# The placeholder for an option's value in help texts, by a part of the type's name.
_TYPES = {"bool": "", "int": "N", "float": "X", "Path": "PATH"}


class _PlainHelpOption:
    """A mix-in for the classes of commands and groups: the option --help has no placeholder for a value."""

    def get_help_option(self, ctx: Any) -> Any:
        option = super().get_help_option(ctx)  # type: ignore[misc]
        if option is not None:
            option.metavar = ""
        return option


class _Command(_PlainHelpOption, TyperCommand):
    pass


def command_parser(words: str) -> Any:
    """Return the parser of a command such as `lm eval`."""
    app = typer.Typer(add_completion=False)
    function = _command_function(words)
    help_text = "\n\n".join(_paragraphs(function))
    app.command(words.rpartition(" ")[2], cls=_Command, help=help_text)(function)
    return with_plain_help(typer.main.get_command(app), function)


def command_summary(words: str) -> str:
    """Return the first paragraph of a command's help."""
    return _paragraphs(_command_function(words))[0]


def _paragraphs(function: Callable[..., None]) -> list[str]:
    """The paragraphs of a docstring without line breaks, so that they are wrapped to the width of the terminal."""
    return [" ".join(paragraph.split()) for paragraph in re.split(r"\n\s*\n", inspect.getdoc(function) or "")]


def _command_function(words: str) -> Callable[..., None]:
    module = words.replace(" ", ".").replace("-", "_")
    return import_module(f"iclbench.cli.{module}").command


def lazy_group(prefix: str = "") -> type[TyperGroup]:
    """Return a class of command groups for the commands that begin with this prefix."""
    commands = {name: words for words in COMMANDS for before, _, name in [words.rpartition(" ")] if before == prefix}

    class LazyGroup(_PlainHelpOption, TyperGroup):
        def __init__(self, **settings: Any) -> None:
            super().__init__(**settings)
            self.commands = {name: TyperCommand(name) for name in commands} | dict(self.commands)

        def get_command(self, ctx: Any, cmd_name: str) -> Any:
            """Return a command with only its name and summary, for the list of commands."""
            if cmd_name in commands:
                return with_plain_help(TyperCommand(cmd_name, help=command_summary(commands[cmd_name])))
            return super().get_command(ctx, cmd_name)

        def resolve_command(self, ctx: Any, args: list[str]) -> Any:
            name, parser, remaining_args = super().resolve_command(ctx, args)
            if name in commands:
                parser = with_debug_option(command_parser(commands[name]), ctx.find_root().command)
            return name, parser, remaining_args

    return LazyGroup


def with_plain_help(parser: Any, function: Callable[..., None] | None = None) -> Any:
    """Escape markup in the help texts of a parser and shorten the placeholders for values. Return the same parser.

    Args:
        parser: the parser of a command or of a group.
        function: the function that defines the options; without it, the placeholders are not changed.
    """
    for element in (parser, *parser.params):
        if getattr(element, "help", None):
            element.help = escape(element.help)
    hints = get_type_hints(function) if function else {}
    for option in parser.params:
        if option.name in hints and option.metavar is None and option.param_type_name == "option":
            hint = str(hints[option.name])
            # Typer's own placeholders, such as `<int range> [x>=1]`, leave little room for the help texts.
            option.metavar = next((word for name, word in _TYPES.items() if name in hint), "TEXT")
    return parser


def with_debug_option(parser: Any, root: Any) -> Any:
    """Add the root's `--debug` to the help of a parser, and return the parser. `main` removes the option from the
    arguments before they are parsed."""
    parser.params.append(copy(next(option for option in root.params if option.name == "debug")))
    parser.params[-1].expose_value = False
    return parser
