"""Contestants: predictors under the name and kind by which the tables know them."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any
from uuid import uuid4

import torch

from iclbench.backbones.base import Backbone
from iclbench.config.cards import load_baseline
from iclbench.config.rates import Rates
from iclbench.config.resolution import RunConfig, TaskConfig
from iclbench.core.errors import UsageError
from iclbench.core.plugins import named
from iclbench.core.predictor import Predictor
from iclbench.core.settings import validate
from iclbench.core.task import TaskFacts
from iclbench.deep_thinking.backbones import ThinkingBackbone
from iclbench.deep_thinking.methods import Method
from iclbench.estimators.base import FittedPredictor
from iclbench.evaluation.contestant import Contestant
from iclbench.evaluation.prompts import PromptSet
from iclbench.families.base import Family
from iclbench.registry import ESTIMATORS
from iclbench.store import identity
from iclbench.store.runs import Run

# What a head answers with; the others, numbers.
_ANSWERS = {"categorical": "class labels", "event": "events"}
# The number that ends a baseline's name: knn-3, lasso-1e-2.
_NUMBER = re.compile(r"-\d[\d.]*(e-?\d+)?$")


@dataclass(frozen=True)
class PredictorContestant(Contestant):
    """A predictor as a contestant.

    Attributes:
        predictor: what answers.
        episodes: how many episodes of a prompt set are asked, from the first; None for all.
        branches: by their steps the shorter trainings that branched off from its own, read when they are asked.
    """

    predictor: Predictor = field(kw_only=True)
    episodes: int | None = None
    branches: Mapping[int, Callable[[], Predictor]] = field(default_factory=dict)

    @property
    def order(self) -> str | None:
        return self.predictor.order if self.kind == "backbone" else None


def in_memory(
    name: str,
    predictor: Predictor,
    device: str = "cpu",
    *,
    model: str | None = None,
    seed: int | None = None,
    variant: str | None = None,
) -> PredictorContestant:
    """A predictor of a notebook, which is already on the device; no cell of a results folder is ever taken for its.

    Args:
        name: of the contestant.
        predictor: what answers.
        device: where it is.
        model: what it is, where its name says something else.
        seed: that it was trained from.
        variant: hash of what was trained.
    """
    return PredictorContestant(
        name,
        name,
        "backbone",
        uuid4().hex,
        seed,
        variant,
        model_name=model or name,
        device=device,
        predictor=predictor,
    )


def backbone(run: Run, device: str = "cpu", data_dir: Path | None = None) -> PredictorContestant:
    """The trained backbone of a run."""
    return of_run(run, run.load(device, data_dir), device)


def of_run(run: Run, model: Backbone, device: str) -> PredictorContestant:
    """The contestant of a run whose model is already loaded on the device."""
    # Loading has checked that the digest is that of the file.
    model_id = identity.model_id(run.hash, run.digest, run.branch_digests)
    contestant = _contestant_of(run.name, run.config, model, model_id, device)
    branches = {steps: partial(_branch, run, steps, model) for steps in run.branch_steps}
    tuned = _is_tuned(run.config, run.path.parent.parent)
    return replace(contestant, branches=branches, folder=run.path, tuned=tuned)


def _is_tuned(config: RunConfig, results: Path) -> bool:
    """Whether a run was trained at the learning rate that a table of rates has for it."""
    rates = Rates.of(config.preset, config.task.name, config.task.card, results)
    return rates.is_chosen(config.backbone.name, config.train.model_dump(mode="json"))


def _branch(run: Run, steps: int, model: Backbone) -> Backbone:
    """A branch of a run whose own model is there already."""
    return run.load_branch(steps, copy.deepcopy(model)).eval()


def untrained(run: str, config: RunConfig, device: str = "cpu", data_dir: Path | None = None) -> PredictorContestant:
    """The backbone that a run starts from, under the run's name: for whatever does not depend on weights."""
    model = config.build(config.task.build(data_dir)).to(device).eval()
    return _contestant_of(run, config, model, identity.unweighted_id(config), device)


def _contestant_of(run: str, config: RunConfig, model: Backbone, model_id: str, device: str) -> PredictorContestant:
    return PredictorContestant(
        config.backbone.name,
        run,
        "backbone",
        model_id,
        config.seed,
        identity.variant_id(config),
        model_name=config.backbone.name,
        device=device,
        libraries={"torch": torch.__version__},
        predictor=model,
    )


def on_other_task(model: PredictorContestant, run: Run, task: TaskConfig, family: Family) -> PredictorContestant:
    """The backbone of a run on the prompts of a task that it was not trained on, under a name that says so; as it is
    where they are those of its own.

    Raises:
        DataChangedError: it is the run's own task on other data.
        UsageError: the task has other inputs, outputs, classes, head or related datasets, or more examples.
    """
    own_family, trained = run.config.task.build(), run.config.task
    if asks_alike(trained, task):
        check_data(trained, family)
        return model
    shapes = {
        "input dimensions": (own_family.x_dim, family.x_dim),
        "output dimensions": (own_family.y_dim, family.y_dim),
        "classes": (own_family.classes, family.classes),
        "marks": (own_family.marks, family.marks),
        "image shape": (own_family.x_shape, family.x_shape),
        "head": (trained.head, task.head),
    }
    differs = [
        f"{name} {other} there, {own_value} here" for name, (own_value, other) in shapes.items() if own_value != other
    ]
    if task.points > trained.points:
        differs.append(f"{task.points} examples there, trained with {trained.points}")
    if model.predictor.uses_related and family.related_sets > own_family.related_sets:
        differs.append(f"{family.related_sets} related datasets there, trained with {own_family.related_sets}")
    if differs:
        raise UsageError(f"run '{run.name}' cannot be asked the prompts of task '{task.name}': {differs[0]}")
    return trained_elsewhere(model, trained)


