"""Shell completion: the names of cards, backbones and runs, and the completion script.

Each completion function lists names, and Typer selects the names that begin with the typed text. The functions run
while the user types, so they import only what they need.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import typer

from iclbench.cli.options import RESULTS
from iclbench.core.errors import UsageError

if TYPE_CHECKING:
    from iclbench.config.cards import CardKind

SHELLS = ("bash", "zsh", "fish")
# A shell sets this environment variable to request completions.
VARIABLE = "_ICLBENCH_COMPLETE"


def tasks() -> list[str]:
    return _cards("tasks")


def baselines() -> list[str]:
    return _cards("baselines")


def grids() -> list[str]:
    return _cards("grids")


def engines() -> list[str]:
    from iclbench.sweep.engines import engine_names

    return engine_names()


def several_tasks(incomplete: str) -> list[str]:
    return _after_last_comma(incomplete, tasks())


def several_contestants(incomplete: str) -> list[str]:
    return _after_last_comma(incomplete, [*backbones(), *baselines()])


def several_contestants_and_runs(ctx: Any, incomplete: str) -> list[str]:
    return _after_last_comma(incomplete, [*backbones(), *baselines(), *runs(ctx)])


def language_tasks(incomplete: str) -> list[str]:
    return _after_last_comma(incomplete, _cards("tasks/language", "tasks/language/suites"))


def presets() -> list[str]:
    from iclbench.config.cards import PRESETS

    return list(PRESETS)


def backbones() -> list[str]:
    from iclbench.registry import BACKBONES

    return BACKBONES.names()


def classes() -> list[str]:
    """Return the names that `iclbench check` accepts."""
    from iclbench.registry import BACKBONES, ESTIMATORS, FAMILIES

    return sorted({name for registry in (BACKBONES, ESTIMATORS, FAMILIES) for name in registry.names()})


def runs(ctx: Any) -> list[str]:
    """Return the names of the runs in the results folder."""
    return sorted(path.parent.name for path in _results(ctx).glob("runs/*/config.toml"))


def shifts(ctx: Any, incomplete: str) -> list[str]:
    """Return completions for the last shift of a combination, whose shifts are joined by `+`.

    The shifts are taken from the runs on the command line or, if none are named, from all runs in the results folder.
    Without runs, they are taken from all tasks.
    """
    from iclbench.config.cards import card_names, load_task

    before, plus, _ = incomplete.rpartition("+")
    shift_lists = _shifts_of_runs(ctx) or [load_task(task)[1].shifts for task in card_names("tasks")]
    parts = {part for shifts in shift_lists for shift in shifts for part in shift.split("+")} - set(before.split("+"))
    return [f"{before}{plus}{part}" for part in sorted(parts)] + ["all"]


def _shifts_of_runs(ctx: Any) -> list[list[str]]:
    import tomllib

    names, shifts = {*(ctx.params.get("run") or ()), *ctx.args}, []
    for path in _results(ctx).glob("runs/*/config.toml"):
        if not names or path.parent.name in names:
            with suppress(OSError, ValueError, KeyError, TypeError):  # skip runs with an unreadable configuration
                shifts.append([str(s) for s in tomllib.loads(path.read_text(encoding="utf-8"))["task"]["shifts"]])
    return shifts


def names_to_show(ctx: Any) -> list[str]:
    """Return the names that `iclbench show` accepts."""
    cards = _cards("tasks", "baselines", "grids", "tasks/language", "tasks/language/suites")
    return sorted({*cards, *backbones(), *runs(ctx), "glyphs"})


def listable_kinds() -> list[str]:
    """Return the kinds of entries that `iclbench list` can list."""
    return ["tasks", "backbones", "baselines", "families", "grids", "runs"]


def answer_request(command: Any) -> NoReturn:
    """Answer a completion request, and exit."""
    from typer.completion import completion_init

    completion_init()
    command(args=[], prog_name="iclbench")
    sys.exit(1)


def show(shell: str | None) -> None:
    """Print the completion script of a shell."""
    if shell is not None:
        from typer.completion import get_completion_script

        typer.echo(get_completion_script(prog_name="iclbench", complete_var=VARIABLE, shell=_shell_name(shell)))
        raise typer.Exit


def install(shell: str | None) -> None:
    """Write the completion script to the file that the shell reads."""
    if shell is not None:
        from typer.completion import install

        name, path = install(shell=_shell_name(shell), prog_name="iclbench", complete_var=VARIABLE)
        typer.echo(f"completion for {name} written to {path}; it is active in new terminals")
        raise typer.Exit


def _shell_name(shell: str) -> str:
    """Return the name of a supported shell, where `auto` means the user's shell. Raise `UsageError` for other
    shells."""
    name = Path(os.environ.get("SHELL", "")).name if shell == "auto" else shell
    if name not in SHELLS:
        raise UsageError(
            f"no completion for {name or 'an unknown shell'!r}; supported shells: bash, zsh, fish",
            code="bad-value",
        )
    return name


def _results(ctx: Any) -> Path:
    """Return the results folder given on the command line, in the environment or by default."""
    return Path(ctx.params.get("results") or os.environ.get("ICLBENCH_RESULTS") or RESULTS)


def _cards(*kinds: CardKind) -> list[str]:
    from iclbench.config.cards import card_names

    return [name for kind in kinds for name in card_names(kind)]


def _after_last_comma(incomplete: str, names: Iterable[str]) -> list[str]:
    """Return completions for the last name of a comma-separated list."""
    before, comma, _ = incomplete.rpartition(",")
    return [f"{before}{comma}{name}" for name in names]
