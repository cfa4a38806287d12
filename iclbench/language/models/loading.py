"""Loading of transformers checkpoints from a folder or the Hugging Face hub, with one-line errors.

A folder is read without network access. The custom code of a checkpoint runs only with `--trust-remote-code`; without
it, an error is raised instead of transformers' question to the user.
"""

from __future__ import annotations

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

from iclbench.core import digests
from iclbench.core.errors import DataError, UnknownNameError, UsageError
from iclbench.store.identity import language_weights_id

_DTYPES = ("float32", "bfloat16", "float16", "float64", "auto")
_WEIGHTS = ("*.safetensors", "*.bin")
# Other files of a folder that define the model.
_OTHER_FILES = ("*.json", "*.model", "*.txt", "*.tiktoken", "*.py")
_TOKENIZERS = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "spiece.model", "*.tiktoken")
_ADAPTER = "adapter_config.json"
_GENERATION = "generation_config.json"
# Tokenizer classes that tokenizer.json defines completely.
_GENERIC = ("PreTrainedTokenizerFast", "TokenizersBackend")
_NOT_CACHED = "offline, and the local cache lacks some of its files; give a folder, or leave out --offline"


class DoesNotFitError(UsageError):
    """The device does not have enough free memory for the model."""

    code = "out-of-memory"


@dataclass(frozen=True)
class Source:
    """The location of a checkpoint.

    Attributes:
        name: the folder or hub id that the user gave.
        folder: the folder; None for a hub id.
        revision: branch, tag or commit of a hub id.
        trust_remote_code: whether code of the checkpoint may run.
        offline: whether only the local cache is searched.
    """

    name: str
    folder: Path | None = None
    revision: str | None = None
    trust_remote_code: bool = False
    offline: bool = False

    @property
    def model_name(self) -> str:
        """The default name of the model in the tables."""
        return self.folder.resolve().name if self.folder else self.name.rpartition("/")[2]

    @property
    def path_or_id(self) -> str:
        """The path or hub id, as an argument of transformers."""
        return str(self.folder or self.name)

    @property
    def options(self) -> dict[str, Any]:
        """Options that tell transformers where to find the files."""
        return {"revision": self.revision, "local_files_only": self.offline or self.folder is not None}


def find(name: str, *, revision: str | None = None, trust_remote_code: bool = False, offline: bool = False) -> Source:
    """Return the source of a checkpoint, from a folder or a hub id.

    Raises:
        UsageError: the folder does not exist or holds an adapter, or the hub may not be used and the local cache lacks
            the model.
        DataError: the folder lacks configuration, weights or tokenizer.
    """
    if offline:
        _stay_offline()
    folder = Path(name).expanduser()
    if folder.is_dir():
        if revision:
            raise UsageError(f"'{name}' is a folder and has no revisions; leave out --revision", code="conflict")
        _check_complete(folder)
        return Source(name, folder, None, trust_remote_code, offline)
    if folder.exists():
        raise DataError(
            f"'{name}' is a file; give the folder with config.json, weights and tokenizer", code="bad-value"
        )
    if folder.is_absolute() or name.startswith((".", "~")) or name.count("/") > 1 or name.endswith("/"):
        raise UsageError(
            f"the folder '{name}' does not exist; give the folder of a checkpoint, or the id of a model",
            code="missing-file",
        )
    source = Source(name, None, revision, trust_remote_code, offline)
    if _is_offline(source):
        _check_cached(source)
    return source


def read(source: Source, *, dtype: str = "float32", device: str = "cpu") -> tuple[Any, Any, str]:
    """Load a checkpoint. Return the model, its tokenizer, and a hash that identifies both.

    Raises:
        UsageError: the model does not exist, needs untrusted code, or is not a causal language model.
        DoesNotFitError: the device does not have enough memory.
        DataError: files of the checkpoint are missing or damaged.
    """
    if dtype not in _DTYPES:
        raise UnknownNameError("dtype", dtype, _DTYPES)
    import torch
    from transformers import AutoModelForCausalLM

    source, raw_config = _resolved(source)
    config = _configuration(source, raw_config)
    tokenizer = _tokenizer(source)
    is_quantised = getattr(config, "quantization_config", None) is not None
    with _one_line_errors(source, "cannot read the weights", device):
        module, loading_info = AutoModelForCausalLM.from_pretrained(
            source.path_or_id,
            config=config,
            trust_remote_code=source.trust_remote_code,
            dtype=dtype if dtype == "auto" else getattr(torch, dtype),
            output_loading_info=True,
            **source.options,
            **({"device_map": {"": device}} if is_quantised else {}),
        )
    bad_keys = sorted(loading_info["missing_keys"]) + sorted(str(key) for key in loading_info["mismatched_keys"])
    if bad_keys:
        raise DataError(
            f"'{source.name}' lacks {len(bad_keys)} weights of a {type(module).__name__}, such as {bad_keys[0]}; "
            "download it again",
            code="unreadable-file",
        )
    try:
        module = module if is_quantised else module.to(device)
    except torch.OutOfMemoryError:
        raise _too_large(source, device) from None
    return module, tokenizer, weights_id(source, str(module.dtype))


