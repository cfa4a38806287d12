"""Run folders, `RESULTS/runs/NAME`.

config.toml                      the configuration of the run
checkpoints/step-N.safetensors   the last two checkpoints during training; those of a branch are in checkpoints/branch-N
model.safetensors                the trained weights, with a file for their digest (.sha256)
branch-N.safetensors             the weights of the branch of N steps, with a file for their digest
values.parquet, costs.parquet    the training curve and the cost of training
diverged.json                    if training with this configuration diverged: the step and the reason
unpacked.txt                     if the run is from an archive: the path of the archive; it has no branches or tables
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
from iclbench.core import digests
from iclbench.core.errors import DataChangedError, IclbenchError, UnknownNameError, UsageError
from iclbench.core.files import digest_path, remove_leftovers, write_text
from iclbench.core.memory import EVALUATION_REMEDY, memory_advice
from iclbench.core.settings import validate
from iclbench.store import identity, locks
from iclbench.store.rates import read_rates
from iclbench.store.state import is_current, is_intact

if TYPE_CHECKING:
    from iclbench.backbones.base import Backbone


log = logging.getLogger("iclbench")


def recorded_digest(weights: Path) -> str | None:
    """Return the SHA-256 in the digest file of weights; None if the file does not exist.

    If a process was killed while it wrote the weights, the file may contain several digests. The digest that matches
    the weights is then returned.
    """
    path = digest_path(weights)
    if not path.is_file():
        return None
    recorded_digests = [line.partition(" ")[0] for line in path.read_text(errors="replace").splitlines()]
    if len(recorded_digests) > 1 and weights.is_file() and (digest := digests.file_digest(weights)) in recorded_digests:
        return digest
    return next(iter(recorded_digests), "")


def run_name(config: RunConfig) -> str:
    """Return the default name of a run, which consists of task, backbone, preset and seed."""
    backbone = re.sub(r"[^a-z0-9]+", "-", config.backbone.name.lower()).strip("-")
    return f"{config.task.name}-{backbone}-{config.preset}-s{config.seed}"


def trained_and_current_codes(config: RunConfig) -> Iterator[tuple[str, codes.Code, codes.Code]]:
    """Yield the names of the family and the backbone of a configuration, each with the code (`iclbench.config.codes`)
    with which the run was trained and the current code."""
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
        """The configuration. `UsageError` is raised if its file cannot be read or is not valid."""
        path = self.path / "config.toml"
        with self._with_advice():
            return validate(RunConfig, read_similar_toml(path), str(path))

    @contextmanager
    def _with_advice(self) -> Iterator[None]:
        """Add advice to an error about a configuration that cannot be read."""
        try:
            yield
        except UsageError as error:
            raise UsageError(
                f"{error}; restore the file, or move or delete {self.path} and train the run again", code=error.code
            ) from error

    @property
    def is_intact(self) -> bool:
        """Whether the training is finished and all its files are complete. Whether they belong to this configuration is
        not checked; see `verified_metadata`."""
        return self.is_finished and all(map(is_intact, self.training_files))

    @property
    def weights(self) -> Path:
        return self.path / "model.safetensors"

    @property
    def is_finished(self) -> bool:
        """Whether the training is finished, so that the folder contains final weights. Whether they are complete and
        belong to this configuration is not checked."""
        return self.weights.is_file()

    def branch(self, steps: int) -> Path:
        """Return the path of the weights of the branch with this number of steps."""
        return self.path / f"branch-{steps:09d}.safetensors"

    def has_branch(self, steps: int) -> bool:
        """Whether the weights of a branch exist, are intact and belong to this run."""
        return self.verified_metadata(self.branch(steps), steps) is not None

    def verified_metadata(self, path: Path, branch: int | None) -> dict[str, str] | None:
        """Return the metadata of a weights file; None if it is missing, damaged or not from this run or branch."""
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
        """The recorded divergence of a training run with this configuration; None if no divergence is recorded."""
        try:
            record = json.loads((self.path / self.DIVERGED).read_bytes())
            if is_current(record, self.signature):
                return DivergedError(self, int(record["step"]), str(record["what"]), is_recorded=True)
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            pass  # without a valid record, the training is tried again
        return None

    def forget_divergence(self) -> None:
        """Remove the record and the curve of an earlier training run that diverged. The earlier run had another
        configuration, since the same configuration is not trained again."""
        if (self.path / self.DIVERGED).is_file():
            for name in ("values.parquet", self.DIVERGED):
                (self.path / name).unlink(missing_ok=True)

    @property
    def is_started(self) -> bool:
        """Whether weights or checkpoints exist. In a started run, only the evaluation part of the configuration may
        change."""
        return self.is_finished or self.checkpoint_step > 0

    @property
    def digest(self) -> str | None:
        """The recorded SHA-256 of the weights; None if it is missing."""
        return recorded_digest(self.weights)

    @property
    def is_unpacked(self) -> bool:
        """Whether the run was unpacked from an archive of weights."""
        return (self.path / self.UNPACKED).is_file()

    @property
    def branch_steps(self) -> list[int]:
        """The numbers of steps of the branches. An unpacked run has no branches."""
        return [] if self.is_unpacked else self.config.train.branch_steps

    @property
    def branch_digests(self) -> dict[str, str | None]:
        """The recorded digest of the weights of each branch, by number of steps."""
        return {str(steps): recorded_digest(self.branch(steps)) for steps in self.branch_steps}

    @property
    def training_files(self) -> list[Path]:
        """The files that training writes: configuration, weights, tables and branches."""
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
        """The metadata of the weights and checkpoints that identify the run."""
        return {"config": self.hash}

    def branch_signature(self, steps: int) -> dict[str, str]:
        """Return the metadata of a branch's weights that identify the run and the branch."""
        return self.signature | {"branch": str(steps)}

    def check_signature(self, metadata: Mapping[str, str] | None) -> None:
        """Raise `ValueError` if this metadata is from another configuration or other code."""
        if not is_current(metadata or {}, self.signature):
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
        """Return the folder with the checkpoints of the training run (`branch` None) or of a branch."""
        folder = self.path / "checkpoints"
        return folder if branch is None else folder / f"branch-{branch:09d}"

    def checkpoints_of(self, branch: int | None) -> list[Path]:
        """Return the checkpoints of the training run (`branch` None) or of a branch, oldest first."""
        paths = self.checkpoint_folder(branch).glob("step-*.safetensors")
        return sorted(path for path in paths if re.fullmatch(r"step-\d{9}", path.stem))

    @property
    def checkpoint_step(self) -> int:
        """The step of the last checkpoint of the training run; 0 without checkpoints."""
        return int(self.checkpoints[-1].stem.removeprefix("step-")) if self.checkpoints else 0

    @contextmanager
    def lock(self, wait: bool = False) -> Iterator[RunLock]:
        """Within the block, lock the run. Incomplete files of killed processes are removed first.

        If another process has the lock, wait for it, or raise `IclbenchError` if `wait` is False. If a process ends
        without releasing the lock, the system releases it.
        """
        run_lock = RunLock(self)
        with run_lock.hold(wait):
            checkpoints = self.checkpoint_folder(None)
            for folder in (self.path, checkpoints, *checkpoints.glob("branch-*")):
                remove_leftovers(folder)
            yield run_lock

    def load(self, device: str = "cpu", data_dir: Path | None = None) -> Backbone:
        """Load the trained backbone, in eval mode.

        Raises:
            UsageError: the run is not finished, or the weights are damaged or do not fit the code.
            DivergedError: the training diverged.
        """
        from safetensors import SafetensorError

        if not self.is_finished:
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
        """Load the weights of a branch into a backbone that `load` returned, and return the backbone.

        Raises:
            UsageError: the weights are damaged or do not fit the code.
        """
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
        """Check that weights have their recorded digest and belong to this run, and load them into the backbone."""
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
        """Log which implementation computes the outputs, if the backbone has several."""
        for line in backbone.notes(device):
            _log_once(f"run '{self.name}': {line}")


