"""`iclbench check package.module:Class`: the contract tests, for a plug-in."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from iclbench.cli import completion
from iclbench.cli.options import DataDir, MaxBytes, Threads, set_up_torch
from iclbench.config import trust
from iclbench.core.errors import shortened

if TYPE_CHECKING:
    from iclbench.backbones.base import Backbone


def check(
    target: Annotated[
        str,
        typer.Argument(
            autocompletion=completion.classes,
            help="A registered name or package.module:Class of a backbone, estimator or family, or a task's card "
            "(.toml), whose family is checked with the card's parameters.",
        ),
    ],
    data_dir: DataDir = None,
    max_bytes: MaxBytes = None,
    threads: Threads = 1,
) -> None:
    """Run the contract tests on a backbone, estimator or family, yours or ours."""
    set_up_torch("cpu", threads)
    from iclbench.cli.terminal import out

    broken = 0
    results = (result for cls in _load(target) for result in _check(cls, target, data_dir))
    for name, problem in results:
        broken += problem is not None
        line = f"{'FAILED' if problem else 'ok    '} {name}{': ' + problem if problem else ''}"
        out.print(line)
    for line in _oracles(target):
        out.print(line)
    if broken:
        raise typer.Exit(1)


def _oracles(target: str) -> Iterator[str]:
    """What the cards of a family name its oracles, and which of them are claims of the card alone: the shipped cards,
    those in the current folder, or the one card that is checked."""
    from iclbench.config.cards import load_task, names
    from iclbench.config.registry import canonical
    from iclbench.config.resolution import family_class
    from iclbench.core.errors import UsageError

    def key(family: str) -> str:
        return family if ":" in family else canonical(family)

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
    """The class behind package.module:Class, the family of a card, or every class that goes by this name (an estimator
    and a family, say)."""
    from iclbench.config.cards import load_task
    from iclbench.config.registry import BACKBONES, ESTIMATORS, FAMILIES, canonical
    from iclbench.config.resolution import family_class
    from iclbench.core.errors import UnknownNameError

    if target.endswith(".toml"):
        return [family_class(load_task(target)[1].family)]
    if ":" in target:
        trust.typed(target)
        return [BACKBONES.get(target)]
    registries = (BACKBONES, ESTIMATORS, FAMILIES)
    found = [registry.get(target) for registry in registries if canonical(target) in registry.entries]
    if not found:
        known = {name for registry in registries for name in registry.entries}
        raise UnknownNameError("backbone, estimator or family", target, known, hint="(or package.module:Class)")
    return found


def _check(cls: Any, target: str, data_dir: Any) -> Iterator[tuple[str, str | None]]:
    """Name and problem (None: kept) of every contract that applies to the class with its default settings, of a variant
    with those that it stands for."""
    from iclbench.backbones.base import Backbone
    from iclbench.config.cards import load_task
    from iclbench.config.registry import BACKBONES
    from iclbench.config.resolution import resolve_task
    from iclbench.contracts import CONTRACTS, Tolerance, example_episodes
    from iclbench.contracts.families import FAMILY_CONTRACTS
    from iclbench.core.errors import UsageError
    from iclbench.core.predictor import Predictor
    from iclbench.core.task import TaskFacts
    from iclbench.estimators.base import FittedPredictor
    from iclbench.families.base import Family

    kind = cls if isinstance(cls, type) else object
    if issubclass(kind, Family):
        if target.endswith(".toml"):
            preset = next(iter(load_task(target)[1].presets))
            family = resolve_task(target, preset)[0].build(data_dir)
        else:
            family = kind(kind.Parameters(), data_dir)
        for contract in FAMILY_CONTRACTS:
            yield contract.__name__, _problem(contract, family)
        return
    predictors: dict[str, Predictor]
    if issubclass(kind, FittedPredictor):
        labels = "categorical" in kind.heads
        predictors = {" (categorical head)" if labels else "": kind(facts=TaskFacts(classes=5 if labels else None))}
    elif issubclass(kind, Backbone):
        frozen = {} if ":" in target else BACKBONES.variant(target).frozen
        predictors = {f" ({head} head)": _build(kind, head, frozen) for head in kind.heads}
    else:
        raise UsageError(f"'{target}' is neither a Backbone, nor an Estimator, nor a Family of iclbench")
    for suffix, predictor in predictors.items():
        episodes = example_episodes(points=7, classes=5 if "categorical" in suffix else None, related=3)
        for each in CONTRACTS:
            if each.applies(predictor):
                yield each.name + suffix, _problem(each.check, predictor, episodes, Tolerance(2e-5, 1e-4))


def _build(cls: type[Backbone], head: str, frozen: Mapping[str, Any]) -> Backbone:
    from iclbench.core.seeds import global_stream
    from iclbench.core.task import TaskShape

    shape = TaskShape(x_dim=4, points=12, classes=5 if head == "categorical" else None, head=head, related=3)
    with global_stream(0, "weights"):
        return cls(cls.Settings(**frozen), shape).eval()


def _problem(contract: Any, *arguments: Any) -> str | None:
    try:
        contract(*arguments)
    except Exception as error:
        return shortened(str(error)) or type(error).__name__
    return None
