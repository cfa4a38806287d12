"""The baseline that always gives the same answer: counted by hand."""

from __future__ import annotations

from iclbench.language.answering.majority import majority
from iclbench.language.prompting.prompts import LanguageEpisode
from iclbench.language.tasks.cards import load_language_card
from iclbench.language.tasks.pools import Example

SST2 = load_language_card("sst2")[1]


def episodes(*asked: tuple[str, tuple[str, ...]]) -> list[LanguageEpisode]:
    return [LanguageEpisode((), Example(str(i), y, own), own) for i, (y, own) in enumerate(asked)]


def test_of_equally_frequent_answers_it_is_the_first_in_the_alphabet() -> None:
    labels = ("positive", "negative")
    for order in (("positive", "negative"), ("negative", "positive")):
        found, reason = majority(SST2, episodes(*((y, labels) for y in order)))
        assert found.predicted == ["negative"] * 2
        assert reason == "always 'negative', the right answer to 1 of 2"


def test_where_every_question_has_its_own_candidates_it_is_a_place_among_them() -> None:
    asked = episodes(("b", ("a", "b", "c")), ("e", ("d", "e")), ("f", ("f", "g")), ("k", ("h", "i", "k")))
    found, reason = majority(SST2, asked)
    assert reason == "always candidate 2, right for 2 of 4"
    assert found.predicted == ["b", "e", "g", "i"]
    assert found.scores["accuracy"].tolist() == [1.0, 1.0, 0.0, 0.0]


def test_a_place_that_some_questions_do_not_have_is_their_last_and_is_counted_so() -> None:
    four = [(f"d{i}", (f"a{i}", f"b{i}", f"c{i}", f"d{i}")) for i in range(3)]
    asked = episodes(*four, ("z", ("x", "y", "z")), ("v", ("u", "v", "w")))
    found, reason = majority(SST2, asked)
    assert reason == "always candidate 4 (of fewer the last), right for 4 of 5"
    assert found.scores["accuracy"].tolist() == [1.0, 1.0, 1.0, 1.0, 0.0]
