"""Scores and generated tokens of a model as answers, judged against the correct answer.

The score of a candidate is the summed log-probability of its tokens. Further metrics divide it by the number of tokens,
characters (as in lm-evaluation-harness) or bytes, without the white space before the candidate.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from iclbench.core.errors import DataError
from iclbench.language.answering.generation import read_up_to
from iclbench.language.prompting.prompts import LanguageEpisode
from iclbench.language.prompting.text import endings
from iclbench.language.prompting.tokenised import Question
from iclbench.language.tasks.cards import LanguageCard


@dataclass(frozen=True)
class Answers:
    """The answers to all episodes.

    Attributes:
        scores: for each metric, a value per episode; NaN if the metric does not apply.
        predicted: the answers; None if the episode was skipped.
        candidates: summed log-probabilities of the candidates; None if the answer is generated.
    """

    scores: dict[str, Float[np.ndarray, " E"]]
    predicted: list[str | None]
    candidates: list[list[float] | None]

    @property
    def nonfinite_count(self) -> int:
        """The number of episodes with a candidate whose log-probability is not finite."""
        return sum(not np.isfinite(scores).all() for scores in self.candidates if scores is not None)

    @classmethod
    def of(cls, answers: Sequence[Answer | None]) -> Answers:
        metrics = list(dict.fromkeys(metric for answer in answers if answer for metric in answer.scores))
        scores = {m: np.array([a.scores.get(m, np.nan) if a else np.nan for a in answers]) for m in metrics}
        return cls(
            scores, [a.predicted if a else None for a in answers], [a.candidates if a else None for a in answers]
        )


@dataclass(frozen=True)
class Answer:
    """The answer to one episode."""

    predicted: str
    scores: dict[str, float]
    candidates: list[float] | None = None


def judge_candidates(episode: LanguageEpisode, question: Question, sums: Float[np.ndarray, " candidates"]) -> Answer:
    """The candidate with the highest score; the first one in case of a tie.

    Raises:
        DataError: the correct answer is not a candidate.
    """
    candidates, is_right = episode.candidates, np.array([c == episode.query.y for c in episode.candidates])
    if not is_right.any():
        candidate_list = ", ".join(repr(c) for c in candidates)
        raise DataError(
            f"the answer {episode.query.y!r} to {episode.query.x[:40]!r} is not one of the candidates {candidate_list}"
        )
    lengths = {
        "accuracy": np.ones(len(candidates)),
        "accuracy_per_token": np.array([len(c.ids) - c.start for c in question.continuations]),
        "accuracy_per_character": np.array([max(1, len(c)) for c in candidates]),
        "accuracy_per_byte": np.array([max(1, len(c.encode())) for c in candidates]),
    }
    scores = {metric: float(is_right[np.argmax(sums / length)]) for metric, length in lengths.items()}
    with np.errstate(invalid="ignore"):  # `Answers.nonfinite_count` counts sums that are not finite
        likelihood = np.logaddexp.reduce(sums[is_right]) - np.logaddexp.reduce(sums)
    predicted = candidates[int(np.argmax(sums))]
    return Answer(predicted, scores | {"log_likelihood": float(likelihood)}, sums.tolist())


def judge_text(
    card: LanguageCard, target: str, tokens: Sequence[int], decode: Callable[[Sequence[int]], str], is_one_token: bool
) -> Answer:
    """A generated answer: the text up to the end of the example. If the correct answer is one token, the first token
    alone is judged as well (as in Hendel et al., arXiv 2310.15916)."""
    predicted = read_up_to(decode(tokens), endings(card))
    scores = {"accuracy": float(is_correct(card, predicted, target))}
    if is_one_token:
        scores["accuracy_first_token"] = float(
            is_correct(card, decode(tokens[:1]).strip(), target, is_first_token=True)
        )
    return Answer(predicted, scores)


def is_correct(card: LanguageCard, predicted: str, target: str, is_first_token: bool = False) -> bool:
    """Whether a generated answer is correct: equal to the target or, with `match = "prefix"`, beginning with it. With
    `match = "prefix"`, a first token (`is_first_token`) is also correct if the target begins with it."""
    target = target.strip()
    if card.match == "prefix" and predicted and target:
        return predicted.startswith(target) or (is_first_token and target.startswith(predicted))
    return predicted == target


def answer_rows(
    shared: dict[str, object], episodes: Sequence[LanguageEpisode], prompts: Sequence[str], answers: Answers
) -> list[dict[str, object]]:
    """Rows of the table `answers`, without the skipped episodes."""
    return [
        shared
        | {
            "episode": number,
            "prompt": prompt,
            "target": episode.query.y,
            "predicted": predicted,
            "correct": bool(correct),
            "candidates": json.dumps(list(episode.candidates)) if scores else None,
            "scores": json.dumps([round(s, 6) for s in scores]) if scores else None,
        }
        for number, (episode, prompt, predicted, scores, correct) in enumerate(
            zip(episodes, prompts, answers.predicted, answers.candidates, answers.scores["accuracy"], strict=True)
        )
        if predicted is not None
    ]
