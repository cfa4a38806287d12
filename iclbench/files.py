"""Writing files so that a crash at any moment leaves the old one or the new one, never half of one."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


@contextmanager
def atomic(path: Path) -> Iterator[Path]:
    """Yield a temporary path beside `path`; it is synced and renamed to `path` if the block succeeds, removed if
    not. Links are followed.

    Raises:
        OSError: `path` is something that may not be replaced, like a device or a pipe.
    """
    path = path.resolve()
    if path.exists() and not path.is_file():
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        yield temporary
        with temporary.open("rb") as written:
            os.fsync(written.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def holds_tensors(path: Path) -> bool:
    """Whether a safetensors file is there and as long as its header says."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="numpy"):
            return True
    except (SafetensorError, OSError):
        return False


def save_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: dict[str, str]) -> None:
    """Write a safetensors file atomically; tensors that share memory (tied weights) are written once each.

    Raises:
        OSError: the file system refuses; safetensors has an exception of its own for that.
    """
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    copies = {key: value.detach().cpu().contiguous().clone() for key, value in tensors.items()}
    with atomic(path) as temporary:
        try:
            save_file(copies, temporary, metadata)
        except SafetensorError as error:
            raise OSError(str(error)) from error
