"""Checkpoints as transformers writes them: from a folder or from the hub's local cache, in one line where that fails.

A folder is read without any attempt to reach the network. Code that comes with a checkpoint is not run unless it is
requested; there is no prompt.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import reprlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from iclbench.core.errors import DataError, UnknownNameError, UsageError
from iclbench.core.hashing import content_hash

_DTYPES = ("float32", "bfloat16", "float16", "float64", "auto")
_WEIGHTS = ("*.safetensors", "*.bin")
# What else of a folder says what the model is.
_DEFINING = ("*.json", "*.model", "*.txt", "*.tiktoken", "*.py")
_TOKENIZERS = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "spiece.model", "*.tiktoken")
_ADAPTER = "adapter_config.json"
_GENERATION = "generation_config.json"
# Classes of tokenizers that are what tokenizer.json says and nothing else.
_GENERIC = ("PreTrainedTokenizerFast", "TokenizersBackend")
_NOT_CACHED = "it is not wholly in the local cache, and offline it is not fetched; give a folder, or go online"


class DoesNotFitError(UsageError):
    """The device has no memory for the model, now."""

    code = "out-of-memory"


@dataclass(frozen=True)
class Source:
    """Where a checkpoint is.

    Attributes:
        name: as the user wrote it.
        folder: None: it is an id of the hub.
        revision: branch, tag or commit, of an id.
        trust_remote_code: whether its code may be run.
        offline: only the local cache is looked at.
    """

    name: str
    folder: Path | None = None
    revision: str | None = None
    trust_remote_code: bool = False
    offline: bool = False

    @property
    def called(self) -> str:
        """The contestant's name."""
        return self.folder.resolve().name if self.folder else self.name.rpartition("/")[2]

    @property
    def where(self) -> str:
        """The name or path that transformers takes."""
        return str(self.folder or self.name)

    @property
    def options(self) -> dict[str, Any]:
        """Options of transformers for finding the files."""
        return {"revision": self.revision, "local_files_only": self.offline or self.folder is not None}


def find(name: str, *, revision: str | None = None, trust_remote_code: bool = False, offline: bool = False) -> Source:
    """The folder or the id that is meant.

    Raises:
        UsageError: there is no such folder, and it is no id either, or offline one that is not in the local cache; or
            the folder holds an adapter.
        DataError: the folder lacks configuration, weights or tokenizer.
    """
    if offline:
        _stay_offline()
    folder = Path(name).expanduser()
    if folder.is_dir():
        if revision:
            raise UsageError(f"'{name}' is a folder, which has no revisions; leave out --revision {revision}")
        _complete(folder)
        return Source(name, folder, None, trust_remote_code, offline)
    if folder.exists():
        raise DataError(f"'{name}' is a file; give the folder with config.json, weights and tokenizer")
    if folder.is_absolute() or name.startswith((".", "~")) or name.count("/") > 1 or name.endswith("/"):
        raise UsageError(f"there is no folder '{name}'; give the folder of a checkpoint, or the id of a model")
    source = Source(name, None, revision, trust_remote_code, offline)
    if _offline(source):
        _in_cache(source)
    return source


def read(source: Source, *, dtype: str = "float32", device: str = "cpu") -> tuple[Any, Any, str]:
    """The model, its tokenizer, and a hash that identifies both.

    Raises:
        UsageError: there is no such model, it wants what was not allowed, or it is no causal language model.
        DoesNotFitError: the device has not enough memory.
        DataError: files of the checkpoint are missing or damaged.
    """
    if dtype not in _DTYPES:
        raise UnknownNameError("dtype", dtype, _DTYPES)
    import torch
    from transformers import AutoModelForCausalLM

    source, raw = _resolved(source)
    config = _configuration(source, raw)
    tokenizer = _tokenizer(source)
    quantised = getattr(config, "quantization_config", None) is not None
    with _one_line(source, "its weights cannot be read", device):
        module, about = AutoModelForCausalLM.from_pretrained(
            source.where,
            config=config,
            trust_remote_code=source.trust_remote_code,
            dtype=dtype if dtype == "auto" else getattr(torch, dtype),
            output_loading_info=True,
            **source.options,
            **({"device_map": {"": device}} if quantised else {}),
        )
    wrong = sorted(about["missing_keys"]) + sorted(str(key) for key in about["mismatched_keys"])
    if wrong:
        raise DataError(f"'{source.name}' lacks {len(wrong)} of the weights of a {type(module).__name__}: {wrong[0]}")
    try:
        module = module if quantised else module.to(device)
    except torch.OutOfMemoryError:
        raise _too_large(source, device) from None
    return module, tokenizer, identity(source, str(module.dtype))


