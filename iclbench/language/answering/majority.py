"""The majority baseline, which gives the same answer to all queries. It is a reference for accuracies on unbalanced
classes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from iclbench.language.answering.answers import Answer, Answers, is_correct
from iclbench.language.prompting.prompts import LanguageEpisode
from iclbench.language.tasks.cards import LanguageCard


def majority(card: LanguageCard, episodes: Sequence[LanguageEpisode]) -> tuple[Answers, str]:
    """Return the answers of the baseline, and a note that names its answer.

    The baseline gives the most frequent correct answer; in case of a tie, the first one in alphabetical order. If each
    query has its own candidates, correct answers rarely repeat. The baseline then gives the candidate at the best fixed
    position (or the last candidate, if a query has fewer candidates), provided that this is correct more often.
    """
    counts = Counter(episode.query.y for episode in episodes)
    frequent_answer = min(counts, key=lambda y: (-counts[y], y))
    reason = f"always '{frequent_answer}', the right answer to {counts[frequent_answer]} of {len(episodes)}"
    answers = [_judge(card, e, frequent_answer) for e in episodes]
    if card.answers == "choice":
        places = range(max(len(e.candidates) for e in episodes))
        correct_counts = {n: sum(_candidate_at(e, n) == e.query.y for e in episodes) for n in places}
        place = min(places, key=lambda n: (-correct_counts[n], n))
        if correct_counts[place] > counts[frequent_answer]:
            last_note = " (or the last)" if any(len(e.candidates) <= place for e in episodes) else ""
            reason = f"always candidate {place + 1}{last_note}, right for {correct_counts[place]} of {len(episodes)}"
            answers = [_judge(card, e, _candidate_at(e, place)) for e in episodes]
    return Answers.of(answers), reason


def _candidate_at(episode: LanguageEpisode, place: int) -> str:
    return episode.candidates[min(place, len(episode.candidates) - 1)]


def _judge(card: LanguageCard, episode: LanguageEpisode, answer: str) -> Answer:
    correct = (
        answer == episode.query.y if card.answers == "choice" else is_correct(card, answer.strip(), episode.query.y)
    )
    return Answer(answer, {"accuracy": float(correct)})
