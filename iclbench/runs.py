"""Run folders: where a trained model lives, `RESULTS/runs/NAME`.

config.toml                  everything the run depends on
checkpoints/step-N.safetensors   the last two, while training goes on
model.safetensors            the finished weights
values.parquet, costs.parquet    training curve and cost of training
"""

from __future__ import annotations

import fcntl
import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from iclbench import versions
from iclbench.cards import content_hash, names, read_toml, validate
from iclbench.config import RunConfig, difference, evaluated_as, trained_part, without_codes
from iclbench.errors import IclbenchError, UnknownNameError, UsageError
from iclbench.files import atomic

if TYPE_CHECKING:
    from iclbench.backbones.base import Backbone


log = logging.getLogger("iclbench")


def run_name(config: RunConfig) -> str:
    """The default name: task, backbone, preset and seed. Nothing is ever parsed back from it."""
    backbone = re.sub(r"[^a-z0-9]+", "-", config.backbone.name.lower()).strip("-")
    return f"{config.task.name}-{backbone}-{config.preset}-s{config.seed}"


@dataclass(frozen=True)
class Run:
    """One run folder."""

    path: Path

    @property
    def name(self) -> str:
        return self.path.name

    @cached_property
    def config(self) -> RunConfig:
        return validate(RunConfig, read_toml(self.path / "config.toml"), str(self.path / "config.toml"))

    @property
    def weights(self) -> Path:
        return self.path / "model.safetensors"

    @property
    def finished(self) -> bool:
        return self.weights.is_file()

    @property
    def written(self) -> list[Path]:
        """The files of a finished run."""
        return [self.path / name for name in ("config.toml", self.weights.name, "values.parquet", "costs.parquet")]

    @cached_property
    def hash(self) -> str:
        """What weights and checkpoints carry to show that they are this run's.

        Taken over the file as it was written, so that a setting added to iclbench later does not disown old runs; and
        not over which code the names stood for, so that a run may be adopted.
        """
        return content_hash(without_codes(trained_part(read_toml(self.path / "config.toml"))))

    @property
    def codes(self) -> dict[str, Any]:
        """Which code made the weights, as an entry of identities: none where it is that of version 0.1.0."""
        named = {"family": self.config.task.code, "backbone": self.config.backbone.code}
        found = {kind: code for kind, code in named.items() if code is not None}
        return {"codes": found} if found else {}

    def check_codes(self) -> None:
        """Raise `CodeChangedError` where the names of this run's family or backbone no longer stand for the code that
        it was trained with."""
        task, backbone = self.config.task, self.config.backbone
        for name, then, now in (
            (task.family, task.code, versions.of_family(task.family)),
            (backbone.name, backbone.code, versions.of_backbone(backbone.name)),
        ):
            if then != versions.since_first(now):
                raise CodeChangedError(self.name, name, then, now)

    def adopt(self) -> list[str]:
        """Take it that a run made by version 0.1.0, which did not keep what plug-ins' sources were, was trained with
        those of today; returns the names of the plug-ins.

        Raises:
            CodeChangedError: it is known to have been trained with others.
            IclbenchError: another process trains the run.
        """
        with self.lock():
            config = self.config
            plain = read_toml(self.path / "config.toml")
            adopted = []
            for part, name, then, now in (
                ("task", config.task.family, config.task.code, versions.of_family(config.task.family)),
                ("backbone", config.backbone.name, config.backbone.code, versions.of_backbone(config.backbone.name)),
            ):
                if then is None and isinstance(now, str):
                    plain[part]["code"] = now
                    adopted.append(name)
            if adopted:
                _write_config(self, plain)
        Run(self.path).check_codes()
        return adopted

    @property
    def checkpoints(self) -> list[Path]:
        """Oldest first; files of any other name are none of ours."""
        found = (self.path / "checkpoints").glob("step-*.safetensors")
        return sorted(p for p in found if re.fullmatch(r"step-\d{9}", p.stem))

    @property
    def reached(self) -> int:
        """The step of the newest checkpoint, 0 without one."""
        return int(self.checkpoints[-1].stem.removeprefix("step-")) if self.checkpoints else 0

    @contextmanager
    def lock(self, wait: bool = False) -> Iterator[None]:
        """Hold the run for this process; the system frees it on any death. When another one has it, wait for it or
        raise `IclbenchError`."""
        with writing(self.path):
            file = (self.path / ".lock").open("w")
        with file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            except OSError as error:
                raise IclbenchError(
                    f"run '{self.name}' is being trained by another process; wait for it or stop it"
                ) from error
            yield

    def load(self, device: str = "cpu", data_dir: Path | None = None) -> Backbone:
        """The trained backbone; raises `UsageError` when training has not finished or the weights do not fit."""
        from safetensors import SafetensorError, safe_open

        if not self.finished:
            raise UsageError(f"run '{self.name}' has not finished training; continue it with iclbench train")
        self.check_codes()
        backbone = self.config.build(self.config.task.build(data_dir), anywhere=True)
        try:
            with safe_open(self.weights, framework="pt") as file:
                if (file.metadata() or {}).get("config") != self.hash:
                    raise ValueError("they belong to another configuration")
                backbone.load_state_dict({key: file.get_tensor(key) for key in file.keys()})  # noqa: SIM118
        except (SafetensorError, RuntimeError, ValueError, OSError) as error:
            first = str(error).splitlines()[0]
            raise UsageError(
                f"{self.weights} does not hold the weights of run '{self.name}' ({first}); delete it, and the same "
                "iclbench train makes it again from the last checkpoint"
            ) from error
        self.tell(backbone, device)
        return backbone.to(device).eval()

    def tell(self, backbone: Backbone, device: str) -> None:
        """Say what computes, where the backbone has a choice: no fast path is left in silence."""
        for line in backbone.notes(device):
            _tell_once(f"run '{self.name}': {line}")