@contextmanager
def quiet() -> Iterator[None]:
    """Within, transformers reports errors only, and so does the hub's library: of five attempts to reach it, say."""
    from huggingface_hub.utils import logging as hub
    from transformers.utils import logging as reports

    verbosity, bars, of_hub = reports.get_verbosity(), reports.is_progress_bar_enabled(), hub.get_verbosity()
    reports.set_verbosity(logging.ERROR)
    hub.set_verbosity(logging.ERROR)
    reports.disable_progress_bar()
    try:
        yield
    finally:
        reports.set_verbosity(verbosity)
        hub.set_verbosity(of_hub)
        if bars:
            reports.enable_progress_bar()


def _complete(folder: Path) -> None:
    """Raises `DataError` where one of the three is missing, before anything is imported."""
    if (folder / _ADAPTER).exists():
        raise _adapted(str(folder))
    for file, patterns in (("config.json", ("config.json",)), ("weights", _WEIGHTS), ("tokenizer", _TOKENIZERS)):
        if not any(True for pattern in patterns for _ in folder.glob(pattern)):
            patterns_text = "" if patterns == (file,) else f" ({', '.join(patterns)})"
            raise DataError(
                f"'{folder}' has no {file}{patterns_text}; save model and tokenizer there with save_pretrained"
            )


def _adapted(name: str) -> UsageError:
    """Whether transformers would apply an adapter, or leave it out without a word, depends on what is installed."""
    return UsageError(
        f"'{name}' holds an adapter ({_ADAPTER}), which is not applied here; merge it into its model (merge_and_unload "
        "of peft), save that, and give its folder"
    )


def _stay_offline() -> None:
    """The hub's library reads the variable once, when it is imported."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    if (constants := sys.modules.get("huggingface_hub.constants")) is not None:
        constants.HF_HUB_OFFLINE = True  # type: ignore[attr-defined]


def _offline(source: Source) -> bool:
    """Asked for, or said by the variable of the hub's library."""
    return source.offline or os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE")


def _in_cache(source: Source) -> None:
    """Raises `UsageError` where the local cache has nothing of an id, before torch and transformers are imported."""
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    with suppress(HFValidationError):  # no id at all, of which transformers says more
        if not isinstance(try_to_load_from_cache(source.name, "config.json", revision=source.revision), str):
            raise _not_found(source, _NOT_CACHED)


def _not_found(source: Source, reason: str) -> UsageError:
    return UsageError(f"'{source.name}' is no folder here, and no model of the hub can be had: {reason}")


def _resolved(source: Source) -> tuple[Source, dict[str, Any]]:
    """The source, of an id with the commit that the revision stands for now, and what its config.json says."""
    from transformers.utils import cached_file

    with _one_line(source, "config.json cannot be read"):
        path = Path(cached_file(filename="config.json", path_or_repo_id=source.where, **source.options))
        config = json.loads(path.read_text(encoding="utf-8"))
        adapter = cached_file(
            filename=_ADAPTER,
            path_or_repo_id=source.where,
            _raise_exceptions_for_missing_entries=False,
            _raise_exceptions_for_connection_errors=False,
            **source.options,
        )
    if adapter is not None:
        raise _adapted(source.name)
    if not (isinstance(config, dict) and (config.get("model_type") or config.get("auto_map"))):
        raise DataError(f"'{source.name}': config.json names no model type, so it is not of a checkpoint")
    for key, kind, expected in (("model_type", str, "a word"), ("auto_map", dict, "a table of classes")):
        if not isinstance(config.get(key) or kind(), kind):
            raise DataError(f"'{source.name}': config.json: {key} must be {expected}, got {reprlib.repr(config[key])}")
    return (source if source.folder else replace(source, revision=path.parent.name)), config


