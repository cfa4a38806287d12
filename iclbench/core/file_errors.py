"""Errors for data files that cannot be read."""

from __future__ import annotations

from pathlib import Path

from iclbench.core.errors import DataError, error_text


def cannot_read(path: Path, error: OSError, advice: str = "", missing: str = "missing-file") -> DataError:
    """Create the error for a file or folder that cannot be opened or read.

    Args:
        path: the file or folder.
        error: the system's error.
        advice: what the user can do.
        missing: the error code if the file or folder does not exist.
    """
    code = missing if isinstance(error, FileNotFoundError) else "unreadable-file"
    message = f"cannot read {path}: {error.strerror or error_text(error)}"
    return DataError(f"{message}; {advice}" if advice else message, code=code)
