"""`iclbench check package.module:Class`: the contract tests, for a plug-in."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

from iclbench.cli.options import set_up_torch
from iclbench.cli.terminal import out
from iclbench.config import trust
from iclbench.config.cards import is_baseline, load_baseline, load_task, names
from iclbench.config.registry import BACKBONES, ESTIMATORS, FAMILIES, canonical
from iclbench.config.resolution import family_class
from iclbench.core.errors import UnknownNameError, UsageError
from iclbench.core.formats import plural


def check(target: str, data_dir: Path | None, threads: int) -> None:
    """Run the contract tests on a backbone, estimator or family, yours or ours."""
    set_up_torch("cpu", threads)
    from iclbench.cli.check_class import check_class

    run, broken = 0, list[str]()
    results = (result for cls in _load(target) for result in check_class(cls, target, data_dir))
    for name, problem in results:
        run += 1
        broken += [name] * (problem is not None)
        line = f"{'FAILED' if problem else 'ok    '} {name}{': ' + problem if problem else ''}"
        out.print(line)
    for line in _oracles(target):
        out.print(line)
    out.print(_summary(run, broken))
    if broken:
        raise typer.Exit(1)


def _summary(run: int, broken: list[str]) -> str:
    """The closing line: how many were run, and each that is broken anywhere, once."""
    named = dict.fromkeys(name.partition(" (")[0] for name in broken)
    return f"{len(broken)} of {run} broken: {', '.join(named)}" if broken else f"{plural(run, 'contract')} kept"


def _oracles(target: str) -> Iterator[str]:
    """What the cards of a family name its oracles, and which of them are claims of the card alone: the shipped cards,
    those in the current folder, or the one card that is checked."""

    def key(family: str) -> str:
        return family if ":" in family else canonical(family)

    if is_baseline(target):
        return
    alone = target.endswith(".toml")
    for card in [target] if alone else [*names("tasks"), *map(str, sorted(Path().glob("*.toml")))]:
        try:
            task, about = load_task(card)
        except UsageError:
            if alone:
                raise
            continue  # another file than a task's card
        if not alone and key(about.family) != key(target):
            continue
        for oracle in about.oracles:
            if family_class(about.family).vouches_for(oracle):
                yield f"oracle {oracle} of task {task}: the family vouches for it"
            else:
                yield f"claim  {oracle} of task {task}: its oracle by the card alone; the family does not vouch for it"


def _load(target: str) -> list[Any]:
    """The class behind package.module:Class, the family or estimator of a card, or every class that goes by this name
    (an estimator and a family, say)."""
    if is_baseline(target):
        return [ESTIMATORS.get(load_baseline(target)[1].estimator)]
    if target.endswith(".toml"):
        return [family_class(load_task(target)[1].family)]
    trust.typed(target)
    if ":" in target:
        return [BACKBONES.get(target)]
    registries = (BACKBONES, ESTIMATORS, FAMILIES)
    found = [registry.get(target) for registry in registries if canonical(target) in registry.entries]
    if not found:
        known = {name for registry in registries for name in registry.entries}
        raise UnknownNameError("backbone, estimator or family", target, known, hint="(or package.module:Class)")
    return found
