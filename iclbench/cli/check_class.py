"""Runs the contracts that apply to a class, and reports each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from iclbench.backbones.base import Backbone
from iclbench.config.cards import load_task
from iclbench.config.registry import BACKBONES
from iclbench.config.resolution import resolve_task
from iclbench.contracts import CONTRACTS, Tolerance, example_episodes
from iclbench.contracts.families import FAMILY_CONTRACTS
from iclbench.core.errors import UsageError, shortened
from iclbench.core.predictor import Predictor
from iclbench.core.seeds import global_stream
from iclbench.core.task import TaskFacts, TaskShape
from iclbench.estimators.base import FittedPredictor
from iclbench.families.base import Family


def check_class(cls: Any, target: str, data_dir: Any) -> Iterator[tuple[str, str | None]]:
    """Name and problem (None: kept) of every contract that applies to the class with its default settings, of a variant
    with those that it stands for."""
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
    shape = TaskShape(x_dim=4, points=12, classes=5 if head == "categorical" else None, head=head, related=3)
    with global_stream(0, "weights"):
        return cls(cls.Settings(**frozen), shape).eval()


def _problem(contract: Any, *arguments: Any) -> str | None:
    try:
        contract(*arguments)
    except Exception as error:
        return shortened(str(error)) or type(error).__name__
    return None
