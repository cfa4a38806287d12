"""Texts as tokens: where each of them ends, and what is put before and behind."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, normalizers, processors
from transformers import PreTrainedTokenizerFast

from iclbench.core.errors import DataError
from iclbench.language.models.tokenizing import Tokenizer, Tokens
from tests.language.tiny_models import fast_tokenizer

CHARS, BPE, LLAMA = (
    Tokenizer(fast_tokenizer(kind, opening), 400, "tiny")
    for kind, opening in (("chars", None), ("bpe", None), ("bpe", "<s>"))
)


def metaspace() -> Tokenizer:
    """As Llama 2 has it: spaces are written ▁, one before the text, and unknown characters as bytes."""
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
def test_tokens_up_to_an_end_spell_the_text_up_to_there(text: str) -> None:
    found = BPE(text)
    assert len(found.ids) == len(found.ends)
    assert BPE.text(found.ids) == text
    assert list(found.ends) == sorted(found.ends)
    for i, end in enumerate(found.ends):
        if i + 1 == len(found.ends) or found.ends[i + 1] > end:  # the last piece of its character
            assert BPE.text(found.ids[: i + 1]) == text[:end]


def test_the_pieces_of_a_character_all_end_behind_it() -> None:
    assert BPE("é😀").ends == (1, 1, 2, 2, 2, 2)


def test_character_level_tokens_end_one_after_the_other() -> None:
    text = "example:a->b\n\n x"
    assert CHARS(text).ends == tuple(range(1, len(text) + 1))
    assert CHARS.text(CHARS(text).ids) == text


def test_ends_are_those_of_the_text_where_spaces_are_rewritten() -> None:
    text = "a b\n-> a"
    found = metaspace()(text)
    assert (found.ids[0], found.ends[0], found.ends[-1]) == (0, 0, len(text))
    assert found.ends[1:] == (1, 3, 4, 5, 6, 8)


@pytest.mark.parametrize("text", ["example:a", "<s>example:a"])
def test_a_text_begins_with_exactly_one_token_of_beginning(text: str) -> None:
    assert LLAMA(text).ids[:2] != (0, 0)
    assert LLAMA(text).ids.count(0) == 1
    assert LLAMA(text).ids[1:] == BPE("example:a").ids
    assert LLAMA(text).ends[-1] == len(text)


def test_no_token_of_beginning_where_the_tokenizer_has_no_such_habit() -> None:
    assert 0 not in BPE("example:a").ids


def test_no_token_of_end_also_where_the_tokenizer_has_that_habit() -> None:
    words = fast_tokenizer("bpe", "<s>")
    words.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 1)]
    )
    assert Tokenizer(words, 400, "t5-like")("example:a") == LLAMA("example:a")


def test_an_empty_text_is_its_beginning() -> None:
    assert LLAMA("") == Tokens((0,), (0,))
    assert BPE("") == Tokens((), ())


def test_nothing_is_cut_and_nothing_filled_up_whatever_the_file_says() -> None:
    words = fast_tokenizer("bpe")
    words.backend_tokenizer.enable_truncation(3)
    words.backend_tokenizer.enable_padding(length=40, pad_id=1, pad_token="</s>")
    assert Tokenizer(words, 400, "cut")("example:a->b") == BPE("example:a->b")


def test_text_leaves_out_tokens_of_beginning_and_end_and_keeps_spaces() -> None:
    assert LLAMA.text([*LLAMA("a , b .").ids, 1]) == "a , b ."


def test_a_token_that_the_model_does_not_know_is_refused() -> None:
    with pytest.raises(DataError, match=r"the tokenizer of 'small' has a token \d+ and its model knows 200; they do"):
        Tokenizer(fast_tokenizer("bpe"), 200, "small")("Review: a fine film")


def test_a_tokenizer_that_does_not_say_where_tokens_end_is_refused() -> None:
    class Slow:
        is_fast = False

    with pytest.raises(DataError, match=r"tokenizer of 'slow' does not say .* tokenizer\.json"):
        Tokenizer(Slow(), 400, "slow")
