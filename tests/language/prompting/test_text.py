"""Examples written down: the parts of a prompt follow each other, and together are what the template says."""

import pytest

from iclbench.language.prompting.text import ending, example, prompt
from iclbench.language.tasks.cards import LanguageCard, load_language_card
from iclbench.language.tasks.pools import Example

SHOWN = [Example("hot", "cold"), Example("big", "small")]


def card(template, separator="\n\n"):
    return LanguageCard(family="own", summary="", reader="mapping", template=template, separator=separator, shots=2)


def test_a_prompt_reads_as_the_paper_prints_it():
    """Hendel et al., figure 1; Deep-Thinking, table 4."""
    made = prompt(load_language_card("antonyms")[1], SHOWN, "up", ["down"])
    assert made.text + made.answers[0] == "example:hot->cold\nexample:big->small\nexample:up->down"
    made = prompt(load_language_card("sst2")[1], [Example("fine", "positive")], "dull", ["negative", "positive"])
    assert made.text == "Review: fine\nSentiment: positive\n\nReview: dull\nSentiment:"
    assert made.answers == (" negative", " positive")


@pytest.mark.parametrize(
    "template", ["{x}->{y}", "example:{x}->{y}\n", "Q: {x}\nA: {y}", "{x} {y}.", "{x}\n\n{y}\n \n"]
)
@pytest.mark.parametrize("separator", ["", "\n", "\n\n", " ## "])
@pytest.mark.parametrize("shown", [SHOWN, SHOWN[:1], []])
def test_the_parts_add_up_to_the_examples_written_one_after_the_other(template, separator, shown):
    """An independent way to the text: the query is an example with its answer, what follows the answer cut off."""
    made = card(template, separator)
    text = prompt(made, shown, "up", ["down"])
    every = separator.join(template.replace("{x}", e.x).replace("{y}", e.y) for e in [*shown, Example("up", "down")])
    after = template.partition("{y}")[2]
    assert text.demonstrations + text.query + text.answers[0] + after == every
    assert ending(made) == after + separator
    assert not text.text.endswith(" ")
    assert text.demonstrations == text.demonstrations.rstrip()


def test_texts_with_braces_zeros_and_spaces_come_through():
    odd = "a {x} b {y} {0} \0 %s \\n"
    made = card("[{x}] {y}")
    assert example(made, odd, odd) == f"[{odd}] {odd}"
    assert prompt(made, [], odd, ["z"]).query == f"[{odd}]"


def test_repeated_demonstrations_stand_there_as_often():
    made = card("{x}={y}", ";")
    assert prompt(made, SHOWN, "up", times=3).text == "hot=cold;big=small;" * 3 + "up="
    assert prompt(made, [], "up", times=3).text == "up="