def asks_alike(task: TaskConfig, other: TaskConfig) -> bool:
    """Whether two tasks are one as far as a model is concerned that was trained on one of them."""
    fields = ("name", "family", "parameters", "question", "points")
    return all(getattr(task, key) == getattr(other, key) for key in fields)


def check_data(trained: TaskConfig, family: Family) -> None:
    """Raise `DataChangedError` where the family of a task has other data than a model was trained on; a family with
    what a run has learned has been checked before."""
    if not family.learned:
        family.check_data(trained.learned)


def trained_elsewhere(model: PredictorContestant, task: TaskConfig) -> PredictorContestant:
    """The contestant under a name that says on which task it was trained."""
    return replace(model, name=f"{model.name}@{task.name}", trained_on=task.name)


def thinking(plain: PredictorContestant, method: Method) -> PredictorContestant:
    """The backbone of a run as a further contestant that thinks over its contexts.

    Raises:
        UsageError: the method is none for runs, or not defined for this backbone.
    """
    if not method.settings.thinks or not isinstance(plain.predictor, Backbone):
        raise UsageError(f"--method {method.name} is for language models (iclbench lm eval); runs take deep-thinking")
    try:
        predictor = ThinkingBackbone(plain.predictor, method.settings.thinking())
    except UsageError as error:
        raise UsageError(f"run '{plain.run}': {error}") from None
    return replace(
        plain,
        name=plain.name + method.suffix,
        run=plain.run + method.suffix,
        applied=method.suffix,
        predictor=predictor,
        branches={},
        identity=identity.method_id(plain.identity, method.hash),
        variant=identity.method_id(plain.variant, method.hash, 8),
    )


def baselines(prompts: PromptSet, names: Iterable[str] | None = None) -> list[PredictorContestant]:
    """The baselines and oracles of the task (or just `names`), given the facts of the task under this shift."""
    task = prompts.task
    baseline_names = list(dict.fromkeys([*task.oracles, *task.baselines])) if names is None else list(names)
    facts = prompts.family.facts(prompts.shift)
    return [_baseline(name, task, prompts, facts) for name in baseline_names]


def _estimator(estimator: str, baseline: str) -> Any:
    """The class that a baseline's card names; raises `UsageError` when it is something else."""
    cls = ESTIMATORS.get(estimator)
    if not (isinstance(cls, type) and issubclass(cls, Predictor)):
        raise UsageError(
            f"baseline '{baseline}': '{estimator}' is no estimator: it must be a subclass of "
            f"{FittedPredictor.__module__}.{FittedPredictor.__name__}"
        )
    return cls


def misfit(name: str, task: TaskConfig) -> str | None:
    """Why a baseline, by name or path, cannot answer what the task asks for, labels, events or numbers; None: it
    can."""
    name, card = load_baseline(name)
    heads = _estimator(card.estimator, name).heads
    predicts, asked_kinds = (
        {_ANSWERS.get(head, "numbers") for head in head_names} for head_names in (heads, [task.head])
    )
    if asked_kinds & predicts:
        return None
    return f"baseline '{name}' predicts {' or '.join(sorted(predicts))}, task '{task.name}' asks for {min(asked_kinds)}"


def _baseline(name: str, task: TaskConfig, prompts: PromptSet, facts: TaskFacts) -> PredictorContestant:
    problem, (name, card) = misfit(name, task), load_baseline(name)
    if problem is not None:
        available = ", ".join(baseline for baseline in task.baselines if baseline != name) or "none"
        raise UsageError(f"{problem}; its baselines: {available}")
    cls = _estimator(card.estimator, name)
    settings = validate(cls.Settings, card.settings, f"baseline '{name}': settings")
    with named(cls):
        predictor = cls(settings, facts, seed=prompts.seed)
    # Asked of their metadata: importing them takes a second, and most estimators are our own.
    libraries = {"torch": torch.__version__} | {name: version(name) for name in ("scikit-learn", "xgboost")}
    oracle = name in task.oracles
    loses_oracle = oracle and not prompts.family.keeps_oracle(name, prompts.shift)
    gaps = [gap for gap in (facts.mean_gap, facts.mean_first_gap) if gap is not None]
    depends_on = identity.baseline_id(
        card,
        [facts.noise_to_signal, facts.hidden_width, *gaps],
        # Our own algorithms are exact whatever the version.
        {name: libraries[name] for name in cls.libraries},
        is_oracle=not loses_oracle,
    )
    kind = "oracle" if oracle and not loses_oracle else "baseline"
    episodes = getattr(settings, "episodes", None) or None
    return PredictorContestant(
        name,
        name,
        kind,
        depends_on,
        model_name=_NUMBER.sub("", name),
        episodes=episodes,
        libraries=libraries,
        predictor=predictor,
    )
