"""Functions that turn predictors (runs, baselines, and models in memory) into contestants."""

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
from iclbench.core.plugins import plugin_errors
from iclbench.core.predictor import Predictor
from iclbench.core.settings import validate
from iclbench.core.task import TaskFacts
from iclbench.deep_thinking.backbones import ThinkingBackbone
from iclbench.deep_thinking.methods import Method
from iclbench.estimators.base import FittedPredictor
from iclbench.evaluation.contestant import Contestant
from iclbench.evaluation.prompts import PromptSet
from iclbench.families.base import Family
from iclbench.families.tabular.user_table import UserTable
from iclbench.registry import ESTIMATORS, noun_of_points
from iclbench.store import identity
from iclbench.store.rates import read_rates
from iclbench.store.runs import Run
from iclbench.tables.evaluators import LOOPS

# What each head predicts. Heads that are not listed predict numbers.
_OUTPUTS = {"categorical": "class labels", "event": "events"}
# The number at the end of the name of a baseline, as in knn-3 and lasso-1e-2.
_NUMBER = re.compile(r"-\d[\d.]*(e-?\d+)?$")


@dataclass(frozen=True)
class PredictorContestant(Contestant):
    """A predictor as a contestant.

    Attributes:
        predictor: the predictor.
        episodes: number of episodes at the start of a prompt set on which it is evaluated; None for all.
        branches: functions that load the models of the training run's branches, by number of steps.
    """

    predictor: Predictor = field(kw_only=True)
    episodes: int | None = None
    branches: Mapping[int, Callable[[], Predictor]] = field(default_factory=dict)

    @property
    def order(self) -> str | None:
        return self.predictor.order if self.kind == "backbone" else None


def contestant_of_predictor(
    name: str,
    predictor: Predictor,
    device: str = "cpu",
    *,
    model: str | None = None,
    seed: int | None = None,
    variant: str | None = None,
) -> PredictorContestant:
    """Return a contestant for a predictor in memory; its identity is unique, so it never matches a cached cell.

    Args:
        name: name of the contestant.
        predictor: the predictor, already on `device`.
        device: device of the predictor.
        model: name of the model (default: `name`).
        seed: seed of the training.
        variant: hash of the training configuration without the seed.
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
    """Load the trained backbone of a run as a contestant."""
    return contestant_of_loaded_run(run, run.load(device, data_dir), device)


def contestant_of_loaded_run(run: Run, model: Backbone, device: str) -> PredictorContestant:
    """Return the contestant of a run whose model is already loaded on the device."""
    # The digest was checked when the model was loaded.
    model_id = identity.model_id(run.hash, run.digest, run.branch_digests)
    contestant = _contestant_of(run.name, run.config, model, model_id, device)
    branches = {steps: partial(_load_branch, run, steps, model) for steps in run.branch_steps}
    tuned = _is_tuned(run.config, run.path.parent.parent)
    return replace(contestant, branches=branches, folder=run.path, tuned=tuned)


def _is_tuned(config: RunConfig, results: Path) -> bool:
    """Return whether a run was trained with the learning rate in the table of chosen rates."""
    rates = Rates.of(config.preset, config.task.name, config.task.card, read_rates(results, config.preset))
    return rates.is_chosen(config.backbone.name, config.train.model_dump(mode="json"))


def _load_branch(run: Run, steps: int, model: Backbone) -> Backbone:
    """Load the weights of a branch into a copy of `model`, the model of the run."""
    return run.load_branch(steps, copy.deepcopy(model)).eval()


def untrained(run: str, config: RunConfig, device: str = "cpu", data_dir: Path | None = None) -> PredictorContestant:
    """Return the untrained backbone of a run under the run's name, for values that do not depend on the weights."""
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


