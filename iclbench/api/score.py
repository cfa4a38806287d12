"""Evaluation of models and baselines on frozen prompts, in memory."""

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
from iclbench.api.tasks import Task, checked_task
from iclbench.backbones.base import Backbone
from iclbench.config.cards import card_names, load_baseline
from iclbench.core.devices import resolve_device
from iclbench.core.errors import UsageError
from iclbench.core.formats import canonical
from iclbench.core.guard import guarded
from iclbench.core.predictor import Predictor
from iclbench.evaluation import contestants
from iclbench.evaluation.contestants import PredictorContestant
from iclbench.evaluation.evaluate import canonical_shifts, prompt_sets
from iclbench.evaluation.evaluate import evaluate as evaluate_in_memory
from iclbench.families.shifts import Shift
from iclbench.registry import BACKBONES, noun_of_points
from iclbench.store.runs import Run, check_not_reserved

# The types that `evaluate` accepts: a model, a finished run, or the name of a baseline.
Scorable = Predictor | Run | Trained | str


@guarded
def evaluate(
    models: Scorable | Iterable[Scorable] | Mapping[str, Scorable],
    task: Task,
    shifts: str | Sequence[str] = ("none",),
    *,
    evaluators: str | Sequence[str] | None = None,
    extrapolate: int | None = None,
    seed: int = 0,
    device: str | torch.device = "auto",
) -> pd.DataFrame:
    """Score models and baselines on the same frozen prompts as `iclbench eval` for this task and seed.

    Args:
        models: models, finished runs and names of baselines (`iclbench list baselines`, `task.baselines`), or a mapping
            from names to any of these. By default, a model has the name of its backbone, with the suffix `@TASK` if it
            was trained on another task.
        task: the task of the prompts. Its preset sets the number of episodes.
        shifts: changes of the distribution (`iclbench show TASK`). "none" is the training distribution, and "all" means
            all shifts of the card.
        evaluators: tests of the family, such as `icl` and `iwl` of bursty sequences (default: the tests of the card;
            use `()` for no tests).
        extrapolate: also evaluate with up to this number of examples in context.
        seed: seed of the prompts. Prompts with different seeds are independent.
        device: device for runs: auto, cpu, cuda, cuda:1, ... Models stay on their devices.

    Returns:
        A tidy frame with the columns of the table `values`: one row per contestant, prompt set, metric and number of
        examples, with 95 % intervals over episodes. If the baseline `zero` is among the models, the frame also contains
        rows with the metric `score`, which is normalised by `zero` and by the oracle or the best baseline. A contestant
        that fails has a row with the reason.

    Raises:
        UsageError: a baseline, shift or test does not exist, or a model does not match the task.

    >>> from iclbench.api.tasks import task
    >>> values = evaluate(["ridge", "zero"], task("linear", "smoke", dim=2, episodes=16))
    >>> sorted(values.loc[values["metric"] == "auc", "contestant"])
    ['ridge', 'zero']
    """
    task, seed = checked_task(task), arguments.seed(seed)
    config, family = task.config, task.family.held_out()
    shift_names = canonical_shifts(config, arguments.names("shifts", shifts))
    if extrapolate is not None:
        shift_names.append(Shift().with_examples(_extrapolated_examples(extrapolate, task)).name)
    tests = config.evaluator_names(
        family, config.evaluators if evaluators is None else arguments.names("evaluators", evaluators)
    )
    entries = _entries(models, task, resolve_device(device))
    prompt_queue = prompt_sets(config, task.preset, shift_names, tests, seed, task.data_dir, family)
    if not entries or not prompt_queue:
        raise UsageError(
            "nothing to evaluate: pass a model or the name of a baseline, and a shift such as 'none'",
            code="nothing-to-do",
        )
    frames = []
    while prompt_queue:
        prompts = prompt_queue.pop(0)  # removed from the queue, so that its episodes are freed after the iteration
        predictors = (
            contestants.baselines(prompts, [entry])[0] if isinstance(entry, str) else entry for entry in entries
        )
        frames.append(evaluate_in_memory(predictors, prompts))
    return tables.union("values", frames)


