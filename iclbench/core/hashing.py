"""Hashes of plain values, data and files."""

from __future__ import annotations

import hashlib
import json
from io import BufferedReader
from typing import Any

from pydantic import BaseModel


def content_hash(value: BaseModel | dict[str, Any], length: int = 12) -> str:
    """Return the first hexadecimal digits of the SHA-256 of a value as canonical JSON. Unset fields of pydantic models
    are left out."""
    plain_value = value.model_dump(mode="json", exclude_unset=True) if isinstance(value, BaseModel) else value
    text = json.dumps(plain_value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:length]


def data_fingerprint(*parts: str | bytes | memoryview) -> str:
    """Return the first 12 hexadecimal digits of the SHA-256 of all parts, concatenated."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part.encode() if isinstance(part, str) else part)
    return digest.hexdigest()[:12]


def file_hash(file: BufferedReader) -> bytes:
    """Return the SHA-256 of an open file as 32 bytes."""
    return hashlib.file_digest(file, "sha256").digest()
