"""Prompts as text: their parts are those of the template."""

import pytest

from iclbench.language.prompting.text import ending, example, prompt
from iclbench.language.tasks.cards import LanguageCard, load_language_card
from iclbench.language.tasks.pools import Example

DEMONSTRATIONS = [Example("hot", "cold"), Example("big", "small")]


def card(template, separator="\n\n"):
    return LanguageCard(family="own", summary="", reader="mapping", template=template, separator=separator, shots=2)


def test_prompts_equal_those_of_the_papers():
    """Hendel et al., figure 1; Deep-Thinking, table 4."""
    text = prompt(load_language_card("antonyms")[1], DEMONSTRATIONS, "up", ["down"])
    assert text.text + text.answers[0] == "example:hot->cold\nexample:big->small\nexample:up->down"
    text = prompt(load_language_card("sst2")[1], [Example("fine", "positive")], "dull", ["negative", "positive"])
    assert text.text == "Review: fine\nSentiment: positive\n\nReview: dull\nSentiment:"
    assert text.answers == (" negative", " positive")


@pytest.mark.parametrize(
    "template", ["{x}->{y}", "example:{x}->{y}\n", "Q: {x}\nA: {y}", "{x} {y}.", "{x}\n\n{y}\n \n"]
)
@pytest.mark.parametrize("separator", ["", "\n", "\n\n", " ## "])
@pytest.mark.parametrize("examples", [DEMONSTRATIONS, DEMONSTRATIONS[:1], []])
def test_the_parts_of_a_prompt_are_the_joined_examples(template, separator, examples):
    """An independent construction: the query is an example whose text after the answer is removed."""
    language_card = card(template, separator)
    text = prompt(language_card, examples, "up", ["down"])
    joined = separator.join(
        template.replace("{x}", e.x).replace("{y}", e.y) for e in [*examples, Example("up", "down")]
    )
    after = template.partition("{y}")[2]
    assert text.demonstrations + text.query + text.answers[0] + after == joined
    assert ending(language_card) == after + separator
    assert not text.text.endswith(" ")
    assert text.demonstrations == text.demonstrations.rstrip()


def test_braces_zeros_and_spaces_in_texts_do_not_change():
    special = "a {x} b {y} {0} \0 %s \\n"
    language_card = card("[{x}] {y}")
    assert example(language_card, special, special) == f"[{special}] {special}"
    assert prompt(language_card, [], special, ["z"]).query == f"[{special}]"


def test_demonstrations_are_repeated():
    language_card = card("{x}={y}", ";")
    assert prompt(language_card, DEMONSTRATIONS, "up", times=3).text == "hot=cold;big=small;" * 3 + "up="
    assert prompt(language_card, [], "up", times=3).text == "up="
