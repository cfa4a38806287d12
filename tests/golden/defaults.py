"""The defaults of all settings that enter identities, with the code of the class that they belong to."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from iclbench.config import codes
from iclbench.config.cards import Curriculum, Ramp, TrainSettings
from iclbench.config.resolution import BackboneConfig, RunConfig, TaskConfig
from iclbench.registry import BACKBONES, ESTIMATORS, FAMILIES

PATH = Path(__file__).parent / "defaults.json"
Known = dict[str, dict[str, Any]]


def defaults() -> Known:
    """By class of settings: the code, and the default of every key that has one."""
    found: Known = {}
    for name in FAMILIES.shipped:
        _add(found, FAMILIES.get(name).Parameters, [codes.of_family(name), codes.of_prompts(name)])
    for name in BACKBONES.architectures():
        if name in BACKBONES.shipped:
            _add(found, BACKBONES.get(name).Settings, codes.of_backbone(name))
    for name in ESTIMATORS.shipped:
        _add(found, ESTIMATORS.get(name).Settings, codes.of_estimator(name))
    for model in (TrainSettings, Curriculum, Ramp, TaskConfig, BackboneConfig, RunConfig):
        _add(found, model, codes.LOSS)
    return found


def _add(found: Known, model: type[BaseModel], code: Any) -> None:
    # Several classes may share their settings: a default of theirs changes with all of their codes.
    entry = found.setdefault(f"{model.__module__}:{model.__qualname__}", {"codes": [], "defaults": {}})
    entry["codes"] = [*entry["codes"], code]
    for key, field in model.model_fields.items():
        if not field.is_required():
            default = field.get_default(call_default_factory=True)
            entry["defaults"][key] = default.model_dump() if isinstance(default, BaseModel) else default


def plain(known: Known) -> Known:
    """As JSON reads it again."""
    return json.loads(json.dumps(known))  # type: ignore[no-any-return]


def stored() -> Known:
    """The defaults that are stored."""
    return json.loads(PATH.read_text())  # type: ignore[no-any-return]


def write_missing() -> list[str]:
    """Store the defaults that are not stored for today's codes; returns the classes of settings that were written."""
    before, after = stored(), plain(defaults())
    for name, entry in after.items():
        known = before.get(name)
        if known is not None and known["codes"] == entry["codes"]:
            entry["defaults"] = {key: known["defaults"].get(key, today) for key, today in entry["defaults"].items()}
    lines = [f"{json.dumps(name)}: {json.dumps(entry)}" for name, entry in sorted(after.items())]
    PATH.write_text("{\n" + ",\n".join(lines) + "\n}\n")
    return [name for name in after if after[name] != before.get(name)]