@contextmanager
def quiet_logs() -> Iterator[None]:
    """Within the block, let transformers and huggingface_hub log only errors and show no progress bars."""
    from huggingface_hub.utils import logging as hub_logging
    from transformers.utils import logging as transformers_logging

    verbosity, hub_verbosity = transformers_logging.get_verbosity(), hub_logging.get_verbosity()
    has_progress_bars = transformers_logging.is_progress_bar_enabled()
    transformers_logging.set_verbosity(logging.ERROR)
    hub_logging.set_verbosity(logging.ERROR)
    transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        transformers_logging.set_verbosity(verbosity)
        hub_logging.set_verbosity(hub_verbosity)
        if has_progress_bars:
            transformers_logging.enable_progress_bar()


def _check_complete(folder: Path) -> None:
    """Raise `DataError` if a folder lacks configuration, weights or tokenizer. This check does not import torch."""
    if (folder / _ADAPTER).exists():
        raise _adapter_error(str(folder))
    for file, patterns in (("config.json", ("config.json",)), ("weights", _WEIGHTS), ("tokenizer", _TOKENIZERS)):
        if not any(True for pattern in patterns for _ in folder.glob(pattern)):
            patterns_text = "" if patterns == (file,) else f" ({', '.join(patterns)})"
            raise DataError(
                f"'{folder}' has no {file}{patterns_text}; save model and tokenizer there with save_pretrained",
                code="missing-file",
            )


def _adapter_error(name: str) -> UsageError:
    """Return the error for an adapter. Adapters are refused, because transformers applies them or silently ignores
    them, depending on the installed packages."""
    return UsageError(
        f"'{name}' holds an adapter ({_ADAPTER}), which is not supported; merge it into its model (merge_and_unload of "
        "peft), save the merged model and give its folder",
        code="not-supported",
    )


