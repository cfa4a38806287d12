"""Codes: numbers in hashes that say which code computes an answer.

Every family, estimator, backbone and mixer of iclbench has a code, `Entry.code` in the registry. It is raised in the
commit that changes what the class answers for the same settings; `tests/golden` fails where this is forgotten. A family
has three: of its episodes (`code`), of the choice of frozen prompts (`prompts`) and of what errors are divided by
(`normaliser`). A class from elsewhere has no such number: its code is the hash of its sources.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from iclbench.core.sources import source_hash
from iclbench.registry import BACKBONES, ESTIMATORS, FAMILIES, MIXERS, Entry, Registry, is_target

# How training sums up the losses of a batch, what a probe measures, and how the scores of a prompt set are summed up.
LOSS = 1
PROBE = 1
SUMMARY = 1

# A number of iclbench's own code, the hash of other people's, or those of a backbone and its mixers.
Code = int | str | list[int | str]


def of_family(name: str) -> int | str:
    """The code of a family's episodes, in training and in prompt sets. Nothing is imported."""
    return _code(FAMILIES, name)


def of_prompts(name: str) -> int | str:
    """The code of the choice of frozen prompts of a family."""
    shipped = _shipped(FAMILIES, name)
    return of_family(name) if shipped is None else shipped.prompts


def of_normaliser(name: str) -> int | str:
    """The code of what a family's errors are divided by."""
    shipped = _shipped(FAMILIES, name)
    return of_family(name) if shipped is None else shipped.normaliser


def of_estimator(name: str) -> int | str:
    """The code of an estimator. Nothing is imported."""
    return _code(ESTIMATORS, name)


def of_backbone(name: str, settings: Mapping[str, Any] | None = None) -> Code:
    """The code of a backbone; of a variant that of its backbone. Where settings name mixers, their codes follow.

    Nothing is imported except a variant from elsewhere.

    Raises:
        UnknownNameError: a mixer of a built-in backbone does not exist.
    """
    own = _code(BACKBONES, BACKBONES.variant(name).backbone)
    mixers = [_code(MIXERS, mixer) for mixer in _mixers(settings or {}, own)]
    return [own, *mixers] if mixers else own


def is_ours(registry: Registry, name: str) -> bool:
    """Whether a name or target is that of iclbench's own class. Nothing is imported."""
    return _shipped(registry, name) is not None


def _mixers(settings: Mapping[str, Any], own: int | str) -> list[str]:
    """The mixers that settings name, each once; a class from elsewhere may mean something else by the word."""
    named = settings.get("mixers")
    words = [each for each in named if isinstance(each, str)] if isinstance(named, list) else []
    return [each for each in dict.fromkeys(words) if isinstance(own, int) or is_target(each) or each in MIXERS.entries]


def _shipped(registry: Registry, name: str) -> Entry | None:
    """The entry of iclbench's own class behind a name or target; None: it is from elsewhere."""
    target = registry.entry(name).target
    return next((entry for entry in registry.shipped.values() if entry.target == target), None)


def _code(registry: Registry, name: str) -> int | str:
    shipped = _shipped(registry, name)
    return source_hash(registry.entry(name).target) if shipped is None else shipped.code
