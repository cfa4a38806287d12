"""Hashes of plain values."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from pydantic import BaseModel


def content_hash(value: BaseModel | dict[str, Any], length: int = 12) -> str:
    """The first hexadecimal digits of the SHA-256 of canonical JSON; unset fields of a pydantic model do not count."""
    plain = value.model_dump(mode="json", exclude_unset=True) if isinstance(value, BaseModel) else value
    text = json.dumps(plain, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:length]
