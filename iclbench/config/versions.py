"""Which code answers: numbers that stand in hashes, so that no kept result is served for code that computes another.

One number for every family, estimator, backbone and mixer of iclbench, `code` of its entry in the registry, raised in
the commit that changes what it answers for the same settings; `tests/golden` notices who forgets. Code from elsewhere
has no such number: the hash of its sources stands in its place (`iclbench.config.sources`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from iclbench.config.cards import content_hash
from iclbench.config.registry import BACKBONES, ESTIMATORS, FAMILIES, MIXERS, Registry, is_target
from iclbench.config.sources import source_hash


@dataclass(frozen=True)
class Raise:
    """A number that was raised once for a part of what a name stands for: whatever else does is served on.

    Attributes:
        name: of a family, a probe or a backbone.
        of: what changed: `episodes` (of training and of prompt sets), `prompts` (frozen prompt sets alone: nothing is
            trained again), `normaliser` (what errors are divided by), `rows` (of a probe), `weights` (of a backbone).
        where: a parameter of the family and its value, or the head of a backbone; only tasks with it have changed.
            None: all.
    """

    name: str
    of: Literal["episodes", "prompts", "normaliser", "rows", "weights"]
    where: tuple[str, Any] | None = None


RAISES = [
    Raise("bursty", "episodes", ("anchor_compat", True)),
    Raise("image-completion", "episodes", ("images", "celeba")),
    Raise("gp-mixture", "prompts"),
    Raise("relu-network", "normaliser", ("shared_hidden", True)),
    Raise("representation", "rows"),
    Raise("coqe", "weights", ("head", "mixture")),
    Raise("coqe", "weights", ("head", "event")),
    # Open intervals enter loss and scores, windows without events are sequences, baselines know the mean gaps.
    Raise("events", "episodes"),
]

# How training sums up what is scored, where episodes differ in how many of their points are: by points in version
# 0.1.0, now by episodes.
LOSS = 2
# Of events: all are asked of a backbone that answers every prefix in one pass, and no longer one of each sequence.
LOSS_OF_EVERY_EVENT = 3

# What a number may be: of our own code, or the hash of other people's.
Code = int | str


def of_family(name: str, parameters: Mapping[str, Any]) -> Code:
    """The number of a built-in family with all its parameters, the hash of any other's sources; nothing is imported."""
    code = _code(FAMILIES, name)
    return code if isinstance(code, str) else code + _raises(FAMILIES, name, "episodes", parameters)


def of_prompts(name: str, parameters: Mapping[str, Any]) -> Code:
    """The same of a family's frozen prompt sets, which may have changed where its training data did not."""
    code = of_family(name, parameters)
    return code if isinstance(code, str) else code + _raises(FAMILIES, name, "prompts", parameters)


def of_normaliser(name: str, parameters: Mapping[str, Any]) -> dict[str, int]:
    """What hashes of evaluations say of the normaliser: nothing where it is that of version 0.1.0."""
    raised = _raises(FAMILIES, name, "normaliser", parameters)
    return {"normaliser": 1 + raised} if raised else {}


def of_probe(name: str) -> dict[str, int]:
    """What hashes say of a probe: nothing where it is that of version 0.1.0."""
    raised = sum(each.of == "rows" and each.name == name for each in RAISES)
    return {"probed_by": 1 + raised} if raised else {}


def of_estimator(name: str) -> Code:
    """The number of a built-in estimator, the hash of any other's sources; nothing is imported."""
    return _code(ESTIMATORS, name)


def of_backbone(name: str, settings: Mapping[str, Any] | None = None, head: str | None = None) -> Code:
    """The number of a built-in backbone that answers with a head, the hash of any other's sources; that of the backbone
    for a variant, whose settings are in the configuration. Nothing is imported but a third party's variant.

    Where settings name mixers, these count as well: each of ours raises the number as often as its own was raised; with
    one from elsewhere, a hash of all codes stands in its place.

    Raises:
        UnknownNameError: a mixer of a built-in backbone does not exist.
    """
    backbone = BACKBONES.variant(name).backbone
    own = _code(BACKBONES, backbone)
    if isinstance(own, int):
        own += _raises(BACKBONES, backbone, "weights", {"head": head})
    codes = [own, *(_code(MIXERS, mixer) for mixer in _mixers(settings or {}, own))]
    numbers = [code for code in codes if isinstance(code, int)]
    if len(numbers) == len(codes):
        return 1 + sum(number - 1 for number in numbers)
    others = [code for code in codes if code != 1]
    return others[0] if len(others) == 1 else content_hash({"codes": others})


def since_first(code: Code) -> Code | None:
    """None for the code of version 0.1.0, which hashes leave out."""
    return None if code == 1 else code


def together(codes: Iterable[Code]) -> Code | list[Code]:
    """Several as one entry of a hash: 1 as long as all are the first, as version 0.1.0 had it."""
    found = list(codes)
    return 1 if all(code == 1 for code in found) else found


def _raises(registry: Registry, name: str, of: str, where: Mapping[str, Any]) -> int:
    """How often the number of a family or a backbone, named as in a card or by its `module:Class`, was raised for a
    task."""
    return sum(
        each.of == of
        and registry.entry(each.name).target == registry.entry(name).target
        and (each.where is None or where.get(each.where[0]) == each.where[1])
        for each in RAISES
    )


def _mixers(settings: Mapping[str, Any], own: Code) -> list[str]:
    """The mixers that settings name, each once; a class from elsewhere may mean something else by the word."""
    named = settings.get("mixers")
    words = [each for each in named if isinstance(each, str)] if isinstance(named, list) else []
    return [each for each in dict.fromkeys(words) if isinstance(own, int) or is_target(each) or each in MIXERS.entries]


def _code(registry: Registry, name: str) -> Code:
    target = registry.entry(name).target
    own = next((entry.code for entry in registry.shipped.values() if entry.target == target), None)
    return source_hash(target) if own is None else own