def _stay_offline() -> None:
    """Set HF_HUB_OFFLINE. If huggingface_hub is already imported, change its copy of the variable as well."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    if (constants := sys.modules.get("huggingface_hub.constants")) is not None:
        constants.HF_HUB_OFFLINE = True  # type: ignore[attr-defined]


def _is_offline(source: Source) -> bool:
    """Return whether `--offline` is given or HF_HUB_OFFLINE is set."""
    return source.offline or os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE")


def _check_cached(source: Source) -> None:
    """Raise `UsageError` if the local cache lacks a model of the hub. This check imports neither torch nor
    transformers."""
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    with suppress(HFValidationError):  # the name is not a valid id; transformers raises the error later
        if not isinstance(try_to_load_from_cache(source.name, "config.json", revision=source.revision), str):
            raise _not_found(source, _NOT_CACHED)


def _not_found(source: Source, reason: str) -> UsageError:
    return UsageError(
        f"'{source.name}' is not a folder, and cannot be loaded from the hub: {reason}", code="missing-file"
    )


def _resolved(source: Source) -> tuple[Source, dict[str, Any]]:
    """Read config.json. Return the source, whose revision is now the commit if it has a hub id, and the content of the
    file."""
    from transformers.utils import cached_file

    with _one_line_errors(source, "cannot read config.json"):
        path = Path(cached_file(filename="config.json", path_or_repo_id=source.path_or_id, **source.options))
        config = json.loads(path.read_text(encoding="utf-8"))
        adapter = cached_file(
            filename=_ADAPTER,
            path_or_repo_id=source.path_or_id,
            _raise_exceptions_for_missing_entries=False,
            _raise_exceptions_for_connection_errors=False,
            **source.options,
        )
    if adapter is not None:
        raise _adapter_error(source.name)
    if not (isinstance(config, dict) and (config.get("model_type") or config.get("auto_map"))):
        raise DataError(
            f"'{source.name}': config.json has no model_type; give the folder of a transformers checkpoint",
            code="bad-syntax",
        )
    for key, cls, expected in (("model_type", str, "a string"), ("auto_map", dict, "an object")):
        if not isinstance(config.get(key) or cls(), cls):
            raise DataError(
                f"'{source.name}': config.json: {key} must be {expected}, got {reprlib.repr(config[key])}",
                code="bad-syntax",
            )
    return (source if source.folder else replace(source, revision=path.parent.name)), config


def _configuration(source: Source, raw_config: dict[str, Any]) -> Any:
    from transformers import CONFIG_MAPPING, AutoConfig, __version__

    from iclbench.language.models.architectures import not_causal_reason

    model_type, custom_code = raw_config.get("model_type"), raw_config.get("auto_map") or {}
    if model_type not in CONFIG_MAPPING and custom_code and not source.trust_remote_code:
        raise _untrusted(source, f" ({', '.join(sorted(map(str, custom_code.values())))})")
    if model_type not in CONFIG_MAPPING and not custom_code:
        raise DataError(
            f"'{source.name}' has model_type {model_type!r}, which transformers {__version__} does not support; update "
            "transformers",
            code="not-supported",
        )
    with _one_line_errors(source, "cannot read config.json"):
        config = AutoConfig.from_pretrained(
            source.path_or_id, trust_remote_code=source.trust_remote_code, **source.options
        )
    if reason := not_causal_reason(config):
        raise UsageError(
            f"'{source.name}' is not a causal language model: {reason}; give a model such as GPT-2 or Llama",
            code="not-applicable",
        )
    return config


def _untrusted(source: Source, classes: str = "") -> UsageError:
    return UsageError(
        f"'{source.name}' runs custom code{classes}; review the code and pass --trust-remote-code to allow it",
        code="untrusted",
    )


def _tokenizer(source: Source) -> Any:
    """Load the tokenizer of a checkpoint.

    If tokenizer.json defines the tokenizer completely, it is read from this file. AutoTokenizer is avoided, because for
    some architectures it replaces the pre-tokenisation rules of the file with those of the architecture.
    """
    from transformers import AutoTokenizer, PreTrainedTokenizerFast
    from transformers.models.auto.tokenization_auto import get_tokenizer_config

    with _one_line_errors(source, "cannot read the tokenizer"):
        config = get_tokenizer_config(source.path_or_id, **source.options)
        if config.get("tokenizer_class") in _GENERIC and "auto_map" not in config:
            return PreTrainedTokenizerFast.from_pretrained(source.path_or_id, **source.options)
        return AutoTokenizer.from_pretrained(
            source.path_or_id, trust_remote_code=source.trust_remote_code, **source.options
        )


def _too_large(source: Source, device: str) -> DoesNotFitError:
    return DoesNotFitError(f"'{source.name}' does not fit on {device}; pass --dtype bfloat16 or another --device")


@contextmanager
def _one_line_errors(source: Source, problem: str, device: str = "cpu") -> Iterator[None]:
    """Within the block, convert errors of transformers to one-line errors with advice."""
    import torch

    try:
        yield
    except (torch.OutOfMemoryError, MemoryError) as error:
        raise _too_large(source, device) from error
    except Exception as error:
        message_line = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
        if "trust_remote_code" in str(error):
            raise _untrusted(source) from error
        if source.folder is None and isinstance(error, OSError):
            advice = "; give a folder, or --offline without a network"
            reason = _NOT_CACHED if _is_offline(source) else message_line.rstrip(".") + advice
            raise _not_found(source, reason) from error
        raise DataError(f"'{source.name}': {problem}: {message_line}", code="unreadable-file") from error


def weights_id(source: Source, dtype: str) -> str:
    """Return a hash that identifies the weights: a hash of the commit for a hub id, or of the files for a folder."""
    if source.folder is None:
        return language_weights_id(id=source.name, commit=source.revision, dtype=dtype)
    weights = _WEIGHTS[:1] if any(source.folder.glob(_WEIGHTS[0])) else _WEIGHTS[1:]
    files = sorted({path for pattern in weights + _OTHER_FILES for path in source.folder.glob(pattern)})
    file_digests = {path.name: digests.file_digest(path) for path in files if path.name != _GENERATION}
    return language_weights_id(files=file_digests, dtype=dtype, **_end_tokens(source.folder / _GENERATION))


def _end_tokens(path: Path) -> dict[str, Any]:
    """Return the end-of-text tokens of a generation configuration, the only setting of this file that is used. Return
    an empty dictionary if the file has none."""
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):  # transformers has already reported the error
        return {}
    tokens = config.get("eos_token_id") if isinstance(config, dict) else None
    return {} if tokens is None else {"ends": tokens}
