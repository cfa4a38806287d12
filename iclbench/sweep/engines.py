"""Which engine runs a sweep, and how its jobs look: from a user's file, a grid's card and what is typed."""

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

GROUP = "iclbench.engines"
ENGINES = ("local", "slurm", "ray")
# Packages that engines need.
_PACKAGES = {"slurm": "submitit", "ray": "ray"}


# What becomes one line of a job's script; and one word as schedulers write it, nothing that a shell would obey.
Line = Annotated[str, Field(pattern=r"^[^\x00-\x1f]+$")]
Word = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.,:&|!*@\[\]-]*$", max_length=200)]


# Options of sbatch that are said otherwise, or are ours to say.
_OURS = ("array", "time", "output", "error", "signal", "job-name", "wrap")


def _free(option: str) -> str:
    if option.replace("_", "-") in _OURS:
        raise ValueError(f"'{option}' is set by iclbench (time: minutes); leave it out")
    return option


class GridEngine(BaseSettings):
    """What a grid's card says of its jobs, in a table `[engine]`: what they need, but nothing that a shell runs, since
    cards come from anywhere.

    Attributes:
        jobs: so many in the queue or running at once.
        worth: seconds of work that are worth the start of a job: cells are put together until they take as long.
        minutes: limit of every job; None: `margin` times what its cells are expected to take, 60 at least.
        margin: of that.
        cpus: of every job, and torch threads.
        gpus: of every job.
        memory: of every job, as the scheduler writes it.
        constraint: on the nodes.
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
    """How the jobs of an engine look; a table `[slurm]` of the user's file, or of another engine, whose words are
    free.

    Attributes:
        partition: where jobs queue; so for `account`, `qos`, `exclude`.
        options: further options of the scheduler, by name.
        setup: shell lines before Python starts, to load modules or to activate an environment.
        python: the interpreter on the nodes.
        poll: seconds between two looks at the queue.
        address: of a Ray cluster, `ray://host:10001` or `auto`.
    """

    memory: Line = "4G"
    constraint: Line | None = None
    partition: Line | None = None
    account: Line | None = None
    qos: Line | None = None
    exclude: Line | None = None
    options: dict[Annotated[str, AfterValidator(_free)], str | int] = {}
    setup: list[str] = []
    python: str | None = None
    poll: Annotated[float, Field(gt=0)] = 10.0
    address: str = "auto"


def user_file() -> Path:
    """Where a user's tables of engines are looked for."""
    home = os.environ.get("XDG_CONFIG_HOME") or str(Path.home() / ".config")
    return Path(home) / "iclbench" / "engines.toml"


def settings(engine: str, *tables: Mapping[str, Any]) -> EngineSettings:
    """Those of an engine: the user's file says them, and each of these tables goes over what was said before.

    Raises:
        UsageError: the file does not hold, with the line that says why.
    """
    path = user_file()
    file = read_toml(path) if path.is_file() else {}
    names = known()
    for name in file:
        if name not in names:
            raise UsageError(f"{path}: {UnknownNameError('engine', name, names)}")
    own = file.get(engine, {})
    if not isinstance(own, dict):
        raise UsageError(f"{path}: write a table [{engine}]")
    validate(EngineSettings, own, f"{path}, [{engine}]")
    together = dict(own)
    for table in tables:
        together |= table
    return validate(EngineSettings, together, "[engine]")


def known() -> list[str]:
    """Names of engines, those that other packages bring behind the own ones."""
    return [*ENGINES, *(point.name for point in entry_points(group=GROUP))]


def plugin(engine: str) -> Callable[..., Any]:
    """The class that another package brings under this name: called with results folder, settings, what tells the
    seconds of a bundle, and what tells the user a line, it is an `Executor`."""
    found: Callable[..., Any] = next(point for point in entry_points(group=GROUP) if point.name == engine).load()
    return found


def check(engine: str) -> None:
    """Raises `UnknownNameError` for a name that is none, `UsageError` where an engine's package is not there."""
    if engine not in known():
        raise UnknownNameError("engine", engine, known())
    package = _PACKAGES.get(engine)
    if package is not None and find_spec(package) is None:
        raise UsageError(f"engine '{engine}' needs the package {package}: pip install 'iclbench[{engine}]'")
