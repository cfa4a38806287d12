"""A contestant, as the result tables identify it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class Contestant:
    """A method or a model that is evaluated.

    Attributes:
        name: the contestant column.
        run: the run column; for baselines and language models the name again.
        kind: backbone, baseline or oracle.
        identity: hash of everything its answers depend on besides the prompt set.
        seed: seed of the run, None where nothing was trained.
        variant: what was trained, the same for all seeds; None where nothing was.
        tuned: whether it was trained at the learning rate chosen for it; None: not known, or nothing was trained.
        trained_on: the task that it was trained on, where the prompts are of another.
        model_name: the contestant without method and without the task that it was trained on; of a baseline its name
            without a number at the end (lasso of lasso-1e-2); None: the name.
        applied: the method that is applied to it, as its name ends; None: none.
        device: where it computes.
        libraries: versions that its answers may depend on, recorded in the file.
        folder: the folder of its run; if it is gone, nothing is written about it. None: it is not a run.
    """

    name: str
    run: str
    kind: str
    identity: str
    seed: int | None = None
    variant: str | None = None
    tuned: bool | None = None
    trained_on: str | None = None
    applied: str | None = None
    model_name: str | None = None
    device: str = "cpu"
    libraries: dict[str, str] = field(default_factory=dict)
    folder: Path | None = None

    @property
    def order(self) -> str | None:
        """Whether a backbone's answer may depend on the order of the points ("causal") or not ("set"); None: not
        known, as of language models."""
        return None