class TrainedOtherwiseError(UsageError):
    """The folder of a run holds one that was trained under other settings: `run`, and the `difference` in a line."""

    def __init__(self, run: Run, lines: Sequence[str]) -> None:
        self.run = run
        self.difference = f"it differs in {'; '.join(lines[:8])}{' ...' if len(lines) > 8 else ''}"
        super().__init__(
            f"run '{run.name}' was trained under other settings; choose another --name or delete {run.path}. "
            f"I{self.difference[1:]}"
        )


class CodeChangedError(UsageError):
    """A name in a run's configuration stands for other code than the weights were made with."""

    def __init__(self, run: str, name: str, then: versions.Code | None, now: versions.Code) -> None:
        otherwise = f"train anew under another --name, or delete the run with iclbench rm {run}"
        if isinstance(now, int):
            what = f"run '{run}' was trained with version {then or 1} of '{name}', this iclbench has version {now}"
        elif then is None:
            what = f"run '{run}' does not say which sources of '{name}' it was trained with"
            otherwise = f"if they are today's, write iclbench adopt {run}; if not, {otherwise}"
        else:
            what = f"the sources of '{name}' are not those that run '{run}' was trained with ({then}, now {now})"
        super().__init__(f"{what}: {otherwise}")


@cache
def _tell_once(line: str) -> None:
    log.info(line)


def create(results: Path, config: RunConfig, name: str | None = None, data_dir: Path | None = None) -> Run:
    """The run folder for this configuration, made or found again; raises `UsageError` when it holds another one, or
    when no backbone can be built by it, which then leaves no folder behind."""
    name = check_name(name) if name else run_name(config)
    if name in names("baselines") or name.startswith("published-"):
        raise UsageError(f"'{name}' is the name of a baseline or published row in the tables; choose another --name")
    run, plain = Run(results / "runs" / name), config.dump()
    if (run.path / "config.toml").is_file() and (run.finished or run.reached):
        then, now = run.config.trained, config.trained
        if without_codes(then) != without_codes(now):
            raise TrainedOtherwiseError(run, difference(then, now))
        run.check_codes()
        if run.config == config:
            return run
        plain = evaluated_as(read_toml(run.path / "config.toml"), plain)
        run = Run(run.path)  # the card's evaluation part has changed: the run follows it
    else:
        config.backbone.build(config.shape(config.task.build(data_dir)))
    with writing(results):
        _write_config(run, plain)
    return run


def _write_config(run: Run, plain: Mapping[str, Any]) -> None:
    import tomli_w

    with atomic(run.path / "config.toml") as temporary:
        temporary.write_text(tomli_w.dumps(plain), encoding="utf-8")


def find(results: Path, name: str) -> Run:
    """The run with this name."""
    run = Run(results / "runs" / check_name(name))
    if not (run.path / "config.toml").is_file():
        raise UnknownNameError("run", name, [r.name for r in all_runs(results)], hint=f"(in {results})")
    return run


def all_runs(results: Path) -> list[Run]:
    """All runs below a results folder, by name."""
    return [Run(p.parent) for p in sorted(results.glob("runs/*/config.toml"))]


def check_name(name: str) -> str:
    """A run name that cannot leave the results folder; raises `UsageError` otherwise."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}", name):
        raise UsageError(f"'{name}' cannot be a run name; use letters, digits, '.', '_' and '-'")
    return name


@contextmanager
def writing(results: Path) -> Iterator[None]:
    """Turn what the file system refuses (no permission, disk full) into one line that names the results folder."""
    try:
        yield
    except OSError as error:
        why = "there is a file where a folder has to be" if isinstance(error, FileExistsError) else error.strerror
        raise UsageError(
            f"cannot write to the results folder {results}: {why or error}; choose another with --results"
        ) from error
