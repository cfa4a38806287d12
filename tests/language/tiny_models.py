"""Tiny random language models of several architectures.

They are saved with a tokenizer in the format of transformers, so tests can load them like any checkpoint.
"""

from __future__ import annotations

import inspect
import string
from pathlib import Path
from typing import Any, Literal

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, Cache, PreTrainedTokenizerFast

TokenizerKind = Literal["chars", "bpe"]

# Architectures with explicit positions and reusable keys and values, and architectures without keys.
WITH_MEMORY = ("gpt2", "opt", "gpt_neo", "gptj", "gpt_neox", "llama", "qwen2")
RECURRENT = ("mamba", "rwkv")
CONTEXT_LENGTH = 160

_ROTARY = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "max_position_embeddings": CONTEXT_LENGTH,
}
_CONFIGS: dict[str, dict[str, Any]] = {
    "gpt2": {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": CONTEXT_LENGTH},
    "opt": {
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "ffn_dim": 48,
        "max_position_embeddings": CONTEXT_LENGTH,
        "word_embed_proj_dim": 16,
    },
    "gpt_neo": {
        "hidden_size": 32,
        "num_layers": 2,
        "num_heads": 4,
        "attention_types": [[["global", "local"], 1]],
        "window_size": 6,
        "max_position_embeddings": CONTEXT_LENGTH,
    },
    "gptj": {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": CONTEXT_LENGTH, "rotary_dim": 4},
    "gpt_neox": _ROTARY,
    "llama": {**_ROTARY, "num_key_value_heads": 2},
    "qwen2": {**_ROTARY, "num_key_value_heads": 2},
    "mistral": {**_ROTARY, "num_key_value_heads": 2, "sliding_window": 8},
    "bloom": {"hidden_size": 32, "n_layer": 2, "n_head": 4},
    "mamba": {"hidden_size": 32, "num_hidden_layers": 2, "state_size": 4},
    "rwkv": {"hidden_size": 32, "num_hidden_layers": 2, "attention_hidden_size": 32, "context_length": CONTEXT_LENGTH},
}
_SPECIAL = ["<s>", "</s>", "<unk>"]
# The beginning-of-text token, as in the published tokenizers of the architecture.
_OPENING = {"llama": "<s>", "mistral": "<s>", "opt": "</s>"}
_CORPUS = [
    "Review: a fine film\nSentiment: positive",
    "Review: a dull film\nSentiment: negative",
    "example:paris->france\nexample:rome->italy\n",
    "Q: what is it? A: café, naïve, \N{GREEK SMALL LETTER LAMDA}",
]


def save_tiny_model(
    model_type: str, folder: Path, tokenizer: TokenizerKind = "bpe", seed: int = 0, **changes: Any
) -> Path:
    """Save a random model with two layers, and its tokenizer, in `folder`. `changes` override its configuration."""
    fast = fast_tokenizer(tokenizer, _OPENING.get(model_type))
    settings = {"vocab_size": len(fast), "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": None}
    config = AutoConfig.for_model(model_type, **(settings | _CONFIGS[model_type] | changes))
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(config)
        scale_weights(model)
    model.save_pretrained(folder)
    fast.save_pretrained(folder)
    return folder


def scale_weights(model: nn.Module, factor: float = 3.0) -> None:
    """Scale the matrices and randomise the biases, because outputs hardly depend on the input at initialisation."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim == 2 and "A_log" not in name:
                parameter.mul_(factor)
            elif name.endswith("bias"):
                parameter.normal_(std=0.1)


def fast_tokenizer(kind: TokenizerKind, opening: str | None = None) -> PreTrainedTokenizerFast:
    """Build a tokenizer with a token for each printable ASCII character (`chars`), or byte-level BPE (`bpe`).

    With byte-level BPE, a non-ASCII character has several tokens.
    """
    if kind == "chars":
        vocabulary = [*_SPECIAL, *dict.fromkeys(string.printable)]
        backend = Tokenizer(models.WordLevel({token: i for i, token in enumerate(vocabulary)}, unk_token="<unk>"))
        backend.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
        backend.decoder = decoders.Fuse()
    else:
        backend = Tokenizer(models.BPE())
        backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        backend.decoder = decoders.ByteLevel()
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        backend.train_from_iterator(
            _CORPUS,
            trainers.BpeTrainer(
                vocab_size=300, special_tokens=_SPECIAL, initial_alphabet=alphabet, show_progress=False
            ),
        )
    if opening:
        backend.post_processor = processors.TemplateProcessing(
            single=f"{opening} $A", special_tokens=[(opening, _SPECIAL.index(opening))]
        )
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, bos_token=opening or "<s>", eos_token="</s>", unk_token="<unk>"
    )


def cache_argument(module: nn.Module, cache: Cache) -> dict[str, Cache]:
    """Return the keyword argument for a cache. Its name differs between versions of transformers."""
    return {"cache" if "cache" in inspect.signature(module.forward).parameters else "past_key_values": cache}
