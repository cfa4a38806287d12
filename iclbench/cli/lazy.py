"""Groups of commands that import a command when it is called, or when its help is asked for."""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from dataclasses import dataclass
from functools import wraps
from importlib import import_module
from inspect import signature
from typing import Any

import typer
from rich.markup import escape
from typer.core import TyperCommand, TyperGroup


@dataclass(frozen=True)
class Command:
    """A command that is not imported yet.

    Attributes:
        target: `module:function`; options below `iclbench.cli.commands`, work below `iclbench.cli`.
        summary: what the list of commands says of it: the first paragraph of the docstring.
    """

    target: str
    summary: str

    def load(self, name: str) -> Any:
        """The parser of this command."""
        module, _, function = self.target.partition(":")

        @wraps(getattr(import_module(f"iclbench.cli.commands.{module}"), function))
        def call(**given: Any) -> None:
            work = getattr(import_module(f"iclbench.cli.{module}"), function)
            work(**{name: given[name] for name in signature(work).parameters})  # --trust and the like act when parsed

        app = typer.Typer(add_completion=False)
        app.command(name)(call)
        return literal(typer.main.get_command(app))


def lazy_group(commands: Mapping[str, Command]) -> type[TyperGroup]:
    """A class of groups that know these commands."""

    class LazyGroup(TyperGroup):
        def __init__(self, **settings: Any) -> None:
            super().__init__(**settings)
            stubs = {name: TyperCommand(name, help=escape(command.summary)) for name, command in commands.items()}
            self.commands = stubs | dict(self.commands)

        def resolve_command(self, ctx: Any, args: list[str]) -> Any:
            name, found, rest = super().resolve_command(ctx, args)
            if name is not None and name in commands:
                found = with_debug(commands[name].load(name), ctx.find_root().command)
            return name, found, rest

    return LazyGroup


def literal(parser: Any) -> Any:
    """The parser, its texts of help taken literally."""
    for part in (parser, *parser.params):
        if getattr(part, "help", None):
            part.help = escape(part.help)
    return parser


def with_debug(parser: Any, root: Any) -> Any:
    """The parser, its help naming the root's `--debug`, which `main` takes away before anything is parsed."""
    parser.params.append(copy(next(option for option in root.params if option.name == "debug")))
    parser.params[-1].expose_value = False
    return parser
