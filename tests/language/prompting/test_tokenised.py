"""Prompts in tokens: seams between demonstrations, query and answer."""

from __future__ import annotations

import re

import pytest
from transformers import PreTrainedTokenizerFast

from iclbench.core.errors import DataError
from iclbench.language.models.tokenizing import Tokenizer, Tokens
from iclbench.language.prompting.text import Prompt, prompt
from iclbench.language.prompting.tokenised import answer_tokens, questions
from iclbench.language.tasks.cards import load_language_card
from iclbench.language.tasks.pools import Example
from tests.language.tiny_models import fast_tokenizer

SST2 = load_language_card("sst2")[1]
SHOWN = [Example("a fine film", "positive"), Example("a naïve, dull film", "negative")]


def pieces(pattern: str, opening: bool = False):
    """A tokenizer that makes a token of every match; tokens are numbered by what they spell."""
    numbers: dict[str, int] = {"<s>": 0}

    def tokens(text: str) -> Tokens:
        found = list(re.finditer(pattern, text, re.DOTALL))
        assert "".join(m[0] for m in found) == text
        ids = [numbers.setdefault(m[0], len(numbers)) for m in found]
        first = ([0], [0]) if opening else ([], [])
        return Tokens((*first[0], *ids), (*first[1], *(m.end() for m in found)))

    return tokens


def real(opening: str | None) -> Tokenizer:
    words: PreTrainedTokenizerFast = fast_tokenizer("bpe", opening)
    return Tokenizer(words, len(words), "tiny")


def reviews(*texts: str) -> list[Prompt]:
    return [prompt(SST2, SHOWN, x, ["negative", "positive"]) for x in texts]


@pytest.mark.parametrize("opening", [None, "<s>"])
def test_the_parts_together_are_the_tokens_of_the_whole_text(opening: str | None) -> None:
    tokens = real(opening)
    asked = reviews("an odd one", "ça, è!", "")
    found = questions(tokens, asked, shared=True)
    for written, question in zip(asked, found, strict=True):
        for answer, continuation in zip(written.answers, question.continuations, strict=True):
            ids = (*question.demonstrations, *continuation.ids)
            assert ids == tokens(written.text + answer).ids
            assert tokens.text(continuation.ids[continuation.start :]) == answer
            assert ids.count(0) == (opening is not None)
    assert {q.demonstrations for q in found} == {tokens(asked[0].demonstrations).ids}


def test_a_blank_line_that_is_one_token_in_the_whole_text_stays_one() -> None:
    """As GPT-2's tokenizer has it: tokenised apart, the separator would be two line breaks."""
    tokens = pieces(r"\n\n(?=Review)|\w+|\W")
    found = questions(tokens, reviews("so"), shared=True)[0]
    whole = tokens(reviews("so")[0].text + " positive")
    assert (*found.demonstrations, *found.continuations[1].ids) == whole.ids
    assert len(found.demonstrations) == len(tokens(reviews("so")[0].demonstrations).ids)


def test_a_token_that_reaches_over_the_end_of_the_demonstrations_is_read_with_the_query() -> None:
    tokens = pieces(r"\w+\n\n\w+|\w+|\W")
    found = questions(tokens, reviews("so"), shared=True)[0]
    joined = "negative\n\nReview"
    assert found.continuations[0].ids[0] == tokens(joined).ids[0]
    assert len(found.demonstrations) == len(tokens(reviews("so")[0].demonstrations).ids) - 1


def test_shared_demonstrations_are_cut_back_to_what_all_queries_have_in_common() -> None:
    """A tokenizer that looks ahead: what the last answer is depends on the query."""
    tokens = pieces(r"negative(?=\s+Review: even)|neg|ative|\w+|\W")
    asked = reviews("even so", "odd", "even")
    apart, together = (questions(tokens, asked, shared=shared) for shared in (False, True))
    assert [len(q.demonstrations) - len(together[0].demonstrations) for q in apart] == [1, 2, 1]
    assert len({q.demonstrations for q in together}) == 1
    for one, other in zip(apart, together, strict=True):
        assert one.unsplit() == other.unsplit()


def test_the_answer_begins_with_the_first_token_that_reaches_beyond_the_prompt() -> None:
    tokens = pieces(r": \w+(?=\Z)|\w+|\W")
    found = questions(tokens, reviews("so"), shared=False)[0].continuations[0]
    assert found.ids[found.start :] == tokens(": negative").ids
    assert len(found.inputs) == len(found.ids) - 1


def test_without_demonstrations_only_the_opening_token_is_read_before() -> None:
    for opening, read in (("<s>", 1), (None, 0)):
        asked = [prompt(SST2, (), "so", ["negative"])]
        assert len(questions(real(opening), asked, shared=True)[0].demonstrations) == read


def test_a_free_answer_is_asked_behind_the_whole_prompt() -> None:
    found = questions(real("<s>"), [prompt(SST2, SHOWN, "so")], shared=True)[0]
    (continuation,) = found.continuations
    assert continuation.start == len(continuation.ids) and continuation.inputs == continuation.ids


def test_a_prompt_without_a_token_is_refused() -> None:
    with pytest.raises(DataError, match="no token before its answer"):
        questions(real(None), [Prompt("", "", ("yes",))], shared=True)


def test_the_last_token_before_the_answer_is_never_only_read() -> None:
    found = questions(real(None), [Prompt("Q: a\nA:", "", (" b",))], shared=True)[0]
    assert found.continuations[0].start == 1


@pytest.mark.parametrize(
    ("pattern", "answer", "expected"),
    [(r"\w+|\W", "Paris", (1, True)), (r"\w|\W", "Paris", (5, True)), (r"->\w+|->|\w+|\W", "Paris", (1, False))],
)
def test_tokens_of_a_right_answer(pattern: str, answer: str, expected: tuple[int, bool]) -> None:
    assert answer_tokens(pieces(pattern), Prompt("", "example:France->"), answer) == expected
