"""Run folders: where a trained model lives, `RESULTS/runs/NAME`.

config.toml                  everything the run depends on
checkpoints/step-N.safetensors   the last two, while training goes on; of a branch in checkpoints/branch-N
model.safetensors            the finished weights, beside them their digest (.sha256)
branch-N.safetensors         those of a shorter training of N steps that branched off, likewise
values.parquet, costs.parquet    training curve and cost of training
diverged.json                why training came to no end under this configuration
unpacked.txt                 of a run from an archive of weights, which brings neither branches nor tables: which one
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
from iclbench.config.cards import TrainSettings, names, read_similar_toml, read_toml
from iclbench.config.rates import Rates
from iclbench.config.resolution import RunConfig, difference, with_evaluation_of, without_codes, without_learned
from iclbench.core import digests, locks
from iclbench.core.errors import DataChangedError, IclbenchError, UnknownNameError, UsageError
from iclbench.core.files import digest_path, remove_leftovers, write_text
from iclbench.core.memory import IN_EVALUATION, advised
from iclbench.core.settings import validate
from iclbench.store import identity
from iclbench.store.state import is_intact

if TYPE_CHECKING:
    from iclbench.backbones.base import Backbone


log = logging.getLogger("iclbench")


def digest_beside(weights: Path) -> str | None:
    """The SHA-256 in the file beside weights; None: there is none. A writer that was killed between the two files has
    left several: then that of the weights as they are."""
    path = digest_path(weights)
    if not path.is_file():
        return None
    recorded = [line.partition(" ")[0] for line in path.read_text(errors="replace").splitlines()]
    if len(recorded) > 1 and weights.is_file() and (current := digests.of_file(weights)) in recorded:
        return current
    return next(iter(recorded), "")


def run_name(config: RunConfig) -> str:
    """The default name: task, backbone, preset and seed. Nothing is ever parsed back from it."""
    backbone = re.sub(r"[^a-z0-9]+", "-", config.backbone.name.lower()).strip("-")
    return f"{config.task.name}-{backbone}-{config.preset}-s{config.seed}"


def codes_then_and_now(config: RunConfig) -> Iterator[tuple[str, codes.Code, codes.Code]]:
    """The names of the family and the backbone of a configuration, each with its code then and its code now."""
    task, backbone = config.task, config.backbone
    yield task.family, task.code, codes.of_family(task.family)
    yield backbone.name, backbone.code, codes.of_backbone(backbone.name, backbone.settings)


@dataclass(frozen=True)
class Run:
    """One run folder."""

    path: Path

    DIVERGED: ClassVar = "diverged.json"
    UNPACKED: ClassVar = "unpacked.txt"

    @property
    def name(self) -> str:
        return self.path.name

    @cached_property
    def config(self) -> RunConfig:
        """The run's configuration; raises `UsageError` if the file does not hold one."""
        path = self.path / "config.toml"
        with self._mended():
            return validate(RunConfig, read_similar_toml(path), str(path))

    @contextmanager
    def _mended(self) -> Iterator[None]:
        """Say what to do about a configuration that cannot be read."""
        try:
            yield
        except UsageError as error:
            raise UsageError(
                f"{error}; put the file back, or move {self.path} away or delete it and train the run again"
            ) from error

    @property
    def is_intact(self) -> bool:
        """Whether training has finished and all its files are intact."""
        return self.finished and all(map(is_intact, self.written))

    @property
    def weights(self) -> Path:
        return self.path / "model.safetensors"

    @property
    def finished(self) -> bool:
        return self.weights.is_file()

    def branch(self, steps: int) -> Path:
        """The weights of the branch that ends after so many steps."""
        return self.path / f"branch-{steps:09d}.safetensors"

    def has_branch(self, steps: int) -> bool:
        """Whether the weights of this branch exist, are intact and are this run's."""
        return self.own_metadata(self.branch(steps), steps) is not None

    def own_metadata(self, path: Path, branch: int | None) -> dict[str, str] | None:
        """Metadata of the weights in a file; None where they are missing, damaged or not this run's."""
        from safetensors import SafetensorError, safe_open

        try:
            with safe_open(path, framework="numpy") as file:
                about = dict(file.metadata() or {})
            self.check_weights(path, about, branch)
        except (SafetensorError, OSError, ValueError):
            return None
        return about

    @property
    def diverged(self) -> DivergedError | None:
        """How training under this configuration diverged; None: it did not, or was not tried."""
        try:
            record = json.loads((self.path / self.DIVERGED).read_bytes())
            if record["config"] == self.hash:
                return DivergedError(self, int(record["step"]), str(record["what"]), remembered=True)
        except (OSError, ValueError, KeyError, TypeError):
            pass  # what cannot be read is found out again
        return None

    def forget_divergence(self) -> None:
        """Remove what a training under another configuration left behind where it diverged."""
        if (self.path / self.DIVERGED).is_file():
            for name in ("values.parquet", self.DIVERGED):
                (self.path / name).unlink(missing_ok=True)

    @property
    def begun(self) -> bool:
        """Whether something was trained that another configuration would disown."""
        return self.finished or self.reached > 0

    @property
    def digest(self) -> str | None:
        """SHA-256 that the weights were written with; None: it is missing."""
        return digest_beside(self.weights)

    @property
    def unpacked(self) -> bool:
        """Whether it comes from an archive of weights."""
        return (self.path / self.UNPACKED).is_file()

    @property
    def branch_steps(self) -> list[int]:
        """Ends of the branches that there are weights of."""
        return [] if self.unpacked else self.config.train.branch_steps

    @property
    def branch_digests(self) -> dict[str, str | None]:
        """The digests of the weights of every branch, by its steps."""
        return {str(steps): digest_beside(self.branch(steps)) for steps in self.branch_steps}

    @property
    def written(self) -> list[Path]:
        """The files of a finished training."""
        try:
            branches = [self.branch(steps).name for steps in self.config.train.branch_steps]
        except UsageError:  # without a configuration nothing is known, and so no branch
            branches = []
        names = ("config.toml", self.weights.name, *branches, "values.parquet", "costs.parquet")
        return [self.path / name for name in names]

    @cached_property
    def hash(self) -> str:
        """The identity of the run, in its weights and checkpoints to show that they belong to it."""
        return identity.run_id(self.config)

    @property
    def signature(self) -> dict[str, str]:
        """Metadata of the weights and checkpoints."""
        return {"config": self.hash}

    def branch_signature(self, steps: int) -> dict[str, str]:
        """Metadata of the weights of a branch."""
        return self.signature | {"branch": str(steps)}

    def check_signature(self, metadata: Mapping[str, str] | None) -> None:
        """Raise `ValueError` for weights or a checkpoint of another configuration, or made by other code."""
        if (metadata or {}).get("config") != self.hash:
            raise ValueError("another configuration, or to other sources of a plug-in")

    def check_codes(self) -> None:
        """Raise `CodeChangedError` where the names of this run's family or backbone no longer stand for the code that
        it was trained with."""
        for name, trained, current in codes_then_and_now(self.config):
            if trained != current:
                raise CodeChangedError(self.name, name, trained, current)

    @property
    def checkpoints(self) -> list[Path]:
        """Oldest first; files of any other name are none of ours."""
        return self.checkpoints_of(None)

    def checkpoint_folder(self, branch: int | None) -> Path:
        """The folder of the checkpoints of the training (None) or of a branch."""
        folder = self.path / "checkpoints"
        return folder if branch is None else folder / f"branch-{branch:09d}"

    def checkpoints_of(self, branch: int | None) -> list[Path]:
        """The checkpoints of the training (None) or of a branch, oldest first."""
        paths = self.checkpoint_folder(branch).glob("step-*.safetensors")
        return sorted(p for p in paths if re.fullmatch(r"step-\d{9}", p.stem))

    @property
    def reached(self) -> int:
        """The step of the newest checkpoint, 0 without one."""
        return int(self.checkpoints[-1].stem.removeprefix("step-")) if self.checkpoints else 0

    @contextmanager
    def lock(self, wait: bool = False) -> Iterator[Hold]:
        """Hold the run for this process; the system frees it on any death. When another one has it, wait for it or
        raise `IclbenchError`. What killed processes left half-written is removed."""
        hold = Hold(self)
        with hold.take(wait):
            checkpoints = self.checkpoint_folder(None)
            for folder in (self.path, checkpoints, *checkpoints.glob("branch-*")):
                remove_leftovers(folder)
            yield hold

    def load(self, device: str = "cpu", data_dir: Path | None = None) -> Backbone:
        """The trained backbone; raises `UsageError` when training has not finished or the weights do not fit or are not
        as they were written."""
        from safetensors import SafetensorError

        if not self.finished:
            if self.diverged:
                raise self.diverged
            raise UsageError(f"run '{self.name}' has not finished training; continue it with iclbench train")
        self.check_codes()
        backbone = self.config.build(self.config.task.build(data_dir), portable=True)
        try:
            self._read(self.weights, backbone)
        except (SafetensorError, RuntimeError, ValueError, OSError) as error:
            first_line = str(error).splitlines()[0]
            raise UsageError(
                f"{self.weights} does not hold the weights of run '{self.name}' ({first_line}); delete it, and the "
                "same iclbench train makes it again from the last checkpoint"
            ) from error
        self.tell(backbone, device)
        return backbone.to(device).eval()

    def load_branch(self, steps: int, backbone: Backbone) -> Backbone:
        """`backbone`, as `load` gave it, with the weights of the branch that ends after so many steps; raises
        `UsageError` as there."""
        from safetensors import SafetensorError

        path = self.branch(steps)
        try:
            self._read(path, backbone, steps)
        except (SafetensorError, RuntimeError, ValueError, OSError) as error:
            first_line = str(error).splitlines()[0]
            raise UsageError(
                f"{path} does not hold the weights of the branch of {steps} steps of run '{self.name}' ({first_line}); "
                f"delete it and {self.weights.name}, and the same iclbench train makes both again"
            ) from error
        return backbone

    def _read(self, path: Path, backbone: Backbone, branch: int | None = None) -> None:
        """Put the weights of a file into the backbone, once they are known to be whole and those of this run."""
        from safetensors import safe_open

        with advised(IN_EVALUATION), safe_open(path, framework="pt") as file:
            self.check_weights(path, file.metadata() or {}, branch)
            backbone.load_state_dict({key: file.get_tensor(key) for key in file.keys()})  # noqa: SIM118

    def check_weights(self, path: Path, metadata: Mapping[str, str], branch: int | None) -> None:
        """Raise `ValueError` for weights of another run or branch, without the file with their digest, or with another
        digest than the one in it."""
        try:
            self.check_signature(metadata)
        except ValueError as error:
            raise ValueError(f"they belong to {error}") from None
        if metadata.get("branch") != (None if branch is None else str(branch)):
            raise ValueError("they belong to another branch")
        name, digest = digest_path(path).name, digest_beside(path)
        if digest is None:
            raise ValueError(f"{name} is missing, without which nobody knows whether they are whole; put it back")
        if digest != digests.of_file(path):
            raise ValueError(f"their digest is not that in {name}")

    def tell(self, backbone: Backbone, device: str) -> None:
        """Say what computes, where the backbone has a choice: no fast path is left in silence."""
        for line in backbone.notes(device):
            _tell_once(f"run '{self.name}': {line}")


