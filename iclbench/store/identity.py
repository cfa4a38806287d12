"""Identities: the hashes of runs, prompt sets, scores and cells of a grid.

All hashes cover the same kinds of contents: resolved settings (from card, preset, learning rates and overrides) that
differ from their defaults, the version codes (`iclbench.config.codes`) of the classes that compute the result, and
fingerprints of data. Defaults are frozen: `tests/golden/defaults.json` lists them, and a change of a default requires a
new version code. Hashes depend on the contents of files, not on their paths. The only exception is the hash of a cell,
which depends on the paths because cells are planned without the files.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from iclbench import __version__
from iclbench.config import codes
from iclbench.config.cards import BaselineCard, TrainSettings, card_name, load_baseline
from iclbench.config.resolution import BackboneConfig, RunConfig, TaskConfig, backbone_class
from iclbench.core.hashing import content_hash
from iclbench.core.settings import BaseSettings, Role, validate
from iclbench.registry import BACKBONES, ESTIMATORS, FAMILIES

if TYPE_CHECKING:
    from iclbench.evaluation.contestant import Contestant
    from iclbench.evaluation.prompts import PromptSet
    from iclbench.sweep.cells import GridCell
    from iclbench.sweep.language_grids import LanguageCell


def without_defaults(settings: BaseSettings) -> dict[str, Any]:
    """Return the settings that differ from their defaults, as plain values."""
    return settings.model_dump(mode="json", exclude_defaults=True)


def training_settings(config: RunConfig) -> dict[str, Any]:
    """Return the settings on which the weights of a run depend."""
    backbone = config.backbone
    return {
        "preset": config.preset,
        "seed": config.seed,
        "task": _task(config.task, Role.TRAINED),
        "backbone": {"name": backbone.name, "code": backbone.code, "settings": _settings(backbone)},
        "train": without_defaults(config.train),
        "loss": codes.LOSS,
    }


def run_id(config: RunConfig) -> str:
    """Return the identity of a run."""
    return content_hash(training_settings(config))


def weights_id(config: RunConfig) -> str:
    """Return the identity of the settings with which weights were trained.

    It does not cover monitoring settings. It also does not cover facts that were learned from data, because the
    configuration of a grid does not contain them.
    """
    task = config.task.model_copy(update={"learned": {}})
    return content_hash(_without_monitoring(config.model_copy(update={"task": task})))


def variant_id(config: RunConfig) -> str:
    """Return the identity of a run's settings without its seed. It is the same for all seeds of a variant."""
    contents = _without_monitoring(config)
    del contents["seed"]
    return content_hash(contents, 8)


def _without_monitoring(config: RunConfig) -> dict[str, Any]:
    contents = training_settings(config)
    monitoring = TrainSettings.with_role(Role.MONITORING)
    return contents | {"train": {key: value for key, value in contents["train"].items() if key not in monitoring}}


def prompts_id(prompts: PromptSet, **sizes: Any) -> str:
    """Return the identity of frozen episodes. It covers the family, its data, the shift or test, the seed, and the
    `sizes`, such as numbers of points."""
    task, family = prompts.task, prompts.family
    contents = {
        "family": task.family,
        "parameters": _parameters(task),
        "codes": [codes.of_family(task.family), codes.of_prompts(task.family)],
        "data": family.fingerprint,
        "learned": task.learned if prompts.trained_data else {},
        "shift": prompts.shift,
        "evaluator": prompts.evaluator,
        "seed": prompts.seed,
    }
    return content_hash(contents | sizes, 8)


def model_id(run: str, weights: str | None, branches: Mapping[str, str | None]) -> str:
    """Return the identity of a trained model. It covers the run and the digests of the weights and branches."""
    contents: dict[str, Any] = {"config": run, "weights": weights}
    return content_hash(contents | {"branches": branches} if branches else contents)


def untrained_id(run: str) -> str:
    """Return the identity of the untrained model with which a run starts."""
    return content_hash({"config": run, "untrained": True})


def unweighted_id(config: RunConfig) -> str:
    """Return the identity of a model for results that do not depend on its weights, such as costs."""
    return content_hash({"config": training_settings(config)})


def in_memory_id(**contents: Any) -> str:
    """Return the identity of a model without a run. It covers the class, settings, shape and training, but not the
    seed."""
    return content_hash(contents, 8)


def method_id(model: str | None, method: str, length: int = 12) -> str:
    """Return the identity of a model, or of its variant, with a method that is applied to it."""
    return content_hash({"run": model, "method": method}, length)


