"""Texts of prompts and their parts."""

import pytest

from iclbench.language.prompting.text import ending, example, prompt
from iclbench.language.tasks.cards import LanguageCard, load_language_card
from iclbench.language.tasks.pools import Example

DEMONSTRATIONS = [Example("hot", "cold"), Example("big", "small")]


def card(template, separator="\n\n"):
    return LanguageCard(family="own", summary="", reader="mapping", template=template, separator=separator, shots=2)


def test_prompts_match_the_papers():
    """The prompts are in figure 1 of Hendel et al. and in table 4 of Deep-Thinking."""
    antonyms = prompt(load_language_card("antonyms")[1], DEMONSTRATIONS, "up", ["down"])
    assert antonyms.text + antonyms.answers[0] == "example:hot->cold\nexample:big->small\nexample:up->down"
    sentiment = prompt(load_language_card("sst2")[1], [Example("fine", "positive")], "dull", ["negative", "positive"])
    assert sentiment.text == "Review: fine\nSentiment: positive\n\nReview: dull\nSentiment:"
    assert sentiment.answers == (" negative", " positive")


@pytest.mark.parametrize(
    "template", ["{x}->{y}", "example:{x}->{y}\n", "Q: {x}\nA: {y}", "{x} {y}.", "{x}\n\n{y}\n \n"]
)
@pytest.mark.parametrize("separator", ["", "\n", "\n\n", " ## "])
@pytest.mark.parametrize("examples", [DEMONSTRATIONS, DEMONSTRATIONS[:1], []])
def test_the_parts_of_a_prompt_join_to_the_text_of_its_examples(template, separator, examples):
    """The last example is the query with its answer."""
    language_card = card(template, separator)
    parts = prompt(language_card, examples, "up", ["down"])
    joined = separator.join(
        template.replace("{x}", e.x).replace("{y}", e.y) for e in [*examples, Example("up", "down")]
    )
    after_answer = template.partition("{y}")[2]
    assert parts.demonstrations + parts.query + parts.answers[0] + after_answer == joined
    assert ending(language_card) == after_answer + separator
    assert not parts.text.endswith(" ")
    assert parts.demonstrations == parts.demonstrations.rstrip()


def test_braces_null_characters_and_spaces_in_examples_are_unchanged():
    special = "a {x} b {y} {0} \0 %s \\n"
    language_card = card("[{x}] {y}")
    assert example(language_card, special, special) == f"[{special}] {special}"
    assert prompt(language_card, [], special, ["z"]).query == f"[{special}]"


def test_demonstrations_can_be_repeated():
    language_card = card("{x}={y}", ";")
    assert prompt(language_card, DEMONSTRATIONS, "up", times=3).text == "hot=cold;big=small;" * 3 + "up="
    assert prompt(language_card, [], "up", times=3).text == "up="
