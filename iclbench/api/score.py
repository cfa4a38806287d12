"""Scores on frozen prompts, in memory."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import count
from typing import Any

import pandas as pd
import torch

from iclbench import tables
from iclbench.api import arguments
from iclbench.api.models import check_fits, check_precision, registered_name
from iclbench.api.predict import Trained
from iclbench.api.record import trainings, variant_of
from iclbench.api.tasks import Task, given_task
from iclbench.backbones.base import Backbone
from iclbench.config.cards import load_baseline, names
from iclbench.config.registry import BACKBONES
from iclbench.core.devices import chosen_device
from iclbench.core.errors import UsageError
from iclbench.core.formats import canonical
from iclbench.core.guard import guarded
from iclbench.core.predictor import Predictor
from iclbench.evaluation import contestants
from iclbench.evaluation.contestants import PredictorContestant
from iclbench.evaluation.evaluate import evaluate as evaluate_in_memory
from iclbench.evaluation.evaluate import named_shifts, prompt_sets
from iclbench.families.shifts import Shift
from iclbench.store.runs import Run, check_free

# What can be scored: a model, a finished run, or the name of a baseline.
Scored = Predictor | Run | Trained | str


@guarded
def evaluate(
    models: Scored | Iterable[Scored] | Mapping[str, Scored],
    task: Task,
    shifts: str | Sequence[str] = ("none",),
    *,
    evaluators: str | Sequence[str] | None = None,
    extrapolate: int | None = None,
    seed: int = 0,
    device: str | torch.device = "auto",
) -> pd.DataFrame:
    """Score models and baselines on the same frozen prompts: those of `iclbench eval` for this task and seed.

    Args:
        models: models, finished runs and names of baselines (`iclbench list baselines`, `task.baselines`), or a mapping
            from names to such. A model goes by the name of its backbone, `@TASK` behind it where it was trained on
            another task.
        task: whose prompts; its preset says how many episodes.
        shifts: changes of the distribution (`iclbench show TASK`); "none" is the training distribution, "all" are those
            of the card.
        evaluators: tests that the family has of its own, such as `icl` and `iwl` of bursty sequences; None: those of
            the card, (): none.
        extrapolate: also ask with up to so many examples in context.
        seed: of the prompts; those of another seed are independent.
        device: where runs compute: auto, cpu, cuda, cuda:1, ...; models are left where they are.

    Returns:
        A tidy frame with the columns of the table `values`: a row per contestant, prompt set, metric and number of
        examples, with 95 % intervals over episodes. With the baseline `zero` among them, the rows `score` are
        normalised by it and by the oracle or the best baseline. What failed is a row with a reason.

    Raises:
        UsageError: there is no such baseline, shift or test, or a model does not fit the task.

    >>> from iclbench.api.tasks import task
    >>> found = evaluate(["ridge", "zero"], task("linear", "smoke", dim=2, episodes=16))
    >>> sorted(found.loc[found["metric"] == "auc", "contestant"])
    ['ridge', 'zero']
    """
    task, seed = given_task(task), arguments.seed(seed)
    config, family = task.config, task.family.held_out()
    asked_for = named_shifts(config, arguments.names("shifts", shifts))
    if extrapolate is not None:
        asked_for.append(Shift().with_examples(_beyond(extrapolate, task)).name)
    tests = config.tests(family, config.evaluators if evaluators is None else arguments.names("evaluators", evaluators))
    field = _field(models, task, chosen_device(device))
    asked = prompt_sets(config, task.preset, asked_for, tests, seed, task.data_dir, family)
    if not field or not asked:
        raise UsageError("nothing to evaluate: give a model or the name of a baseline, and a shift such as 'none'")
    found = []
    while asked:
        prompts = asked.pop(0)  # and its episodes go when it is done
        each = (contestants.baselines(prompts, [one])[0] if isinstance(one, str) else one for one in field)
        found.append(evaluate_in_memory(each, prompts))
    return tables.union("values", found)


def _beyond(extrapolate: Any, task: Task) -> int:
    """The number of examples, which is beyond that of the task."""
    examples, own = arguments.integer("extrapolate", extrapolate), task.config.points
    if examples <= own:
        raise UsageError(f"extrapolate: expected more than the {own} examples of {task}, got {examples}")
    return examples


def _field(models: Any, task: Task, device: str) -> list[PredictorContestant | str]:
    """Every contestant once, in order: baselines by name, and models under unique names."""
    found: list[PredictorContestant | str] = []
    if isinstance(models, Mapping):
        for name, model in models.items():
            one = _scored(model, task, device)
            if isinstance(one, str) and name not in (model, one):
                raise UsageError(f"'{name}': a baseline goes by its own name; write '{one}': '{model}'")
            name = arguments.text("models", name)
            if not isinstance(one, str):
                check_free(name, "another")
            found.append(one if isinstance(one, str) else replace(one, name=name, run=name))
        return found
    several = isinstance(models, Iterable) and not isinstance(models, str)
    asked = [(model, _scored(model, task, device)) for model in (models if several else [models])]
    baselines = {one for _, one in asked if isinstance(one, str)}
    runs = [one for model, one in asked if isinstance(model, Run | Trained) and not isinstance(one, str)]
    of_runs = [one.run for one in runs]
    if twice := [name for name in of_runs if of_runs.count(name) > 1 or name in baselines]:
        raise UsageError(f"two are called '{twice[0]}': name the runs apart, icl.evaluate({{'one': run, ...}}, task)")
    taken = {*baselines, *of_runs, *(one.name for one in runs)}
    for _, one in asked:
        if not isinstance(one, str) and one not in runs:
            one = _numbered(one, taken)
        found += [] if one in found else [one]
    return found


def _numbered(model: PredictorContestant, taken: set[str]) -> PredictorContestant:
    """A model of a notebook with a number behind its name where that is taken."""
    each = (f"{model.run}-{number}" if number > 1 else model.run for number in count(1))
    name = next(free for free in each if free not in taken)
    taken.add(name)
    return replace(model, run=name, name=name + model.name.removeprefix(model.run))


def _scored(model: Any, task: Task, device: str) -> PredictorContestant | str:
    """A model as a contestant on the prompts of the task, the name of a baseline."""
    if isinstance(model, str):
        if canonical(model) in BACKBONES.entries and canonical(model) not in names("baselines"):
            advice = f"give a model, icl.backbone('{model}', task), or a run, icl.load(RUN)"
            raise UsageError(f"'{model}' is a backbone: {advice}")
        return load_baseline(model)[0]
    if isinstance(model, Run):
        model = Trained(model, device, task.data_dir)
    if isinstance(model, Trained):
        found = contestants.of_run(model.run, model.model, model.device)
        return contestants.on_other_task(found, model.run, task.config, task.family)
    if not isinstance(model, Predictor):
        what = f"the class {model.__name__}" if isinstance(model, type) else type(model).__name__
        raise UsageError(f"evaluate takes models, runs and names of baselines, not {what}")
    name = registered_name(model) or type(model).__name__
    if isinstance(model, torch.nn.Module):
        check_precision(model)
    if not isinstance(model, Backbone):
        return contestants.in_memory(name, model)
    check_fits(model, task)
    where = next((str(weights.device) for weights in model.parameters()), "cpu")
    found, last = contestants.in_memory(name, model, where, variant=variant_of(model)), trainings(model)[-1:]
    for each in last:
        found = replace(found, seed=each.seed)
        if contestants.asks_alike(each.task, task.config):
            contestants.check_data(each.task, task.family)
        else:
            found = contestants.trained_elsewhere(found, each.task)
    return found