class DivergedError(IclbenchError):
    """Training came to no end: the loss or a weight is not finite.

    Args:
        run: what was trained.
        step: steps that were done.
        what: what is not finite.
        remembered: it was found earlier; the same configuration is not tried again.
    """

    code = "diverged"

    ADVICE: ClassVar = "another --name with a lower -o train.lr, a longer -o train.warmup, or -o train.clip=1"

    def __init__(self, run: Run, step: int, what: str, remembered: bool = False) -> None:
        self.run, self.step, self.what, self._remembered = run, step, what, remembered
        self.reason = f"diverged at step {step}: {what}"
        record = run.path / run.DIVERGED
        super().__init__(
            f"run '{run.name}' has {self.reason}; it is not tried again. Train {self.ADVICE}, or delete {record} to "
            "try this one once more"
            if remembered
            else f"run '{run.name}' {self.reason}; the last good checkpoint is kept. Try {self.ADVICE}"
        )

    @property
    def left(self) -> list[Path]:
        """Files of the diverged training: its curve as far as it goes, and why it ended."""
        return [self.run.path / "values.parquet", self.run.path / self.run.DIVERGED]


class Hold:
    """A run folder that belongs to this process, which writes there what it trains, wherever the folder has gone.

    Args:
        run: the run.
    """

    def __init__(self, run: Run) -> None:
        self._run, self._lock = run, locks.lock(run.path / ".lock")
        self._config: str | None = None
        self._anew = False

    @contextmanager
    def take(self, wait: bool) -> Iterator[None]:
        """Hold the folder while the block runs; when another process does, wait for it or raise `IclbenchError`."""
        self._acquire(wait)
        try:
            yield
        finally:
            self._lock.release()
            if self._anew:
                log.warning(
                    "%s was deleted or moved while run '%s' trained: it was made anew, with its configuration",
                    self._run.path,
                    self._run.name,
                )

    def remember(self) -> None:
        """Keep the configuration, with which `renew` makes the folder anew."""
        self._config = (self._run.path / "config.toml").read_text(encoding="utf-8")
        _ = self._run.hash  # of this text, whatever becomes of it

    def renew(self) -> None:
        """Recreate the folder, with its configuration, if it was deleted or moved away.

        Raises:
            IclbenchError: in its place there is a run of this name that another process trains, or another run.
        """
        if not self._lock.held:
            self._run.path.mkdir(parents=True, exist_ok=True)
            self._acquire(wait=False)
        config = self._run.path / "config.toml"
        if not config.is_file() and self._config is not None:
            write_text(config, self._config)
            self._anew = True
        elif Run(self._run.path).hash != self._run.hash:
            raise IclbenchError(
                f"{self._run.path} was replaced while run '{self._run.name}' trained, by one under other settings: "
                "nothing more is written there; train under another --name"
            )

    def _acquire(self, wait: bool) -> None:
        with writing(self._run.path):
            try:
                self._lock.acquire(wait)
            except BlockingIOError as error:
                raise IclbenchError(
                    f"run '{self._run.name}' is being trained by another process; wait for it or stop it"
                ) from error


