"""Which code answers: numbers that stand in hashes, so that no kept result is served for code that computes another.

One number for every family, estimator and backbone of iclbench, raised in the commit that changes what it answers for
the same settings; `tests/golden` notices who forgets. Code from elsewhere has no such number: the hash of its sources
stands in its place (`iclbench.config.sources`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from iclbench.config.registry import BACKBONES as _BACKBONES
from iclbench.config.registry import ESTIMATORS as _ESTIMATORS
from iclbench.config.registry import FAMILIES as _FAMILIES
from iclbench.config.registry import Registry
from iclbench.config.sources import source_hash

# A family answers with episodes: those of a frozen prompt set, and those that a run is trained on.
PROMPTS: dict[str, int] = {
    "linear": 1,
    "sparse-linear": 1,
    "skewed-linear": 1,
    "noisy-linear": 1,
    "relu-network": 1,
    "decision-tree": 1,
    "combination": 1,
    "quadratic": 1,
    "tabular": 1,
    "gp-mixture": 1,
    "image-completion": 1,
    "bursty": 1,
}

ESTIMATORS: dict[str, int] = {
    "zero": 1,
    "mean": 1,
    "least-squares": 1,
    "ridge": 1,
    "kernel-ridge": 1,
    "lasso": 1,
    "knn": 1,
    "pixel-1nn": 1,
    "nearest-class-mean": 1,
    "majority": 1,
    "averaging": 1,
    "mlp": 1,
    "decision-tree": 1,
    "xgboost": 1,
    "gradient-descent": 1,
    "gp-kernel-oracle": 1,
    "gp-periodic-mean": 1,
    "gp-bayes-oracle": 1,
}

BACKBONES: dict[str, int] = {
    "gpt2": 1,
    "transformer": 1,
    "coqe": 1,
    "mamba": 1,
    "s4": 1,
    "s4d": 1,
    "lbanp": 1,
    "cmanp": 1,
    "cnp": 1,
    "icicl-cnp": 1,
    "tnp": 1,
    "pt-tnp": 1,
    "icicl-tnp": 1,
}


@dataclass(frozen=True)
class Raise:
    """A number that was raised once for a part of what a name stands for: whatever else does is served on.

    Attributes:
        name: of a family or a probe.
        of: what changed: `episodes` (of training and of prompt sets), `prompts` (frozen prompt sets alone: nothing is
            trained again), `normaliser` (what errors are divided by), `rows` (of a probe).
        where: a parameter of the family and its value; only tasks with it have changed. None: all.
    """

    name: str
    of: Literal["episodes", "prompts", "normaliser", "rows"]
    where: tuple[str, Any] | None = None


RAISES = [
    Raise("bursty", "episodes", ("anchor_compat", True)),
    Raise("image-completion", "episodes", ("images", "celeba")),
    Raise("gp-mixture", "prompts"),
    Raise("relu-network", "normaliser", ("shared_hidden", True)),
    Raise("representation", "rows"),
]

# How training sums up what is scored, where episodes differ in how many of their points are: by points in version
# 0.1.0, now by episodes.
LOSS = 2

# What a number may be: of our own code, or the hash of other people's.
Code = int | str


def of_family(name: str, parameters: Mapping[str, Any]) -> Code:
    """The number of a built-in family with all its parameters, the hash of any other's sources; nothing is imported."""
    code = _code(PROMPTS, _FAMILIES, name)
    return code if isinstance(code, str) else code + _raises(name, "episodes", parameters)


def of_prompts(name: str, parameters: Mapping[str, Any]) -> Code:
    """The same of a family's frozen prompt sets, which may have changed where its training data did not."""
    code = of_family(name, parameters)
    return code if isinstance(code, str) else code + _raises(name, "prompts", parameters)


def of_normaliser(name: str, parameters: Mapping[str, Any]) -> dict[str, int]:
    """What hashes of evaluations say of the normaliser: nothing where it is that of version 0.1.0."""
    raised = _raises(name, "normaliser", parameters)
    return {"normaliser": 1 + raised} if raised else {}


def of_probe(name: str) -> dict[str, int]:
    """What hashes say of a probe: nothing where it is that of version 0.1.0."""
    raised = sum(each.of == "rows" and each.name == name for each in RAISES)
    return {"probed_by": 1 + raised} if raised else {}


def of_estimator(name: str) -> Code:
    """The number of a built-in estimator, the hash of any other's sources; nothing is imported."""
    return _code(ESTIMATORS, _ESTIMATORS, name)


def of_backbone(name: str) -> Code:
    """The number of a built-in backbone, the hash of any other's sources; that of the backbone for a variant, whose
    settings are in the configuration. Nothing is imported but a third party's variant."""
    return _code(BACKBONES, _BACKBONES, _BACKBONES.variant(name).backbone)


def since_first(code: Code) -> Code | None:
    """None for the code of version 0.1.0, which hashes leave out."""
    return None if code == 1 else code


def together(codes: Iterable[Code]) -> Code | list[Code]:
    """Several as one entry of a hash: 1 as long as all are the first, as version 0.1.0 had it."""
    found = list(codes)
    return 1 if all(code == 1 for code in found) else found


def _raises(family: str, of: str, parameters: Mapping[str, Any]) -> int:
    """How often the number of a family, named as in a card or by its `module:Class`, was raised for a task."""
    return sum(
        each.of == of
        and _FAMILIES.entry(each.name).target == _FAMILIES.entry(family).target
        and (each.where is None or parameters.get(each.where[0]) == each.where[1])
        for each in RAISES
    )


def _code(numbers: dict[str, int], registry: Registry, name: str) -> Code:
    entry = registry.entry(name)
    own = next((built_in for built_in in numbers if registry.entry(built_in).target == entry.target), None)
    return source_hash(entry.target) if own is None else numbers[own]
