"""Trackers, which log the losses and scores of a run to TensorBoard, Weights & Biases or MLflow. The tables of iclbench
are written independently of trackers.

Trackers write local files, unless an environment variable (`WANDB_MODE`, `MLFLOW_TRACKING_URI`) selects a server.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar, Protocol, runtime_checkable

from iclbench.core.errors import UnknownNameError, UsageError
from iclbench.store.runs import Run


@runtime_checkable
class Tracker(Protocol):
    """The interface of trackers. A tracker logs the values of one run.

    Attributes:
        package: the package that the tracker requires. The extra of iclbench that installs it is named after the
            tracker.
    """

    package: ClassVar[str]

    def __init__(self, run: Run, finished_steps: int) -> None:
        """Open the tracker for a run that continues after `finished_steps` steps. If the tracker supports it, discard
        values that were logged at later steps before an interruption."""

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Log the values at a step, by name."""

    def close(self) -> None:
        """Write all values and close the tracker."""


class TensorBoard:
    """Logs to event files in the folder `tensorboard` of the run."""

    package: ClassVar[str] = "tensorboard"

    def __init__(self, run: Run, finished_steps: int) -> None:
        writer: Any = import_module("torch.utils.tensorboard")
        self._writer = writer.SummaryWriter(str(run.path / "tensorboard"), purge_step=finished_steps + 1)
        if not finished_steps:
            lines = "\n".join(f"    {key} = {value}" for key, value in _flatten(run.config.dump()).items())
            self._writer.add_text("configuration", lines)

    def log(self, step: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        self._writer.close()


class WandB:
    """Logs to Weights & Biases. Unless `WANDB_MODE` is set, it logs offline, and `wandb sync` can upload the folder
    later."""

    package: ClassVar[str] = "wandb"

    def __init__(self, run: Run, finished_steps: int) -> None:
        wandb: Any = import_module("wandb")
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", "iclbench"),
            name=run.name,
            id=run.hash,
            resume="allow",
            dir=str(run.path),
            mode=os.environ.get("WANDB_MODE", "offline"),
            config=_flatten(run.config.dump()),
        )

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self._run.log(dict(values), step=step)

    def close(self) -> None:
        self._run.finish()


class MLflow:
    """Logs to MLflow: to the database `mlflow.db` in the results folder, or to the store in `MLFLOW_TRACKING_URI`. Each
    task is an experiment."""

    package: ClassVar[str] = "mlflow"

    def __init__(self, run: Run, finished_steps: int) -> None:
        tracking: Any = import_module("mlflow.tracking")
        self._client = tracking.MlflowClient(tracking_uri=mlflow_store(run.path.parents[1]))
        name = run.config.task.name
        experiment = self._client.get_experiment_by_name(name)
        experiment_id = self._client.create_experiment(name) if experiment is None else experiment.experiment_id
        query = f"tags.`iclbench.run` = '{run.name}' and tags.`iclbench.config` = '{run.hash}'"
        matching_runs = self._client.search_runs([experiment_id], query, max_results=1)
        if matching_runs:
            self._id = matching_runs[0].info.run_id
        else:
            tags = {"mlflow.runName": run.name, "iclbench.run": run.name, "iclbench.config": run.hash}
            self._id = self._client.create_run(experiment_id, tags=tags).info.run_id
            for key, value in _flatten(run.config.dump()).items():
                self._client.log_param(self._id, key, str(value)[:500])

    def log(self, step: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self._client.log_metric(self._id, name.replace("+", "-"), float(value), step=step)

    def close(self) -> None:
        self._client.set_terminated(self._id)


def mlflow_store(results: Path) -> str:
    """Return the URI of the MLflow store of a results folder, for `mlflow ui --backend-store-uri`. It is the store in
    `MLFLOW_TRACKING_URI` or, if this is not set, a database in the folder."""
    return os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{results.absolute() / 'mlflow.db'}"


TRACKERS: dict[str, type[Tracker]] = {"tensorboard": TensorBoard, "wandb": WandB, "mlflow": MLflow}


def check_trackers(names: Sequence[str]) -> None:
    """Raise `UsageError` if a tracker is unknown or its package is not installed."""
    for name in names:
        if name not in TRACKERS:
            raise UnknownNameError("tracker", name, TRACKERS)
        package = TRACKERS[name].package
        if find_spec(package) is None:
            raise UsageError(
                f"--log {name}: {package} is not installed; pip install 'iclbench[{name}]'", code="missing-package"
            )


@contextmanager
def open_trackers(run: Run, names: Sequence[str]) -> Iterator[list[Tracker]]:
    """Open trackers for a run, and close them after the block.

    Raises:
        UsageError: a tracker is unknown or its package is not installed.
    """
    check_trackers(names)
    trackers: list[Tracker] = []
    with ExitStack() as stack:
        for name in names:
            tracker = TRACKERS[name](run, 0 if run.is_finished else run.checkpoint_step)
            stack.callback(tracker.close)
            trackers.append(tracker)
        yield trackers


def _flatten(nested: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Flatten nested tables to keys such as `a.b`. Published numbers are omitted, since they are not settings."""
    flat: dict[str, Any] = {}
    for key, value in nested.items():
        if key == "published":
            continue
        if isinstance(value, Mapping):
            flat |= _flatten(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat
