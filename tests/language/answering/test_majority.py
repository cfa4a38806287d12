"""The majority baseline against counts by hand."""

from __future__ import annotations

from iclbench.language.answering.majority import majority
from iclbench.language.prompting.prompts import LanguageEpisode
from iclbench.language.tasks.cards import load_language_card
from iclbench.language.tasks.pools import Example

SST2 = load_language_card("sst2")[1]


def episodes(*answers: tuple[str, tuple[str, ...]]) -> list[LanguageEpisode]:
    return [
        LanguageEpisode((), Example(str(i), y, candidates), candidates) for i, (y, candidates) in enumerate(answers)
    ]


def test_the_alphabetically_first_of_equally_frequent_answers_is_selected() -> None:
    labels = ("positive", "negative")
    for order in (("positive", "negative"), ("negative", "positive")):
        answers, reason = majority(SST2, episodes(*((y, labels) for y in order)))
        assert answers.predicted == ["negative"] * 2
        assert "'negative'" in reason and "1 of 2" in reason


def test_if_candidates_differ_between_queries_the_most_frequent_position_is_selected() -> None:
    queries = episodes(("b", ("a", "b", "c")), ("e", ("d", "e")), ("f", ("f", "g")), ("k", ("h", "i", "k")))
    answers, reason = majority(SST2, queries)
    assert "candidate 2" in reason and "2 of 4" in reason
    assert answers.predicted == ["b", "e", "g", "i"]
    assert answers.scores["accuracy"].tolist() == [1.0, 1.0, 0.0, 0.0]


def test_for_queries_with_fewer_candidates_the_last_one_is_selected() -> None:
    with_four = [(f"d{i}", (f"a{i}", f"b{i}", f"c{i}", f"d{i}")) for i in range(3)]
    queries = episodes(*with_four, ("z", ("x", "y", "z")), ("v", ("u", "v", "w")))
    answers, reason = majority(SST2, queries)
    assert "candidate 4" in reason and "4 of 5" in reason
    assert answers.scores["accuracy"].tolist() == [1.0, 1.0, 1.0, 1.0, 0.0]
