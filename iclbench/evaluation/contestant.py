"""A contestant with the columns that identify it in result tables."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class Contestant:
    """An evaluated model or method.

    Attributes:
        name: value of the column `contestant`.
        run: value of the column `run`; for baselines and language models, the name.
        kind: backbone, baseline or oracle.
        identity: hash of everything that affects its answers, except the prompt set.
        seed: seed of the run; None for untrained methods.
        variant: hash of the training without its seed; None for untrained methods.
        tuned: whether it was trained at the learning rate in the table of chosen rates; None if this is not known, and
            for untrained methods.
        trained_on: the task of its training, if it is not the task of the prompts.
        model_name: the name without the suffixes for a method and for the training task; for a baseline, without a
            number at the end ("lasso" for "lasso-1e-2"). None if it is the name.
        method_suffix: suffix of the method that is applied to the model; None if there is no method.
        device: device on which it computes.
        libraries: versions of libraries that its answers may depend on, recorded in its files.
        folder: folder of its run; if it was deleted, results are not written. None for other contestants.
    """

    name: str
    run: str
    kind: str
    identity: str
    seed: int | None = None
    variant: str | None = None
    tuned: bool | None = None
    trained_on: str | None = None
    method_suffix: str | None = None
    model_name: str | None = None
    device: str = "cpu"
    libraries: dict[str, str] = field(default_factory=dict)
    folder: Path | None = None

    @property
    def order(self) -> str | None:
        """ "causal" if a backbone's answers may depend on the order of the points, otherwise "set"; None if this is not
        known, as for language models."""
        return None
