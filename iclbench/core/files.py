"""Writing files so that a crash at any moment leaves the old one or the new one, never half of one."""

from __future__ import annotations

import errno
import json
import os
import re
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from iclbench.core import digests
from iclbench.core.errors import UsageError
from iclbench.core.memory import IN_EVALUATION, advised

if TYPE_CHECKING:
    from torch import Tensor


# The entry of a safetensors file's metadata that names the file with its digest.
DIGEST = "sha256"
_TEMPORARY = re.compile(r"\..+\.\d+\.tmp")
# Writers on two machines, or in two containers, may have the same process id.
_WRITER = uuid.uuid4().hex[:8]


@contextmanager
def atomic(path: Path, sync: bool = True) -> Iterator[Path]:
    """Yield a temporary path next to `path`; it is synced and renamed to `path` if the block succeeds, removed if
    not. A block that removes it itself leaves `path` as it is. Links are followed; who may read the file is what the
    umask says. `sync` is for what cannot be made again in seconds.

    Raises:
        OSError: `path` is something that may not be replaced, like a device or a pipe.
    """
    path = path.resolve()
    if path.exists() and not path.is_file():
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    _make_folder(path.parent)
    temporary = path.with_name(f".{path.name}.{_WRITER}.{os.getpid()}.tmp")
    try:
        temporary.touch()
        mode = temporary.stat().st_mode
        yield temporary
        if not temporary.exists():
            return
        temporary.chmod(mode)  # safetensors lets nobody but the owner read
        if sync:
            with temporary.open("rb") as written:
                os.fsync(written.fileno())
        temporary.replace(path)
        if sync:
            _sync_folder(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


def write_text(path: Path, text: str, sync: bool = True) -> None:
    """Write a text file through `atomic`, in UTF-8, with the same bytes on every system."""
    with atomic(path, sync) as temporary:
        temporary.write_text(text, encoding="utf-8", newline="\n")


def check_replaceable(path: Path, what: str, is_own: Callable[[Path], bool]) -> None:
    """Raise `UsageError` if writing to `path` would replace a file that is neither empty nor `what` is written."""
    if path.is_file() and path.stat().st_size and not is_own(path):
        raise UsageError(f"{path} exists and is not {what}; name another file")


def check_state_file(path: Path) -> None:
    """`check_replaceable` for a saved state: one that says of which weights it is."""
    check_replaceable(path, "a saved state", lambda file: '"weights"' in tensors_metadata(file).get("about", ""))


def remove(path: Path) -> None:
    """Remove a file if there is one: where nothing may be written not even the attempt is allowed."""
    if path.exists():
        path.unlink(missing_ok=True)


def remove_leftovers(folder: Path) -> None:
    """Remove the temporary files of writers that were killed; the caller knows that no writer is at work here."""
    for path in folder.glob(".*.tmp"):
        if _TEMPORARY.fullmatch(path.name):
            path.unlink(missing_ok=True)


def _make_folder(folder: Path) -> None:
    missing_folders = [ancestor for ancestor in (folder, *folder.parents) if not ancestor.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    for ancestor in missing_folders:
        _sync_folder(ancestor.parent)


def _sync_folder(folder: Path) -> None:
    """Make sure that the names in a folder outlive a power failure, where the file system can."""
    try:
        handle = os.open(folder, os.O_RDONLY)
    except PermissionError:  # one that may be written to and not be read
        return
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(handle)


def holds_tensors(path: Path) -> bool:
    """Whether a safetensors file is there and as long as its header says."""
    from safetensors import SafetensorError, safe_open

    try:
        with advised(IN_EVALUATION), safe_open(path, framework="numpy"):
            return True
    except (SafetensorError, OSError):
        return False


def tensors_metadata(path: Path) -> dict[str, str]:
    """The metadata of a safetensors file; empty if it is not one or has none."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="numpy") as file:
            return dict(file.metadata() or {})
    except (SafetensorError, OSError):
        return {}


def save_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: dict[str, str], digest: bool = False) -> None:
    """Write a safetensors file atomically; tensors that share memory (tied weights) are written once each.

    With `digest`, the file's SHA-256 is written before it, into `PATH.sha256`, as `sha256sum` does, and the metadata
    names that file, so that a missing digest is detected. As long as the previous file exists, so does its digest, in a
    further line. If neither changes, they are not written.

    Raises:
        OSError: the file system refuses; safetensors has an exception of its own for that.
    """
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    if digest:
        metadata = metadata | {DIGEST: digest_path(path).name}
    digest_file, previous_line = digest_path(path), ""
    copies = {key: value.detach().cpu().contiguous().clone() for key, value in tensors.items()}
    with atomic(path) as temporary:
        try:
            save_file(copies, temporary, metadata)
        except SafetensorError as error:
            raise _refusal(str(error)) from error
        _sort_metadata(temporary)
        if digest:
            sha256 = digests.of_file(temporary)
            line = f"{sha256}  {path.name}\n"
            previous_line = digest_file.read_text(errors="replace") if path.is_file() and digest_file.is_file() else ""
            if previous_line == line and digests.of_file(path) == sha256:
                temporary.unlink()
                return
            write_text(digest_file, line + previous_line)
    if previous_line:
        write_text(digest_file, line)


def _sort_metadata(path: Path) -> None:
    """Put the metadata of a safetensors file in the order of their keys: the library writes them in one of chance, and
    the same tensors are to be the same bytes."""
    with path.open("r+b") as file:
        size = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(size))
        if metadata := header.get("__metadata__"):
            header["__metadata__"] = dict(sorted(metadata.items()))
            file.seek(8)
            file.write(json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode().ljust(size))


def digest_path(path: Path) -> Path:
    """The path of a file's digest."""
    return path.with_name(f"{path.name}.sha256")


def _refusal(text: str) -> OSError:
    """What the file system said, in the words of safetensors: `I/O error: File too large (os error 27)`."""
    code = re.search(r"\b(?:os error|code:) (\d+)", text)
    return OSError(int(code[1]), os.strerror(int(code[1]))) if code else OSError(text)