def _configuration(source: Source, raw: dict[str, Any]) -> Any:
    from transformers import CONFIG_MAPPING, AutoConfig, __version__

    from iclbench.language.models.architectures import refusal

    kind, own_code = raw.get("model_type"), raw.get("auto_map") or {}
    if kind not in CONFIG_MAPPING and own_code and not source.trust_remote_code:
        raise UsageError(
            f"'{source.name}' wants to run code of its own ({', '.join(sorted(map(str, own_code.values())))}); read it "
            "and give --trust-remote-code to allow that"
        )
    if kind not in CONFIG_MAPPING and not own_code:
        raise DataError(f"'{source.name}' is of the type {kind!r}, which transformers {__version__} does not know")
    with _one_line(source, "config.json cannot be read"):
        config = AutoConfig.from_pretrained(source.where, trust_remote_code=source.trust_remote_code, **source.options)
    if reason := refusal(config):
        raise UsageError(f"'{source.name}' is no causal language model: {reason}; give one like GPT-2 or Llama")
    return config


def _tokenizer(source: Source) -> Any:
    """The tokenizer of tokenizer.json, where that file is complete: for some architectures transformers would take the
    rules by which the first tokenizer of that architecture split texts."""
    from transformers import AutoTokenizer, PreTrainedTokenizerFast
    from transformers.models.auto.tokenization_auto import get_tokenizer_config

    with _one_line(source, "its tokenizer cannot be read"):
        about = get_tokenizer_config(source.where, **source.options)
        if about.get("tokenizer_class") in _GENERIC and "auto_map" not in about:
            return PreTrainedTokenizerFast.from_pretrained(source.where, **source.options)
        return AutoTokenizer.from_pretrained(source.where, trust_remote_code=source.trust_remote_code, **source.options)


def _too_large(source: Source, device: str) -> DoesNotFitError:
    return DoesNotFitError(f"'{source.name}' does not fit on {device}; give --dtype bfloat16 or another --device")


@contextmanager
def _one_line(source: Source, what: str, device: str = "cpu") -> Iterator[None]:
    """What goes wrong in transformers, in one line that names the way out."""
    import torch

    try:
        yield
    except (torch.OutOfMemoryError, MemoryError) as error:
        raise _too_large(source, device) from error
    except Exception as error:
        message_line = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
        if "trust_remote_code" in str(error):
            message = (
                f"'{source.name}' wants to run code of its own; read it and give --trust-remote-code to allow that"
            )
            raise UsageError(message) from error
        if source.folder is None and isinstance(error, OSError):
            advice = "; give a folder, or --offline where there is no network"
            raise _not_found(source, _NOT_CACHED if _offline(source) else message_line.rstrip(".") + advice) from error
        raise DataError(f"'{source.name}': {what}: {message_line}") from error


def identity(source: Source, dtype: str) -> str:
    """Hash of what defines the model: the commit of one from the hub, the files of a folder."""
    if source.folder is None:
        return content_hash({"id": source.name, "commit": source.revision, "dtype": dtype})
    weights = _WEIGHTS[:1] if any(source.folder.glob(_WEIGHTS[0])) else _WEIGHTS[1:]
    files = sorted({path for pattern in weights + _DEFINING for path in source.folder.glob(pattern)})
    digests = {path.name: _sha256(path) for path in files if path.name != _GENERATION}
    return content_hash({"files": digests, "dtype": dtype} | _ends(source.folder / _GENERATION))


def _ends(path: Path) -> dict[str, Any]:
    """The tokens with which texts end, all that is used of how a checkpoint would generate; empty: it names none."""
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):  # of which transformers has said more, if anybody
        return {}
    tokens = config.get("eos_token_id") if isinstance(config, dict) else None
    return {} if tokens is None else {"ends": tokens}


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
