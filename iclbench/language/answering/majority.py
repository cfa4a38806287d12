"""The baseline that gives one answer to everything: without it an accuracy on unequal classes says nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from iclbench.language.answering.answers import Answer, Answers, right
from iclbench.language.prompting.prompts import LanguageEpisode
from iclbench.language.tasks.cards import LanguageCard

# Raised whenever a change gives other answers for the same episodes.
VERSION = 2


def majority(card: LanguageCard, episodes: Sequence[LanguageEpisode]) -> tuple[Answers, str]:
    """The most frequent right answer, given to every episode, and how it was found; of equally frequent ones the first
    in the alphabet. Where every question has candidates of its own, so that hardly an answer comes twice, a place among
    them, the last of fewer: of all places the one that is right most often, if it is so more often than an answer."""
    counts = Counter(episode.query.y for episode in episodes)
    word = min(counts, key=lambda y: (-counts[y], y))
    reason = f"always '{word}', the right answer to {counts[word]} of {len(episodes)}"
    answers = [_judged(card, e, word) for e in episodes]
    if card.answers == "choice":
        places = range(max(len(e.candidates) for e in episodes))
        rights = {n: sum(_at(e, n) == e.query.y for e in episodes) for n in places}
        place = min(places, key=lambda n: (-rights[n], n))
        if rights[place] > counts[word]:
            fewer = " (of fewer the last)" if any(len(e.candidates) <= place for e in episodes) else ""
            reason = f"always candidate {place + 1}{fewer}, right for {rights[place]} of {len(episodes)}"
            answers = [_judged(card, e, _at(e, place)) for e in episodes]
    return Answers.of(answers), reason


def _at(episode: LanguageEpisode, place: int) -> str:
    return episode.candidates[min(place, len(episode.candidates) - 1)]


def _judged(card: LanguageCard, episode: LanguageEpisode, answer: str) -> Answer:
    correct = answer == episode.query.y if card.answers == "choice" else right(card, answer.strip(), episode.query.y)
    return Answer(answer, {"accuracy": float(correct)})