class DivergedError(IclbenchError):
    """The training of a run diverged: the loss or a weight is not finite.

    Args:
        run: the run.
        step: number of finished steps.
        problem: which value is not finite, as a clause.
        is_recorded: whether an earlier training run recorded the divergence, so that the run was not trained again.
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
        """The files that record the divergence: the training curve and `diverged.json`."""
        return [self.run.path / "values.parquet", self.run.path / self.run.DIVERGED]


class RunLock:
    """The lock of a run folder. It can also restore the folder if it was deleted or moved during training.

    Args:
        run: the run.
    """

    def __init__(self, run: Run) -> None:
        self._run, self._lock = run, locks.lock(run.path / ".lock")
        self._config: str | None = None
        self._is_restored = False

    @contextmanager
    def hold(self, wait: bool) -> Iterator[None]:
        """Within the block, lock the folder. If another process has the lock, wait for it, or raise `IclbenchError` if
        `wait` is False."""
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
        """Read the configuration file and store its text for `restore`."""
        self._config = (self._run.path / "config.toml").read_text(encoding="utf-8")
        _ = self._run.hash  # cached now, since the file may change

    def restore(self) -> None:
        """Restore the folder and its configuration file if they were deleted or moved.

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
        run: the run in the folder.
        difference: a clause that lists the differences.
    """

    code = "settings-changed"

    def __init__(self, run: Run, lines: Sequence[str]) -> None:
        self.run = run
        self.difference = f"it differs in {'; '.join(lines[:8])}{' ...' if len(lines) > 8 else ''}"
        super().__init__(
            f"run '{run.name}' was trained with different settings; choose another --name, or delete the run with "
            f"iclbench rm {run.name}. I{self.difference[1:]}"
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
    """Return a run with this configuration. Create its folder if it does not exist.

    Args:
        results: results folder.
        config: configuration of the run.
        name: name of the run (default: `run_name`).
        data_dir: folder of the task's data.
        wait: whether to wait if another process has locked the run.

    Raises:
        UsageError: the folder holds a run with other settings, or the backbone cannot be built. No folder is created.
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
            has_weights_only = run.is_finished and not (run.path / "config.toml").is_file()
            with write_errors(results):
                write_text(run.path / "config.toml", text)
            if has_weights_only:
                _check_weights_of(Run(run.path))
    return Run(run.path)


