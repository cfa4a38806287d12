"""Run folders, `RESULTS/runs/NAME`.

config.toml                      the configuration of the run
checkpoints/step-N.safetensors   the last two checkpoints during training; those of a branch are in checkpoints/branch-N
model.safetensors                the trained weights, with a file of their digest (.sha256)
branch-N.safetensors             the weights of a branch of N steps, with a file of their digest
values.parquet, costs.parquet    training curve and cost of training
diverged.json                    step and reason of the divergence of a training run with this configuration
unpacked.txt                     path of the archive of an unpacked run, which has no branches and no tables
"""

from __future__ import annotations

import errno
import json
import logging
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from iclbench.config import codes
from iclbench.config.cards import TrainSettings, card_names, read_similar_toml, read_toml
from iclbench.config.rates import Rates
from iclbench.config.resolution import RunConfig, differences, with_evaluation_of, without_codes, without_learned
from iclbench.core import digests, locks
from iclbench.core.errors import DataChangedError, IclbenchError, UnknownNameError, UsageError
from iclbench.core.files import digest_path, remove_leftovers, write_text
from iclbench.core.memory import EVALUATION_REMEDY, memory_advice
from iclbench.core.settings import validate
from iclbench.store import identity
from iclbench.store.state import is_intact

if TYPE_CHECKING:
    from iclbench.backbones.base import Backbone


log = logging.getLogger("iclbench")


def recorded_digest(weights: Path) -> str | None:
    """The SHA-256 in the digest file of weights; None if there is no such file.

    A process that is killed while it writes the weights can leave several digests in the file. The one that matches
    the weights is returned."""
    path = digest_path(weights)
    if not path.is_file():
        return None
    recorded_digests = [line.partition(" ")[0] for line in path.read_text(errors="replace").splitlines()]
    if len(recorded_digests) > 1 and weights.is_file() and (digest := digests.file_digest(weights)) in recorded_digests:
        return digest
    return next(iter(recorded_digests), "")


def run_name(config: RunConfig) -> str:
    """The default name of a run: task, backbone, preset and seed."""
    backbone = re.sub(r"[^a-z0-9]+", "-", config.backbone.name.lower()).strip("-")
    return f"{config.task.name}-{backbone}-{config.preset}-s{config.seed}"


def trained_and_current_codes(config: RunConfig) -> Iterator[tuple[str, codes.Code, codes.Code]]:
    """The names of the family and the backbone of a configuration, each with two versions of its code: the one that
    trained the run and the current one."""
    task, backbone = config.task, config.backbone
    yield task.family, task.code, codes.of_family(task.family)
    yield backbone.name, backbone.code, codes.of_backbone(backbone.name, backbone.settings)


