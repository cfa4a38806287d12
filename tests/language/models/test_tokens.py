"""Tokenised texts: where tokens end in the text, and special tokens."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, normalizers, processors
from transformers import PreTrainedTokenizerFast

from iclbench.language.models.tokenizing import Tokenizer, Tokens
from tests.language.tiny_models import fast_tokenizer
from tests.refusals import refused

CHARS, BPE, LLAMA = (
    Tokenizer(fast_tokenizer(kind, opening), 400, "tiny")
    for kind, opening in (("chars", None), ("bpe", None), ("bpe", "<s>"))
)


def metaspace_tokenizer() -> Tokenizer:
    """Build a tokenizer as in Llama 2: spaces become ▁, a ▁ precedes the text, and unknown characters become bytes."""
    bytes_ = {f"<0x{i:02X}>": i + 3 for i in range(256)}
    words = {c: i + 300 for i, c in enumerate("▁abc:>-")}
    merges = [("▁", "a"), ("▁", "b")]
    vocabulary = {"<s>": 0, "</s>": 1, "<unk>": 2} | bytes_ | words | {"▁a": 310, "▁b": 311}
    backend = Backend(models.BPE(vocabulary, merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    backend.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    return Tokenizer(PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="<s>", eos_token="</s>"), 312, "meta")


@settings(max_examples=60, deadline=None)
@given(st.text(st.sampled_from("ab ->:\nReview café λ😀."), max_size=30))
def test_decoding_tokens_up_to_the_end_of_a_character_gives_the_text_up_to_this_character(text: str) -> None:
    tokens = BPE(text)
    assert len(tokens.ids) == len(tokens.ends)
    assert BPE.text(tokens.ids) == text
    assert list(tokens.ends) == sorted(tokens.ends)
    for i, end in enumerate(tokens.ends):
        if i + 1 == len(tokens.ends) or tokens.ends[i + 1] > end:  # the last token of its character
            assert BPE.text(tokens.ids[: i + 1]) == text[:end]


def test_all_tokens_of_a_character_have_the_end_of_the_character() -> None:
    assert BPE("é😀").ends == (1, 1, 2, 2, 2, 2)


def test_character_level_tokens_end_after_each_character() -> None:
    text = "example:a->b\n\n x"
    assert CHARS(text).ends == tuple(range(1, len(text) + 1))
    assert CHARS.text(CHARS(text).ids) == text


def test_ends_refer_to_the_original_text_if_spaces_are_replaced() -> None:
    text = "a b\n-> a"
    tokens = metaspace_tokenizer()(text)
    assert (tokens.ids[0], tokens.ends[0], tokens.ends[-1]) == (0, 0, len(text))
    assert tokens.ends[1:] == (1, 3, 4, 5, 6, 8)


@pytest.mark.parametrize("text", ["example:a", "<s>example:a"])
def test_a_text_has_exactly_one_beginning_of_text_token(text: str) -> None:
    assert LLAMA(text).ids[:2] != (0, 0)
    assert LLAMA(text).ids.count(0) == 1
    assert LLAMA(text).ids[1:] == BPE("example:a").ids
    assert LLAMA(text).ends[-1] == len(text)


def test_no_beginning_of_text_token_is_added_if_the_tokenizer_has_none() -> None:
    assert 0 not in BPE("example:a").ids


def test_an_end_of_text_token_that_the_tokenizer_adds_is_removed() -> None:
    tokenizer = fast_tokenizer("bpe", "<s>")
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 1)]
    )
    assert Tokenizer(tokenizer, 400, "t5-like")("example:a") == LLAMA("example:a")


def test_an_empty_text_has_only_the_beginning_of_text_token() -> None:
    assert LLAMA("") == Tokens((0,), (0,))
    assert BPE("") == Tokens((), ())


def test_truncation_and_padding_in_the_tokenizer_file_are_ignored() -> None:
    tokenizer = fast_tokenizer("bpe")
    tokenizer.backend_tokenizer.enable_truncation(3)
    tokenizer.backend_tokenizer.enable_padding(length=40, pad_id=1, pad_token="</s>")
    assert Tokenizer(tokenizer, 400, "cut")("example:a->b") == BPE("example:a->b")


def test_decoding_removes_special_tokens_but_not_spaces() -> None:
    assert LLAMA.text([*LLAMA("a , b .").ids, 1]) == "a , b ."


def test_a_token_without_an_embedding_is_refused() -> None:
    with refused("unreadable-file", "'small'", 200):
        Tokenizer(fast_tokenizer("bpe"), 200, "small")("Review: a fine film")


def test_a_tokenizer_without_character_offsets_is_refused() -> None:
    class Slow:
        is_fast = False

    with refused("not-supported", "'slow'", "tokenizer.json"):
        Tokenizer(Slow(), 400, "slow")
