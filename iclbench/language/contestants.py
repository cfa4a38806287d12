"""The contestants of a language-model evaluation: a model with a method, and the majority baseline."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version

import torch

from iclbench.deep_thinking.methods import Method
from iclbench.evaluation.contestant import Contestant
from iclbench.language.models.model import LanguageModel
from iclbench.language.prompting.fitting import Overlength
from iclbench.store import identity


@dataclass(frozen=True)
class LanguageContestant(Contestant):
    """A language model with a method, or the majority baseline.

    Attributes:
        model: the model; None for the baseline.
        method: the method; None for the baseline.
        compared_methods: other methods that are evaluated on the same demonstrations.
    """

    model: LanguageModel | None = None
    method: Method | None = None
    compared_methods: tuple[Method, ...] = ()


def contestant(
    model: LanguageModel, method: Method, overlength: Overlength, compared_methods: Sequence[Method] = ()
) -> LanguageContestant:
    """Create the contestant of a model with a method, which is compared with other methods."""
    others = tuple({other.hash: other for other in compared_methods if other.hash != method.hash}.values())
    # With `drop`, the number of dropped demonstrations also depends on the lengths of the prompts of the compared
    # methods. The lengths follow from `times` and `passes`.
    lengths = {(other.times, min(other.passes, 2)) for other in others} - {(method.times, min(method.passes, 2))}
    lengths_to_fit = sorted(lengths) if overlength == "drop" else []
    libraries = {name: version(name) for name in ("transformers", "tokenizers")} | {"torch": torch.__version__}
    name = model.name + method.suffix
    return LanguageContestant(
        name,
        name,
        "backbone",
        identity.language_model_id(model.identity, method.hash, overlength, lengths_to_fit),
        variant=identity.language_variant_id(model.identity, method.hash),
        method_suffix=method.suffix or None,
        model_name=model.name,
        device=model.device,
        libraries=libraries,
        model=model,
        method=method,
        compared_methods=others,
    )


def majority_baseline() -> LanguageContestant:
    """Create the majority baseline, which always gives the most frequent answer."""
    return LanguageContestant("majority", "majority", "baseline", identity.majority_id())
