"""Write files atomically: after a crash, either the complete old file or the complete new file exists."""

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
from iclbench.core.memory import EVALUATION_REMEDY, memory_advice

if TYPE_CHECKING:
    from torch import Tensor


# Key in the metadata of a safetensors file. Its value is the name of the file that contains the digest.
DIGEST = "sha256"
_TEMPORARY = re.compile(r"\..+\.\d+\.tmp")
# Part of temporary names, since writers on two machines or in two containers may have the same process id.
_WRITER = uuid.uuid4().hex[:8]


@contextmanager
def atomic(path: Path, sync: bool = True) -> Iterator[Path]:
    """Yield a temporary path in the folder of `path`. It replaces `path` if the block succeeds; otherwise it is
    removed.

    If the block removes the temporary file, `path` does not change. Symbolic links are followed, and the umask
    determines the permissions of the file.

    Args:
        path: the file to write.
        sync: whether to sync the file and its folder to disk. Not needed for files that can be recomputed in seconds.

    Raises:
        OSError: `path` is not a regular file but, for example, a device or a pipe.
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
        temporary.chmod(mode)  # safetensors creates files that only the owner can read
        if sync:
            with temporary.open("r+b") as file:  # Windows syncs only files that are open for writing
                os.fsync(file.fileno())
        temporary.replace(path)
        if sync:
            _sync_folder(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


def write_text(path: Path, text: str, sync: bool = True) -> None:
    """Write a text file atomically, in UTF-8 and with the same line endings on all systems."""
    with atomic(path, sync) as temporary:
        temporary.write_text(text, encoding="utf-8", newline="\n")


def nearest_existing(path: Path) -> Path:
    """Return the path, or its nearest parent that exists."""
    path = path.absolute()
    return next(folder for folder in (path, *path.parents) if folder.exists())


def check_output_file(path: Path, option: str) -> None:
    """Raise `UsageError` before any computation if a path given with an option is not a file, or cannot be written."""
    if path.exists() and not path.is_file():
        kind = "folder" if path.is_dir() else "device or a pipe"
        raise UsageError(f"{option} {path} is a {kind}; pass the path of a file", code="bad-value")
    folder = nearest_existing(path.absolute().parent)
    if not (folder.is_dir() and os.access(folder, os.W_OK)):
        raise UsageError(
            f"{option} {path}: no permission to write in {folder}; pass the path of another file",
            code="unreadable-file",
        )


def check_replaceable(path: Path, kind: str, is_replaceable: Callable[[Path], bool]) -> None:
    """Raise `UsageError` if `path` is a non-empty file of another kind, which must not be overwritten.

    Args:
        path: the file to write.
        kind: the kind of file, such as "a saved state", for the message.
        is_replaceable: function that returns whether an existing file is of this kind.
    """
    if path.is_file() and path.stat().st_size and not is_replaceable(path):
        raise UsageError(f"{path} exists and is not {kind}; pass the path of another file", code="exists")


def check_state_file(path: Path) -> None:
    """Raise `UsageError` if `path` is a non-empty file that is not a saved state. A saved state is recognised by the
    key "weights" in its metadata."""
    check_replaceable(path, "a saved state", lambda file: '"weights"' in tensors_metadata(file).get("about", ""))


def remove(path: Path) -> None:
    """Remove a file if it exists. A missing file is not an error, even in a read-only folder."""
    if path.exists():
        path.unlink(missing_ok=True)


def remove_leftovers(folder: Path) -> None:
    """Remove the temporary files of writers that were killed. Other processes must not write to the folder at the same
    time."""
    for path in folder.glob(".*.tmp"):
        if _TEMPORARY.fullmatch(path.name):
            path.unlink(missing_ok=True)


def _make_folder(folder: Path) -> None:
    missing_folders = [ancestor for ancestor in (folder, *folder.parents) if not ancestor.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    for ancestor in missing_folders:
        _sync_folder(ancestor.parent)


def _sync_folder(folder: Path) -> None:
    """Sync a folder to disk if the file system supports it, so that new entries survive a power failure."""
    try:
        handle = os.open(folder, os.O_RDONLY)
    except PermissionError:  # this process may write to the folder but not read it
        return
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(handle)


def holds_tensors(path: Path) -> bool:
    """Return whether a safetensors file exists and has the length declared by its header."""
    from safetensors import SafetensorError, safe_open

    try:
        with memory_advice(EVALUATION_REMEDY), safe_open(path, framework="numpy"):
            return True
    except (SafetensorError, OSError):
        return False


def tensors_metadata(path: Path) -> dict[str, str]:
    """Return the metadata of a safetensors file; empty for other files and for files without metadata."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="numpy") as file:
            return dict(file.metadata() or {})
    except (SafetensorError, OSError):
        return {}


def save_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: dict[str, str], digest: bool = False) -> None:
    """Write a safetensors file atomically. Tensors that share memory (tied weights) are written separately.

    With `digest`, the SHA-256 of the new file is written to `PATH.sha256`, in the format of `sha256sum`, before the new
    file replaces the previous one. Until then, a second line has the digest of the previous file. The metadata contain
    the name of the digest file, so that its absence is detected. If nothing has changed, neither file is written.

    Raises:
        OSError: the file system reports an error.
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
            raise _system_error(str(error)) from error
        _sort_metadata(temporary)
        if digest:
            sha256 = digests.file_digest(temporary)
            line = f"{sha256}  {path.name}\n"
            previous_line = digest_file.read_text(errors="replace") if path.is_file() and digest_file.is_file() else ""
            if previous_line == line and digests.file_digest(path) == sha256:
                temporary.unlink()
                return
            write_text(digest_file, line + previous_line)
    if previous_line:
        write_text(digest_file, line)


def _sort_metadata(path: Path) -> None:
    """Sort the metadata of a safetensors file by key. The library writes them in random order, but equal tensors should
    give equal bytes."""
    with path.open("r+b") as file:
        size = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(size))
        if metadata := header.get("__metadata__"):
            header["__metadata__"] = dict(sorted(metadata.items()))
            file.seek(8)
            file.write(json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode().ljust(size))


def digest_path(path: Path) -> Path:
    """Return the path of the file that contains the digest of `path`."""
    return path.with_name(f"{path.name}.sha256")


def _system_error(text: str) -> OSError:
    """Convert a message of safetensors, such as `I/O error: File too large (os error 27)`, to the system's error."""
    code = re.search(r"\b(?:os error|code:) (\d+)", text)
    return OSError(int(code[1]), os.strerror(int(code[1]))) if code else OSError(text)
