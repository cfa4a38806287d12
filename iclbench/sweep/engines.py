"""The names of sweep engines, and the settings of their jobs from the user's file, the grid's card and the command
line."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, Field

from iclbench.config.cards import read_toml
from iclbench.core.errors import UnknownNameError, UsageError
from iclbench.core.settings import BaseSettings, PositiveInt, validate

ENTRY_POINT_GROUP = "iclbench.engines"
ENGINES = ("local", "slurm", "ray")
# The package that each engine needs.
_PACKAGES = {"slurm": "submitit", "ray": "ray"}


# `Line` is a value that fits on one line of a job's script. `Word` also excludes white space, quotes, `$` and other
# characters that SLURM's memory sizes and constraints do not need.
Line = Annotated[str, Field(pattern=r"^[^\x00-\x1f]+$")]
Word = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.,:&|!*@\[\]-]*$", max_length=200)]


# Options of sbatch that iclbench sets. Users cannot set them.
_RESERVED = ("array", "time", "output", "error", "signal", "job-name", "wrap")


def _check_option(option: str) -> str:
    if option.replace("_", "-") in _RESERVED:
        raise ValueError(f"'{option}' is set by iclbench; remove it (set the time limit with minutes)")
    return option


class GridEngine(BaseSettings):
    """The resources of a grid's jobs, in the table `[engine]` of its card.

    A card may come from an untrusted source, so no value of this table is run by a shell.

    Attributes:
        jobs: maximum number of jobs in the queue or running.
        worth: seconds of work that justify the start of a job. Cells are grouped until a job takes this long.
        minutes: time limit of a job in minutes (default: `margin` times the expected duration of its cells, at least
            60).
        margin: ratio of the default time limit to the expected duration.
        cpus: number of CPUs and torch threads of a job.
        gpus: number of GPUs of a job.
        memory: memory of a job, in the scheduler's format.
        constraint: constraint on the nodes.
    """

    jobs: PositiveInt = 100
    worth: Annotated[float, Field(ge=0)] = 300.0
    minutes: PositiveInt | None = None
    margin: Annotated[float, Field(ge=1)] = 3.0
    cpus: PositiveInt = 1
    gpus: Annotated[int, Field(ge=0)] = 0
    memory: Word = "4G"
    constraint: Word | None = None


class EngineSettings(GridEngine):
    """The settings of an engine's jobs, in a table of the user's file such as `[slurm]`.

    Attributes:
        partition: partition of the jobs.
        account: account to which the jobs are charged.
        qos: quality of service of the jobs.
        exclude: nodes that the jobs must not use.
        options: other options of the scheduler, by name.
        setup: shell commands that are run before Python starts, for example to load modules or to activate an
            environment.
        python: path of the Python interpreter on the nodes.
        poll: seconds between two checks of the queue.
        address: address of a Ray cluster, `ray://host:10001` or `auto`.
    """

    memory: Line = "4G"
    constraint: Line | None = None
    partition: Line | None = None
    account: Line | None = None
    qos: Line | None = None
    exclude: Line | None = None
    options: dict[Annotated[str, AfterValidator(_check_option)], str | int] = {}
    setup: list[str] = []
    python: str | None = None
    poll: Annotated[float, Field(gt=0)] = 10.0
    address: str = "auto"


def user_file() -> Path:
    """Return the path of the user's file of engine settings."""
    home = os.environ.get("XDG_CONFIG_HOME") or str(Path.home() / ".config")
    return Path(home) / "iclbench" / "engines.toml"


def settings(engine: str, *tables: Mapping[str, Any]) -> EngineSettings:
    """Return the settings of an engine. They are read from the user's file and overridden by each table in turn.

    Raises:
        UsageError: the file or a table is not valid.
    """
    path = user_file()
    user_tables = read_toml(path) if path.is_file() else {}
    names = engine_names()
    for name in user_tables:
        if name not in names:
            raise UsageError(f"{path}: {UnknownNameError('engine', name, names)}", code="unknown-name")
    user_table = user_tables.get(engine, {})
    if not isinstance(user_table, dict):
        raise UsageError(f"{path}: write a table [{engine}]", code="bad-syntax")
    validate(EngineSettings, user_table, f"{path}, [{engine}]")
    merged = dict(user_table)
    for table in tables:
        merged |= table
    return validate(EngineSettings, merged, "[engine]")


def engine_names() -> list[str]:
    """Return the names of all engines, those of iclbench before those of other packages."""
    return [*ENGINES, *(point.name for point in entry_points(group=ENTRY_POINT_GROUP))]


def plugin_class(engine: str) -> Callable[..., Any]:
    """Return the `Executor` class of an engine from another package.

    The class is called with the results folder, the settings, a function that estimates the seconds of a bundle, and a
    function that prints a line.
    """
    executor_class: Callable[..., Any] = next(
        point for point in entry_points(group=ENTRY_POINT_GROUP) if point.name == engine
    ).load()
    return executor_class


def check(engine: str) -> None:
    """Raise `UnknownNameError` if no engine has this name, and `UsageError` if its package is not installed."""
    if engine not in engine_names():
        raise UnknownNameError("engine", engine, engine_names())
    package = _PACKAGES.get(engine)
    if package is not None and find_spec(package) is None:
        raise UsageError(
            f"engine '{engine}' needs the package {package}: pip install 'iclbench[{engine}]'", code="missing-package"
        )
