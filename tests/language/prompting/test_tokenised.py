"""Splitting tokenised prompts into demonstrations, query and answer."""

from __future__ import annotations

import re

import pytest
from transformers import PreTrainedTokenizerFast

from iclbench.language.models.tokenizing import Tokenizer, Tokens
from iclbench.language.prompting.text import Prompt, prompt
from iclbench.language.prompting.tokenised import answer_tokens, questions
from iclbench.language.tasks.cards import load_language_card
from iclbench.language.tasks.pools import Example
from tests.language.tiny_models import fast_tokenizer
from tests.refusals import refused

SST2 = load_language_card("sst2")[1]
DEMONSTRATIONS = [Example("a fine film", "positive"), Example("a naïve, dull film", "negative")]


def regex_tokenizer(pattern: str):
    """Return a tokenizer with a token for each match of the pattern. Equal matches have equal ids."""
    numbers: dict[str, int] = {"<s>": 0}

    def tokenise(text: str) -> Tokens:
        matches = list(re.finditer(pattern, text, re.DOTALL))
        assert "".join(m[0] for m in matches) == text
        ids = [numbers.setdefault(m[0], len(numbers)) for m in matches]
        return Tokens(tuple(ids), tuple(m.end() for m in matches))

    return tokenise


def bpe_tokenizer(bos_token: str | None) -> Tokenizer:
    tokenizer: PreTrainedTokenizerFast = fast_tokenizer("bpe", bos_token)
    return Tokenizer(tokenizer, len(tokenizer), "tiny")


def reviews(*texts: str) -> list[Prompt]:
    return [prompt(SST2, DEMONSTRATIONS, x, ["negative", "positive"]) for x in texts]


@pytest.mark.parametrize("bos_token", [None, "<s>"])
def test_joined_parts_equal_the_tokens_of_the_complete_text(bos_token: str | None) -> None:
    tokenise = bpe_tokenizer(bos_token)
    prompts = reviews("an odd one", "ça, è!", "")
    tokenised = questions(tokenise, prompts, shared=True)
    for text, question in zip(prompts, tokenised, strict=True):
        for answer, continuation in zip(text.answers, question.continuations, strict=True):
            ids = (*question.demonstrations, *continuation.ids)
            assert ids == tokenise(text.text + answer).ids
            assert tokenise.text(continuation.ids[continuation.start :]) == answer
            assert ids.count(0) == (bos_token is not None)
    assert {q.demonstrations for q in tokenised} == {tokenise(prompts[0].demonstrations).ids}


def test_a_separator_that_is_a_single_token_in_the_complete_text_is_not_split() -> None:
    """Two line breaks are one token before the word Review, and two tokens if the separator is tokenised separately."""
    tokenise = regex_tokenizer(r"\n\n(?=Review)|\w+|\W")
    question = questions(tokenise, reviews("so"), shared=True)[0]
    expected = tokenise(reviews("so")[0].text + " positive")
    assert (*question.demonstrations, *question.continuations[1].ids) == expected.ids
    assert len(question.demonstrations) == len(tokenise(reviews("so")[0].demonstrations).ids)


def test_a_token_across_the_end_of_the_demonstrations_is_read_with_the_query() -> None:
    tokenise = regex_tokenizer(r"\w+\n\n\w+|\w+|\W")
    question = questions(tokenise, reviews("so"), shared=True)[0]
    joined = "negative\n\nReview"
    assert question.continuations[0].ids[0] == tokenise(joined).ids[0]
    assert len(question.demonstrations) == len(tokenise(reviews("so")[0].demonstrations).ids) - 1


def test_shared_demonstrations_are_the_tokens_common_to_all_queries() -> None:
    """The tokenizer looks ahead, so the tokens of the last demonstrated answer depend on the query."""
    tokenise = regex_tokenizer(r"negative(?=\s+Review: even)|neg|ative|\w+|\W")
    prompts = reviews("even so", "odd", "even")
    separate, shared_questions = (questions(tokenise, prompts, shared=shared) for shared in (False, True))
    assert [len(q.demonstrations) - len(shared_questions[0].demonstrations) for q in separate] == [1, 2, 1]
    assert len({q.demonstrations for q in shared_questions}) == 1
    for first, second in zip(separate, shared_questions, strict=True):
        assert first.merge_demonstrations() == second.merge_demonstrations()


def test_the_answer_begins_with_the_first_token_that_extends_beyond_the_prompt() -> None:
    tokenise = regex_tokenizer(r": \w+(?=\Z)|\w+|\W")
    continuation = questions(tokenise, reviews("so"), shared=False)[0].continuations[0]
    assert continuation.ids[continuation.start :] == tokenise(": negative").ids
    assert len(continuation.inputs) == len(continuation.ids) - 1


def test_without_demonstrations_only_the_bos_token_is_read_before_the_query() -> None:
    for bos_token, count in (("<s>", 1), (None, 0)):
        prompts = [prompt(SST2, (), "so", ["negative"])]
        assert len(questions(bpe_tokenizer(bos_token), prompts, shared=True)[0].demonstrations) == count


def test_a_generated_answer_follows_the_complete_prompt() -> None:
    question = questions(bpe_tokenizer("<s>"), [prompt(SST2, DEMONSTRATIONS, "so")], shared=True)[0]
    (continuation,) = question.continuations
    assert continuation.start == len(continuation.ids) and continuation.inputs == continuation.ids


def test_a_prompt_without_tokens_is_refused() -> None:
    with refused("bad-value", "{y}"):
        questions(bpe_tokenizer(None), [Prompt("", "", ("yes",))], shared=True)


def test_the_last_token_before_the_answer_is_part_of_the_query() -> None:
    question = questions(bpe_tokenizer(None), [Prompt("Q: a\nA:", "", (" b",))], shared=True)[0]
    assert question.continuations[0].start == 1


@pytest.mark.parametrize(
    ("pattern", "answer", "count", "can_be_generated"),
    [(r"\w+|\W", "Paris", 1, True), (r"\w|\W", "Paris", 5, True), (r"->\w+|->|\w+|\W", "Paris", 1, False)],
)
def test_tokens_of_the_correct_answer_are_counted_and_checked_for_whether_they_can_be_generated(
    pattern: str, answer: str, count: int, can_be_generated: bool
) -> None:
    actual = answer_tokens(regex_tokenizer(pattern), Prompt("", "example:France->"), answer)
    assert actual == (count, can_be_generated)
