"""Properties of a model that follow from its architecture: whether it is causal, its context length, and whether its
keys and values can be read out and passed back in as a memory."""

from __future__ import annotations

import inspect
from typing import Any

# Configuration fields that hold the context length. Longer texts are refused: learned positions end at this length,
# RWKV's kernel raises an error, and models with rotary positions silently become worse.
_LIMITS = ("max_position_embeddings", "n_positions", "max_seq_len", "max_sequence_length", "context_length")


def context_length(config: Any) -> int | None:
    """Return the context length in tokens; None if it is unlimited (ALiBi, state-space models)."""
    decoder = config.get_text_config(decoder=True)
    if getattr(decoder, "alibi", False) or getattr(getattr(decoder, "attn_config", None), "alibi", False):
        return None
    limits = [limit for name in _LIMITS if isinstance(limit := getattr(decoder, name, None), int) and limit > 0]
    return limits[0] if limits else None


def end_tokens(module: Any, tokenizer: Any) -> frozenset[int]:
    """Return the end-of-text tokens of the model."""
    configured_ids = getattr(getattr(module, "generation_config", None), "eos_token_id", None)
    tokens = configured_ids if isinstance(configured_ids, list) else [configured_ids, tokenizer.eos_token_id]
    return frozenset(token for token in tokens if token is not None)


def inputs(module: Any) -> set[str]:
    """Return the names of the arguments of the model's forward pass."""
    return set(inspect.signature(module.forward).parameters)


def memory_input(module: Any) -> str | None:
    """Return the name of the argument for cached keys and values; None if the model has no such argument.

    The name is `cache` since transformers 5.24. Earlier versions, and checkpoints with custom code, use
    `past_key_values`.
    """
    return next((name for name in ("cache", "past_key_values") if name in inputs(module)), None)


def memory_obstacle(module: Any) -> str:
    """Return why the model's keys and values cannot be used as a memory, as a clause; empty if no reason is known."""
    from transformers.cache_utils import DynamicCache, DynamicLayer

    model_type = module.config.model_type
    layers = DynamicCache(config=module.config).layers
    if memory_input(module) is None or not any(isinstance(layer, DynamicLayer) for layer in layers):
        return f"{model_type} does not cache keys and values"
    windows = [layer for layer in layers if getattr(layer, "is_sliding", False)]
    if windows:
        return f"{model_type} attends to a sliding window of {windows[0].sliding_window} tokens and drops older ones"
    other_layers = sorted({type(layer).__name__ for layer in layers} - {"DynamicLayer"})
    if other_layers:
        return f"{model_type} has layers that do not cache keys and values"
    return ""


def not_causal_reason(config: Any) -> str:
    """Return why this is not a causal language model, as a clause; empty if no reason is known."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES as CAUSAL

    if getattr(config, "is_encoder_decoder", False):
        return f"{config.model_type} is an encoder-decoder model"
    has_custom_code = "AutoModelForCausalLM" in (getattr(config, "auto_map", None) or {})
    if config.model_type not in CAUSAL and not has_custom_code:
        return f"{config.model_type} does not predict the next token"
    masked_classes = [name for name in config.architectures or [] if name.endswith("ForMaskedLM")]
    return f"it is a {masked_classes[0]}" if masked_classes else ""