def baseline_id(
    card: BaselineCard, facts: Sequence[float | None], libraries: Mapping[str, str], loses_oracle_status: bool
) -> str:
    """Return the identity of a baseline on a task.

    Args:
        card: the card, with the estimator and its settings.
        facts: properties of the task that are passed to the baseline.
        libraries: versions of the libraries that the baseline uses.
        loses_oracle_status: whether the baseline is an oracle of the task, but not under the shift of the prompts.
    """
    contents = {**baseline_settings(card), "facts": list(facts), "libraries": dict(libraries)}
    return content_hash(contents | {"oracle": False} if loses_oracle_status else contents)


def descent_id(steps: int, step_size: str | None, search: Sequence[object]) -> str:
    """Return the identity of gradient descent (`step_size` None) or GD++ in a probe."""
    contents = {"estimator": "gradient-descent", "steps": steps, "step_size": step_size, "search": list(search)}
    return content_hash(contents | {"code": codes.of_estimator("gradient-descent")})


def costs_id(contestant: Contestant, task: TaskConfig, data: str | None) -> str:
    """Return the identity of the costs of a contestant on a task. Costs do not depend on the weights."""
    contents = {
        "contestant": contestant.variant or contestant.identity,
        "family": task.family,
        "parameters": _parameters(task),
        "data": data,
        "version": __version__,
    }
    return content_hash(contents)


def score_id(contestant: Contestant, prompt_set: str, family: str | None) -> str:
    """Return the identity of the scores of a contestant on a prompt set.

    Args:
        contestant: the contestant.
        prompt_set: identity of the prompts.
        family: the family whose normaliser divides the errors; None for language tasks.
    """
    contents = {"contestant": contestant.identity, "prompts": prompt_set}
    return content_hash(contents if family is None else contents | {"normaliser": codes.of_normaliser(family)})


def baseline_settings(card: BaselineCard) -> dict[str, Any]:
    """Return the settings on which the predictions of a baseline depend, apart from the task."""
    cls = ESTIMATORS.get(card.estimator)
    settings = validate(cls.Settings, card.settings, f"estimator '{card.estimator}'")
    # The version of an installed library identifies its code (`baseline_id`).
    is_in_library = bool(getattr(cls, "distribution", ""))
    return {
        "estimator": card.estimator,
        "settings": without_defaults(settings),
        "code": codes.LIBRARY_MODEL if is_in_library else codes.of_estimator(card.estimator),
    }


def all_rows_id(baseline: str) -> str:
    """Return the identity of a baseline that is fitted on all rows of a table, from the identity of the baseline."""
    return content_hash({"baseline": baseline, "rows": "all"})


def cell_id(cell: GridCell) -> str:
    """Return the identity of a cell of a grid. It covers everything that the rows of the cell depend on or contain.

    For data sets, it covers the paths but not the contents, since a grid is planned without the files.
    """
    task = cell.task_config
    contents: dict[str, Any] = {"kind": cell.kind, "run": cell.run, "preset": cell.preset, "reason": cell.reason}
    contents["asked"] = {
        key: sorted(value) if isinstance(value, list) else value for key, value in cell.options.items()
    }
    contents["files"] = task.files
    if cell.config is not None:
        contents["trained"] = training_settings(cell.config)
    if cell.kind in ("evaluate", "probe"):
        contents["task"] = _task(task, Role.EVALUATED)
        contents["codes"] = [
            codes.of_family(task.family),
            codes.of_prompts(task.family),
            codes.of_normaliser(task.family),
        ]
        if cell.baseline is not None:
            contents["baseline"] = baseline_settings(load_baseline(cell.baseline)[1])
            contents["oracle"] = cell.run in task.oracles
        elif cell.is_summary:
            # The identities of the needed cells cover the version codes of the contestants.
            published = [number.model_dump(mode="json", exclude_defaults=True) for number in task.published]
            contents |= {
                "needs": sorted(cell.needs),
                "oracles": _without_folders(task.oracles),
                "baselines": _without_folders(task.baselines),
                "published": published,
                "code": codes.SUMMARY,
            }
        elif cell.kind == "probe":
            levels = ("zero", "least-squares", *task.oracles)
            contents["oracles"] = sorted(_without_folders(task.oracles))
            contents["levels"] = {name: baseline_settings(load_baseline(name)[1]) for name in levels}
            contents["probe"] = [codes.PROBE, codes.of_estimator("gradient-descent")]
    return content_hash(contents, 16)


