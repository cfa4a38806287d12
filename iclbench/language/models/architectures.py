"""What the configuration of a model tells before it is asked: whether it predicts what follows, how long a text may be,
and whether what it remembers can be read out and put back."""

from __future__ import annotations

import inspect
from typing import Any

# Where a configuration says how many tokens its model reads. Learned positions end there; rotary ones go on and are
# silently worse; RWKV's kernel stops.
_LIMITS = ("max_position_embeddings", "n_positions", "max_seq_len", "max_sequence_length", "context_length")


def longest(config: Any) -> int | None:
    """Tokens of the longest sequence; None where there is no limit (ALiBi, state-space models)."""
    decoder = config.get_text_config(decoder=True)
    if getattr(decoder, "alibi", False) or getattr(getattr(decoder, "attn_config", None), "alibi", False):
        return None
    limits = [limit for name in _LIMITS if isinstance(limit := getattr(decoder, name, None), int) and limit > 0]
    return limits[0] if limits else None


def ends(module: Any, tokenizer: Any) -> frozenset[int]:
    """The tokens with which the model's texts end."""
    configured = getattr(getattr(module, "generation_config", None), "eos_token_id", None)
    tokens = configured if isinstance(configured, list) else [configured, tokenizer.eos_token_id]
    return frozenset(token for token in tokens if token is not None)


def inputs(module: Any) -> set[str]:
    """Names of what the model can be given."""
    return set(inspect.signature(module.forward).parameters)


def memory_input(module: Any) -> str | None:
    """Under which name the model is given what it remembers: `cache` since transformers 5.24, `past_key_values` before
    and in checkpoints with code of their own; None: under neither."""
    return next((name for name in ("cache", "past_key_values") if name in inputs(module)), None)


def obstacle(module: Any) -> str:
    """Why this model's memory cannot be read out and put back, as a clause; empty where nothing is known against it."""
    from transformers.cache_utils import DynamicCache, DynamicLayer

    kind = module.config.model_type
    layers = DynamicCache(config=module.config).layers
    if memory_input(module) is None or not any(isinstance(layer, DynamicLayer) for layer in layers):
        return f"{kind} keeps no keys and values of what it has read"
    windows = [layer for layer in layers if getattr(layer, "is_sliding", False)]
    if windows:
        return f"{kind} attends to a sliding window of {windows[0].sliding_window} tokens here and drops older ones"
    other_layers = sorted({type(layer).__name__ for layer in layers} - {"DynamicLayer"})
    if other_layers:
        return f"{kind} has layers that keep no keys and values of what they have read"
    return ""


def refusal(config: Any) -> str:
    """Why this is no causal language model, as a clause; empty where nothing is known against it."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES as CAUSAL

    if getattr(config, "is_encoder_decoder", False):
        return f"{config.model_type} is an encoder and a decoder"
    own_code = "AutoModelForCausalLM" in (getattr(config, "auto_map", None) or {})
    if config.model_type not in CAUSAL and not own_code:
        return f"{config.model_type} does not predict the next token"
    masked = [name for name in config.architectures or [] if name.endswith("ForMaskedLM")]
    return f"it is a {masked[0]}" if masked else ""
