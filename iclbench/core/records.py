"""Records of batch-first tensors. They can be indexed along the batch, moved between devices, saved and loaded.

Episodes, predictions and the states of predictors are frozen dataclasses whose fields are tensors, or records, tuples
and dicts of tensors. Records are saved in the safetensors format, with a JSON skeleton in the metadata. Loading a file
never executes code.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor

from iclbench.core import limits
from iclbench.core.errors import DataError, one_line
from iclbench.core.files import check_replaceable, save_tensors, tensors_metadata

_Record = TypeVar("_Record", bound="TensorRecord")


@dataclasses.dataclass(frozen=True)
class TensorRecord:
    """Base class of all frozen dataclasses of batch-first tensors."""

    _classes: ClassVar[dict[str, type[TensorRecord]]] = {}

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        TensorRecord._classes[f"{cls.__module__}.{cls.__qualname__}"] = cls

    def map(self: _Record, fn: Callable[[Tensor], Tensor]) -> _Record:
        """Return the record with `fn` applied to all its tensors."""
        changes = {f.name: _map(getattr(self, f.name), fn) for f in dataclasses.fields(self)}
        return dataclasses.replace(self, **changes)

    def __getitem__(self: _Record, index: Any) -> _Record:
        """Select episodes along the batch axis with a slice, or with a boolean or integer tensor. A tuple selects along
        several axes."""
        return self.map(lambda t: t[index])

    def to(self: _Record, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> _Record:
        """Move the record to `device`, and cast its floating-point tensors to `dtype`."""
        return self.map(lambda t: t.to(device=device, dtype=dtype if t.is_floating_point() else None))

    def tensors(self) -> dict[str, Tensor]:
        """Return all tensors by their dotted paths."""
        tensors: dict[str, Tensor] = {}
        _skeleton(self, "", tensors)
        return tensors

    @property
    def nbytes(self) -> int:
        return sum(t.numel() * t.element_size() for t in self.tensors().values())

    def save(self, path: Path | str, about: Mapping[str, str] | None = None) -> None:
        """Write the record to one safetensors file.

        Args:
            path: the file. An existing saved record is replaced.
            about: texts to store, which `read_about` returns.

        Raises:
            UsageError: the file exists and is not a saved record (code `exists`).
        """
        check_replaceable(Path(path), "a saved record", lambda file: "record" in tensors_metadata(file))
        tensors: dict[str, Tensor] = {}
        skeleton = _skeleton(self, "", tensors)
        save_tensors(Path(path), tensors, {"record": json.dumps(skeleton), "about": json.dumps(dict(about or {}))})

    @classmethod
    def load(cls: type[_Record], path: Path | str, device: torch.device | str = "cpu") -> _Record:
        """Read a file that was written by `save`.

        Raises:
            DataError: the file is missing or does not hold a saved record, or the record belongs to another class.
        """
        from safetensors import SafetensorError, safe_open

        try:
            limits.open_file(Path(path)).close()  # `safe_open` would wait for the writer of a pipe
            with safe_open(str(path), framework="pt", device=str(device)) as file:
                record = _rebuild(json.loads((file.metadata() or {})["record"]), file.get_tensor)
        except (SafetensorError, OSError, KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
            raise _unreadable(path, cls.__name__, error) from error
        if not isinstance(record, cls):
            raise DataError(f"{path} holds a {type(record).__name__}, not a {cls.__name__}")
        return record


def read_about(path: Path | str) -> dict[str, str]:
    """Return the texts `about` of a saved record. Raise `DataError` if the file is not a saved record."""
    from safetensors import SafetensorError, safe_open

    try:
        limits.open_file(Path(path)).close()
        with safe_open(str(path), framework="pt") as file:
            about = json.loads((file.metadata() or {}).get("about", "{}"))
            return {str(key): str(value) for key, value in about.items()}
    except (SafetensorError, OSError, ValueError, AttributeError, RecursionError) as error:
        raise _unreadable(path, "record", error) from error


def _unreadable(path: Path | str, kind: str, error: Exception) -> DataError:
    code = "missing-file" if isinstance(error, FileNotFoundError) else "unreadable-file"
    return DataError(f"{path} does not hold a saved {kind} ({one_line(error)})", code=code)


def cat(records: list[_Record]) -> _Record:
    """Concatenate records of the same structure along the batch axis."""
    if len(records) == 1:
        return records[0]
    tensor_lists = [list(r.tensors().values()) for r in records]
    joined = iter([torch.cat(tensors) for tensors in zip(*tensor_lists, strict=True)])
    return records[0].map(lambda _: next(joined))


def _map(value: Any, fn: Callable[[Tensor], Tensor]) -> Any:
    if isinstance(value, Tensor):
        return fn(value)
    if isinstance(value, TensorRecord):
        return value.map(fn)
    if isinstance(value, tuple):
        return tuple(_map(v, fn) for v in value)
    if isinstance(value, dict):
        return {k: _map(v, fn) for k, v in value.items()}
    return value


def _skeleton(value: Any, path: str, tensors: dict[str, Tensor]) -> Any:
    """Return a JSON description of `value`, with a path in place of each tensor, and add the tensors to `tensors`."""
    if isinstance(value, Tensor):
        tensors[path] = value
        return {"tensor": path}
    prefix = f"{path}." if path else ""
    if isinstance(value, TensorRecord):
        name = f"{type(value).__module__}.{type(value).__qualname__}"
        fields = {
            f.name: _skeleton(getattr(value, f.name), prefix + f.name, tensors) for f in dataclasses.fields(value)
        }
        return {"record": name, "fields": fields}
    if isinstance(value, tuple):
        return {"tuple": [_skeleton(v, f"{prefix}{i}", tensors) for i, v in enumerate(value)]}
    if isinstance(value, dict):
        return {"dict": {k: _skeleton(v, prefix + k, tensors) for k, v in value.items()}}
    return {"value": value}


def _rebuild(skeleton: Any, tensor: Callable[[str], Tensor]) -> Any:
    """Build the value from its description. `tensor` returns the tensor for a path."""
    match skeleton:
        case {"tensor": path}:
            return tensor(path)
        case {"record": name, "fields": fields}:
            cls = TensorRecord._classes[name]
            return cls(**{k: _rebuild(v, tensor) for k, v in fields.items()})
        case {"tuple": items}:
            return tuple(_rebuild(v, tensor) for v in items)
        case {"dict": items}:
            return {k: _rebuild(v, tensor) for k, v in items.items()}
        case {"value": value}:
            return value
    raise ValueError(f"unreadable record description {skeleton!r}")
