"""Codes: version numbers of implementations, which are part of hashes.

Each family, estimator, backbone and mixer of iclbench has a code, `Entry.code` in the registry. Increase it in the
commit that changes the outputs of the class for the same settings; otherwise tests in `tests/golden` fail. A family has
three codes: for its episodes (`code`), for the choice of frozen prompts (`prompts`) and for the normaliser of errors
(`normaliser`). The code of a class from outside iclbench is the hash of its sources.

The constants below are the codes of everything else. Increase a constant in the commit that changes results for the
same settings.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from iclbench.core.sources import source_hash
from iclbench.registry import BACKBONES, ESTIMATORS, FAMILIES, MIXERS, Entry, Registry, is_target

# Codes of the training loss, of the probes, of the summary of scores on a prompt set, and of fits of models with
# scikit-learn's interface.
LOSS = 1
PROBE = 1
SUMMARY = 2
LIBRARY_MODEL = 1
# Codes of an evaluation of language models: the methods of reading demonstrations, the choice of prompts, the answers
# (tokenising, scoring and judging), and the majority baseline.
LANGUAGE_METHOD = 1
LANGUAGE_PROMPTS = 2
LANGUAGE_ANSWERS = 2
LANGUAGE_MAJORITY = 2

# The code is a number for a class of iclbench, and a hash for any other class. For a backbone with mixers, it is the
# list of all codes.
Code = int | str | list[int | str]


def of_family(name: str) -> int | str:
    """Return the code of the episodes of a family, without importing the family."""
    return _code(FAMILIES, name)


def of_prompts(name: str) -> int | str:
    """Return the code of the choice of frozen prompts of a family."""
    shipped = _shipped(FAMILIES, name)
    return of_family(name) if shipped is None else shipped.prompts


def of_normaliser(name: str) -> int | str:
    """Return the code of the normaliser of a family."""
    shipped = _shipped(FAMILIES, name)
    return of_family(name) if shipped is None else shipped.normaliser


def of_estimator(name: str) -> int | str:
    """Return the code of an estimator, without importing the estimator."""
    return _code(ESTIMATORS, name)


def of_backbone(name: str, settings: Mapping[str, Any] | None = None) -> Code:
    """Return the code of a backbone (for a variant, of the backbone that it varies), followed by the codes of mixers in
    the settings.

    Only variants from outside iclbench are imported.

    Raises:
        UnknownNameError: a mixer of a built-in backbone does not exist.
    """
    code = _code(BACKBONES, BACKBONES.variant(name).backbone)
    mixer_codes = [_code(MIXERS, mixer) for mixer in _mixers(settings or {}, code)]
    return [code, *mixer_codes] if mixer_codes else code


def is_ours(registry: Registry, name: str) -> bool:
    """Return whether a name or target refers to a class of iclbench, without importing the class."""
    return _shipped(registry, name) is not None


def _mixers(settings: Mapping[str, Any], code: int | str) -> list[str]:
    """Return the mixers in the settings, without duplicates.

    For a backbone from outside iclbench, only names of existing mixers are returned, because its setting `mixers` may
    have another meaning.
    """
    value = settings.get("mixers")
    names = [name for name in value if isinstance(name, str)] if isinstance(value, list) else []
    is_builtin = isinstance(code, int)
    return [name for name in dict.fromkeys(names) if is_builtin or is_target(name) or name in MIXERS.entries]


def _shipped(registry: Registry, name: str) -> Entry | None:
    """Return the registry entry of a class of iclbench, by name or target; None for a class from outside iclbench."""
    target = registry.entry(name).target
    return next((entry for entry in registry.builtin_entries.values() if entry.target == target), None)


def _code(registry: Registry, name: str) -> int | str:
    shipped = _shipped(registry, name)
    return source_hash(registry.entry(name).target) if shipped is None else shipped.code
