"""Archives of weights. An archive contains the weights of the finished runs of one task and preset.

It is the file `RESULTS/FOLDER/TASK-PRESET.weights.safetensors` in a folder of packed results, with a digest file. The
tensors of a run have the keys `RUN/...` and their original precision. The entry `RUN` of the metadata is JSON with the
configuration of the run and the metadata of its weights, so that an unpacked run is identical to the evaluated run.
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
from iclbench.store import identity, runs
from iclbench.store.runs import Run, check_name, recorded_digest, write_errors
from iclbench.store.shipped import FOLDER, shipped_names, shipped_run
from iclbench.tables import short_name

log = logging.getLogger("iclbench")

SUFFIX = ".weights.safetensors"


@dataclass(frozen=True)
class PackedWeights:
    """The weights of one run, in the folder of the run or in an archive.

    Attributes:
        name: name of the run.
        path: the file.
        config: the run's configuration, as the text of its file.
        metadata: metadata of the run's weights file.
        prefix: prefix of the keys of the run's tensors in the file.
    """

    name: str
    path: Path
    config: str
    metadata: Mapping[str, str]
    prefix: str = ""

    @property
    def trained_part(self) -> dict[str, Any]:
        """The part of the configuration on which the weights depend."""
        return self.run_config.trained_part

    @property
    def training_id(self) -> str:
        """The identity of the training run. It is the same if a setting is omitted or has its default value."""
        return identity.weights_id(self.run_config)

    @cached_property
    def run_config(self) -> RunConfig:
        """The configuration. `UsageError` is raised if it is not valid."""
        return validate(RunConfig, tomllib.loads(self.config), f"{self.path}, run '{self.name}'")

    @property
    def digest(self) -> str:
        """SHA-256 of the weights. It is the same for the file of a run and for the entry of the run in an archive."""
        from safetensors.torch import save

        return hashlib.sha256(save(self.tensors())).hexdigest()

    def tensors(self) -> dict[str, Any]:
        """Read the weights. Return them by their names in the backbone. Raise `UsageError` if the file cannot be
        read."""
        from safetensors import SafetensorError, safe_open

        try:
            with safe_open(self.path, framework="pt") as file:
                names = [key for key in file.keys() if key.startswith(self.prefix)]  # noqa: SIM118
                return {key.removeprefix(self.prefix): file.get_tensor(key) for key in names}
        except (SafetensorError, OSError) as error:
            reason = str(error).splitlines()[0]
            raise UsageError(
                f"{self.path} cannot be read ({reason}); restore the file", code="unreadable-file"
            ) from error


def archive_path(folder: Path, task: str, preset: str) -> Path:
    """Return the path of the archive of a task and preset in a folder of packed results."""
    return folder / f"{task}-{preset}{SUFFIX}"


def of_run(run: Run) -> PackedWeights | None:
    """Return the weights of a finished run; None if they do not exist, are damaged or belong to another run."""
    with suppress(OSError, ValueError, UsageError):
        metadata = run.verified_metadata(run.weights, None)
        if metadata is not None:
            return PackedWeights(
                run.name, run.weights, (run.path / "config.toml").read_text(encoding="utf-8"), metadata
            )
    return None


def entries(archive: Path) -> dict[str, PackedWeights]:
    """Return the weights in an archive, by name of the run.

    Raises:
        UsageError: the file cannot be read or is not an archive.
    """
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(archive, framework="numpy") as file:
            metadata = dict(file.metadata() or {})
            keys = list(file.keys())
        metadata.pop(DIGEST, None)
        if others := [key for key in keys if key.partition("/")[0] not in metadata]:
            raise ValueError(f"tensor '{short_name(min(others))}' belongs to no run")
        return {
            name: PackedWeights(name, archive, str(entry["config"]), dict(entry["about"]), f"{name}/")
            for name, entry in ((name, json.loads(text)) for name, text in sorted(metadata.items()))
        }
    except (SafetensorError, OSError, ValueError, KeyError, TypeError) as error:
        first_line = str(error).partition("\n")[0]
        raise UsageError(
            f"{archive} is not an archive of weights or is damaged ({first_line}); restore the file",
            code="unreadable-file",
        ) from error


def check(archive: Path) -> None:
    """Raise `UsageError` if the digest of an archive is not the one in its digest file."""
    if recorded_digest(archive) != digests.file_digest(archive):
        digest_name = digest_path(archive).name
        raise UsageError(
            f"{archive} is damaged (its digest is not the one in {digest_name}); restore both files",
            code="unreadable-file",
        )


def write(archive: Path, packed: Iterable[PackedWeights]) -> None:
    """Write an archive. The same runs give the same bytes."""
    sorted_entries = sorted(packed, key=lambda entry: entry.name)
    tensors = {f"{entry.name}/{key}": tensor for entry in sorted_entries for key, tensor in entry.tensors().items()}
    metadata = {
        entry.name: json.dumps({"config": entry.config, "about": dict(entry.metadata)}, sort_keys=True)
        for entry in sorted_entries
    }
    save_tensors(archive, tensors, metadata, digest=True)


def find(results: Path, name: str) -> Run:
    """Return the run with this name. If the run is only in an archive of the results folder or of the checkout, unpack
    it into the folder of runs.

    Args:
        results: results folder.
        name: name of the run. `FOLDER/NAME` selects a run in an archive in FOLDER. `reference/NAME` may also be a run
            in the package (`iclbench.store.shipped`).

    Raises:
        UsageError: no run has this name, or its archive is damaged.
    """
    folder, slash, run_name = name.rpartition("/")
    if "/" in folder or (slash and not folder):
        return runs.find(results, name)  # raises the error
    run = Run(results / "runs" / check_name(run_name))
    if not slash and _exists(run):
        return run
    if (shipped := shipped_run(name)) is not None:
        return shipped
    archives = _archives(results, check_name(folder) if slash else "*")
    packed_names = set(shipped_names())
    for archive in archives:
        try:
            packed_runs = entries(archive)
        except UsageError as error:
            log.warning("%s", error)
            continue
        packed_names |= {f"{archive.parent.name}/{short_name(entry)}" for entry in packed_runs}
        if run_name in packed_runs:
            was_stored = _exists(run)
            unpacked = unpack(packed_runs[run_name], run, results)
            if not was_stored:
                log.info("run '%s' was unpacked from %s (weights only, without branches and tables)", run_name, archive)
            return unpacked
    if not archives and slash:
        raise UsageError(
            f"no archives of weights in {results / folder}; iclbench fetch-reference FILE_OR_URL unpacks those of the "
            "reference results, which a checkout of iclbench contains (results/reference)",
            code="missing-file",
        )
    names = [] if slash else [run.name for run in runs.all_runs(results)]
    hint = "including packed runs" if archives else "iclbench fetch-reference unpacks the reference weights"
    raise UnknownNameError("run", name, [*names, *sorted(packed_names)], hint=f"(in {results}; {hint})")


def results_folders(results: Path) -> list[Path]:
    """Return the given results folder, followed by the results folder of the checkout."""
    shipped = cards_folder("grids").parent / "results"
    return list(dict.fromkeys(folder.resolve() for folder in (results, shipped)))


def _archives(results: Path, folder: str) -> list[Path]:
    """Return the archives of the given results folder, followed by those of the checkout. Those of the reference
    results come first in each."""
    return [
        path
        for parent in results_folders(results)
        for path in sorted(parent.glob(f"{folder}/*{SUFFIX}"), key=lambda path: (path.parent.name != FOLDER, path))
    ]


def _exists(run: Run) -> bool:
    """Whether the run exists. An unpacked run whose weights were deleted does not, so that it is unpacked again."""
    return (run.path / "config.toml").is_file() and (run.is_finished or not run.is_unpacked)


def unpack(packed: PackedWeights, run: Run, results: Path) -> Run:
    """Unpack a run into its folder, unless the run exists. The configuration is written last, so that a folder with
    incomplete files does not count as a run."""
    check(packed.path)
    metadata = {key: value for key, value in packed.metadata.items() if key != DIGEST}
    with write_errors(results):
        run.path.mkdir(parents=True, exist_ok=True)
    with run.lock(wait=True), write_errors(results):
        if _exists(run):
            return _check_same(Run(run.path), packed)
        if run.is_started and not run.is_unpacked:
            raise UsageError(
                f"{run.path} has weights without config.toml; restore this file, or move the folder",
                code="missing-file",
            )
        write_text(run.path / run.UNPACKED, f"{packed.path}\n")
        save_tensors(run.weights, packed.tensors(), metadata, digest=True)
        write_text(run.path / "config.toml", packed.config)
    return Run(run.path)


def _check_same(run: Run, packed: PackedWeights) -> Run:
    """Return an existing run. Raise `UsageError` if its settings or weights differ from those in the archive."""
    name, description = f"{packed.path.parent.name}/{packed.name}", f"run '{run.name}' in {run.path}"
    advice = f"pass '{run.name}' to use this run; to use '{name}', choose another results folder or move the run"
    if without_codes(run.config.trained_part) != without_codes(packed.trained_part):
        raise UsageError(
            f"{description} was trained with settings that differ from those of '{name}'; {advice}", code="exists"
        )
    weights = of_run(run)
    if weights is None:
        raise UsageError(
            f"{description} is not '{name}': its training is not finished, or its weights are damaged; {advice}",
            code="exists",
        )
    if weights.digest != packed.digest:
        raise UsageError(f"{description} has weights that differ from those of '{name}'; {advice}", code="exists")
    return run
