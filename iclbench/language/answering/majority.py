"""The baseline that gives one answer to everything: without it an accuracy on unequal classes says nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from iclbench.language.answering.answers import Answer, Answers, right
from iclbench.language.prompting.prompts import LanguageEpisode
from iclbench.language.tasks.cards import LanguageCard

# Raised whenever a change gives other answers for the same episodes.
VERSION = 1


def majority(card: LanguageCard, episodes: Sequence[LanguageEpisode]) -> tuple[Answers, str]:
    """The most frequent right answer, given to every episode, and how it was found; of equally frequent ones the first
    in the alphabet. Where every question has candidates of its own, so that hardly an answer comes twice, the most
    frequent place of the right one among them, if that is right more often."""
    asked = Counter(episode.query.y for episode in episodes)
    word = min(asked, key=lambda y: (-asked[y], y))
    reason = f"always '{word}', the right answer to {asked[word]} of {len(episodes)}"
    answers = [_judged(card, e, word) for e in episodes]
    if card.answers == "choice":
        places = Counter(e.candidates.index(e.query.y) for e in episodes)
        place = min(places, key=lambda n: (-places[n], n))
        if places[place] > asked[word]:
            reason = f"always candidate {place + 1}, right for {places[place]} of {len(episodes)}"
            answers = [_judged(card, e, e.candidates[min(place, len(e.candidates) - 1)]) for e in episodes]
    return Answers.of(answers), reason


def _judged(card: LanguageCard, episode: LanguageEpisode, answer: str) -> Answer:
    correct = answer == episode.query.y if card.answers == "choice" else right(card, answer.strip(), episode.query.y)
    return Answer(answer, {"accuracy": float(correct)})