class TrainedOtherwiseError(UsageError):
    """The folder of a run holds one that was trained under other settings: `run`, and the `difference` in a line."""

    code = "settings-changed"

    def __init__(self, run: Run, lines: Sequence[str]) -> None:
        self.run = run
        self.difference = f"it differs in {'; '.join(lines[:8])}{' ...' if len(lines) > 8 else ''}"
        super().__init__(
            f"run '{run.name}' was trained under other settings; choose another --name or delete {run.path}. "
            f"I{self.difference[1:]}"
        )


class CodeChangedError(UsageError):
    """A name in a run's configuration now refers to other code than the weights were made with."""

    code = "code-changed"

    def __init__(self, run: str, name: str, trained: codes.Code, current: codes.Code) -> None:
        otherwise = f"train anew under another --name, or delete the run with iclbench rm {run}"
        if isinstance(trained, int) and isinstance(current, int):
            message = f"run '{run}' was trained with version {trained} of '{name}', this iclbench has version {current}"
        else:
            message = (
                f"the sources of '{name}' are not those that run '{run}' was trained with ({trained}, now {current})"
            )
        super().__init__(f"{message}: {otherwise}")


@cache
def _tell_once(line: str) -> None:
    log.info(line)


def create(
    results: Path, config: RunConfig, name: str | None = None, data_dir: Path | None = None, wait: bool = False
) -> Run:
    """The run folder for this configuration, made or found again; `wait` for a process that trains it under another.

    Raises:
        UsageError: it holds another run, or no backbone can be built by the configuration, which then leaves no folder
            behind.
        IclbenchError: another process trains it under another configuration, and `wait` is False.
    """
    name = check_name(name) if name else run_name(config)
    check_free(name, "another --name")
    config = config.on_data(data_dir)
    run = Run(results / "runs" / name)
    if _to_be_written(run, config) is None:
        return run
    if not run.begun:
        _check_sizes(config, data_dir)
    with writing(results):
        run.path.mkdir(parents=True, exist_ok=True)
    with run.lock(wait):
        run = Run(run.path)  # it may have been trained meanwhile
        text = _to_be_written(run, config)
        if text is not None:
            unknown = run.finished and not (run.path / "config.toml").is_file()
            with writing(results):
                _write(run, text)
            if unknown:
                _refuse_foreign(Run(run.path))
    return Run(run.path)


