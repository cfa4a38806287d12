"""Which code answers: numbers that stand in hashes, so that no kept result is served for code that computes another.

One number for every family, estimator and backbone of iclbench, raised in the commit that changes what it answers for
the same settings; `tests/golden` notices who forgets. Code from elsewhere has no such number: the hash of its sources
stands in its place (`iclbench.config.sources`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

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

# How often the number of a family was raised for those tasks alone whose parameter has this value: only these answer
# otherwise than before, and what is kept of all others is served on.
PROMPTS_WITH: dict[tuple[str, str, Any], int] = {
    ("bursty", "anchor_compat", True): 1,
    ("image-completion", "images", "celeba"): 1,
}

# How often the number of a family was raised for frozen prompt sets alone: what runs are trained on stayed the same.
FROZEN: dict[str, int] = {"gp-mixture": 1}

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

# What errors are divided by, for tasks of a family that set this parameter: raised where the normaliser changes and the
# episodes do not, so that nothing is trained again.
NORMALISERS: dict[tuple[str, str], int] = {("relu-network", "shared_hidden"): 2}

# How training sums up what is scored, where episodes differ in how many of their points are: by points in version
# 0.1.0, now by episodes.
LOSS = 2

# Probes whose rows are not those of version 0.1.0.
PROBES: dict[str, int] = {"representation": 2}

# What a number may be: of our own code, or the hash of other people's.
Code = int | str


def of_family(name: str, parameters: Mapping[str, Any]) -> Code:
    """The number of a built-in family with all its parameters, the hash of any other's sources; nothing is imported."""
    code = _code(PROMPTS, _FAMILIES, name)
    if isinstance(code, str):
        return code
    return code + sum(
        raised
        for (own, key, value), raised in PROMPTS_WITH.items()
        if _is_family(name, own) and parameters.get(key) == value
    )


def of_prompts(name: str, parameters: Mapping[str, Any]) -> Code:
    """The same of a family's frozen prompt sets, which may have changed where its training data did not."""
    code = of_family(name, parameters)
    if isinstance(code, str):
        return code
    return code + sum(raised for own, raised in FROZEN.items() if _is_family(name, own))


def of_normaliser(name: str, parameters: Mapping[str, Any]) -> dict[str, int]:
    """What hashes of evaluations say of the normaliser: nothing where it is that of version 0.1.0."""
    raised = [n for (own, key), n in NORMALISERS.items() if _is_family(name, own) and parameters.get(key)]
    return {"normaliser": max(raised)} if raised else {}


def of_probe(name: str) -> dict[str, int]:
    """What hashes say of a probe: nothing where it is that of version 0.1.0."""
    return {"probed_by": PROBES[name]} if name in PROBES else {}


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


def _is_family(name: str, own: str) -> bool:
    """Whether a card's name, or its `module:Class`, means this family of ours."""
    return _FAMILIES.entry(name).target == _FAMILIES.entry(own).target


def _code(numbers: dict[str, int], registry: Registry, name: str) -> Code:
    entry = registry.entry(name)
    own = next((built_in for built_in in numbers if registry.entry(built_in).target == entry.target), None)
    return source_hash(entry.target) if own is None else numbers[own]
