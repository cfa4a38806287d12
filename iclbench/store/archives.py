"""Archives of weights: finished runs of one task and preset in one file, which packed results bring along.

`RESULTS/FOLDER/TASK-PRESET.weights.safetensors`, its digest beside it. The tensors of a run are those of its own file
under keys `RUN/...`, at their own precision; the entry `RUN` of the metadata holds, as JSON, its configuration and what
its own file says of itself. So an unpacked run is the one that was evaluated, to the last bit.
"""

from __future__ import annotations

import hashlib
import json
import logging
import tomllib
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from iclbench.config.cards import cards_folder
from iclbench.config.resolution import RunConfig, without_codes
from iclbench.core import digests
from iclbench.core.errors import UnknownNameError, UsageError
from iclbench.core.files import DIGEST, digest_path, save_tensors, write_text
from iclbench.core.settings import validate
from iclbench.store import runs
from iclbench.store.runs import Run, check_name, digest_beside, writing

log = logging.getLogger("iclbench")

_SUFFIX = ".weights.safetensors"


@dataclass(frozen=True)
class Packed:
    """The weights of one run, in its own file or in an archive.

    Attributes:
        name: of the run.
        path: the file.
        config: text of the run's configuration.
        about: metadata of the run's own file.
        prefix: of the keys of its tensors.
    """

    name: str
    path: Path
    config: str
    about: Mapping[str, str]
    prefix: str = ""

    @cached_property
    def trained(self) -> dict[str, Any]:
        """The settings that the weights depend on, and the codes of the code that made them."""
        return validate(RunConfig, tomllib.loads(self.config), f"{self.path}, run '{self.name}'").trained

    @property
    def digest(self) -> str:
        """SHA-256 of the weights alone: the same for a run's own file and its entry in an archive."""
        from safetensors.torch import save

        return hashlib.sha256(save(self.tensors())).hexdigest()

    def tensors(self) -> dict[str, Any]:
        """The weights by their names in the backbone; raises `UsageError` where the file cannot be read."""
        from safetensors import SafetensorError, safe_open

        try:
            with safe_open(self.path, framework="pt") as file:
                names = [key for key in file.keys() if key.startswith(self.prefix)]  # noqa: SIM118
                return {key.removeprefix(self.prefix): file.get_tensor(key) for key in names}
        except (SafetensorError, OSError) as error:
            raise UsageError(f"{self.path} cannot be read ({str(error).splitlines()[0]}); put the file back") from error


def archive_path(folder: Path, task: str, preset: str) -> Path:
    """The archive of a task and preset in a folder of packed results."""
    return folder / f"{task}-{preset}{_SUFFIX}"


def of_run(run: Run) -> Packed | None:
    """A finished run's weights; None where they are not there, or are not this run's."""
    with suppress(OSError, ValueError, UsageError):
        about = run.own_metadata(run.weights, None)
        if about is not None:
            return Packed(run.name, run.weights, (run.path / "config.toml").read_text(encoding="utf-8"), about)
    return None


def entries(archive: Path) -> dict[str, Packed]:
    """The runs in an archive, by name.

    Raises:
        UsageError: the file cannot be read, or holds something else.
    """
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(archive, framework="numpy") as file:
            about = dict(file.metadata() or {})
        about.pop(DIGEST, None)
        return {
            name: Packed(name, archive, str(entry["config"]), dict(entry["about"]), f"{name}/")
            for name, entry in ((name, json.loads(text)) for name, text in sorted(about.items()))
        }
    except (SafetensorError, OSError, ValueError, KeyError, TypeError) as error:
        first_line = str(error).partition("\n")[0]
        raise UsageError(
            f"{archive} is no archive of weights, or is damaged ({first_line}); put the file back"
        ) from error


def check(archive: Path) -> None:
    """Raise `UsageError` where an archive is not as it was written."""
    if digest_beside(archive) != digests.of_file(archive):
        digest_name = digest_path(archive).name
        raise UsageError(
            f"{archive} is not as it was written (its digest is not in {digest_name}); put both files back"
        )