def _without_folders(cards: Sequence[str]) -> list[str]:
    """Return names of cards, in which paths are replaced by the names of their cards."""
    return [card_name(Path(name)) if name.endswith(".toml") else name for name in cards]


def episodes_id(task: TaskConfig, seed: int) -> str:
    """Return the identity of the episodes that cells of a grid share. It covers the sampled task and the seed."""
    contents = {
        "parameters": task.parameters,
        "points": task.points,
        "episodes": task.episodes,
        "question": task.question,
    }
    contents |= {"files": task.files} if task.files else {}
    return content_hash({"task": contents, "seed": seed})


def language_cell_id(cell: LanguageCell) -> str:
    """Return the identity of a cell of a language model."""
    contents: dict[str, Any] = {"kind": cell.kind, "run": cell.run, "preset": cell.preset, "asked": cell.options}
    contents |= {"task": [cell.task, cell.task_config.subset, cell.task_config.hash], "model": cell.identity}
    versions = [codes.LANGUAGE_METHOD, codes.LANGUAGE_ANSWERS, codes.LANGUAGE_PROMPTS, codes.LANGUAGE_MAJORITY]
    return content_hash(contents | {"versions": versions}, 16)


def language_weights_id(**contents: Any) -> str:
    """Return the identity of the weights of a language model, from its files or its commit on a hub, and its
    precision."""
    return content_hash(contents)


def context_method_id(name: str, settings: BaseSettings) -> str:
    """Return the identity of a method of reading demonstrations."""
    contents = {"method": name, "settings": settings.model_dump(), "version": codes.LANGUAGE_METHOD}
    return content_hash(contents)


def language_model_id(model: str, method: str, overlength: str, demonstration_limits: Sequence[Any]) -> str:
    """Return the identity of a language model with a method.

    Args:
        model: identity of the weights.
        method: identity of the method.
        overlength: treatment of prompts that are too long.
        demonstration_limits: properties of the compared methods that limit the number of demonstrations.
    """
    contents: dict[str, Any] = {"model": model, "method": method, "overlength": overlength}
    contents["version"] = codes.LANGUAGE_ANSWERS
    return content_hash(contents | {"room": list(demonstration_limits)} if demonstration_limits else contents)


def language_variant_id(model: str, method: str) -> str:
    """Return the identity of a language model with a method. It is the same for all treatments of long prompts."""
    return content_hash({"model": model, "method": method}, 8)


def majority_id() -> str:
    """Return the identity of the majority baseline."""
    return content_hash({"majority": codes.LANGUAGE_MAJORITY})


def language_prompts_id(**contents: Any) -> str:
    """Return the identity of the prompts of a language task, or of all prompts that differ only in their
    demonstrations."""
    return content_hash(contents, 8)


def validation_id(prompt_sets: Sequence[str]) -> str:
    """Return the identity of a list of validation prompt sets."""
    return content_hash({"sets": list(prompt_sets)}, 8)


def bundle_id(cells: Sequence[str]) -> str:
    """Return the identity of the cells of one job."""
    return content_hash({"cells": list(cells)}, 12)


def _task(task: TaskConfig, role: Role) -> dict[str, Any]:
    """Return the settings of a task that have a role, and the parameters of its family."""
    plain = task.model_dump(mode="json", exclude_defaults=True, include=set(TaskConfig.with_role(role)))
    return plain | {"parameters": _parameters(task)}


def _parameters(task: TaskConfig) -> dict[str, Any]:
    """Return the parameters of a family that differ from their defaults, without paths of files.

    For a family of another package, return all parameters that are set. The defaults are unknown, since the family is
    not imported.
    """
    if not codes.is_ours(FAMILIES, task.family):
        return task.parameters
    checked = task.family_parameters
    return checked.model_dump(mode="json", exclude_defaults=True, exclude=set(checked.with_role(Role.LOCATION)))


def _settings(backbone: BackboneConfig) -> dict[str, Any]:
    """Return the settings of a backbone that differ from their defaults. For a class of another package, return all
    settings that are set."""
    if not codes.is_ours(BACKBONES, BACKBONES.variant(backbone.name).backbone):
        return backbone.settings
    model = backbone_class(backbone.name).Settings
    return without_defaults(validate(model, backbone.settings, f"backbone '{backbone.name}'"))