def with_rates_of_started_run(
    results: Path, config: RunConfig, name: str | None = None, user_keys: Collection[str] = ()
) -> RunConfig:
    """Return the configuration with which a run starts or continues.

    If the run has already started, settings from the results folder's table of learning rates are replaced by the
    settings with which it started, even if the table has changed since.

    Args:
        results: results folder.
        config: the configuration that a new run would have.
        name: name of the run (default: `run_name`).
        user_keys: keys of `train` that are set by the user and therefore not replaced.
    """
    rates = Rates.of_table(read_rates(results, config.preset), config.task.name)
    table_settings = rates.settings(config.backbone.name)
    run = Run(results / "runs" / (check_name(name) if name else run_name(config)))
    if not table_settings or not run.is_started:
        return config
    try:
        trained = run.config.train.model_dump(mode="json")
    except UsageError:  # `create` reports the error
        return config
    started_settings = {key: trained[key] for key in table_settings if key not in user_keys}
    train = validate(TrainSettings, config.train.model_dump(mode="json") | started_settings, "run")
    return config.model_copy(update={"train": train})


def _check_weights_of(run: Run) -> None:
    """Raise `UsageError` if the weights in the folder belong to another run. In this case, remove the configuration
    file that was just written."""
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
    """Raise `UsageError` if the run in a folder was trained with other settings, code or data than this
    configuration."""
    if (run.path / "config.toml").is_file():
        _config_to_write(run, config)


def _config_to_write(run: Run, config: RunConfig) -> str | None:
    """Return the text of a new or changed configuration file; None if the file need not change. In a started run, only
    the evaluation part may change.

    Raises:
        UsageError: the run was trained with other settings, code or data.
    """
    path, content = run.path / "config.toml", config.dump()
    if path.is_file() and run.is_started:
        trained, current = run.config.trained_part, config.trained_part
        if without_learned(without_codes(trained)) != without_learned(without_codes(current)):
            raise SettingsChangedError(run, differences(without_learned(trained), without_learned(current)))
        run.check_codes()
        # The configuration of a planned grid has no fingerprint of the data, so the data are not compared.
        if config.task.learned and config.task.learned != run.config.task.learned:
            trained_data = run.config.task.learned.get("fingerprint", "unknown")
            raise DataChangedError(trained_data, config.task.learned["fingerprint"])
        if run.config == config:
            return None
        content = with_evaluation_of(read_toml(path), content)
    text = toml_text(content)
    return None if path.is_file() and path.read_bytes() == text.encode() else text


def _check_buildable(config: RunConfig, data_dir: Path | None) -> None:
    """Raise `UsageError` if a configuration has a backbone that cannot be built, or episodes that are too large."""
    from iclbench.core.bounds import check_task

    family = config.task.build(data_dir)
    check_task(config.shape(family), config.train.batch, config.task.episodes, f"task '{config.task.name}'")
    config.build(family)


def toml_text(content: Mapping[str, Any]) -> str:
    """Return plain values as TOML."""
    import tomli_w

    return tomli_w.dumps(content)


def find(results: Path, name: str) -> Run:
    """Return the run with this name. Raise `UnknownNameError` if it does not exist."""
    run = Run(results / "runs" / check_name(name))
    if not (run.path / "config.toml").is_file():
        raise UnknownNameError("run", name, [run.name for run in all_runs(results)], hint=f"(in {results})")
    return run


def all_runs(results: Path) -> list[Run]:
    """Return all runs in a results folder, sorted by name."""
    return [Run(path.parent) for path in sorted(results.glob("runs/*/config.toml"))]


def check_name(name: str, noun: str = "a run name") -> str:
    """Return the name if it can be a file name; otherwise raise `UsageError`."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}", name):
        raise UsageError(f"'{name}' cannot be {noun}; use letters, digits, '.', '_' and '-'", code="bad-syntax")
    return name


def check_not_reserved(name: str, advice: str) -> None:
    """Raise `UsageError`, with advice, if a name is reserved for a baseline or a published row."""
    if name in card_names("baselines") or name.startswith("published-"):
        raise UsageError(
            f"'{name}' is the name of a baseline or published row in the tables; choose {advice}", code="exists"
        )


# Errors that mean that the disk is full. After space is freed, the same command continues its work.
_NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@contextmanager
def write_errors(results: Path) -> Iterator[None]:
    """Within the block, convert errors of the file system. An error due to a full disk becomes an `IclbenchError`; any
    other error becomes a `UsageError` with the advice to choose another results folder."""
    try:
        yield
    except OSError as error:
        reason = "a file is in place of a folder" if isinstance(error, FileExistsError) else error.strerror
        message = f"cannot write to the results folder {results}: {reason or error}"
        if error.errno in _NO_SPACE:
            raise IclbenchError(
                f"{message}; free some space and run the same command again", code="unreadable-file"
            ) from error
        raise UsageError(f"{message}; choose another with --results", code="unreadable-file") from error
