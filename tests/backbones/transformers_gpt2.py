"""The GPT-2 model of the transformers library, used as a reference implementation in tests."""

from __future__ import annotations

from typing import Any

from transformers import GPT2Config, GPT2Model


def transformers_gpt2(layers: int, width: int, heads: int, positions: int, init_std: float) -> Any:
    """Build an untrained `transformers.GPT2Model` without dropout and with an empty vocabulary."""
    config = GPT2Config(
        vocab_size=1,
        n_positions=positions,
        n_embd=width,
        n_layer=layers,
        n_head=heads,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        initializer_range=init_std,
        use_cache=False,
        bos_token_id=None,
        eos_token_id=None,
    )
    return GPT2Model(config)
