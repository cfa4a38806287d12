"""Completion of what is typed: names of cards, backbones and runs, and the script that tells the shell of it.

A shell asks at every press of the key, so nothing here imports more than names need.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import typer

from iclbench.core.errors import UsageError

if TYPE_CHECKING:
    from iclbench.config.cards import CardKind

SHELLS = ("bash", "zsh", "fish")
# The variable through which a shell asks.
ASKED = "_ICLBENCH_COMPLETE"
RESULTS = Path("results")


def tasks(incomplete: str) -> list[str]:
    return _of_cards("tasks", incomplete)


def baselines(incomplete: str) -> list[str]:
    return _of_cards("baselines", incomplete)


def grids(incomplete: str) -> list[str]:
    return _of_cards("grids", incomplete)


def engines(incomplete: str) -> list[str]:
    from iclbench.sweep.engines import known

    return [name for name in known() if name.startswith(incomplete)]


def several_tasks(incomplete: str) -> list[str]:
    """The last of several names separated by commas."""
    return _last(incomplete, lambda last: _of_cards("tasks", last))


def several_contestants(incomplete: str) -> list[str]:
    """The last of several names separated by commas."""
    return _last(incomplete, lambda last: [*backbones(last), *baselines(last)])


def language_tasks(incomplete: str) -> list[str]:
    """The last of several names separated by commas."""
    kinds: tuple[CardKind, ...] = ("tasks/language", "tasks/language/suites")
    return _last(incomplete, lambda last: [name for kind in kinds for name in _of_cards(kind, last)])


def presets(incomplete: str) -> list[str]:
    from iclbench.config.cards import PRESETS

    return _beginning(PRESETS, incomplete)


def backbones(incomplete: str) -> list[str]:
    from iclbench.config.registry import BACKBONES

    return _beginning(BACKBONES.names(), incomplete)


def classes(incomplete: str) -> list[str]:
    """What `iclbench check` takes by name."""
    from iclbench.config.registry import BACKBONES, ESTIMATORS, FAMILIES

    names = {name for registry in (BACKBONES, ESTIMATORS, FAMILIES) for name in registry.names()}
    return _beginning(sorted(names), incomplete)


def runs(ctx: Any, incomplete: str) -> list[str]:
    """Runs of the results folder that stands before, or in the environment."""
    return _beginning(sorted(path.parent.name for path in _folder(ctx).glob("runs/*/config.toml")), incomplete)


def shifts(ctx: Any, incomplete: str) -> list[str]:
    """The last of several parts joined by `+`: of the shifts on the cards of the runs that stand before, of all runs in
    the results folder, or, without any, of all tasks."""
    from iclbench.config.cards import load_task, names

    before, plus, last = incomplete.rpartition("+")
    cards = _shifts_of_runs(ctx) or [load_task(task)[1].shifts for task in names("tasks")]
    named = {part for shifts in cards for shift in shifts for part in shift.split("+")}
    known = sorted(named - set(before.split("+")))
    return [f"{before}{plus}{part}" for part in _beginning(known if plus else [*known, "all"], last)]


def _shifts_of_runs(ctx: Any) -> list[list[str]]:
    import tomllib

    named, found = {*(ctx.params.get("run") or ()), *ctx.args}, []
    for path in _folder(ctx).glob("runs/*/config.toml"):
        if not named or path.parent.name in named:
            with suppress(OSError, ValueError, KeyError, TypeError):  # of a broken run nothing is known
                found.append([str(s) for s in tomllib.loads(path.read_text(encoding="utf-8"))["task"]["shifts"]])
    return found


def everything(ctx: Any, incomplete: str) -> list[str]:
    """What `iclbench show` knows."""
    kinds: tuple[CardKind, ...] = ("tasks", "baselines", "grids", "tasks/language", "tasks/language/suites")
    cards = [name for kind in kinds for name in _of_cards(kind, incomplete)]
    return sorted({*cards, *backbones(incomplete), *runs(ctx, incomplete), *_beginning(["glyphs"], incomplete)})


def lists(incomplete: str) -> list[str]:
    return _beginning(("tasks", "backbones", "baselines", "families", "grids", "runs"), incomplete)


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


def _folder(ctx: Any) -> Path:
    """The results folder that stands before, or in the environment."""
    return Path(ctx.params.get("results") or os.environ.get("ICLBENCH_RESULTS") or RESULTS)


def _last(incomplete: str, known: Callable[[str], list[str]]) -> list[str]:
    """What completes the last of several names separated by commas, behind those that stand there."""
    before, comma, last = incomplete.rpartition(",")
    return [f"{before}{comma}{name}" for name in known(last)]


def _of_cards(kind: CardKind, incomplete: str) -> list[str]:
    from iclbench.config.cards import names

    return _beginning(names(kind), incomplete)


def _beginning(names: Iterable[str], incomplete: str) -> list[str]:
    """The names that begin so; where there is none, shells complete files."""
    return [name for name in names if name.startswith(incomplete)]
