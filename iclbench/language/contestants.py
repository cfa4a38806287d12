"""Who takes part in an evaluation of language models: a model under a method, and the baseline that always says the
same."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.metadata import version

import torch

from iclbench.config.cards import content_hash
from iclbench.language.answering import majority
from iclbench.language.answering.methods import Method
from iclbench.language.models.models import LanguageModel
from iclbench.language.prompting.fitting import Overlength

# Raised whenever a change of tokenising, scoring or judging gives other values for the same model and prompts.
VERSION = 1


@dataclass(frozen=True)
class Contestant:
    """A contestant as the tables know it; attributes as in `evaluation.contestants.Contestant`.

    Attributes:
        model: None for the baseline.
        method: likewise.
        beside: the methods that it is compared with, which see the same demonstrations.
    """

    name: str
    kind: str
    identity: str
    variant: str | None = None
    device: str = "cpu"
    libraries: dict[str, str] = field(default_factory=dict)
    model: LanguageModel | None = None
    method: Method | None = None
    seed: int | None = None
    beside: tuple[Method, ...] = ()

    @property
    def run(self) -> str:
        return self.name


def contestant(
    model: LanguageModel, method: Method, overlength: Overlength, beside: Sequence[Method] = ()
) -> Contestant:
    """A model under a method, compared with the methods `beside`."""
    what = {"model": model.identity, "method": method.hash}
    others = tuple({each.hash: each for each in beside if each.hash != method.hash}.values())
    depends: dict[str, object] = {}
    if method.name == "icl" and any(each.name == "deep-thinking" for each in others):
        depends["demonstrations"] = "read apart"
    rooms = {(each.times, min(each.passes, 2)) for each in others} - {(method.times, min(method.passes, 2))}
    if overlength == "drop" and rooms:
        depends["room"] = sorted(rooms)
    identity = content_hash(what | {"version": VERSION, "overlength": overlength} | depends)
    libraries = {name: version(name) for name in ("transformers", "tokenizers")} | {"torch": torch.__version__}
    return Contestant(
        model.name + method.suffix,
        "backbone",
        identity,
        content_hash(what, 8),
        model.device,
        libraries,
        model,
        method,
        beside=others,
    )


def constant() -> Contestant:
    """The most frequent answer."""
    return Contestant("majority", "baseline", content_hash({"majority": majority.VERSION}))
