"""Completion of names of cards, backbones and runs, and the script that a shell needs for it.

Each function lists names; Typer drops those that do not begin with the typed letters. A shell asks at every press of
a key, so nothing here imports more than names need.
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
# The variable through which a shell asks.
ASKED = "_ICLBENCH_COMPLETE"


def tasks() -> list[str]:
    return _cards("tasks")


def baselines() -> list[str]:
    return _cards("baselines")


def grids() -> list[str]:
    return _cards("grids")


def engines() -> list[str]:
    from iclbench.sweep.engines import known

    return known()


def several_tasks(incomplete: str) -> list[str]:
    return _after_comma(incomplete, tasks())


def several_contestants(incomplete: str) -> list[str]:
    return _after_comma(incomplete, [*backbones(), *baselines()])


def language_tasks(incomplete: str) -> list[str]:
    return _after_comma(incomplete, _cards("tasks/language", "tasks/language/suites"))


def presets() -> list[str]:
    from iclbench.config.cards import PRESETS

    return list(PRESETS)


def backbones() -> list[str]:
    from iclbench.registry import BACKBONES

    return BACKBONES.names()


def classes() -> list[str]:
    """The names that `iclbench check` takes."""
    from iclbench.registry import BACKBONES, ESTIMATORS, FAMILIES

    return sorted({name for registry in (BACKBONES, ESTIMATORS, FAMILIES) for name in registry.names()})


def runs(ctx: Any) -> list[str]:
    """Runs of the results folder on the command line, or in the environment."""
    return sorted(path.parent.name for path in _results(ctx).glob("runs/*/config.toml"))


def shifts(ctx: Any, incomplete: str) -> list[str]:
    """The last of several parts joined by `+`: of the shifts on the cards of the runs on the command line, of all runs
    in the results folder, or, if there are none, of all tasks."""
    from iclbench.config.cards import load_task, names

    before, plus, _ = incomplete.rpartition("+")
    cards = _shifts_of_runs(ctx) or [load_task(task)[1].shifts for task in names("tasks")]
    parts = {part for shifts in cards for shift in shifts for part in shift.split("+")} - set(before.split("+"))
    return [f"{before}{plus}{part}" for part in sorted(parts)] + ["all"]


def _shifts_of_runs(ctx: Any) -> list[list[str]]:
    import tomllib

    named, shifts = {*(ctx.params.get("run") or ()), *ctx.args}, []
    for path in _results(ctx).glob("runs/*/config.toml"):
        if not named or path.parent.name in named:
            with suppress(OSError, ValueError, KeyError, TypeError):  # a broken run is left out
                shifts.append([str(s) for s in tomllib.loads(path.read_text(encoding="utf-8"))["task"]["shifts"]])
    return shifts


def everything(ctx: Any) -> list[str]:
    """The names that `iclbench show` takes."""
    cards = _cards("tasks", "baselines", "grids", "tasks/language", "tasks/language/suites")
    return sorted({*cards, *backbones(), *runs(ctx), "glyphs"})


def lists() -> list[str]:
    return ["tasks", "backbones", "baselines", "families", "grids", "runs"]


def answer(command: Any) -> NoReturn:
    """Answer the shell that asks, and end."""
    from typer.completion import completion_init

    completion_init()
    command(args=[], prog_name="iclbench")
    sys.exit(1)


def show(shell: str | None) -> None:
    """Print the script that makes a shell complete."""
    if shell is not None:
        from typer.completion import get_completion_script

        typer.echo(get_completion_script(prog_name="iclbench", complete_var=ASKED, shell=_known(shell)))
        raise typer.Exit


def install(shell: str | None) -> None:
    """Write that script where the shell reads it."""
    if shell is not None:
        from typer.completion import install

        name, path = install(shell=_known(shell), prog_name="iclbench", complete_var=ASKED)
        typer.echo(f"completion of {name} written to {path}; it begins with the next terminal")
        raise typer.Exit


def _known(shell: str) -> str:
    """The shell's name; `auto` is the user's own."""
    name = Path(os.environ.get("SHELL", "")).name if shell == "auto" else shell
    if name not in SHELLS:
        raise UsageError(f"no completion for {name or 'an unknown shell'!r}; write --show-completion bash, zsh or fish")
    return name


def _results(ctx: Any) -> Path:
    """The results folder on the command line, or in the environment."""
    return Path(ctx.params.get("results") or os.environ.get("ICLBENCH_RESULTS") or RESULTS)


def _cards(*kinds: CardKind) -> list[str]:
    from iclbench.config.cards import names

    return [name for kind in kinds for name in names(kind)]


def _after_comma(incomplete: str, names: Iterable[str]) -> list[str]:
    """What completes the last of several names separated by commas."""
    before, comma, _ = incomplete.rpartition(",")
    return [f"{before}{comma}{name}" for name in names]