def _extrapolated_examples(extrapolate: Any, task: Task) -> int:
    """Return the number of examples; raise `UsageError` if it is not larger than the number in training."""
    examples, trained_examples = arguments.integer("extrapolate", extrapolate), task.config.points
    if examples <= trained_examples:
        noun = noun_of_points(task.config.family)
        raise UsageError(
            f"extrapolate: expected more than the {trained_examples} {noun} of {task}, got {examples}",
            code="bad-value",
        )
    return examples


def _entries(models: Any, task: Task, device: str) -> list[PredictorContestant | str]:
    """Return all contestants in order, without duplicates: the names of baselines, and models with unique names."""
    entries: list[PredictorContestant | str] = []
    if isinstance(models, Mapping):
        for name, model in models.items():
            entry = _contestant(model, task, device)
            if isinstance(entry, str) and name not in (model, entry):
                raise UsageError(
                    f"'{name}': a baseline cannot be renamed; write '{entry}': '{model}'", code="bad-value"
                )
            name = arguments.text("models", name)
            if not isinstance(entry, str):
                check_not_reserved(name, advice="another")
            entries.append(entry if isinstance(entry, str) else replace(entry, name=name, run=name))
        return entries
    is_list = isinstance(models, Iterable) and not isinstance(models, str)
    pairs = [(model, _contestant(model, task, device)) for model in (models if is_list else [models])]
    baselines = {entry for _, entry in pairs if isinstance(entry, str)}
    runs = [entry for model, entry in pairs if isinstance(model, Run | Trained) and not isinstance(entry, str)]
    run_names = [entry.run for entry in runs]
    if duplicates := [name for name in run_names if run_names.count(name) > 1 or name in baselines]:
        raise UsageError(
            f"two contestants are named '{duplicates[0]}': use icl.evaluate({{'one': run, ...}}, task)",
            code="duplicate",
        )
    used_names = {*baselines, *run_names, *(entry.name for entry in runs)}
    for _, entry in pairs:
        if not isinstance(entry, str) and entry not in runs:
            entry = _with_unique_name(entry, used_names)
        entries += [] if entry in entries else [entry]
    return entries


def _with_unique_name(model: PredictorContestant, used_names: set[str]) -> PredictorContestant:
    """Append a number to the name of a model if the name is in `used_names`, and add the new name to this set."""
    candidates = (f"{model.run}-{number}" if number > 1 else model.run for number in count(1))
    name = next(candidate for candidate in candidates if candidate not in used_names)
    used_names.add(name)
    return replace(model, run=name, name=name + model.name.removeprefix(model.run))


def _contestant(model: Any, task: Task, device: str) -> PredictorContestant | str:
    """Return a model or a run as a contestant on the prompts of the task, or the canonical name of a baseline."""
    if isinstance(model, str):
        if canonical(model) in BACKBONES.entries and canonical(model) not in card_names("baselines"):
            advice = f"pass a model, icl.backbone('{model}', task), or a run, icl.load(RUN)"
            raise UsageError(f"'{model}' is a backbone: {advice}", code="bad-value")
        return load_baseline(model)[0]
    if isinstance(model, Run):
        model = Trained(model, device, task.data_dir)
    if isinstance(model, Trained):
        contestant = contestants.contestant_of_loaded_run(model.run, model.model, model.device)
        return contestants.adapt_to_task(contestant, model.run, task.config, task.family)
    if not isinstance(model, Predictor):
        type_name = f"the class {model.__name__}" if isinstance(model, type) else type(model).__name__
        raise UsageError(f"evaluate takes models, runs and names of baselines, not {type_name}", code="bad-value")
    name = registered_name(model) or type(model).__name__
    if isinstance(model, torch.nn.Module):
        check_precision(model)
    if not isinstance(model, Backbone):
        return contestants.contestant_of_predictor(name, model)
    check_fits(model, task)
    device_name = next((str(weights.device) for weights in model.parameters()), "cpu")
    contestant = contestants.contestant_of_predictor(name, model, device_name, variant=variant_of(model))
    for training in trainings(model)[-1:]:
        contestant = replace(contestant, seed=training.seed)
        if contestants.is_same_task(training.task, task.config):
            contestants.check_data(training.task, task.family)
        else:
            contestant = contestants.with_training_task(contestant, training.task)
    return contestant