@dataclass(frozen=True)
class Run:
    """A run and its folder."""

    path: Path

    DIVERGED: ClassVar = "diverged.json"
    UNPACKED: ClassVar = "unpacked.txt"

    @property
    def name(self) -> str:
        return self.path.name

    @cached_property
    def config(self) -> RunConfig:
        """The configuration; raises `UsageError` if the file cannot be read or is not valid."""
        path = self.path / "config.toml"
        with self._with_advice():
            return validate(RunConfig, read_similar_toml(path), str(path))

    @contextmanager
    def _with_advice(self) -> Iterator[None]:
        """Add advice to the error of a configuration that cannot be read."""
        try:
            yield
        except UsageError as error:
            raise UsageError(
                f"{error}; restore the file, or move or delete {self.path} and train the run again", code=error.code
            ) from error

    @property
    def is_intact(self) -> bool:
        """Whether the training is finished and all its files are intact."""
        return self.finished and all(map(is_intact, self.training_files))

    @property
    def weights(self) -> Path:
        return self.path / "model.safetensors"

    @property
    def finished(self) -> bool:
        return self.weights.is_file()

    def branch(self, steps: int) -> Path:
        """The weights file of the branch with this number of steps."""
        return self.path / f"branch-{steps:09d}.safetensors"

    def has_branch(self, steps: int) -> bool:
        """Whether the weights of a branch exist, are intact and belong to this run."""
        return self.verified_metadata(self.branch(steps), steps) is not None

    def verified_metadata(self, path: Path, branch: int | None) -> dict[str, str] | None:
        """Metadata of weights; None if they are missing, damaged or not those of this run."""
        from safetensors import SafetensorError, safe_open

        try:
            with safe_open(path, framework="numpy") as file:
                metadata = dict(file.metadata() or {})
            self.check_weights(path, metadata, branch)
        except (SafetensorError, OSError, ValueError):
            return None
        return metadata

    @property
    def recorded_divergence(self) -> DivergedError | None:
        """The recorded divergence of a training run with this configuration; None if there is none."""
        try:
            record = json.loads((self.path / self.DIVERGED).read_bytes())
            if record["config"] == self.hash:
                return DivergedError(self, int(record["step"]), str(record["what"]), is_recorded=True)
        except (OSError, ValueError, KeyError, TypeError):
            pass  # without a valid record, the training is tried again
        return None

    def forget_divergence(self) -> None:
        """Remove the files of a training run that diverged with another configuration."""
        if (self.path / self.DIVERGED).is_file():
            for name in ("values.parquet", self.DIVERGED):
                (self.path / name).unlink(missing_ok=True)

    @property
    def is_started(self) -> bool:
        """Whether weights or checkpoints exist. If so, only the evaluation part of the configuration can change."""
        return self.finished or self.checkpoint_step > 0

    @property
    def digest(self) -> str | None:
        """The recorded SHA-256 of the weights; None if it is missing."""
        return recorded_digest(self.weights)

    @property
    def is_unpacked(self) -> bool:
        """Whether the run is from an archive of weights."""
        return (self.path / self.UNPACKED).is_file()

    @property
    def branch_steps(self) -> list[int]:
        """The last steps of the branches with weights."""
        return [] if self.is_unpacked else self.config.train.branch_steps

    @property
    def branch_digests(self) -> dict[str, str | None]:
        """The recorded digests of the weights of the branches, by number of steps."""
        return {str(steps): recorded_digest(self.branch(steps)) for steps in self.branch_steps}

    @property
    def training_files(self) -> list[Path]:
        """The files of a finished training run."""
        try:
            branches = [self.branch(steps).name for steps in self.config.train.branch_steps]
        except UsageError:  # no configuration
            branches = []
        file_names = ("config.toml", self.weights.name, *branches, "values.parquet", "costs.parquet")
        return [self.path / name for name in file_names]

    @cached_property
    def hash(self) -> str:
        """The identity of the run, which is part of the metadata of its weights and checkpoints."""
        return identity.run_id(self.config)

    @property
    def signature(self) -> dict[str, str]:
        """Metadata of the weights and checkpoints."""
        return {"config": self.hash}

    def branch_signature(self, steps: int) -> dict[str, str]:
        """Metadata of the weights of a branch."""
        return self.signature | {"branch": str(steps)}

    def check_signature(self, metadata: Mapping[str, str] | None) -> None:
        """Raise `ValueError` if this is the metadata of another configuration or of other code."""
        if (metadata or {}).get("config") != self.hash:
            raise ValueError("another configuration or another version of a plug-in")

    def check_codes(self) -> None:
        """Raise `CodeChangedError` if the code of the family or the backbone has changed since training."""
        for name, trained, current in trained_and_current_codes(self.config):
            if trained != current:
                raise CodeChangedError(self.name, name, trained, current)

    @property
    def checkpoints(self) -> list[Path]:
        """The checkpoints of the training run, oldest first."""
        return self.checkpoints_of(None)

    def checkpoint_folder(self, branch: int | None) -> Path:
        """The folder with the checkpoints of the training run (None) or of a branch."""
        folder = self.path / "checkpoints"
        return folder if branch is None else folder / f"branch-{branch:09d}"

    def checkpoints_of(self, branch: int | None) -> list[Path]:
        """The checkpoints of the training run (None) or of a branch, oldest first."""
        paths = self.checkpoint_folder(branch).glob("step-*.safetensors")
        return sorted(path for path in paths if re.fullmatch(r"step-\d{9}", path.stem))

    @property
    def checkpoint_step(self) -> int:
        """The step of the last checkpoint; 0 if there is none."""
        return int(self.checkpoints[-1].stem.removeprefix("step-")) if self.checkpoints else 0

    @contextmanager
    def lock(self, wait: bool = False) -> Iterator[RunLock]:
        """Lock the run while the block runs, and remove incomplete files of killed processes. If another process has
        the lock, wait or raise `IclbenchError`. The system releases the lock of a process that ends."""
        run_lock = RunLock(self)
        with run_lock.hold(wait):
            checkpoints = self.checkpoint_folder(None)
            for folder in (self.path, checkpoints, *checkpoints.glob("branch-*")):
                remove_leftovers(folder)
            yield run_lock

    def load(self, device: str = "cpu", data_dir: Path | None = None) -> Backbone:
        """The trained backbone, in eval mode.

        Raises:
            UsageError: the run is not finished, or the weights are damaged or do not fit the code.
            DivergedError: the training diverged.
        """
        from safetensors import SafetensorError

        if not self.finished:
            if (error := self.recorded_divergence) is not None:
                raise error
            raise UsageError(
                f"run '{self.name}' has not finished training; continue it with iclbench train", code="not-finished"
            )
        self.check_codes()
        backbone = self.config.build(self.config.task.build(data_dir), portable=True)
        try:
            self._read(self.weights, backbone)
        except (SafetensorError, RuntimeError, ValueError, OSError) as error:
            first_line = str(error).splitlines()[0]
            raise UsageError(
                f"{self.weights} does not hold the weights of run '{self.name}' ({first_line}); delete it and run the "
                "same iclbench train command again, which continues from the last checkpoint",
                code="unreadable-file",
            ) from error
        self.log_notes(backbone, device)
        return backbone.to(device).eval()

    def load_branch(self, steps: int, backbone: Backbone) -> Backbone:
        """A backbone from `load`, with the weights of the branch with this number of steps; raises `UsageError` if they
        are damaged or do not fit the code."""
        from safetensors import SafetensorError

        path = self.branch(steps)
        try:
            self._read(path, backbone, steps)
        except (SafetensorError, RuntimeError, ValueError, OSError) as error:
            first_line = str(error).splitlines()[0]
            raise UsageError(
                f"{path} does not hold the weights of the branch of {steps} steps of run '{self.name}' ({first_line}); "
                f"delete it and {self.weights.name} and run the same iclbench train command again, which rewrites both",
                code="unreadable-file",
            ) from error
        return backbone

    def _read(self, path: Path, backbone: Backbone, branch: int | None = None) -> None:
        """Load the weights of a file into the backbone, after checks of their digest and their run."""
        from safetensors import safe_open

        with memory_advice(EVALUATION_REMEDY), safe_open(path, framework="pt") as file:
            self.check_weights(path, file.metadata() or {}, branch)
            backbone.load_state_dict({key: file.get_tensor(key) for key in file.keys()})  # noqa: SIM118

    def check_weights(self, path: Path, metadata: Mapping[str, str], branch: int | None) -> None:
        """Raise `ValueError` if the weights belong to another run or branch, or do not have their recorded digest."""
        try:
            self.check_signature(metadata)
        except ValueError as error:
            raise ValueError(f"they belong to {error}") from None
        if metadata.get("branch") != (None if branch is None else str(branch)):
            raise ValueError("they belong to another branch")
        name, digest = digest_path(path).name, recorded_digest(path)
        if digest is None:
            raise ValueError(f"their digest file {name} is missing; restore it")
        if digest != digests.file_digest(path):
            raise ValueError(f"their digest is not the one in {name}")

    def log_notes(self, backbone: Backbone, device: str) -> None:
        """Log which implementation computes the outputs of a backbone that has several."""
        for line in backbone.notes(device):
            _log_once(f"run '{self.name}': {line}")


