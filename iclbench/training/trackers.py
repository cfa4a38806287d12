"""Trackers: a run's losses and scores for TensorBoard, Weights & Biases or MLflow, in addition to our own tables.

Everything is written to files next to the run: nothing leaves the machine unless the tracker's own environment
variables (`WANDB_MODE`, `MLFLOW_TRACKING_URI`) say so.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar, Protocol

from iclbench.core.errors import UnknownNameError, UsageError
from iclbench.store.runs import Run


class Tracker(Protocol):
    """Takes what is measured of one run.

    Attributes:
        package: what must be installed, and the extra of iclbench that brings it.
    """

    package: ClassVar[str]

    def __init__(self, run: Run, begun: int) -> None:
        """Open it for a run that has done so many steps; what was noted of later ones is to be forgotten."""

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Note values, by name, after so many steps."""

    def close(self) -> None:
        """Write all that is left."""


class TensorBoard:
    """Event files in the folder `tensorboard` of the run."""

    package: ClassVar[str] = "tensorboard"

    def __init__(self, run: Run, begun: int) -> None:
        writer: Any = import_module("torch.utils.tensorboard")
        self._writer = writer.SummaryWriter(str(run.path / "tensorboard"), purge_step=begun + 1)
        if not begun:
            lines = "\n".join(f"    {key} = {value}" for key, value in _flat(run.config.dump()).items())
            self._writer.add_text("configuration", lines)

    def log(self, step: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        self._writer.close()


class WandB:
    """Weights & Biases, offline unless `WANDB_MODE` says otherwise: `wandb sync` sends the folder later."""

    package: ClassVar[str] = "wandb"

    def __init__(self, run: Run, begun: int) -> None:
        wandb: Any = import_module("wandb")
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", "iclbench"),
            name=run.name,
            id=run.hash,
            resume="allow",
            dir=str(run.path),
            mode=os.environ.get("WANDB_MODE", "offline"),
            config=_flat(run.config.dump()),
        )

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self._run.log(dict(values), step=step)

    def close(self) -> None:
        self._run.finish()


class MLflow:
    """The database `mlflow.db` in the results folder, or what `MLFLOW_TRACKING_URI` names; experiments are tasks."""

    package: ClassVar[str] = "mlflow"

    def __init__(self, run: Run, begun: int) -> None:
        tracking: Any = import_module("mlflow.tracking")
        self._client = tracking.MlflowClient(tracking_uri=mlflow_store(run.path.parents[1]))
        name = run.config.task.name
        experiment = self._client.get_experiment_by_name(name)
        place = self._client.create_experiment(name) if experiment is None else experiment.experiment_id
        query = f"tags.`iclbench.run` = '{run.name}' and tags.`iclbench.config` = '{run.hash}'"
        matching = self._client.search_runs([place], query, max_results=1)
        if matching:
            self._id = matching[0].info.run_id
        else:
            tags = {"mlflow.runName": run.name, "iclbench.run": run.name, "iclbench.config": run.hash}
            self._id = self._client.create_run(place, tags=tags).info.run_id
            for key, value in _flat(run.config.dump()).items():
                self._client.log_param(self._id, key, str(value)[:500])

    def log(self, step: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self._client.log_metric(self._id, name.replace("+", "-"), float(value), step=step)

    def close(self) -> None:
        self._client.set_terminated(self._id)


def mlflow_store(results: Path) -> str:
    """Where MLflow keeps the runs of a results folder: a database in it, which `mlflow ui --backend-store-uri` shows,
    or what `MLFLOW_TRACKING_URI` names."""
    return os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{results.absolute() / 'mlflow.db'}"


TRACKERS: dict[str, type[Tracker]] = {"tensorboard": TensorBoard, "wandb": WandB, "mlflow": MLflow}


def check_trackers(names: Sequence[str]) -> None:
    """Raise `UsageError` for a tracker that is not known or not installed."""
    for name in names:
        if name not in TRACKERS:
            raise UnknownNameError("tracker", name, TRACKERS)
        package = TRACKERS[name].package
        if find_spec(package) is None:
            raise UsageError(f"--log {name}: {package} is not installed; pip install 'iclbench[{name}]'")


@contextmanager
def tracked(run: Run, names: Sequence[str]) -> Iterator[list[Tracker]]:
    """The trackers of these names, open for a run until the block ends, however it ends.

    Raises:
        UsageError: as `check_trackers`.
    """
    check_trackers(names)
    opened: list[Tracker] = []
    with ExitStack() as stack:
        for name in names:
            tracker = TRACKERS[name](run, 0 if run.finished else run.checkpoint_step)
            stack.callback(tracker.close)
            opened.append(tracker)
        yield opened


def _flat(plain: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested tables as `a.b` keys; published numbers, which are no part of how a run was trained, are left out."""
    flat: dict[str, Any] = {}
    for key, value in plain.items():
        if key == "published":
            continue
        if isinstance(value, Mapping):
            flat |= _flat(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat
