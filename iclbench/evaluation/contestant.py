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
        identity: hash of everything that affects the answers, except the prompt set.
        seed: seed of the run; None for untrained methods.
        variant: hash of the training configuration without the seed; None for untrained methods.
        tuned: whether the model was trained with the learning rate in the table of chosen rates; None if this is not
            known, and for untrained methods.
        trained_on: the training task, if it differs from the task of the prompts.
        model_name: the name without the suffixes for the method and the training task. For a baseline, the name without
            the number at its end ("lasso" for "lasso-1e-2"). None if this is the same as `name`.
        method_suffix: suffix of the method that is applied to the model; None if no method is applied.
        device: device of the computation.
        libraries: versions of the libraries that the answers may depend on, which are recorded in the result files.
        folder: folder of the run; if it has been deleted, results are not written. None if the contestant is not a run.
        coordinate: `axis` and `axis_value` of all rows, if the model is evaluated under a further condition, such as
            another number of loops. None for the model itself.
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
    coordinate: tuple[str, int] | None = None

    @property
    def file_name(self) -> str:
        """The name of the tables, which is `run` with the coordinate."""
        return self.run if self.coordinate is None else "{}+{}-{}".format(self.run, *self.coordinate)

    @property
    def order(self) -> str | None:
        """The order dependence of a backbone: "causal" if its answers may depend on the order of the points, otherwise
        "set". None for baselines and language models."""
        return None
