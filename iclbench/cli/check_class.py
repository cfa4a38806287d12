"""Runs the contracts that apply to a class, and reports each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from iclbench.backbones.base import Backbone
from iclbench.config.cards import load_task, names
from iclbench.config.registry import BACKBONES
from iclbench.config.resolution import resolve_task
from iclbench.config.sizes import sized
from iclbench.contracts import CONTRACTS, Tolerance, example_episodes
from iclbench.contracts.families import FAMILY_CONTRACTS
from iclbench.core.episodes import Episodes
from iclbench.core.errors import UsageError, shortened
from iclbench.core.formats import count
from iclbench.core.predictor import Predictor
from iclbench.core.seeds import global_stream
from iclbench.core.task import TaskFacts, TaskShape
from iclbench.estimators.base import FittedPredictor
from iclbench.families.base import Family

CLASSES, MARKS = 5, 3
# Numbers of related datasets: models are trained and scored on tasks of both kinds, by other methods of theirs.
RELATED = (0, 3)


def check_class(cls: Any, target: str, data_dir: Any) -> Iterator[tuple[str, str | None]]:
    """Name and problem (None: kept) of every contract that applies to the class with its default settings, of a variant
    with those that it stands for; of a backbone also of the budgets that it is sized to."""
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
    if issubclass(kind, FittedPredictor):
        cases = _estimators(kind)
    elif issubclass(kind, Backbone):
        frozen = {} if ":" in target else BACKBONES.variant(target).frozen
        given = kind.Settings(**frozen).model_dump(mode="json", exclude_unset=True)
        for budget in _budgets():
            size = f"a_size_meets_the_budget ({count(budget)} parameters)"
            yield size, _problem(sized, target, kind, budget, _shape(kind.heads[0]), given)
        cases = _backbones(kind, frozen)
    else:
        raise UsageError(f"'{target}' is neither a Backbone, nor an Estimator, nor a Family of iclbench")
    for suffix, predictor, episodes in cases:
        for each in CONTRACTS:
            if each.is_about(predictor, episodes):
                yield each.name + suffix, _problem(each.check, predictor, episodes, Tolerance(2e-5, 1e-4))


def _estimators(cls: type[FittedPredictor]) -> Iterator[tuple[str, Predictor, Episodes]]:
    """What to check, with what stands behind the names of its contracts, on episodes without and with related
    datasets."""
    head = next((head for head in ("categorical", "event") if head in cls.heads), "")
    for related in _related(head):
        shape = _shape(head or "point", related)
        predictor = cls(facts=TaskFacts(classes=shape.classes, marks=shape.marks))
        yield _suffix(head, related), predictor, _episodes(shape)


def _backbones(cls: type[Backbone], frozen: Mapping[str, Any]) -> Iterator[tuple[str, Predictor, Episodes]]:
    """The same of a backbone with every head. It is built for a task without related datasets, where a sequence is read
    in one pass, and for one with them, where it goes on from a state."""
    for head in cls.heads:
        for related in _related(head):
            shape = _shape(head, related)
            with global_stream(0, "weights"):
                backbone = cls(cls.Settings(**frozen), shape).eval()
            yield _suffix(head, related), backbone, _episodes(shape)


def _related(head: str) -> tuple[int, ...]:
    """Numbers of related datasets; of events there are none."""
    return (0,) if head == "event" else RELATED


def _budgets() -> list[int]:
    """Those of the presets of all shipped tasks."""
    presets = (preset for task in names("tasks") for preset in load_task(task)[1].presets.values())
    return sorted({preset.budget for preset in presets if preset.budget is not None})


def _shape(head: str, related: int = 0) -> TaskShape:
    question = "targets" if related else "next"
    if head == "event":
        return TaskShape(x_dim=0, points=16, y_dim=3, marks=MARKS, head=head, question=question)
    classes = CLASSES if head == "categorical" else None
    return TaskShape(x_dim=4, points=16, classes=classes, head=head, question=question, related=related)


def _episodes(shape: TaskShape) -> Episodes:
    return example_episodes(points=7, classes=shape.classes, marks=shape.marks, related=shape.related)


def _suffix(head: str, related: int) -> str:
    words = [f"{head} head"] * bool(head) + ["related datasets"] * bool(related)
    return f" ({', '.join(words)})" if words else ""


def _problem(contract: Any, *arguments: Any) -> str | None:
    try:
        contract(*arguments)
    except Exception as error:
        return shortened(str(error)) or type(error).__name__
    return None