def adapt_to_task(model: PredictorContestant, run: Run, task: TaskConfig, family: Family) -> PredictorContestant:
    """Return the contestant of a run for the prompts of `task`; its name includes the training task if they differ.

    Raises:
        DataChangedError: `task` is the training task, but its data have changed.
        UsageError: the inputs, outputs, classes or head of `task` differ from those of the training task, or `task` has
            more examples or more related datasets.
    """
    training_family, training_task = run.config.task.build(), run.config.task
    if is_same_task(training_task, task):
        check_data(training_task, family)
        return model
    shapes = {
        "input dimensions": (training_family.x_dim, family.x_dim),
        "output dimensions": (training_family.y_dim, family.y_dim),
        "classes": (training_family.classes, family.classes),
        "marks": (training_family.marks, family.marks),
        "image shape": (training_family.x_shape, family.x_shape),
        "head": (training_task.head, task.head),
    }
    if getattr(model.predictor, "reads_any_columns", False) and family.x_dim:
        del shapes["input dimensions"]
    changed = {name: pair for name, pair in shapes.items() if pair[0] != pair[1]}
    differences = [
        f"its {name}: {_or_none(value)}, in training: {_or_none(training_value)}"
        for name, (training_value, value) in changed.items()
    ]
    if task.points > training_task.points and not (isinstance(family, UserTable) and reads_any_rows(model.predictor)):
        differences.append(f"its {noun_of_points(task.family)}: {task.points}, in training: {training_task.points}")
    if model.predictor.uses_related and family.related_sets > training_family.related_sets:
        differences.append(f"its related datasets: {family.related_sets}, in training: {training_family.related_sets}")
    if differences:
        is_other_head = list(changed)[:1] == ["head"] and _output(training_task.head) == _output(task.head)
        fix = f"; add -o task.head={training_task.head}" if is_other_head else ""
        raise UsageError(
            f"run '{run.name}' cannot be evaluated on task '{task.name}' ({differences[0]}){fix}", code="not-applicable"
        )
    return with_training_task(model, training_task)


def _output(head: str) -> str:
    """What a head predicts: numbers, class labels or events."""
    return _OUTPUTS.get(head, "numbers")


def _or_none(value: object) -> object:
    return "none" if value is None else value


def reads_any_rows(predictor: Predictor) -> bool:
    """Return whether a model accepts contexts of any length: a set model without a length limit."""
    return predictor.order == "set" and predictor.longest is None


def is_same_task(task: TaskConfig, other: TaskConfig) -> bool:
    """Return whether a model that was trained on one of the tasks can be used on the other without adaptation."""
    fields = ("name", "family", "parameters", "question", "points")
    return all(getattr(task, key) == getattr(other, key) for key in fields)


def check_data(training_task: TaskConfig, family: Family) -> None:
    """Raise `DataChangedError` if the data of a family differ from the training data of a model.

    Families with stored facts about the training data are skipped: `TaskConfig.build_held_out` checks them.
    """
    if not family.learned:
        family.check_data(training_task.learned)


def with_training_task(model: PredictorContestant, task: TaskConfig) -> PredictorContestant:
    """Return the contestant with its training task appended to its name."""
    return replace(model, name=f"{model.name}@{task.name}", trained_on=task.name)


def with_loops(model: PredictorContestant, loops: int) -> PredictorContestant:
    """Return the backbone of a run with another number of loops. Its rows have this number on the axis `LOOPS`.

    Raises:
        UsageError: the backbone has no loops.
    """
    assert isinstance(model.predictor, Backbone)
    try:
        predictor = model.predictor.with_loops(loops)
    except UsageError as error:
        raise UsageError(f"run '{model.run}': {error}", code=error.code) from None
    coordinate = (LOOPS, loops)
    model_id = identity.method_id(model.identity, "{}={}".format(*coordinate))
    return replace(model, predictor=predictor, branches={}, identity=model_id, coordinate=coordinate)


