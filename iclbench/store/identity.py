"""Identities: what runs, prompt sets, scores and cells of a grid are hashed from.

One rule: the resolved settings (after card, preset, learning rates and overrides) without those that equal the default
declared in code, the codes of all that answers (`iclbench.config.codes`), and the fingerprints of data. Defaults are
frozen: `tests/golden/defaults.json` lists them, and a changed default needs a raised code. Files count by what they
contain; only cells of a grid, which is planned without them, name their places.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from iclbench.config import codes
from iclbench.config.cards import BaselineCard, TrainSettings, load_baseline
from iclbench.config.registry import BACKBONES, ESTIMATORS, FAMILIES
from iclbench.config.resolution import BackboneConfig, RunConfig, TaskConfig, backbone_class
from iclbench.core.hashing import content_hash
from iclbench.core.settings import BaseSettings, Role, validate

if TYPE_CHECKING:
    from iclbench.evaluation.contestant import Contestant
    from iclbench.evaluation.prompts import PromptSet
    from iclbench.sweep.cells import GridCell


def without_defaults(settings: BaseSettings) -> dict[str, Any]:
    """The settings that differ from their defaults, in plain values."""
    return settings.model_dump(mode="json", exclude_defaults=True)


def training(config: RunConfig) -> dict[str, Any]:
    """What the weights of a run depend on."""
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
    """The identity of a run."""
    return content_hash(training(config))


def variant_id(config: RunConfig) -> str:
    """The identity of a training without its seed and without what only observes it."""
    of = training(config)
    del of["seed"]
    of["train"] = {
        key: value for key, value in of["train"].items() if key not in TrainSettings.with_role(Role.MONITORING)
    }
    return content_hash(of, 8)


def prompts_id(prompts: PromptSet, **sizes: Any) -> str:
    """The identity of frozen episodes: the family, its data, the shift or the test, the seed, and `sizes`."""
    task, family = prompts.task, prompts.family
    of = {
        "family": task.family,
        "parameters": _parameters(task),
        "codes": [codes.of_family(task.family), codes.of_prompts(task.family)],
        "data": family.fingerprint,
        "learned": task.learned if prompts.trained_data else {},
        "shift": prompts.shift,
        "evaluator": prompts.evaluator,
        "seed": prompts.seed,
    }
    return content_hash(of | sizes, 8)


def score_id(contestant: Contestant, prompt_set: str, family: str | None) -> str:
    """The identity of the scores of a contestant on a prompt set.

    Args:
        contestant: what is scored.
        prompt_set: identity of the prompts.
        family: whose normaliser divides the errors; None: no family, as of language tasks.
    """
    of = {"contestant": contestant.identity, "prompts": prompt_set}
    return content_hash(of if family is None else of | {"normaliser": codes.of_normaliser(family)})


def baseline(card: BaselineCard) -> dict[str, Any]:
    """What the answers of a baseline depend on, apart from the task."""
    settings = validate(ESTIMATORS.get(card.estimator).Settings, card.settings, f"estimator '{card.estimator}'")
    return {
        "estimator": card.estimator,
        "settings": without_defaults(settings),
        "code": codes.of_estimator(card.estimator),
    }


def cell_id(cell: GridCell) -> str:
    """The identity of a cell of a grid: everything that its rows depend on and say.

    Of data sets it contains where the files are and not what they hold: a grid is planned without them.
    """
    task = cell.frozen
    of: dict[str, Any] = {"kind": cell.kind, "run": cell.run, "preset": cell.preset, "reason": cell.reason}
    of["asked"] = {key: sorted(value) if isinstance(value, list) else value for key, value in cell.asked.items()}
    of["files"] = task.files
    if cell.config is not None:
        of["trained"] = training(cell.config)
    if cell.kind in ("evaluate", "probe"):
        of["task"] = _task(task, Role.EVALUATED)
        of["codes"] = [codes.of_family(task.family), codes.of_prompts(task.family), codes.of_normaliser(task.family)]
        if cell.baseline is not None:
            of["baseline"] = baseline(load_baseline(cell.baseline)[1])
            of["oracle"] = cell.run in task.oracles
        elif cell.is_summary:
            # The codes of what answered are in the identities of the cells that are summed up.
            published = [each.model_dump(mode="json", exclude_defaults=True) for each in task.published]
            of |= {"needs": sorted(cell.needs), "oracles": task.oracles, "published": published, "code": codes.SUMMARY}
        elif cell.kind == "probe":
            levels = ("zero", "least-squares", *task.oracles)
            of["oracles"] = sorted(task.oracles)
            of["levels"] = {name: baseline(load_baseline(name)[1]) for name in levels}
            of["probe"] = [codes.PROBE, codes.of_estimator("gradient-descent")]
    return content_hash(of, 16)


def _task(task: TaskConfig, role: Role) -> dict[str, Any]:
    """The keys of a task with a role."""
    plain = task.model_dump(mode="json", exclude_defaults=True, include=set(TaskConfig.with_role(role)))
    return plain | {"parameters": _parameters(task)}


def _parameters(task: TaskConfig) -> dict[str, Any]:
    """The parameters of a family that differ from their defaults, without the places of files; all of a class from
    elsewhere, which is not imported for it."""
    if not codes.is_ours(FAMILIES, task.family):
        return task.parameters
    checked = task.checked
    return checked.model_dump(mode="json", exclude_defaults=True, exclude=set(checked.with_role(Role.LOCATION)))


def _settings(backbone: BackboneConfig) -> dict[str, Any]:
    """The settings of a backbone that differ from their defaults; all of a class from elsewhere."""
    if not codes.is_ours(BACKBONES, BACKBONES.variant(backbone.name).backbone):
        return backbone.settings
    model = backbone_class(backbone.name).Settings
    return without_defaults(validate(model, backbone.settings, f"backbone '{backbone.name}'"))