class DivergedError(IclbenchError):
    """The training of a run diverged: the loss or a weight is not finite.

    Args:
        run: the run.
        step: number of finished steps.
        problem: description of the value that is not finite.
        is_recorded: whether the divergence was recorded earlier; if so, the run was not trained again.
    """

    code = "diverged"

    ADVICE: ClassVar = "another --name with a lower -o train.lr, a longer -o train.warmup, or -o train.clip=1"

    def __init__(self, run: Run, step: int, problem: str, is_recorded: bool = False) -> None:
        self.run, self.step, self.problem = run, step, problem
        self.reason = f"diverged at step {step}: {problem}"
        record = run.path / run.DIVERGED
        super().__init__(
            f"run '{run.name}' has {self.reason}; it is not tried again. Train {self.ADVICE}, or delete {record} to "
            "try again"
            if is_recorded
            else f"run '{run.name}' {self.reason}; the last good checkpoint is not deleted. Try {self.ADVICE}"
        )

    @property
    def failure_files(self) -> list[Path]:
        """Files of the diverged training run: its curve and the record of the divergence."""
        return [self.run.path / "values.parquet", self.run.path / self.run.DIVERGED]


class RunLock:
    """The lock of a run folder. During training, it also restores the folder if that was deleted or moved.

    Args:
        run: the run.
    """

    def __init__(self, run: Run) -> None:
        self._run, self._lock = run, locks.lock(run.path / ".lock")
        self._config: str | None = None
        self._is_restored = False

    @contextmanager
    def hold(self, wait: bool) -> Iterator[None]:
        """Lock the folder while the block runs. If another process has the lock, wait or raise `IclbenchError`."""
        self._acquire(wait)
        try:
            yield
        finally:
            self._lock.release()
            if self._is_restored:
                log.warning(
                    "%s was deleted or moved during the training of run '%s'; the folder and its configuration were "
                    "restored",
                    self._run.path,
                    self._run.name,
                )

    def store_config(self) -> None:
        """Store the configuration for `restore`."""
        self._config = (self._run.path / "config.toml").read_text(encoding="utf-8")
        _ = self._run.hash  # cached now, since the file may change

    def restore(self) -> None:
        """Restore the folder and its configuration, if it was deleted or moved.

        Raises:
            IclbenchError: another process is training a run of this name, or the folder holds another run.
        """
        if not self._lock.is_held:
            self._run.path.mkdir(parents=True, exist_ok=True)
            self._acquire(wait=False)
        config = self._run.path / "config.toml"
        if not config.is_file() and self._config is not None:
            write_text(config, self._config)
            self._is_restored = True
        elif Run(self._run.path).hash != self._run.hash:
            raise IclbenchError(
                f"{self._run.path} was replaced by a run with different settings while run "
                f"'{self._run.name}' was training, so training stops; train with another --name",
                code="settings-changed",
            )

    def _acquire(self, wait: bool) -> None:
        with write_errors(self._run.path):
            try:
                self._lock.acquire(wait)
            except BlockingIOError as error:
                raise IclbenchError(
                    f"run '{self._run.name}' is being trained by another process; wait for it or stop it", code="in-use"
                ) from error