def with_deep_thinking(plain: PredictorContestant, method: Method) -> PredictorContestant:
    """Return a further contestant: the backbone of a run with deep thinking.

    Raises:
        UsageError: the method is not for runs, or does not support this backbone.
    """
    if not method.settings.thinks or not isinstance(plain.predictor, Backbone):
        raise UsageError(
            f"--method {method.name} is for language models (iclbench lm eval); for runs, write deep-thinking",
            code="not-applicable",
        )
    try:
        predictor = ThinkingBackbone(plain.predictor, method.settings.pass_settings())
    except UsageError as error:
        raise UsageError(f"run '{plain.run}': {error}", code=error.code) from None
    return replace(
        plain,
        name=plain.name + method.suffix,
        run=plain.run + method.suffix,
        method_suffix=method.suffix,
        predictor=predictor,
        branches={},
        identity=identity.method_id(plain.identity, method.hash),
        variant=identity.method_id(plain.variant, method.hash, 8),
    )


def baselines(prompts: PromptSet, names: Iterable[str] | None = None) -> list[PredictorContestant]:
    """Return the baselines and oracles of the task, or only `names`. They have access to the facts of the task under
    the shift of the prompts."""
    task = prompts.task
    baseline_names = list(dict.fromkeys([*task.oracles, *task.baselines])) if names is None else list(names)
    facts = prompts.family.facts(prompts.shift)
    return [_baseline_contestant(name, task, prompts, facts) for name in baseline_names]


def _estimator(estimator: str, baseline: str) -> Any:
    """Return the estimator class that the card of a baseline names.

    Raises:
        UsageError: the class is not an estimator.
    """
    cls = ESTIMATORS.get(estimator)
    if not (isinstance(cls, type) and issubclass(cls, Predictor)):
        raise UsageError(
            f"baseline '{baseline}': '{estimator}' is not an estimator: it must be a subclass of "
            f"{FittedPredictor.__module__}.{FittedPredictor.__name__} or have scikit-learn's fit and predict",
            code="plugin",
        )
    return cls


def output_mismatch(name: str, task: TaskConfig) -> str | None:
    """Return why a baseline cannot predict the outputs of the task (labels, events or numbers); None if it can.

    Args:
        name: name of the baseline, or path of its card.
        task: the task.
    """
    name, card = load_baseline(name)
    predicted = {_output(head) for head in _estimator(card.estimator, name).heads}
    required = _output(task.head)
    if required in predicted:
        return None
    return f"baseline '{name}' predicts {' or '.join(sorted(predicted))}, but task '{task.name}' requires {required}"


def _baseline_contestant(name: str, task: TaskConfig, prompts: PromptSet, facts: TaskFacts) -> PredictorContestant:
    problem, (name, card) = output_mismatch(name, task), load_baseline(name)
    if problem is not None:
        available = ", ".join(baseline for baseline in task.baselines if baseline != name) or "none"
        raise UsageError(f"{problem}; the task's baselines: {available}", code="not-applicable")
    cls = _estimator(card.estimator, name)
    settings = validate(cls.Settings, card.settings, f"baseline '{name}': settings")
    with plugin_errors(cls):
        predictor = cls(settings, facts, seed=prompts.seed)
    # Versions come from package metadata, because importing the libraries takes a second and few estimators need them.
    library_names = dict.fromkeys(("scikit-learn", "xgboost", *cls.libraries))
    libraries = {"torch": torch.__version__} | {name: version(name) for name in library_names}
    is_oracle = name in task.oracles
    loses_optimality = is_oracle and not prompts.family.is_oracle_optimal(name, prompts.shift)
    gaps = [gap for gap in (facts.mean_gap, facts.mean_first_gap) if gap is not None]
    baseline_id = identity.baseline_id(
        card,
        [facts.noise_to_signal, facts.hidden_width, *gaps],
        # The answers of estimators that iclbench implements itself do not depend on the versions of libraries.
        {name: libraries[name] for name in cls.libraries},
        loses_oracle_status=loses_optimality,
    )
    kind = "oracle" if is_oracle and not loses_optimality else "baseline"
    episodes = getattr(settings, "episodes", None) or None
    return PredictorContestant(
        name,
        name,
        kind,
        baseline_id,
        model_name=_NUMBER.sub("", name),
        episodes=episodes,
        libraries=libraries,
        predictor=predictor,
    )