def keeping_rate(results: Path, config: RunConfig, name: str | None = None, typed: Collection[str] = ()) -> RunConfig:
    """The configuration to go on with: a run that has begun keeps the settings that the results folder's table of
    learning rates said then, whatever that says now.

    Args:
        results: results folder.
        config: the run as it would begin now.
        name: its name; None: the default.
        typed: keys of `train` that the user gives, who is told of what differs.
    """
    table_settings = Rates.of_results(results, config.preset, config.task.name).settings(config.backbone.name)
    run = Run(results / "runs" / (check_name(name) if name else run_name(config)))
    if not table_settings or not run.begun:
        return config
    try:
        trained = run.config.train.model_dump(mode="json")
    except UsageError:  # to be reported by what needs the run
        return config
    fixed = {key: trained[key] for key in table_settings if key not in typed}
    train = validate(TrainSettings, config.train.model_dump(mode="json") | fixed, "run")
    return config.model_copy(update={"train": train})


def _refuse_foreign(run: Run) -> None:
    """Take the configuration away again and raise `UsageError` where it was written beside weights of another."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(run.weights, framework="numpy") as file:
            run.check_signature(file.metadata())
    except (SafetensorError, OSError):
        return  # damaged: whoever loads them says so
    except ValueError as error:
        (run.path / "config.toml").unlink()
        raise UsageError(
            f"the weights in {run.path}, which has no config.toml, belong to {error}; choose another "
            "--name or delete that folder"
        ) from error


def refuse_other(run: Run, config: RunConfig) -> None:
    """Raise `UsageError` where the folder holds a run that was trained otherwise; nothing is written."""
    if (run.path / "config.toml").is_file():
        _to_be_written(run, config)


def _to_be_written(run: Run, config: RunConfig) -> str | None:
    """The text of the run's configuration, None where it is there; raises `UsageError` when something else was trained.

    A run that has begun follows the card in what only concerns evaluation.
    """
    path, plain = run.path / "config.toml", config.dump()
    if path.is_file() and run.begun:
        trained, current = run.config.trained, config.trained
        if without_learned(without_codes(trained)) != without_learned(without_codes(current)):
            raise TrainedOtherwiseError(run, difference(without_learned(trained), without_learned(current)))
        run.check_codes()
        # A configuration that a grid plans says nothing of the data.
        if config.task.learned and config.task.learned != run.config.task.learned:
            trained_data = run.config.task.learned.get("fingerprint", "unknown")
            raise DataChangedError(trained_data, config.task.learned["fingerprint"])
        if run.config == config:
            return None
        plain = with_evaluation_of(read_toml(path), plain)
    text = _text(plain)
    return None if path.is_file() and path.read_bytes() == text.encode() else text


def _check_sizes(config: RunConfig, data_dir: Path | None) -> None:
    """Raise `UsageError` where no backbone can be built by a configuration, or no episodes held."""
    from iclbench.core.bounds import check_task

    family = config.task.build(data_dir)
    check_task(config.shape(family), config.train.batch, config.task.episodes, f"task '{config.task.name}'")
    config.build(family)


def _text(plain: Mapping[str, Any]) -> str:
    import tomli_w

    return tomli_w.dumps(plain)


def _write(run: Run, text: str) -> None:
    write_text(run.path / "config.toml", text)


def find(results: Path, name: str) -> Run:
    """The run with this name."""
    run = Run(results / "runs" / check_name(name))
    if not (run.path / "config.toml").is_file():
        raise UnknownNameError("run", name, [r.name for r in all_runs(results)], hint=f"(in {results})")
    return run


def all_runs(results: Path) -> list[Run]:
    """All runs below a results folder, by name."""
    return [Run(p.parent) for p in sorted(results.glob("runs/*/config.toml"))]


def check_name(name: str, noun: str = "a run name") -> str:
    """A name that cannot leave the results folder; raises `UsageError` otherwise."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}", name):
        raise UsageError(f"'{name}' cannot be {noun}; use letters, digits, '.', '_' and '-'")
    return name


def check_free(name: str, advice: str) -> None:
    """Raise `UsageError` if a name is that of a baseline or a published row; `advice` is what to choose."""
    if name in names("baselines") or name.startswith("published-"):
        raise UsageError(f"'{name}' is the name of a baseline or published row in the tables; choose {advice}")


# What a user mends by making room, after which the same command goes on.
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@contextmanager
def writing(results: Path) -> Iterator[None]:
    """Turn what the file system refuses into one line that names the results folder: `UsageError` where another one is
    to be chosen, `IclbenchError` where there is no room left in it."""
    try:
        yield
    except OSError as error:
        reason = "there is a file where a folder has to be" if isinstance(error, FileExistsError) else error.strerror
        message = f"cannot write to the results folder {results}: {reason or error}"
        if error.errno in _FULL:
            raise IclbenchError(f"{message}; make room, and the same command goes on") from error
        raise UsageError(f"{message}; choose another with --results") from error
