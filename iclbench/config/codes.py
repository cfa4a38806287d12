"""Codes: version numbers of code, which are part of hashes.

Every family, estimator, backbone and mixer of iclbench has a code, `Entry.code` in the registry. Raise it in the commit
that changes the outputs of the class for the same settings; otherwise `tests/golden` fails. A family has three codes:
for its episodes (`code`), for the choice of frozen prompts (`prompts`) and for the normaliser of errors (`normaliser`).
The code of a class from outside iclbench is the hash of its sources.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from iclbench.core.sources import source_hash
from iclbench.registry import BACKBONES, ESTIMATORS, FAMILIES, MIXERS, Entry, Registry, is_target

# Codes of the loss of a batch, of the probes, of the summary of the scores of a prompt set, and of fits of models with
# scikit-learn's interface.
LOSS = 1
PROBE = 1
SUMMARY = 2
LIBRARY_MODEL = 1

# A number for a class of iclbench, or a hash for another class; for a backbone with mixers, the list of all codes.
Code = int | str | list[int | str]


def of_family(name: str) -> int | str:
    """The code of the episodes of a family. The family is not imported."""
    return _code(FAMILIES, name)


def of_prompts(name: str) -> int | str:
    """The code of the choice of frozen prompts of a family."""
    shipped = _shipped(FAMILIES, name)
    return of_family(name) if shipped is None else shipped.prompts


def of_normaliser(name: str) -> int | str:
    """The code of the normaliser of a family."""
    shipped = _shipped(FAMILIES, name)
    return of_family(name) if shipped is None else shipped.normaliser


def of_estimator(name: str) -> int | str:
    """The code of an estimator, which is not imported."""
    return _code(ESTIMATORS, name)


def of_backbone(name: str, settings: Mapping[str, Any] | None = None) -> Code:
    """The code of a backbone, or of the backbone of a variant, followed by the codes of mixers in the settings.

    Only variants from outside iclbench are imported.

    Raises:
        UnknownNameError: a mixer of a built-in backbone does not exist.
    """
    code = _code(BACKBONES, BACKBONES.variant(name).backbone)
    mixer_codes = [_code(MIXERS, mixer) for mixer in _mixers(settings or {}, code)]
    return [code, *mixer_codes] if mixer_codes else code


def is_ours(registry: Registry, name: str) -> bool:
    """Whether a name or target refers to a class of iclbench. The class is not imported."""
    return _shipped(registry, name) is not None


def _mixers(settings: Mapping[str, Any], code: int | str) -> list[str]:
    """The mixers in the settings, without duplicates. For a backbone from outside iclbench, these are only the names of
    existing mixers, because its setting `mixers` may have another meaning."""
    value = settings.get("mixers")
    names = [name for name in value if isinstance(name, str)] if isinstance(value, list) else []
    is_builtin = isinstance(code, int)
    return [name for name in dict.fromkeys(names) if is_builtin or is_target(name) or name in MIXERS.entries]


def _shipped(registry: Registry, name: str) -> Entry | None:
    """The registry entry of a class of iclbench, by name or target; None for a class from outside iclbench."""
    target = registry.entry(name).target
    return next((entry for entry in registry.builtin_entries.values() if entry.target == target), None)


def _code(registry: Registry, name: str) -> int | str:
    shipped = _shipped(registry, name)
    return source_hash(registry.entry(name).target) if shipped is None else shipped.code
