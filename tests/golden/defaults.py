"""Defaults of all settings that are part of an identity, with the code versions of the classes that use them."""

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
Entries = dict[str, dict[str, Any]]


def defaults() -> Entries:
    """For each settings class, return the code versions of the classes with these settings and the defaults of its
    keys.
    """
    entries: Entries = {}
    for name in FAMILIES.builtin_entries:
        _add(entries, FAMILIES.get(name).Parameters, f"family {name}", [codes.of_family(name), codes.of_prompts(name)])
    for name in BACKBONES.architectures():
        if name in BACKBONES.builtin_entries:
            _add(entries, BACKBONES.get(name).Settings, f"backbone {name}", codes.of_backbone(name))
    for name in ESTIMATORS.builtin_entries:
        _add(entries, ESTIMATORS.get(name).Settings, f"estimator {name}", codes.of_estimator(name))
    for model in (TrainSettings, Curriculum, Ramp, TaskConfig, BackboneConfig, RunConfig):
        _add(entries, model, "training", codes.LOSS)
    return entries


def _add(entries: Entries, model: type[BaseModel], owner: str, code: Any) -> None:
    entry = entries.setdefault(f"{model.__module__}:{model.__qualname__}", {"codes": {}, "defaults": {}})
    entry["codes"][owner] = code
    for key, field in model.model_fields.items():
        if not field.is_required():
            default = field.get_default(call_default_factory=True)
            entry["defaults"][key] = default.model_dump() if isinstance(default, BaseModel) else default


def owners_with_equal_code(old_entry: dict[str, Any], entry: dict[str, Any]) -> list[str]:
    """Return the classes with these settings whose code versions equal the stored versions. Their defaults must not
    change.
    """
    return [owner for owner, code in entry["codes"].items() if old_entry["codes"].get(owner) == code]


def through_json(entries: Entries) -> Entries:
    """Return the entries after a round trip through JSON, which changes tuples to lists."""
    return json.loads(json.dumps(entries))  # type: ignore[no-any-return]


def read_stored() -> Entries:
    """Read the stored defaults."""
    return json.loads(PATH.read_text())  # type: ignore[no-any-return]


def write_missing() -> list[str]:
    """Store new settings, and changed defaults if all code versions were increased. Return the written settings
    classes.
    """
    before, after = read_stored(), through_json(defaults())
    for name, entry in after.items():
        old_entry = before.get(name)
        if old_entry is not None and owners_with_equal_code(old_entry, entry):
            entry["defaults"] = {
                key: old_entry["defaults"].get(key, default) for key, default in entry["defaults"].items()
            }
    lines = [f"{json.dumps(name)}: {json.dumps(entry)}" for name, entry in sorted(after.items())]
    PATH.write_text("{\n" + ",\n".join(lines) + "\n}\n")
    return [name for name in after if after[name] != before.get(name)]