class SettingsChangedError(UsageError):
    """The run in a folder was trained with different settings.

    Attributes:
        run: the run.
        difference: one line with the differences.
    """

    code = "settings-changed"

    def __init__(self, run: Run, lines: Sequence[str]) -> None:
        self.run = run
        self.difference = f"it differs in {'; '.join(lines[:8])}{' ...' if len(lines) > 8 else ''}"
        super().__init__(
            f"run '{run.name}' was trained with different settings; choose another --name or delete {run.path}. "
            f"I{self.difference[1:]}"
        )


class CodeChangedError(UsageError):
    """The code of the family or backbone of a run changed after its training."""

    code = "code-changed"

    def __init__(self, run: str, name: str, trained: codes.Code, current: codes.Code) -> None:
        if isinstance(trained, int) and isinstance(current, int):
            message = (
                f"run '{run}' was trained with version {trained} of '{name}', but this iclbench has version {current}"
            )
        else:
            message = f"the sources of '{name}' have changed since run '{run}' was trained ({trained}, now {current})"
        super().__init__(f"{message}; train with another --name, or delete the run with iclbench rm {run}")


@cache
def _log_once(line: str) -> None:
    log.info(line)


def create(
    results: Path, config: RunConfig, name: str | None = None, data_dir: Path | None = None, wait: bool = False
) -> Run:
    """Return the run with this configuration, and create its folder if it does not exist.

    Args:
        results: results folder.
        config: configuration of the run.
        name: name of the run (default: `run_name`).
        data_dir: folder of the data of the task.
        wait: whether to wait for another process that has locked the run.

    Raises:
        UsageError: the folder holds another run, or the backbone cannot be built, in which case no folder is created.
        IclbenchError: another process has locked the run, and `wait` is False.
    """
    name = check_name(name) if name else run_name(config)
    check_not_reserved(name, "another --name")
    config = config.on_data(data_dir)
    run = Run(results / "runs" / name)
    if _config_to_write(run, config) is None:
        return run
    if not run.is_started:
        _check_buildable(config, data_dir)
    with write_errors(results):
        run.path.mkdir(parents=True, exist_ok=True)
    with run.lock(wait):
        run = Run(run.path)  # another process may have trained it
        text = _config_to_write(run, config)
        if text is not None:
            has_weights_only = run.finished and not (run.path / "config.toml").is_file()
            with write_errors(results):
                write_text(run.path / "config.toml", text)
            if has_weights_only:
                _check_weights_of(Run(run.path))
    return Run(run.path)


def with_rates_of_started_run(
    results: Path, config: RunConfig, name: str | None = None, user_keys: Collection[str] = ()
) -> RunConfig:
    """The configuration of a run that starts or continues. A started run continues with the settings that were in the
    results folder's table of learning rates when it started, even if the table has changed.

    Args:
        results: results folder.
        config: configuration of a new run.
        name: name of the run (default: `run_name`).
        user_keys: keys of `train` that the user sets, which are not replaced.
    """
    table_settings = Rates.of_results(results, config.preset, config.task.name).settings(config.backbone.name)
    run = Run(results / "runs" / (check_name(name) if name else run_name(config)))
    if not table_settings or not run.is_started:
        return config
    try:
        trained = run.config.train.model_dump(mode="json")
    except UsageError:  # `create` reports it
        return config
    started_settings = {key: trained[key] for key in table_settings if key not in user_keys}
    train = validate(TrainSettings, config.train.model_dump(mode="json") | started_settings, "run")
    return config.model_copy(update={"train": train})


