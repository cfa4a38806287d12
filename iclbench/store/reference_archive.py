"""The archive of the reference results: tables and weights in one zip file, which is published with each version.

The package contains only the size and the SHA-256 of the archive (`reference_archive.toml`), so that any other file is
refused before it is unpacked. The same tables and weights give the same bytes.
"""

from __future__ import annotations

import hashlib
import io
import tomllib
import urllib.request
import zipfile
from http.client import HTTPException
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO

import tomli_w

from iclbench.core.errors import UsageError
from iclbench.core.files import write_text
from iclbench.core.formats import nbytes
from iclbench.core.version import version
from iclbench.store.runs import write_errors

FOLDER = "reference"
MANIFEST = Path(__file__).with_suffix(".toml")
_SUFFIXES = (".parquet", ".safetensors", ".sha256")
# Seconds without an answer of the server after which a download fails.
_TIMEOUT = 60


def archive_bytes(folder: Path) -> bytes:
    """Return the archive of the tables and weights in a folder."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:  # not compressed, because tables and weights hardly shrink
        for path in sorted(folder.iterdir()):
            if path.name.endswith(_SUFFIXES):
                entry = zipfile.ZipInfo(f"{FOLDER}/{path.name}")
                entry.create_system = 3  # otherwise it depends on the operating system
                archive.writestr(entry, path.read_bytes())
    return buffer.getvalue()


def description(archive: bytes) -> dict[str, object]:
    """Return the content of the manifest for an archive."""
    return {"bytes": len(archive), "sha256": hashlib.sha256(archive).hexdigest()}


def publish(folder: Path, target: Path) -> Path:
    """Write the archive of a folder to the folder `target`, update the manifest, and return the archive's path."""
    archive = archive_bytes(folder)
    path = target / f"iclbench-reference-{version()}.zip"
    target.mkdir(parents=True, exist_ok=True)
    path.write_bytes(archive)
    write_text(MANIFEST, f"# Written by `make reference-archive`.\n{tomli_w.dumps(description(archive))}")
    return path


def fetch(source: str, results: Path) -> Path:
    """Unpack the archive into `RESULTS/reference`, unless that folder already has its content. Return the folder.

    The archive is read into memory and checked before anything is written.

    Args:
        source: path or URL (`https://`, `http://` or `file://`) of the archive.
        results: results folder.

    Raises:
        UsageError: the archive cannot be read or is not the archive of this version of iclbench, or the folder exists
            with other content.
    """
    expected = tomllib.loads(MANIFEST.read_text(encoding="utf-8"))
    folder = results / FOLDER
    if folder.exists():
        if folder.is_dir() and description(archive_bytes(folder)) == expected:
            return folder
        raise UsageError(
            f"{folder} exists and differs from the reference results of iclbench {version()}; move it, or choose "
            "another folder with --results",
            code="exists",
        )
    archive = _read(source, expected["bytes"] + 1)
    if description(archive) != expected:
        raise UsageError(
            f"{source} is not the archive of the reference results of iclbench {version()} "
            f"({nbytes(expected['bytes'])}, SHA-256 {expected['sha256']}), or it is incomplete",
            code="unreadable-file",
        )
    with write_errors(results):
        results.mkdir(parents=True, exist_ok=True)
        with (
            TemporaryDirectory(prefix=".reference-", dir=results) as temporary,
            zipfile.ZipFile(io.BytesIO(archive)) as file,
        ):
            file.extractall(temporary)
            (Path(temporary) / FOLDER).rename(folder)
    return folder


def _read(source: str, limit: int) -> bytes:
    """Return at most `limit` bytes of a file or URL."""
    try:
        with _open(source) as file:
            return file.read(limit)
    except (OSError, HTTPException, ValueError) as error:
        raise UsageError(
            f"{source} cannot be read ({str(error) or type(error).__name__})", code="unreadable-file"
        ) from error


def _open(source: str) -> IO[bytes]:
    if "://" in source:
        response: IO[bytes] = urllib.request.urlopen(source, timeout=_TIMEOUT)
        return response
    return Path(source).open("rb")
