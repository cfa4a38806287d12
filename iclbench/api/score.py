"""Scores on frozen prompts, in memory."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from itertools import count
from typing import Any

import pandas as pd

from iclbench import tables
from iclbench.api import arguments
from iclbench.api.models import check_fits, registered_name
from iclbench.api.predict import Trained
from iclbench.api.tasks import Task, given_task
from iclbench.backbones.base import Backbone
from iclbench.config.cards import load_baseline, names
from iclbench.config.registry import BACKBONES, canonical
from iclbench.config.runs import Run
from iclbench.core.errors import UsageError
from iclbench.core.predictor import Predictor
from iclbench.evaluation.cells import Tables
from iclbench.evaluation.contestants import PredictorContestant, baselines, in_memory
from iclbench.evaluation.evaluate import cell_tables
from iclbench.evaluation.prompts import PromptSet
from iclbench.evaluation.scores import scores_of
from iclbench.families.shifts import Shift

# What can be scored: a model, a finished run, or the name of a baseline.
Scored = Predictor | Run | Trained | str


def evaluate(
    models: Scored | Sequence[Scored] | Mapping[str, Scored],
    task: Task,
    shifts: str | Sequence[str] = ("none",),
    *,
    extrapolate: int | None = None,
    seed: int = 0,
) -> pd.DataFrame:
    """Score models and baselines on the same frozen prompts: those of `iclbench eval` for this task and seed.

    Args:
        models: models, finished runs and names of baselines (`iclbench list baselines`), or a mapping from names to
            such; a model goes by the name of its backbone.
        task: whose prompts; its preset says how many episodes.
        shifts: changes of the distribution (`iclbench show TASK`); "none" is the training distribution.
        extrapolate: also ask with up to so many examples in context.
        seed: of the prompts; those of another seed are independent.

    Returns:
        A tidy frame with the columns of the table `values`: a row per contestant, prompt set, metric and number of
        examples, with 95 % intervals over episodes. With the baseline `zero` among them, the rows `score` are
        normalised by it and by the oracle or the best baseline. What failed is a row with a reason.

    Raises:
        UsageError: there is no such baseline or shift, or a model does not fit the task.

    >>> from iclbench.api.tasks import task
    >>> found = evaluate(["ridge", "zero"], task("linear", "smoke", dim=2, episodes=16))
    >>> sorted(found.loc[found["metric"] == "auc", "contestant"])
    ['ridge', 'zero']
    """
    task, seed = given_task(task), arguments.seed(seed)
    asked = {name: _model(model) for name, model in _names(models).items()}
    for model in asked.values():
        if isinstance(model, Backbone):
            check_fits(model, task)
    beyond = [] if extrapolate is None else [Shift().with_examples(_beyond(extrapolate, task)).name]
    family = task.family.held_out()
    asked_for = dict.fromkeys(family.parse_shift(shift).name for shift in [*arguments.names("shifts", shifts), *beyond])
    if not asked or not asked_for:
        raise UsageError("nothing to evaluate: give a model or the name of a baseline, and a shift such as 'none'")
    frames = []
    for shift in asked_for:
        prompts = PromptSet(task.config, task.preset, shift, seed, task.data_dir, family)
        cells = [cell_tables(_contestant(name, model, prompts), prompts) for name, model in asked.items()]
        values, errors = (_together(kind, cells) for kind in ("values", "errors"))
        scores = scores_of(values, partial(_given, errors), prompts)
        frames += [values] if scores is None else [values, scores]
    return tables.union("values", frames)


def _beyond(extrapolate: Any, task: Task) -> int:
    """The number of examples, which is beyond that of the task."""
    examples, own = arguments.whole("extrapolate", extrapolate), task.config.points
    if examples <= own:
        raise UsageError(f"extrapolate: expected more than the {own} examples of {task}, got {examples}")
    return examples


def _given(errors: pd.DataFrame) -> pd.DataFrame:
    return errors


def _together(kind: tables.TableName, found: Sequence[Tables]) -> pd.DataFrame:
    """The rows of one table of several contestants."""
    return tables.union(
        kind,
        [
            tables.validate(kind, rows) if isinstance(rows, pd.DataFrame) else tables.frame(kind, rows)
            for rows in (each[kind] for each in found if kind in each)
        ],
    )


def _names(models: Scored | Sequence[Scored] | Mapping[str, Scored]) -> dict[str, Scored]:
    """A name for each; models of one name are numbered, baselines have their own."""
    if isinstance(models, Mapping):
        for name, model in models.items():
            own = _name(model)
            if isinstance(model, str) and name not in (model, own):
                raise UsageError(f"'{name}': a baseline goes by its own name; write '{own}': '{model}'")
        return {arguments.text("models", name): model for name, model in models.items()}
    each = list(models) if isinstance(models, Iterable) and not isinstance(models, str) else [models]
    found: dict[str, Scored] = {_name(model): model for model in each if isinstance(model, str)}
    for model in each:
        if not isinstance(model, str):
            name = _name(model)
            free = (f"{name}-{number}" if number > 1 else name for number in count(1))
            found[next(each for each in free if each not in found)] = model
    return found


def _name(model: Scored) -> str:
    if isinstance(model, Run):
        return model.name
    if isinstance(model, Trained):
        return model.run.name
    if isinstance(model, Predictor):
        return registered_name(model) or type(model).__name__
    if isinstance(model, str):
        if canonical(model) in BACKBONES.entries and canonical(model) not in names("baselines"):
            advice = f"give a model, icl.backbone('{model}', task), or a run, icl.load(RUN)"
            raise UsageError(f"'{model}' is a backbone: {advice}")
        return load_baseline(model)[0]
    what = f"the class {model.__name__}" if isinstance(model, type) else type(model).__name__
    raise UsageError(f"evaluate takes models, runs and names of baselines, not {what}")


def _model(model: Scored) -> Predictor | str:
    """What answers; of a run its backbone, a name as it is."""
    if isinstance(model, Run):
        model = Trained(model)
    return model.model if isinstance(model, Trained) else model


def _contestant(name: str, model: Predictor | str, prompts: PromptSet) -> PredictorContestant:
    return baselines(prompts, [model])[0] if isinstance(model, str) else in_memory(name, model)