def _check_weights_of(run: Run) -> None:
    """Remove the new configuration and raise `UsageError` if the weights in the folder are not those of the run."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(run.weights, framework="numpy") as file:
            run.check_signature(file.metadata())
    except (SafetensorError, OSError):
        return  # damaged weights are reported when they are loaded
    except ValueError as error:
        (run.path / "config.toml").unlink()
        raise UsageError(
            f"the weights in {run.path}, which has no config.toml, belong to {error}; choose another --name or delete "
            "the folder",
            code="settings-changed",
        ) from error


def check_same_run(run: Run, config: RunConfig) -> None:
    """Raise `UsageError` if the run in the folder was trained with other settings, code or data."""
    if (run.path / "config.toml").is_file():
        _config_to_write(run, config)


def _config_to_write(run: Run, config: RunConfig) -> str | None:
    """The text of a new or changed configuration; None if the file does not change. In a started run, only the
    evaluation part may change.

    Raises:
        UsageError: the run was trained with other settings, code or data.
    """
    path, content = run.path / "config.toml", config.dump()
    if path.is_file() and run.is_started:
        trained, current = run.config.trained_part, config.trained_part
        if without_learned(without_codes(trained)) != without_learned(without_codes(current)):
            raise SettingsChangedError(run, differences(without_learned(trained), without_learned(current)))
        run.check_codes()
        # A configuration that a grid plans has no fingerprint of the data.
        if config.task.learned and config.task.learned != run.config.task.learned:
            trained_data = run.config.task.learned.get("fingerprint", "unknown")
            raise DataChangedError(trained_data, config.task.learned["fingerprint"])
        if run.config == config:
            return None
        content = with_evaluation_of(read_toml(path), content)
    text = _toml_text(content)
    return None if path.is_file() and path.read_bytes() == text.encode() else text


def _check_buildable(config: RunConfig, data_dir: Path | None) -> None:
    """Raise `UsageError` if the backbone of a configuration cannot be built, or its episodes are too large."""
    from iclbench.core.bounds import check_task

    family = config.task.build(data_dir)
    check_task(config.shape(family), config.train.batch, config.task.episodes, f"task '{config.task.name}'")
    config.build(family)


def _toml_text(content: Mapping[str, Any]) -> str:
    import tomli_w

    return tomli_w.dumps(content)


def find(results: Path, name: str) -> Run:
    """The run with this name; raises `UnknownNameError` if it does not exist."""
    run = Run(results / "runs" / check_name(name))
    if not (run.path / "config.toml").is_file():
        raise UnknownNameError("run", name, [run.name for run in all_runs(results)], hint=f"(in {results})")
    return run


def all_runs(results: Path) -> list[Run]:
    """All runs in a results folder, sorted by name."""
    return [Run(path.parent) for path in sorted(results.glob("runs/*/config.toml"))]


def check_name(name: str, noun: str = "a run name") -> str:
    """Return the name if it can be a file name; otherwise raise `UsageError`."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}", name):
        raise UsageError(f"'{name}' cannot be {noun}; use letters, digits, '.', '_' and '-'", code="bad-syntax")
    return name


def check_not_reserved(name: str, advice: str) -> None:
    """Raise `UsageError` with advice if a name belongs to a baseline or a published row."""
    if name in card_names("baselines") or name.startswith("published-"):
        raise UsageError(
            f"'{name}' is the name of a baseline or published row in the tables; choose {advice}", code="exists"
        )


# Errors of a full disk. With free space, the same command continues its work.
_NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@contextmanager
def write_errors(results: Path) -> Iterator[None]:
    """Within the block, convert errors of the file system: to `IclbenchError` if the disk is full, and otherwise to
    `UsageError` with the advice to choose another results folder."""
    try:
        yield
    except OSError as error:
        reason = "there is a file in place of a folder" if isinstance(error, FileExistsError) else error.strerror
        message = f"cannot write to the results folder {results}: {reason or error}"
        if error.errno in _NO_SPACE:
            raise IclbenchError(
                f"{message}; free some space and run the same command again", code="unreadable-file"
            ) from error
        raise UsageError(f"{message}; choose another with --results", code="unreadable-file") from error