def write(archive: Path, packed: Iterable[Packed]) -> None:
    """Write an archive; the same runs give the same bytes."""
    runs_by_name = sorted(packed, key=lambda entry: entry.name)
    tensors = {f"{entry.name}/{key}": tensor for entry in runs_by_name for key, tensor in entry.tensors().items()}
    about = {
        entry.name: json.dumps({"config": entry.config, "about": dict(entry.about)}, sort_keys=True)
        for entry in runs_by_name
    }
    save_tensors(archive, tensors, about, digest=True)


def find(results: Path, name: str) -> Run:
    """The run of this name in a results folder; one that is only in an archive there, or in one of the checkout that
    runs, is unpacked to where runs live. `FOLDER/NAME` is one of the archives of that folder.

    Raises:
        UsageError: there is no such run, or its archive is damaged.
    """
    folder, slash, run_name = name.rpartition("/")
    if "/" in folder or (slash and not folder):
        return runs.find(results, name)  # which says that this is no name
    run = Run(results / "runs" / check_name(run_name))
    if not slash and _is_there(run):
        return run
    archives = _archives(results, check_name(folder) if slash else "*")
    known_names: set[str] = set()
    for archive in archives:
        try:
            archived = entries(archive)
        except UsageError as error:
            log.warning("%s", error)
            continue
        known_names |= {f"{archive.parent.name}/{entry}" for entry in archived}
        if run_name in archived:
            return _unpacked(archived[run_name], run, results)
    if not archives and slash:
        raise UsageError(
            f"there are no archives of weights in {results / folder}: those of the reference come with a checkout of "
            "iclbench (results/reference), not with the installed package; run there, or name its results folder"
        )
    present = [] if slash else [entry.name for entry in runs.all_runs(results)]
    where_text = "some runs are packed there" if archives else "those of the reference come with a checkout alone"
    raise UnknownNameError("run", name, [*present, *sorted(known_names)], hint=f"(in {results}; {where_text})")


def with_shipped(results: Path) -> list[Path]:
    """A results folder, and behind it that of the checkout which runs."""
    shipped = cards_folder("grids").parent / "results"
    return list(dict.fromkeys(folder.resolve() for folder in (results, shipped)))


def _archives(results: Path, folder: str) -> list[Path]:
    """The archives of a results folder, then those of the checkout."""
    return [path for place in with_shipped(results) for path in sorted(place.glob(f"{folder}/*{_SUFFIX}"))]


def _is_there(run: Run) -> bool:
    """Whether there is a run of this name, and not one whose unpacked weights were deleted."""
    return (run.path / "config.toml").is_file() and (run.finished or not run.unpacked)


def _unpacked(packed: Packed, run: Run, results: Path) -> Run:
    """The run's folder, written unless it is there: its configuration last, by which it is found."""
    check(packed.path)
    about = {key: value for key, value in packed.about.items() if key != DIGEST}
    with writing(results):
        run.path.mkdir(parents=True, exist_ok=True)
    with run.lock(wait=True), writing(results):
        if _is_there(run):
            return _check_same(Run(run.path), packed)
        if run.begun and not run.unpacked:
            raise UsageError(
                f"{run.path} holds weights without config.toml, which says whose: put it back, or move them"
            )
        write_text(run.path / run.UNPACKED, f"{packed.path}\n")
        save_tensors(run.weights, packed.tensors(), about, digest=True)
        write_text(run.path / "config.toml", packed.config)
    log.info("run '%s' was unpacked from %s: its weights, without branches and tables", run.name, packed.path)
    return Run(run.path)


def _check_same(run: Run, packed: Packed) -> Run:
    """A run that is there already; raises `UsageError` where its settings or weights are not those of the archive."""
    name, place = f"{packed.path.parent.name}/{packed.name}", f"run '{run.name}' in {run.path}"
    otherwise = f"ask for '{run.name}' to use it; choose another results folder, or move it away, to use '{name}'"
    if without_codes(run.config.trained) != without_codes(packed.trained):
        raise UsageError(f"{place} was trained under other settings than '{name}': {otherwise}")
    existing = of_run(run)
    if existing is None:
        raise UsageError(
            f"{place} is not '{name}': its training has not finished, or its weights are damaged; {otherwise}"
        )
    if existing.digest != packed.digest:
        raise UsageError(f"{place} has other weights than '{name}': {otherwise}")
    return run
